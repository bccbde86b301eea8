//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/registry"
)

// serveGrace is how long pulls may go on when the unit is stopped.
const serveGrace = 5 * time.Second

// maxServeConfig is the largest configuration in bytes.
const maxServeConfig = 64 << 10

type serveFlags struct{ config string }

func (f *serveFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&f.config, "config", "", "")
}

// serveConfig is the file that --config names.
type serveConfig struct {
	// Address is where to listen: the host's own address and a port.
	Address string `json:"address"`
	// ImagesDir is the folder with the packs.
	ImagesDir string `json:"imagesDir"`
	// Certificate and Key are PEM files.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Username    string `json:"username"`
	// PasswordSHA256 is the sha256 of the password in hexadecimal digits.
	PasswordSHA256 string `json:"passwordSHA256"`
}

func readServeConfig(path string) (*serveConfig, *registry.Auth, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxServeConfig+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read the configuration: %w", err)
	}
	c, auth, err := parseServeConfig(content)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, auth, nil
}

// parseServeConfig takes nothing that it does not know: this is how an older program finds
// out that it is not up to what is asked of it.
func parseServeConfig(content []byte) (*serveConfig, *registry.Auth, error) {
	if len(content) > maxServeConfig {
		return nil, nil, fmt.Errorf("it has more than %d bytes", maxServeConfig)
	}
	var c serveConfig
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("there is something after the object")
	}
	if _, port, err := net.SplitHostPort(c.Address); err != nil || port == "" {
		return nil, nil, fmt.Errorf("address %q: expected an address and a port, such as 192.0.2.1:5443", c.Address)
	}
	for _, p := range []struct{ name, path string }{
		{"imagesDir", c.ImagesDir}, {"certificate", c.Certificate}, {"key", c.Key},
	} {
		if !filepath.IsAbs(p.path) {
			return nil, nil, fmt.Errorf("%s %q: expected an absolute path", p.name, p.path)
		}
	}
	if c.Username == "" || strings.Contains(c.Username, ":") {
		return nil, nil, fmt.Errorf("username %q: expected a name without a colon", c.Username)
	}
	sum, err := hex.DecodeString(c.PasswordSHA256)
	if err != nil || len(sum) != sha256.Size {
		return nil, nil, fmt.Errorf("passwordSHA256: expected %d hexadecimal digits", 2*sha256.Size)
	}
	return &c, registry.Basic(c.Username, [sha256.Size]byte(sum)), nil
}

// run serves the packs until ctx ends. The log goes to stderr, which is the journal's.
func (f *serveFlags) run(ctx context.Context, stderr io.Writer) error {
	c, auth, err := readServeConfig(f.config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	certificate, err := registry.OpenCertificate(c.Certificate, c.Key, log)
	if err != nil {
		return err
	}
	packs := registry.OpenPacks(c.ImagesDir, pack.IsStored, log)
	defer packs.Close()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", c.Address, err)
	}
	log.Info("listening", "address", listener.Addr().String())
	if err := notify(ctx, "READY=1"); err != nil {
		_ = listener.Close()
		return err
	}
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		_ = notify(context.WithoutCancel(ctx), "STOPPING=1") // it stops all the same
	})
	defer func() {
		if !stop() {
			<-told // it may be stopped before it got to telling
		}
	}()
	handler := registry.New(packs, registry.Options{Auth: auth, Secured: true, Log: log})
	return registry.Serve(ctx, listener, handler,
		registry.ServeOptions{TLS: certificate.Config(), Grace: serveGrace, Log: log})
}

// withoutTime leaves out what the journal adds to every line.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// notify tells systemd, if it asked to be told (sd_notify(3)).
func notify(ctx context.Context, state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	// Go knows abstract sockets by the same @ as systemd.
	c, err := new(net.Dialer).DialContext(ctx, "unixgram", name)
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	_, err = io.WriteString(c, state)
	if err := errors.Join(err, c.Close()); err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	return nil
}
