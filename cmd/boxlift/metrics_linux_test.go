package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/platform"
)

// TestMetricsOfPlatform installs a cluster and has its figures.
func TestMetricsOfPlatform(t *testing.T) {
	p := platform.New(t, []string{"10.0.0.11"}, []string{"10.0.0.12"})
	options := siteOptions(t, p)
	options.Bundle = platform.Bundle(t, "v1.36.4+k3s1")
	if _, err := install.Install(t.Context(), options); err != nil {
		t.Fatal(err, p.Told())
	}
	options.Bundle = nil
	// Its boxlift-node does not tell certificates by path: the page has the rest.
	page, err := metricsPage(t.Context(), options, []string{"node"})
	if !errors.Is(err, site.ErrHosts) {
		t.Errorf("%v\n%v", err, p.Told())
	}
	for _, want := range []string{
		`boxlift_build_info{cluster="plant-7",version="v1"} 1`,
		`boxlift_api_up{cluster="plant-7"} 1`,
		`boxlift_node_ready{cluster="plant-7",node="agent-1"} 1`,
		`boxlift_node_version_differs{cluster="plant-7",node="server-1"} 0`,
		`boxlift_host_up{cluster="plant-7",host="server-1 (10.0.0.11)"} 1`,
		`boxlift_host_cpus{cluster="plant-7",host="agent-1 (10.0.0.12)"} 8`,
		`boxlift_release_number{cluster="plant-7"} 1`,
		`boxlift_release_unfinished{cluster="plant-7"} 0`,
		`boxlift_release_component_info{cluster="plant-7",component="k3s",version="v1.36.4+k3s1"} 1`,
	} {
		if !strings.Contains(string(page), "\n"+want+"\n") {
			t.Errorf("%s is not in the page:\n%s", want, page)
		}
	}
}

// TestServeLooks: before the first look there is no page, then the last one, to be read and nothing else, also when a
// later look tells nothing, until it is ended.
func TestServeLooks(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type told struct {
		page []byte
		err  error
	}
	tell := make(chan told)
	looked := make(chan struct{}, 100)
	look := func(ctx context.Context) ([]byte, error) {
		looked <- struct{}{}
		select {
		case one := <-tell:
			return one.page, one.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- serveLooks(ctx, listener, look, time.Millisecond, progress.Discard) }()

	ask := func(method, path string) (status int, kind, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Content-Type"), string(content)
	}
	<-looked
	if status, _, body := ask(http.MethodGet, "/metrics"); status != http.StatusServiceUnavailable {
		t.Errorf("before the first look: %d, %s", status, body)
	}
	for _, step := range []struct {
		told
		want string
	}{
		{told{page: []byte("a 1\n")}, "a 1\n"},
		{told{page: []byte("a 2\n"), err: errors.New("a host is silent")}, "a 2\n"},
		{told{err: errors.New("nobody answers")}, "a 2\n"},
	} {
		tell <- step.told
		<-looked // what was told is there
		status, kind, body := ask(http.MethodGet, "/metrics")
		if status != http.StatusOK || body != step.want || kind != "text/plain; version=0.0.4; charset=utf-8" {
			t.Errorf("%d, %s, %q, want %q", status, kind, body, step.want)
		}
	}
	if status, _, _ := ask(http.MethodPost, "/metrics"); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
	if status, _, _ := ask(http.MethodGet, "/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("another path: %d", status)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
	if c, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("it still listens")
	}
}

func TestMetricsAddress(t *testing.T) {
	for text, want := range map[string]string{
		":9809": "127.0.0.1:9809", "10.0.0.5:9809": "10.0.0.5:9809", "[::1]:0": "[::1]:0",
		"9809": "", "": "", ":": "", ":65536": "", "a:b:c": "",
	} {
		got, err := metricsAddress(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}
