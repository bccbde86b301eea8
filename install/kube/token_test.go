package kube

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A server is asked without the administrator's certificate, and what it answers is told without secrets.
func TestRotateToken(t *testing.T) {
	const current, next = "canary-old", "canary-new"
	for _, test := range []struct {
		name, password string
		status         int
		want           string // of the error; "" for none
		begun          bool
	}{
		{name: "done", password: current, status: http.StatusOK, begun: true},
		{name: "another password", password: "other", want: "401 Unauthorized: not authorized"},
		{
			name: "it fails", password: current, status: http.StatusInternalServerError, want: ": no\ufffd[31m", begun: true,
		},
		{name: "it must not", password: current, status: http.StatusForbidden, want: "403 Forbidden"},
		{name: "an old k3s", password: current, status: http.StatusNotFound, want: "this k3s cannot change it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var asked string
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				user, password, _ := r.BasicAuth()
				if user != "server" || password != test.password || len(r.TLS.PeerCertificates) > 0 {
					http.Error(w, "not authorized", http.StatusUnauthorized)
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				asked = fmt.Sprint(r.Method, " ", r.URL.Path, " ", string(body))
				w.WriteHeader(test.status)
				if test.status != http.StatusOK {
					_, _ = io.WriteString(w, "no\x1b[31m")
				}
			}))
			defer server.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			kubeconfig := strings.NewReplacer("SERVER", "https://127.0.0.1:6443",
				"CA", base64.StdEncoding.EncodeToString(ca)).Replace(tokenKubeconfig)
			dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
			}
			o := Options{Name: "one", Kubeconfig: []byte(kubeconfig), Dial: dial}
			begun, err := RotateToken(t.Context(), o, current, next)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if begun != test.begun {
				t.Errorf("k3s has begun: %t", begun)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("a token is shown: %v", err)
			}
			if want := `PUT /v1-k3s/token {"newToken":"canary-new"}`; test.password == current && asked != want {
				t.Errorf("asked for %s, want %s", asked, want)
			}
		})
	}
}

// Where no answer comes, k3s may have begun if it was asked.
func TestRotateTokenUnanswered(t *testing.T) {
	var end func(*http.Request)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { end(r) }))
	server.StartTLS()
	defer server.Close()
	another := httptest.NewServer(server.Config.Handler) // without TLS
	defer another.Close()
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	to := func(s *httptest.Server) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", s.Listener.Addr().String())
		}
	}
	refused := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	for _, test := range []struct {
		name    string
		ca      []byte
		dial    func(context.Context, string, string) (net.Conn, error)
		cancels bool
		begun   bool
	}{
		{name: "the connection is lost", ca: good, dial: to(server), begun: true},
		{name: "boxlift is to end", ca: good, dial: to(server), cancels: true, begun: true},
		{name: "it is another server", ca: good, dial: to(another)},
		{name: "its authority cannot be read", ca: []byte("nonsense"), dial: to(server)},
		{name: "there is no connection", ca: good, dial: refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end = func(r *http.Request) {
				if test.cancels {
					_, _ = io.Copy(io.Discard, r.Body) // its end is looked for only then
					cancel()
					<-r.Context().Done()
				}
				panic(http.ErrAbortHandler) // an empty answer could still reach a client that is closing
			}
			kubeconfig := strings.NewReplacer("SERVER", "https://127.0.0.1:6443",
				"CA", base64.StdEncoding.EncodeToString(test.ca)).Replace(tokenKubeconfig)
			o := Options{Name: "one", Kubeconfig: []byte(kubeconfig), Dial: test.dial}
			if begun, err := RotateToken(ctx, o, "a", "b"); err == nil || begun != test.begun {
				t.Errorf("k3s has begun: %t, %v", begun, err)
			}
		})
	}
}

const tokenKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {server: SERVER, certificate-authority-data: CA}
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
users:
- name: default
  user: {token: t}
`
