//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/debian"
)

// pullers is how many blobs are pulled at a time: as many nodes as pull at once from one.
const pullers = 4

// measureRegistry serves the bundle over TLS and pulls all of it. Its floor is nginx, which
// serves the same blobs as files.
func (f *fixture) measureRegistry(ctx context.Context) (_ []figure, err error) {
	nginx := debian.Program{Name: "nginx", Package: "nginx-light"}
	if err := debian.Ensure(ctx, func(text string) { note("%s", text) }, nginx); err != nil {
		return nil, err
	}
	roots, err := f.makeCertificate()
	if err != nil {
		return nil, err
	}
	blobs := f.path("served")
	if err := os.Mkdir(blobs, 0o755); err != nil {
		return nil, err
	}
	if err := runQuietly(exec.CommandContext(ctx, "tar", "-xf", f.bundle(), "-C", blobs, "blobs")); err != nil {
		return nil, err
	}
	names, size, err := listBlobs(filepath.Join(blobs, "blobs", "sha256"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(blobs, "nginx"), 0o755); err != nil {
		return nil, err
	}
	before, err := f.listing()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}, MaxIdleConnsPerHost: pullers, DisableCompression: true,
	}}
	var ready, ours, theirs []time.Duration
	var memory, own, wrote []int64
	for range shortTurns {
		settle()
		took, _, err := f.serveNginx(ctx, nginx.Find(), blobs, client, names)
		if err != nil {
			return nil, err
		}
		note("  nginx: %s", seconds(took.pull))
		theirs = append(theirs, took.pull)
		settle()
		took, cost, err := f.serveBundle(ctx, client, names)
		if err != nil {
			return nil, err
		}
		note("  boxlift: ready after %v, %s, peak memory %s, of its own %s",
			took.ready.Round(time.Millisecond), seconds(took.pull), megabytes(took.peak), megabytes(took.anonymous))
		ready, ours = append(ready, took.ready), append(ours, took.pull)
		memory, own, wrote = append(memory, took.peak), append(own, took.anonymous), append(wrote, cost.written)
	}
	after, err := f.listing()
	if err != nil {
		return nil, err
	}
	duration := func(list []time.Duration) time.Duration {
		return median(list, func(d time.Duration) time.Duration { return d })
	}
	number := func(list []int64) int64 { return median(list, func(n int64) int64 { return n }) }
	ratio := duration(ours).Seconds() / duration(theirs).Seconds()
	return []figure{
		{"registry: ready", fmt.Sprintf("%.0f ms", duration(ready).Seconds()*1000), "", "", "<= 50 ms", duration(ready) <= 50*time.Millisecond},
		{"registry: bytes written", megabytes(number(wrote)), "", "", "0", number(wrote) == 0 && before == after},
		{"registry: memory of its own", megabytes(number(own)), "", "", "<= 40 MB", number(own) <= 40e6},
		{"registry: peak memory with pages of the program's file", megabytes(number(memory)), "", "", "", true},
		{fmt.Sprintf("registry: wall of pulling %s, of nginx", megabytes(size)), seconds(duration(ours)), seconds(duration(theirs)), times(ratio), "<= 1.30x", ratio <= 1.3},
	}, nil
}

// served is how long it took until a server answered, and then to pull everything, and the
// most memory that it had and how much of what it had at the end was its own.
type served struct {
	ready, pull     time.Duration
	peak, anonymous int64
}

func (f *fixture) serveBundle(ctx context.Context, client *http.Client, names []string) (served, cost, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return served{}, cost{}, err
	}
	c := f.boxlift(ctx, "registry", "serve", "--bundle", f.bundle(), "--key", "boxlift.pub", "--listen", address, "--tls-cert", "served.crt", "--tls-key", "served.key")
	c.Stdout, c.Stderr = io.Discard, io.Discard
	contents, err := bundle.Open(f.bundle())
	if err != nil {
		return served{}, cost{}, err
	}
	defer contents.Close() //nolint:errcheck // it was only read
	all, err := contents.Contents()
	if err != nil {
		return served{}, cost{}, err
	}
	repository, _, _ := strings.Cut(all.Images[0].Name, ":") // every blob is found in each of them
	return serve(ctx, c, client, "https://"+address+"/v2/", "https://"+address+"/v2/"+repository+"/blobs/sha256:", names)
}

const nginxConfig = `daemon off; master_process on; worker_processes auto; pid nginx.pid; error_log stderr error;
events { worker_connections 256; }
http {
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream; keepalive_requests 100000;
  client_body_temp_path . ; proxy_temp_path . ; fastcgi_temp_path . ; uwsgi_temp_path . ; scgi_temp_path . ;
  server {
    listen %s ssl; ssl_certificate %s; ssl_certificate_key %s; ssl_protocols TLSv1.3; ssl_buffer_size 16k;
    location /blobs/ { root %s; }
    location = / { return 200; }
  }
}
`

func (f *fixture) serveNginx(ctx context.Context, nginx, blobs string, client *http.Client, names []string) (served, cost, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return served{}, cost{}, err
	}
	folder := filepath.Join(blobs, "nginx")
	config := fmt.Sprintf("user root;\n"+nginxConfig, address, f.path("served.crt"), f.path("served.key"), blobs)
	if err := os.WriteFile(filepath.Join(folder, "nginx.conf"), []byte(config), 0o600); err != nil {
		return served{}, cost{}, err
	}
	c := exec.CommandContext(ctx, nginx, "-p", folder+"/", "-c", "nginx.conf")
	return serve(ctx, c, client, "https://"+address+"/", "https://"+address+"/blobs/sha256/", names)
}

// serve starts a server, waits until it answers, pulls every blob and ends it.
func serve(ctx context.Context, c *exec.Cmd, client *http.Client, alive, base string, names []string) (s served, total cost, err error) {
	start := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		total, err = measure(c)
	}()
	for s.ready == 0 {
		if answer, err := client.Get(alive); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				s.ready = time.Since(start)
			}
		}
		select {
		case <-ended:
			return s, total, errors.Join(err, errors.New("the server ended at once"))
		case <-time.After(500 * time.Microsecond):
		}
		if time.Since(start) > time.Minute {
			return s, total, errors.New("the server does not answer")
		}
	}
	start = time.Now()
	pulled := pull(ctx, client, base, names)
	s.pull = time.Since(start)
	client.CloseIdleConnections()
	var statusErr error
	s.peak, s.anonymous, statusErr = memoryOf(c.Process.Pid)
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		return s, total, err
	}
	<-ended
	return s, total, errors.Join(pulled, statusErr, err)
}

// memoryOf returns the most memory that a running process has had, and how much of what it
// has now is its own, in bytes. The rest are pages of the program's file.
func memoryOf(pid int) (peak, anonymous int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		switch name {
		case "VmHWM":
			peak = n << 10
		case "RssAnon":
			anonymous = n << 10
		}
	}
	if peak == 0 {
		err = fmt.Errorf("/proc/%d/status has no VmHWM", pid)
	}
	return peak, anonymous, err
}

// pull gets blobs and throws them away.
func pull(ctx context.Context, client *http.Client, base string, names []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pullers)
	for _, name := range names {
		group.Go(func() error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+name, nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close() //nolint:errcheck // it is read to its end
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, answer.Body, make([]byte, 256<<10))
			if err == nil && (answer.StatusCode != http.StatusOK || n != answer.ContentLength) {
				err = fmt.Errorf("pull %s: %s, %d of %d bytes", name, answer.Status, n, answer.ContentLength)
			}
			return err
		})
	}
	return group.Wait()
}

func listBlobs(folder string) (names []string, size int64, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, 0, err
		}
		names = append(names, e.Name())
		size += info.Size()
	}
	return names, size, nil
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// makeCertificate writes served.crt and served.key, good for localhost.
func (f *fixture) makeCertificate() (*x509.CertPool, error) {
	pair, key, err := certificate.New()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pair)
	if err := os.WriteFile(f.path("served.crt"), pair, 0o600); err != nil {
		return nil, err
	}
	return roots, os.WriteFile(f.path("served.key"), key, 0o600)
}
