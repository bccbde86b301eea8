package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// entry serves one route for every request.
func entry(t *testing.T, r route) *httptest.Server {
	t.Helper()
	current := &atomic.Pointer[table]{}
	r.Path = "/"
	current.Store(&table{routes: []route{r}})
	server := httptest.NewServer(newProxy("web", current, newTransport()))
	t.Cleanup(server.Close)
	return server
}

// closed is an address where nobody listens.
func closed(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(listener.Addr().String())
}

func TestProxy(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("X-Forwarded-Host") != "box.test" || r.Header.Get("X-Forwarded-Proto") != "http" || r.Header.Get("X-Forwarded-For") == "" {
			t.Errorf("got %v, %v", r.Header, err)
		}
		_, _ = io.WriteString(w, r.Method+" "+r.Host+r.RequestURI+" "+string(body)) // the client's loss
	}))
	defer backend.Close()
	good, dead := netip.MustParseAddrPort(backend.Listener.Addr().String()), closed(t)
	for _, tc := range []struct {
		name  string
		route route
		want  string
	}{
		{"whole", route{Endpoints: []netip.AddrPort{good}, Attempts: 1}, "200 POST box.test/a%2Fb?c=d sent"},
		{"without endpoints", route{Attempts: 1}, "503 no available server\n"},
		{"broken", route{Broken: true, Endpoints: []netip.AddrPort{good}, Attempts: 1}, "404 404 page not found\n"},
		{"dead", route{Endpoints: []netip.AddrPort{dead}, Attempts: 2, Interval: time.Millisecond}, "502 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := post(t, entry(t, tc.route).URL); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("again", func(t *testing.T) {
		server := entry(t, route{Endpoints: []netip.AddrPort{good, dead}, Attempts: 2, Interval: time.Millisecond})
		for range 4 {
			if got := post(t, server.URL); !strings.HasPrefix(got, "200 ") {
				t.Errorf("got %q with a second attempt", got)
			}
		}
	})
	t.Run("once", func(t *testing.T) {
		server := entry(t, route{Endpoints: []netip.AddrPort{good, dead}, Attempts: 1})
		if got := []string{post(t, server.URL)[:4], post(t, server.URL)[:4]}; got[0] == got[1] {
			t.Errorf("two requests, which go round, both gave %s", got[0])
		}
	})
}

func post(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/a%2Fb?c=d", strings.NewReader("sent"))
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "box.test"
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.SplitN(response.Status, " ", 2)[0] + " " + string(body)
}

// TestUpgrade passes bytes both ways once a connection is no longer HTTP.
func TestUpgrade(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = connection.Close() }() // the test has what it wants
		_, err = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(connection, buffered) // until the client has enough
	}))
	defer backend.Close()
	server := entry(t, route{Endpoints: []netip.AddrPort{netip.MustParseAddrPort(backend.Listener.Addr().String())}, Attempts: 1})
	connection, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }() // the test has what it wants
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: box.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(connection)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("got %v, %v", response, err)
	}
	if _, err := io.WriteString(connection, "echo\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := reader.ReadString('\n'); line != "echo\n" {
		t.Errorf("got %q, %v", line, err)
	}
}
