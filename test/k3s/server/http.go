package server

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/pki"
)

// serve opens the server's port.
func (s *Server) serve(ctx context.Context) error {
	cert, err := tls.LoadX509KeyPair(s.tls("serving-kube-apiserver.crt"), s.tls("serving-kube-apiserver.key"))
	if err != nil {
		return err
	}
	handler, err := s.handler()
	if err != nil {
		return err
	}
	listen := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			// The API server has the same port on an address of its own.
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(controlErr, err)
	}}
	listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort(s.Settings.Get("bind-address", ""), s.port))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}}
	go func() {
		s.Group.Failed <- fmt.Errorf("serve %s: %w", listener.Addr(), server.ServeTLS(apart{listener}, "", ""))
	}()
	logrus.Infof("Listening on %s", listener.Addr())
	logrus.Infof("To join server node to cluster: k3s server -s https://%s:%s -t ${SERVER_NODE_TOKEN}", s.node.IP, s.port)
	logrus.Infof("To join agent node to cluster: k3s agent -s https://%s:%s -t ${AGENT_NODE_TOKEN}", s.node.IP, s.port)
	return nil
}

// apart refuses connections to the API server's address, which come here for as
// long as the API server does not listen.
type apart struct{ net.Listener }

func (l apart) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if address, ok := conn.LocalAddr().(*net.TCPAddr); !ok || address.IP.String() != apiHost {
			return conn, nil
		}
		_ = conn.Close() // nothing was written
	}
}

func (s *Server) handler() (http.Handler, error) {
	api, err := s.apiProxy()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	text := func(path string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			body, err := os.ReadFile(path)
			answer(w, body, err)
		}
	}
	mux.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { answer(w, []byte("pong"), nil) })
	mux.HandleFunc("/cacerts", text(s.tls("server-ca.crt")))
	mux.HandleFunc("/v1-k3s/config", s.forNodes(func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, s.config, nil) }))
	mux.HandleFunc("/v1-k3s/client-ca.crt", s.forNodes(text(s.tls("client-ca.crt"))))
	mux.HandleFunc("/v1-k3s/server-ca.crt", s.forNodes(text(s.tls("server-ca.crt"))))
	mux.HandleFunc("/v1-k3s/apiservers", s.forNodes(func(w http.ResponseWriter, r *http.Request) {
		servers, err := s.apiServers(r.Context())
		answerJSON(w, servers, err)
	}))
	mux.HandleFunc("/v1-k3s/readyz", s.forNodes(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		if !s.ready.Load() {
			err = unavailable
		}
		answer(w, []byte("ok"), err)
	}))
	for _, name := range []string{"client-kubelet", "serving-kubelet", "client-kube-proxy"} {
		mux.HandleFunc("POST /v1-k3s/"+name+".crt", s.forNodes(func(w http.ResponseWriter, r *http.Request) {
			cert, err := s.nodeCertificate(name, r)
			answer(w, cert, err)
		}))
	}
	mux.HandleFunc("PUT /v1-k3s/token", s.forServers(s.rotate))
	mux.HandleFunc("/v1-k3s/server-bootstrap", s.forServers(func(w http.ResponseWriter, _ *http.Request) {
		bootstrap, err := s.readShared()
		answerJSON(w, bootstrap, err)
	}))
	etcd := func(do func(context.Context, join.EtcdJoin) (join.EtcdJoin, error)) http.HandlerFunc {
		return s.forServers(func(w http.ResponseWriter, r *http.Request) {
			var question join.EtcdJoin
			if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&question); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
			defer cancel()
			reply, err := do(ctx, question)
			answerJSON(w, reply, err)
		})
	}
	mux.HandleFunc("POST /v1-k3s/etcd-join", etcd(s.addMember))
	mux.HandleFunc("POST /v1-k3s/etcd-promote", etcd(s.promote))
	mux.Handle("/", api)
	return mux, nil
}

// statusError is an error with a status of its own.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return e.text }

var unavailable = statusError{http.StatusServiceUnavailable, "apiserver not ready"}

func answer(w http.ResponseWriter, body []byte, err error) {
	var status statusError
	switch {
	case errors.As(err, &status):
		http.Error(w, status.text, status.status)
	case err != nil:
		logrus.Errorf("Sending HTTP 500 response: %v", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		_, _ = w.Write(body) // the client may have gone
	}
}

func answerJSON(w http.ResponseWriter, value any, err error) {
	body, marshalErr := json.Marshal(value)
	answer(w, body, errors.Join(err, marshalErr))
}

func same(a, b string) bool { return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// user is who a request is of, "server" or "node"; "" of one that knows no password, or another user's.
func (s *Server) user(r *http.Request) string {
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if ok && s.validBootstrap(r.Context(), bearer) {
		return "node"
	}
	name, password, _ := r.BasicAuth()
	passwords := map[string]string{"server": s.token.Password, "node": s.AgentToken().Password}
	if !same(password, passwords[name]) {
		return ""
	}
	return name
}

// only lets one user in.
func (s *Server) only(user string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch s.user(r) {
		case user:
			next(w, r)
		case "":
			http.Error(w, "not authorized", http.StatusUnauthorized)
		default:
			http.Error(w, "forbidden", http.StatusForbidden)
		}
	}
}

// forServers lets in who joins as a server, forNodes who joins as an agent, as a server's own agent does.
func (s *Server) forServers(next http.HandlerFunc) http.HandlerFunc { return s.only("server", next) }
func (s *Server) forNodes(next http.HandlerFunc) http.HandlerFunc   { return s.only("node", next) }

// validBootstrap checks a token of "k3s token create".
func (s *Server) validBootstrap(ctx context.Context, text string) bool {
	id, secret, ok := strings.Cut(text, ".")
	if !ok || !s.ready.Load() {
		return false
	}
	found, err := s.client.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+id, metav1.GetOptions{})
	if err != nil || !same(string(found.Data["token-secret"]), secret) {
		return false
	}
	if text := string(found.Data["expiration"]); text != "" {
		expires, err := time.Parse(time.RFC3339, text)
		return err == nil && time.Now().Before(expires)
	}
	return true
}

// apiServers lists where the cluster's servers answer.
func (s *Server) apiServers(ctx context.Context) ([]string, error) {
	if !s.ready.Load() {
		return nil, unavailable
	}
	slices_, err := s.client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return nil, err
	}
	var servers []string
	for _, slice := range slices_.Items {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				servers = append(servers, net.JoinHostPort(address, s.port))
			}
		}
	}
	slices.Sort(servers)
	return slices.Compact(servers), nil
}

// nodeCertificate signs a node's key, if the node is who it was.
func (s *Server) nodeCertificate(name string, r *http.Request) ([]byte, error) {
	node, password, ip := r.Header.Get(join.HeaderNodeName), r.Header.Get(join.HeaderNodePassword), r.Header.Get(join.HeaderNodeIP)
	if node == "" || password == "" {
		return nil, statusError{http.StatusBadRequest, "node name or password not set"}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	if err != nil {
		return nil, err
	}
	key, err := pki.ParsePublic(body)
	if err != nil {
		return nil, statusError{http.StatusBadRequest, err.Error()}
	}
	if err := s.checkNode(r.Context(), node, password); err != nil {
		return nil, err
	}
	subject := pki.Subject{CommonName: "system:node:" + node, Organizations: []string{"system:nodes"}}
	ca := "client-ca"
	switch name {
	case "serving-kubelet":
		ca, subject = "server-ca", pki.Subject{CommonName: node, Names: []string{node, "localhost", "127.0.0.1", ip}}
	case "client-kube-proxy":
		subject = pki.Subject{CommonName: "system:kube-proxy"}
	}
	authority, err := pki.ReadCA(s.tls(ca))
	if err != nil {
		return nil, err
	}
	return authority.Sign(subject, key)
}

// apiProxy passes requests on to the API server. It checks clients'
// certificates and names their users in headers that the API server takes
// from it alone.
func (s *Server) apiProxy() (http.Handler, error) {
	clientCA, err := os.ReadFile(s.tls("client-ca.crt"))
	if err != nil {
		return nil, err
	}
	clients, err := pki.Pool(clientCA)
	if err != nil {
		return nil, err
	}
	serverCA, err := os.ReadFile(s.tls("server-ca.crt"))
	if err != nil {
		return nil, err
	}
	roots, err := pki.Pool(serverCA)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(s.tls("client-auth-proxy.crt"), s.tls("client-auth-proxy.key"))
	if err != nil {
		return nil, err
	}
	// Upgrades (exec, port-forward) do not go with HTTP/2.
	transport := func(certs []tls.Certificate, upgrades bool) http.RoundTripper {
		t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: !upgrades, MaxIdleConnsPerHost: 20, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second}
		if upgrades {
			t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		return t
	}
	pair := [2][2]http.RoundTripper{}
	for i, upgrades := range []bool{false, true} {
		pair[i] = [2]http.RoundTripper{transport(nil, upgrades), transport([]tls.Certificate{cert}, upgrades)}
	}
	target := &url.URL{Scheme: "https", Host: s.APIServer()}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = p.In.Host
			for name := range p.Out.Header {
				if strings.HasPrefix(strings.ToLower(name), "x-remote-") {
					p.Out.Header.Del(name)
				}
			}
			if p.In.TLS != nil && len(p.In.TLS.PeerCertificates) > 0 {
				subject := p.In.TLS.PeerCertificates[0].Subject
				p.Out.Header.Set("X-Remote-User", subject.CommonName)
				for _, group := range subject.Organization {
					p.Out.Header.Add("X-Remote-Group", group)
				}
			}
		},
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			upgrade, named := 0, 0
			if r.Header.Get("Upgrade") != "" {
				upgrade = 1
			}
			if r.Header.Get("X-Remote-User") != "" {
				named = 1
			}
			return pair[upgrade][named].RoundTrip(r)
		}),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			refuse(w, http.StatusServiceUnavailable, "apiserver not ready")
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if certs := r.TLS.PeerCertificates; len(certs) > 0 {
			if _, err := certs[0].Verify(x509.VerifyOptions{Roots: clients, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				refuse(w, http.StatusUnauthorized, "Unauthorized")
				return
			}
		}
		if !s.ready.Load() {
			refuse(w, http.StatusServiceUnavailable, "apiserver not ready")
			return
		}
		proxy.ServeHTTP(w, r)
	}), nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// refuse answers as the API server does.
func refuse(w http.ResponseWriter, status int, message string) {
	reason := strings.ReplaceAll(http.StatusText(status), " ", "")
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`+"\n", message, reason, status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // the client may have gone
}
