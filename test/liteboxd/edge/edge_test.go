package edge

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		ok   bool
		want Settings
	}{
		{"defaults", nil, true, Settings{DataDir: "./data", SandboxNamespace: "liteboxd-sandbox", ControlNamespace: "liteboxd-system", ShutdownTimeout: 30 * time.Second}},
		{"all", map[string]string{"DATA_DIR": "/app/data", "SANDBOX_NAMESPACE": "boxes", "CONTROL_NAMESPACE": "system", "SHUTDOWN_TIMEOUT": "120s", "LOG_LEVEL": "debug"}, true,
			Settings{DataDir: "/app/data", SandboxNamespace: "boxes", ControlNamespace: "system", ShutdownTimeout: 2 * time.Minute}},
		{"no duration", map[string]string{"SHUTDOWN_TIMEOUT": "120"}, false, Settings{}},
		{"no level", map[string]string{"LOG_LEVEL": "loud"}, false, Settings{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadSettings(func(name string) string { return c.env[name] }, &bytes.Buffer{})
			if (err == nil) != c.ok {
				t.Fatalf("error: %v", err)
			}
			if !c.ok {
				return
			}
			got.Log, got.Getenv = nil, nil
			if diff := cmp.Diff(c.want, *got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNumber(t *testing.T) {
	for text, ok := range map[string]bool{"": true, "3": true, "0": false, "x": false} {
		s := &Settings{Getenv: func(string) string { return text }}
		if n, err := s.Number("DAYS", 7); (err == nil) != ok || ok && n != 3 && n != 7 {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func newServer(timeout time.Duration) *Server {
	return &Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { Answer(w, http.StatusOK, "served") }),
		Timeout: timeout, Log: slog.New(slog.DiscardHandler),
	}
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		name     string
		draining bool
		notReady string
		want     map[string]int
	}{
		{"serving", false, "", map[string]int{"/health": 200, "/readyz": 200, "/": 200, "/healthz": 200}},
		{"draining", true, "", map[string]int{"/health": 200, "/readyz": 503, "/": 503, "/api/v1/version": 503}},
		{"never ready", false, "a reason", map[string]int{"/health": 200, "/readyz": 503, "/": 200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(time.Minute)
			s.NotReady = c.notReady
			s.draining.Store(c.draining)
			got := map[string]int{}
			for path := range c.want {
				w := httptest.NewRecorder()
				s.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
				got[path] = w.Code
				if path == "/readyz" && c.notReady != "" && !bytes.Contains(w.Body.Bytes(), []byte(c.notReady)) {
					t.Errorf("the answer does not say why: %s", w.Body)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A WebSocket that is open when the server is told to end keeps it until it is closed.
func TestDrainWaitsForSessions(t *testing.T) {
	s := newServer(time.Minute)
	ended, stop := serveUntil(t, s)
	first, second := s.Track(), s.Track()
	stop()
	first()
	first() // counts once
	select {
	case err := <-ended:
		t.Fatalf("ended with an open websocket: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	second()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// It does not keep the server for longer than the limit.
func TestDrainCutsSessions(t *testing.T) {
	s := newServer(10 * time.Millisecond)
	ended, stop := serveUntil(t, s)
	done := s.Track()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := s.sessions.count(); n != 1 {
		t.Errorf("%d sessions are open, expected the one that was cut", n)
	}
	done()
}

// A request that is under way when the server is told to end is answered.
func TestDrainFinishesRequests(t *testing.T) {
	s := newServer(time.Minute)
	arrived, finish := make(chan struct{}), make(chan struct{})
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-finish
		Answer(w, http.StatusOK, "late")
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	status := make(chan int, 1)
	go func() {
		status <- get(t, "http://"+listener.Addr().String())
	}()
	<-arrived
	stop()
	close(finish)
	if got := <-status; got != http.StatusOK {
		t.Errorf("status %d", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, address string) int {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return response.StatusCode
}

func serveUntil(t *testing.T, s *Server) (ended chan error, stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	return ended, stop
}
