// Package target is a registry to push to, as operators have them: distribution itself,
// behind a front that can misbehave.
//
// The registry is real, either distribution 3 in this process or Debian's
// docker-registry 2.8 in one of its own (the one that Harbor is built around). It keeps
// its data in a folder and checks passwords and tokens itself. The front speaks TLS,
// notes every request, and does what tests tell it to: it limits rates, cuts connections,
// answers in the registry's place ([Server.Intercept]), or behaves as Harbor does
// ([Harbor]).
//
// What [Harbor] adds was compared with the statuses, codes and texts that Harbor 2 has by its sources and its
// documentation of projects, quotas, immutability and robot accounts, not with a running Harbor. What distribution
// answers is its own.
//
// The package is for tests and benchmarks only. With distribution 3 it silences the
// process-wide logrus logger.
package target

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Kind is the registry that runs.
type Kind string

const (
	// Distribution3 is distribution/v3, in this process.
	Distribution3 Kind = "distribution 3"
	// Debian is Debian's docker-registry, in a process of its own.
	Debian Kind = "Debian's docker-registry"
)

// Auth is how the registry wants to be asked.
type Auth string

// Ways of asking.
const (
	Open  Auth = ""
	Basic Auth = "basic" // a password with each request
	Token Auth = "token" // tokens of a token service, which the front is; Debian only
)

// Options of a registry. The zero value is distribution 3, open to all.
type Options struct {
	Kind Kind
	Auth Auth
	// Users are names and passwords; with Token, everybody may do everything unless
	// Harbor says otherwise.
	Users map[string]string
	// PlainHTTP leaves TLS out.
	PlainHTTP bool
	// ReadOnly lets nobody change anything.
	ReadOnly bool
	// Harbor makes the front behave as Harbor.
	Harbor *Harbor
}

// Server is a running registry.
type Server struct {
	options Options
	dir     string
	front   *httptest.Server
	signer  *signer

	mu       sync.Mutex
	hooks    []func(http.ResponseWriter, *http.Request) bool
	requests []*Request
}

// Request is one request as the front saw it.
type Request struct {
	Method string
	Path   string
	Query  string
	Status int   // 0: none was sent
	Took   int64 // bytes of the body that were read
}

// Start runs a registry until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Auth == Token && o.Kind != Debian {
		t.Fatal("target: tokens are checked by Debian's docker-registry only")
	}
	s := &Server{options: o, dir: t.TempDir()}
	var err error
	if s.signer, err = newSigner(); err != nil {
		t.Fatal(err)
	}
	s.front = httptest.NewUnstartedServer(nil)
	s.front.Config.ErrorLog = log.New(io.Discard, "", 0) // cut connections are part of the tests
	s.front.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, c)
	}
	c := config{
		root: filepath.Join(s.dir, "data"), kind: o.Auth, readOnly: o.ReadOnly,
		htpasswd: filepath.Join(s.dir, "htpasswd"), certificate: filepath.Join(s.dir, "token.pem"), realm: "https://" + s.Address() + tokenPath,
	}
	if o.PlainHTTP {
		c.realm = "http://" + s.Address() + tokenPath
	}
	if err := s.writeUsers(c); err != nil {
		t.Fatal(err)
	}
	var registry http.Handler
	if o.Kind == Debian {
		registry = startDebian(t, c, s.dir)
	} else {
		registry = startDistribution3(t, c)
	}
	s.front.Config.Handler = s.handler(registry)
	if o.PlainHTTP {
		s.front.Start()
	} else {
		s.front.StartTLS()
	}
	t.Cleanup(s.front.Close)
	return s
}

func (s *Server) writeUsers(c config) error {
	var users strings.Builder
	for name, password := range s.options.Users {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			return err
		}
		fmt.Fprintf(&users, "%s:%s\n", name, hash)
	}
	if err := os.WriteFile(c.htpasswd, []byte(users.String()), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.certificate, s.signer.certificate, 0o600)
}

// Address is host:port.
func (s *Server) Address() string { return s.front.Listener.Addr().String() }

// CA is the certificate to trust, in PEM; nil without TLS.
func (s *Server) CA() []byte {
	if s.options.PlainHTTP {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.front.Certificate().Raw})
}

// CAFile writes the certificate to trust to a file called ca.crt in a folder of its own,
// which is what skopeo's --cert-dir takes.
func (s *Server) CAFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(s.dir, "ca", "ca.crt")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, s.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Data is the folder where the registry keeps everything.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// Requests returns what was asked since the start or the last Forget.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := make([]Request, len(s.requests))
	for i, r := range s.requests {
		result[i] = *r
	}
	return result
}

// Count says how many requests of a method have a path that matches.
func (s *Server) Count(method, path string) int {
	pattern := regexp.MustCompile(path)
	count := 0
	for _, r := range s.Requests() {
		if r.Method == method && pattern.MatchString(r.Path) {
			count++
		}
	}
	return count
}

// Forget empties the log.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// Intercept adds a hook, which is called by several goroutines at once before the
// registry is asked. When it returns true, it has answered.
func (s *Server) Intercept(hook func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, hook)
}

// Heal removes all hooks.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = nil
}

// handler is the way of every request.
func (s *Server) handler(registry http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{ResponseWriter: w, body: r.Body, server: s, noted: &Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery}}
		r.Body = x
		s.mu.Lock()
		s.requests = append(s.requests, x.noted)
		hooks := slices.Clone(s.hooks)
		s.mu.Unlock()
		for _, hook := range hooks {
			if hook(x, r) {
				return
			}
		}
		switch {
		case r.URL.Path == tokenPath:
			s.serveToken(x, r)
		case s.options.Harbor != nil && s.options.Harbor.refuse(x, r, s.Data()):
		default:
			registry.ServeHTTP(x, r)
		}
	})
}

// exchange notes what becomes of a request.
type exchange struct {
	http.ResponseWriter
	body   io.ReadCloser
	server *Server
	noted  *Request
}

func (x *exchange) WriteHeader(status int) {
	x.server.mu.Lock()
	if x.noted.Status == 0 {
		x.noted.Status = status
	}
	x.server.mu.Unlock()
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	x.server.mu.Lock()
	if x.noted.Status == 0 {
		x.noted.Status = http.StatusOK
	}
	x.server.mu.Unlock()
	return x.ResponseWriter.Write(b)
}

func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *exchange) Read(b []byte) (int, error) {
	n, err := x.body.Read(b)
	x.server.mu.Lock()
	x.noted.Took += int64(n)
	x.server.mu.Unlock()
	return n, err
}

func (x *exchange) Close() error { return x.body.Close() }

// connection is the key of the connection that a request came on.
type connection struct{}

// Cut ends the connection of a request with a TCP reset.
func Cut(r *http.Request) {
	conn, _ := r.Context().Value(connection{}).(net.Conn)
	raw := conn
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		raw = secure.NetConn() // closing the TLS side would say goodbye first
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = raw.Close()
}

// CutBody ends the connection once so many bytes of the request's body were read.
func CutBody(r *http.Request, after int64) {
	r.Body = &cutBody{ReadCloser: r.Body, request: r, left: after}
}

type cutBody struct {
	io.ReadCloser
	request *http.Request
	left    int64
}

func (c *cutBody) Read(b []byte) (int, error) {
	if c.left <= 0 {
		Cut(c.request)
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	return n, err
}

// LimitRate lets so many requests through, then none for a while, and so on. Those that
// it refuses get 429 and a Retry-After of the while, in whole seconds.
func (s *Server) LimitRate(requests int, while time.Duration) {
	var mu sync.Mutex
	var until time.Time
	left := requests
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		switch {
		case now.Before(until):
		case left > 0:
			left--
			return false
		default:
			until, left = now.Add(while), requests
		}
		w.Header().Set("Retry-After", strconv.Itoa(int((while+time.Second-1)/time.Second)))
		Refuse(w, http.StatusTooManyRequests, "TOOMANYREQUESTS", "too many requests")
		return true
	})
}

// Refuse answers with an error as registries give them.
func Refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
}
