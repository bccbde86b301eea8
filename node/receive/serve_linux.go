package receive

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/bulktls"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// Bounds of what a node does for its peers.
const (
	maxPeers = 64
	// maxStrangers is how many connections from one address may be open over which nobody
	// has sent the token so far; a peer needs three.
	maxStrangers = 8
	// maxTransfers is how many blobs are served at a time; each takes a buffer.
	maxTransfers = 12
	serveBuffer  = 128 << 10
	// maxRequest is the largest request in bytes.
	maxRequest = 4 << 10
	// requestTimeout is for TLS' handshake, and for a request.
	requestTimeout = 5 * time.Second
	// writeTimeout is how long a peer may take for one buffer.
	writeTimeout = 30 * time.Second
	// keepTimeout is how long a connection may wait for its next request.
	keepTimeout = 2 * time.Minute
)

const (
	blobsPath    = "/blobs/"
	progressPath = "/progress"
)

// shelf knows where the wanted blobs are in the targets, and tells when more of them is
// there. The targets are written to by one goroutine, which shows each step to the shelf;
// any number of goroutines wait for it.
type shelf struct {
	places map[digest.Digest]place

	mu sync.Mutex
	// changed is closed at the next step, if somebody waits for it.
	changed chan struct{}
	moved   int64
}

// place is a blob in a target.
type place struct {
	target  *target
	segment int
	offset  int64
	size    int64
}

// shown is as much of a target as its readers may know. The shelf's lock guards it.
type shown struct {
	current   int
	inCurrent int64
	// drops counts how often bytes were thrown away.
	drops int
	// file has the bytes; nil when the target is held.
	file *os.File
}

// newShelf takes in all targets. One that is held comes before others.
func newShelf(targets []*target) *shelf {
	s := &shelf{places: make(map[digest.Digest]place)}
	for _, wanted := range []targetState{held, unfinished} {
		for _, t := range targets {
			if t.state != wanted {
				continue
			}
			t.shelf = s
			t.shown = shown{current: t.current, inCurrent: t.inCurrent, file: t.file}
			if t.state == held {
				t.shown.current = t.segments()
			}
			t.eachBlob(func(i int, b segment) {
				if _, ok := s.places[b.digest]; !ok {
					s.places[b.digest] = place{target: t, segment: i, offset: b.offset, size: b.size}
				}
			})
		}
	}
	return s
}

// show tells what there is of a target now.
func (s *shelf) show(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.shown.current, t.shown.inCurrent, t.shown.file = t.current, t.inCurrent, t.file
	s.moved++
	s.wake()
}

// drop is called before bytes that have been shown are thrown away.
func (s *shelf) drop(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.shown.inCurrent = 0
	t.shown.drops++
	s.wake()
}

func (s *shelf) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *shelf) progress() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

// look returns how many of a blob's bytes may be read, in which state its target is, and
// what is closed when that changes. The last byte may not be read before all are proven:
// whoever gets a whole blob got what this node itself accepted.
func (s *shelf) look(p place) (there int64, now shown, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	now = p.target.shown
	switch {
	case now.current > p.segment:
		there = p.size
	case now.current == p.segment:
		there = max(0, min(now.inCurrent, p.size-1))
	}
	return there, now, s.changed
}

var (
	errDropped = errors.New("the bytes proved to be damaged")
	errClosed  = errors.New("the node stops serving")
)

// server serves what is on a shelf to the other nodes of the swarm.
type server struct {
	serving  wire.Serving
	token    [sha256.Size]byte // its digest, which has one length whatever is sent
	shelf    *shelf
	listener net.Listener
	http     *http.Server
	stop     context.CancelFunc
	ended    chan struct{}
	mu       sync.Mutex
	closing  bool
	requests sync.WaitGroup
	slots    chan struct{}
	buffers  sync.Pool
}

// newServer listens, so that the address is known, but does not answer before start.
func newServer(ctx context.Context, w *wire.Swarm) (*server, error) {
	certificate, err := makeCertificate()
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", w.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &server{
		serving: wire.Serving{Address: listener.Addr().String(), Certificate: certificate.Certificate[0]},
		token:   tokenSum(hex.EncodeToString(w.Token)), stop: cancel, ended: make(chan struct{}),
		slots:   make(chan struct{}, maxTransfers),
		buffers: sync.Pool{New: func() any { b := make([]byte, serveBuffer); return &b }},
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.handle),
		ReadHeaderTimeout: requestTimeout, IdleTimeout: keepTimeout, MaxHeaderBytes: maxRequest,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: bulktls.ConnContext,
		ErrorLog:    log.New(io.Discard, "", 0), // anybody on the network could fill it
	}
	s.listener = bulktls.NewListener(listener, bulktls.Options{
		MaxConnections: maxPeers, MaxUnauthenticated: maxStrangers,
		TLS: &tls.Config{
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
			NextProtos:                  []string{"http/1.1"},
			DynamicRecordSizingDisabled: true, // what is served is large
		},
	})
	return s, nil
}

func (s *server) start(shelf *shelf) {
	s.shelf = shelf
	go func() {
		defer close(s.ended)
		_ = s.http.Serve(s.listener) // it ends with close
	}()
}

// close ends all connections and waits for what answers requests.
func (s *server) close() {
	s.stop()
	_ = s.listener.Close() // also when start was not called
	if s.shelf == nil {
		return
	}
	_ = s.http.Close()
	<-s.ended
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.requests.Wait()
}

// begin reports whether a request may be answered; then s.requests must be told of its end.
func (s *server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.requests.Add(1)
	}
	return !s.closing
}

func tokenSum(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.requests.Done()
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	got := tokenSum(token)
	if subtle.ConstantTimeCompare(got[:], s.token[:]) != 1 {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	bulktls.Authenticated(r.Context())
	name, isBlob := strings.CutPrefix(r.URL.Path, blobsPath)
	switch {
	case r.Method != http.MethodGet || r.ContentLength != 0:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.URL.Path == progressPath:
		_, _ = io.WriteString(w, strconv.FormatInt(s.shelf.progress(), 10)) // it is asked again
	case isBlob:
		s.serveBlob(w, r, digest.Digest(name))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *server) serveBlob(w http.ResponseWriter, r *http.Request, d digest.Digest) {
	p, ok := s.shelf.places[d]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	offset, ok := parseRange(r.Header.Get("Range"))
	if !ok || offset > p.size {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(p.size-offset, 10))
	status := http.StatusOK
	if offset > 0 && offset < p.size {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, p.size-1, p.size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if err := s.copy(r.Context(), w, p, offset); err != nil {
		panic(http.ErrAbortHandler) // the way to tell that the answer is not whole
	}
}

// parseRange reads "bytes=N-"; nothing means 0.
func parseRange(text string) (int64, bool) {
	if text == "" {
		return 0, true
	}
	text, prefix := strings.CutPrefix(text, "bytes=")
	text, suffix := strings.CutSuffix(text, "-")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, prefix && suffix && err == nil && n >= 0
}

// copy writes a blob as it arrives.
func (s *server) copy(ctx context.Context, w http.ResponseWriter, p place, offset int64) error {
	buffer, _ := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	control := http.NewResponseController(w)
	deadline := func() error { return control.SetWriteDeadline(time.Now().Add(writeTimeout)) }
	var file *os.File
	defer func() {
		if file != nil {
			hostfile.CloseRead(file)
		}
	}()
	_, first, _ := s.shelf.look(p)
	for offset < p.size {
		there, now, changed := s.shelf.look(p)
		if now.drops != first.drops {
			return errDropped
		}
		if err := deadline(); err != nil {
			return err
		}
		if there <= offset {
			// The peer is to have what there is, and the beginning of the answer, now.
			if err := control.Flush(); err != nil {
				return err
			}
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return errClosed
			}
		}
		source := now.file
		if source == nil {
			if file == nil {
				var err error
				if file, err = hostfile.Open(p.target.root, p.target.rel, os.O_RDONLY); err != nil {
					return err
				}
			}
			source = file
		}
		n := min(there-offset, int64(len(*buffer)))
		if _, err := source.ReadAt((*buffer)[:n], p.offset+offset); err != nil {
			return err
		}
		// The bytes may have been replaced while they were read.
		if _, now, _ := s.shelf.look(p); now.drops != first.drops {
			return errDropped
		}
		if _, err := w.Write((*buffer)[:n]); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

// The clocks of nodes may be wrong. A certificate lives for one run and is known to the
// byte, so its times say nothing, and are looked at as if it were always the same day.
var (
	certificateFrom = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	certificateTo   = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

func certificateTime() time.Time { return time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC) }

// certificateName is the name in every certificate.
const certificateName = "boxlift"

// makeCertificate makes a key and a certificate for it that exist in memory only.
func makeCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a serial number: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{certificateName},
		NotBefore: certificateFrom, NotAfter: certificateTo,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
