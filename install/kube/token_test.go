package kube

import (
	"context"
	"encoding/base64"
	"encoding/pem"
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
	}{
		{name: "done", password: current, status: http.StatusOK},
		{name: "another password", password: "other", want: "401 Unauthorized: not authorized"},
		{name: "it fails", password: current, status: http.StatusInternalServerError, want: ": no\ufffd[31m"},
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
			err := RotateToken(t.Context(), o, current, next)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
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
