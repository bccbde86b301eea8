package target

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd" // one way of asking
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the registry's storage
	"github.com/sirupsen/logrus"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// config is what both registries are told.
type config struct {
	root                         string
	kind                         Auth
	readOnly                     bool
	htpasswd, certificate, realm string
}

const secret = "signs uploads"

// auth is the section of that name.
func (c config) auth() map[string]map[string]any {
	switch c.kind {
	case Basic:
		return map[string]map[string]any{"htpasswd": {"realm": "target", "path": c.htpasswd}}
	case Token:
		return map[string]map[string]any{"token": {"realm": c.realm, "service": service, "issuer": issuer, "rootcertbundle": c.certificate}}
	case Open:
	}
	return nil
}

func startDistribution3(t testing.TB, c config) http.Handler {
	t.Helper()
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.PanicLevel)
	settings := &configuration.Configuration{
		Auth: configuration.Auth{},
		Storage: configuration.Storage{
			"filesystem": {"rootdirectory": c.root},
			"maintenance": {
				"uploadpurging": map[any]any{"enabled": false},
				"readonly":      map[any]any{"enabled": c.readOnly},
			},
		},
	}
	settings.HTTP.Secret = secret
	for name, parameters := range c.auth() {
		settings.Auth[name] = parameters
	}
	app := handlers.NewApp(context.Background(), settings)
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return app
}

// startDebian runs docker-registry on a Unix socket. It is not told that the front speaks
// TLS, as in many installations behind a proxy: its addresses begin with http.
func startDebian(t testing.TB, c config, dir string) http.Handler {
	t.Helper()
	program := debian.Program{Name: "docker-registry", Package: "docker-registry"}
	need.Programs(t, program)
	socket := filepath.Join(dir, "registry.sock")
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, c.yaml(socket), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program.Find(), "serve", file)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := dial(ctx, "", ""); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-ended:
			t.Fatalf("docker-registry ended:\n%s", out.Bytes())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("docker-registry does not listen")
		}
	}
	transport := &http.Transport{DialContext: dial, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: r.In.Host})
			r.Out.Host = r.In.Host
		},
	}
}

// yaml is the configuration file of docker-registry.
func (c config) yaml(socket string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "version: 0.1\nlog: {level: error}\nhttp: {net: unix, addr: %q, secret: %q}\n", socket, secret)
	fmt.Fprintf(&b, "storage:\n  filesystem: {rootdirectory: %q}\n  maintenance:\n    uploadpurging: {enabled: false}\n    readonly: {enabled: %v}\n", c.root, c.readOnly)
	for name, parameters := range c.auth() {
		fmt.Fprintf(&b, "auth:\n  %s:\n", name)
		for key, value := range parameters {
			fmt.Fprintf(&b, "    %s: %q\n", key, value)
		}
	}
	return b.Bytes()
}
