package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// answering is a cluster whose API server has a few answers.
func answering(t *testing.T, handler http.HandlerFunc) *Cluster {
	t.Helper()
	api := kubetest.NewAPI(t, handler)
	c, err := Connect(Options{Name: "pure", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The environment's proxy, read once in the life of a process, is one that does not work.
func TestConnectAsksNoProxy(t *testing.T) {
	const child = "BOXLIFT_TEST_KUBE_PROXY"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(kubetest.Within(t), os.Args[0], "-test.run=^TestConnectAsksNoProxy$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1", "HTTPS_PROXY=http://127.0.0.1:1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		kubetest.Contains(t, string(out), "--- PASS: TestConnectAsksNoProxy")
		return
	}
	proxy, err := http.ProxyFromEnvironment(httptest.NewRequest(http.MethodGet, "https://192.0.2.1:6443/", nil))
	if err != nil || proxy == nil {
		t.Fatalf("proxy %v: %v", proxy, err)
	}
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "Bearer t0ken" {
			http.Error(w, "not you", http.StatusForbidden)
		}
	})
	if err := c.WaitReady(kubetest.Within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReadySaysWhatWasAnswered(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "[-]etcd failed: \x1b[31mreason withheld", http.StatusInternalServerError)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := c.WaitReady(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	kubetest.Contains(t, kubetest.Explained(err), "pure: the API is not ready after ",
		"[-]etcd failed: \uFFFD[31mreason withheld", "journalctl -u k3s")

	pressed := errors.New("somebody pressed Ctrl-C")
	cancelled, stop := context.WithCancelCause(t.Context())
	stop(pressed)
	if err := c.WaitReady(cancelled); !errors.Is(err, pressed) {
		t.Errorf("error %v, want %v", err, pressed)
	}
}

func TestBoundRequestsEndWithTheContext(t *testing.T) {
	arrived := make(chan struct{}, 1)
	c := answering(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // an empty answer could still reach a client that is closing
	})
	pressed := errors.New("somebody pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	b, err := c.Bound(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-arrived
		cancel(pressed)
	}()
	if _, err := b.Client.Discovery().ServerVersion(); err == nil {
		t.Fatal("an answer came")
	}
	if _, err := b.Client.Discovery().ServerVersion(); !errors.Is(err, pressed) {
		t.Errorf("error %v, want %v", err, pressed)
	}
}

// The libraries' own logs are turned off when the first cluster is connected.
func TestSilence(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Warning", `299 - "old"`) })
	_, versionErr := c.Version(kubetest.Within(t))
	os.Stderr = stderr
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if versionErr == nil {
		t.Error("an empty answer is a version")
	}
	if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
		t.Errorf("on standard error: %q, %v", text, err)
	}
}
