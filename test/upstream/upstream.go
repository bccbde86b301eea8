// Package upstream is a stand-in for the internet: everything that boxlift fetches on a
// connected host, on one loopback port, over HTTPS.
//
// One listener serves two kinds of things, each under the name of the host that has them
// in the real world, because loopback has no host names of its own:
//
//   - files: https://github.com/a/b is https://127.0.0.1:PORT/github.com/a/b
//   - images, from a real OCI registry (distribution): quay.io/cilium/cilium is the
//     repository 127.0.0.1:PORT/quay.io/cilium/cilium
//
// [Server.Mirrors] says the same in the form that boxlift's --mirror takes. The
// certificate is signed by an authority made at start; its PEM file is [Server.CAFile],
// ready for SSL_CERT_FILE.
//
// What is served is named and shaped like upstream's: k3s binaries, install.sh, checksum
// files and air-gap archives, Cilium's real chart, and multi-platform images whose layers
// hold real file trees of this machine. Which versions there are, and whether a cluster
// made of them works or only looks so to those who fetch it, is for [Options.Releases] to
// say. It is made once and kept in a cache that any
// number of processes may share; [Start] on a warm cache takes well under a second. The
// cache is never cleaned, and may be deleted whenever no server runs on it.
//
// A running server can be told to misbehave ([Server.Inject], [Server.MoveTag]), to ask
// for credentials ([Server.RequireAuth]), and knows what it was asked ([Server.Requests]).
//
// Names, checksum files, archives' members and media types were compared with what k3s, Cilium, Helm and GitHub publish
// for the versions in the lock. Not compared: rate limits and redirects to other hosts than tests ask for.
//
// The package is for tests, demonstrations and benchmarks only. Importing it and calling
// Start silences the process-wide logrus logger, which the registry writes to.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/google/renameio/v2"
)

// Size says how much data the server has. The names, the number and the shape of the
// artifacts are the same in every size.
type Size string

const (
	// Small is under 100 MB in all, both platforms counted, and made in seconds.
	Small Size = "small"
	// Large makes a bundle of about 2 GB. It takes a minute or more to make, and about
	// 3 GB in the cache.
	Large Size = "large"
)

// Options says how a server is started. The zero value is a small one on a free port.
type Options struct {
	// Size of the data; empty means Small.
	Size Size
	// Releases to serve; nil means Quick alone. Two of them with the same version of
	// something have the same bytes of it.
	Releases []Release
	// Addr is the loopback address to listen on; empty means 127.0.0.1:0, a free port.
	Addr string
	// Dir is an existing folder that gets ca.pem. Empty means a new temporary folder,
	// which Close removes.
	Dir string
	// Cache is the folder for generated data; empty means $BOXLIFT_CACHE/upstream, or
	// boxlift/upstream in the user's cache folder where that is not set.
	Cache string
	// Files are served too, by their upstream address. They are the caller's own, such as an archive of packages.
	Files map[string][]byte
	// HTTP2 offers HTTP/2 beside HTTP/1.1. A [Cut] then resets the stream, not the
	// connection.
	HTTP2 bool
	// Logf, if set, is told what is being made while the cache is cold, by several
	// goroutines at once.
	Logf func(format string, args ...any)
}

// Server is a running stand-in. Its methods may be called from several goroutines.
type Server struct {
	ca       string // file name
	roots    *x509.CertPool
	addr     string
	ownDir   string // removed on Close; empty if the caller gave a folder
	http     *http.Server
	registry *handlers.App
	set      *set
	files    map[string]*resource // by decoded path, "/github.com/…"
	assets   map[string]*resource // release assets, by decoded path on the asset host
	key      []byte               // signs asset URLs
	running  sync.WaitGroup       // handlers

	mu       sync.Mutex
	closed   bool
	injected []*Injection
	moved    map[string]string // "repository:tag" -> digest
	auth     []*authRule
	requests []*logged
}

// Start makes what the cache lacks, listens, and serves until Close is called. ctx bounds
// the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Size == "" {
		o.Size = Small
	}
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Releases == nil {
		o.Releases = []Release{Quick}
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	cache, err := cacheDir(o.Cache)
	if err != nil {
		return nil, err
	}
	g := &generator{cache: cache, size: o.Size, releases: o.Releases, logf: o.Logf}
	data, err := g.make(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the %s set of upstream artifacts in %s: %w", o.Size, cache, err)
	}

	s := &Server{set: data, moved: map[string]string{}}
	if err := s.start(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start listens and serves. On an error the caller calls Close.
func (s *Server) start(ctx context.Context, o Options) error {
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "boxlift-upstream-")
		if err != nil {
			return fmt.Errorf("make a folder for the certificate: %w", err)
		}
		s.ownDir, o.Dir = dir, dir
	}
	authority, err := newAuthority()
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	s.roots = authority.pool
	if s.ca, err = filepath.Abs(filepath.Join(o.Dir, "ca.pem")); err != nil {
		return fmt.Errorf("find the folder %s: %w", o.Dir, err)
	}
	if err := renameio.WriteFile(s.ca, authority.pem, 0o644); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	s.key = authority.pem // any bytes that are new at each start

	if s.registry, err = newRegistry(s.set.Registry); err != nil {
		return err
	}
	s.addFiles()
	for address, data := range o.Files {
		s.addData(address, data)
	}
	if err := s.addCiliumCLIs(); err != nil {
		return fmt.Errorf("make the archives of cilium-cli: %w", err)
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.Addr, err)
	}
	s.addr = listener.Addr().String()

	protocols := []string{"http/1.1"}
	if o.HTTP2 {
		protocols = []string{"h2", "http/1.1"}
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ErrorLog:          log.New(io.Discard, "", 0), // clients that hang up are part of the tests
		ReadHeaderTimeout: 30 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{authority.leaf},
			NextProtos:   protocols,
		},
	}
	if !o.HTTP2 {
		s.http.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	s.running.Go(func() { _ = s.http.ServeTLS(listener, "", "") }) // always ends with an error: Close was called
	return nil
}

// Close stops the server, cuts what is still running, and waits for it to end.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var err error
	if s.http != nil {
		err = s.http.Close()
	}
	s.running.Wait()
	if s.registry != nil {
		err = errors.Join(err, s.registry.Shutdown())
	}
	if s.ownDir != "" {
		err = errors.Join(err, os.RemoveAll(s.ownDir))
	}
	return err
}

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// CAFile is the absolute name of the PEM file with the authority that signed the server's
// certificate.
func (s *Server) CAFile() string { return s.ca }

// CertPool holds the same authority, for clients in this process: there SSL_CERT_FILE is
// of use only before the first TLS connection.
func (s *Server) CertPool() *x509.CertPool { return s.roots.Clone() }

// Transport gives a new transport that trusts the server. The caller closes its idle
// connections.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.CertPool()},
		ForceAttemptHTTP2: true,
	}
}

// Mirrors lists HOST=127.0.0.1:PORT/HOST for every upstream host that is served, sorted:
// the values for boxlift's --mirror.
func (s *Server) Mirrors() []string {
	hosts := map[string]bool{assetHost: true}
	for path := range s.files {
		host, _, _ := strings.Cut(path[1:], "/")
		hosts[host] = true
	}
	for _, image := range s.set.Images {
		host, _, _ := strings.Cut(image.Ref, "/")
		hosts[host] = true
	}
	mirrors := make([]string, 0, len(hosts))
	for host := range hosts {
		mirrors = append(mirrors, host+"="+s.addr+"/"+host)
	}
	sort.Strings(mirrors)
	return mirrors
}

// serve is the way of every request: log, rules, credentials, then the registry or a file.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()

	x := s.newExchange(w, r)
	defer s.record(x)
	r = x.request
	switch {
	case x.refuse(), s.authorize(x, r), s.redirectBlob(x, r):
	case r.URL.Path == tokenPath:
		s.serveToken(x, r)
	case r.URL.Path == "/v2" || strings.HasPrefix(r.URL.Path, "/v2/"):
		s.registry.ServeHTTP(x, s.followMove(r))
	case strings.HasPrefix(r.URL.Path, blobFolder):
		s.serveSignedBlob(x, r)
	default:
		s.serveFile(x, r)
	}
}
