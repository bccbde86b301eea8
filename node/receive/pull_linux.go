package receive

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
)

// How long a peer may take. A peer that has lost its power says nothing at all.
const (
	dialTimeout = 3 * time.Second
	// answerTimeout is how long a peer that was there before may take to say that it still
	// is: it may be busy.
	answerTimeout = 5 * time.Second
	// quietTimeout is how long nothing may come before the peer is asked whether it is
	// there and gets on.
	quietTimeout = 2 * time.Second
	// stallTimeout is how long a peer may be there and not get on.
	stallTimeout = time.Minute
	// slowTimeout is for how long, all in all, a peer may be waited for that gives less than
	// slowBytes, whatever it says of its own progress. It is then not asked any more: what a
	// peer says of itself may be a lie, and whoever believed it would wait for ever.
	slowTimeout = 10 * time.Minute
	slowBytes   = 16 << 20
)

const (
	// maxFaults is how often in a row a connection to a peer may fail.
	maxFaults = 2
	// maxDamaged is from how many damaged blobs on a peer is not asked any more.
	maxDamaged = 3
	// maxTries is how often a blob that came from several sources is begun anew, and how
	// often one peer may fail over one blob.
	maxTries = 3
	// pullBuffer is the length of the pieces in which blobs are taken from a peer.
	pullBuffer = 256 << 10
	// pulledInterval is the time between two reports of progress.
	pulledInterval = 500 * time.Millisecond
)

// puller takes blobs from peers.
type puller struct {
	r     *receiver
	peers []*peer
	// absent are the blobs that no peer can be asked for.
	absent map[digest.Digest]bool
	buffer []byte
	// total counts all bytes, unsaid those that the operator has not been told of.
	total, unsaid int64
	said          time.Time
	troubles      int
	probes        sync.WaitGroup
}

type peer struct {
	wire.Peer
	client *http.Client
	token  string
	// waited is how long this node has waited for the last given bytes; both begin anew with
	// every slowBytes. It may wait for patience.
	waited, patience time.Duration
	given            int64
	// faults counts connections that failed since the last byte, damaged the blobs whose
	// bytes were wrong. A peer that is gone is not asked again.
	faults, damaged int
	gone            bool
	// probed is closed when it is known whether the peer can be reached; probeErr is why not.
	probed   chan struct{}
	probeErr error
}

func newPuller(r *receiver, swarm *wire.Swarm, peers *wire.Peers) (*puller, error) {
	p := &puller{r: r, absent: make(map[digest.Digest]bool), said: time.Now()}
	for _, d := range peers.Operator {
		p.absent[d] = true
	}
	if swarm == nil || len(peers.Peers) == 0 {
		return p, nil
	}
	p.buffer = make([]byte, pullBuffer)
	for _, one := range peers.Peers {
		certificate, err := one.Parse()
		if err != nil {
			text := fmt.Sprintf("reach %.100q: %v", one.Address, err)
			if err := p.complain(wire.Trouble{Peer: one.Name, Text: text}); err != nil {
				return nil, err
			}
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(certificate)
		p.peers = append(p.peers, &peer{
			Peer: one, probed: make(chan struct{}), token: hex.EncodeToString(swarm.Token),
			patience: cmp.Or(r.opts.PeerTimeout, slowTimeout),
			client: &http.Client{
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				Transport: &http.Transport{ // without Proxy: the way is direct
					DialContext: dialBuffered,
					// Only so that no handshake is left over: watch is quicker.
					TLSHandshakeTimeout:    3 * answerTimeout,
					MaxResponseHeaderBytes: maxRequest, MaxConnsPerHost: 3, IdleConnTimeout: keepTimeout,
					DisableCompression: true,
					TLSClientConfig: &tls.Config{
						RootCAs: roots, ServerName: certificateName, Time: certificateTime,
						MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
					},
				},
			},
		})
	}
	// All at once: where a firewall lets nothing through, that is known after one timeout.
	for _, peer := range p.peers {
		p.probes.Go(func() {
			defer close(peer.probed)
			_, peer.probeErr = peer.progress(r.ctx, dialTimeout)
		})
	}
	return p, nil
}

// dialBuffered makes a connection that is read in large pieces. TLS itself reads a record
// at a time, 16 KiB.
func dialBuffered(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDial, err)
	}
	return &bufferedConn{Conn: c, in: bufio.NewReaderSize(c, pullBuffer)}, nil
}

type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func (p *puller) close() {
	p.probes.Wait() // each has a deadline
	for _, peer := range p.peers {
		peer.client.CloseIdleConnections()
	}
}

// offers reports whether a peer may have the blob.
func (p *puller) offers(d digest.Digest) bool {
	if p.absent[d] {
		return false
	}
	for _, peer := range p.peers {
		if !peer.gone {
			return true
		}
	}
	return false
}

// What a peer may answer, beside the bytes.
var (
	errNotThere = errors.New("it does not have the blob")
	errBusyPeer = errors.New("it is busy")
	errRefused  = errors.New("it refuses the token")
	errDial     = errors.New("it cannot be reached any more")
	errQuiet    = errors.New("it does not answer any more")
	errStalled  = errors.New("it does not get on")
	errSlow     = errors.New("it says that it gets on, but gives next to nothing")
)

// pull takes the rest of the current blob from one peer after the other. When none has
// it, the error is a *damagedError, and the blob is absent from then on.
func (p *puller) pull(t *target, s segment) error {
	passed, failed := make(map[*peer]bool), make(map[*peer]int)
	for tries := 0; ; {
		peer, err := p.next(s.digest, passed)
		if err != nil {
			return err
		}
		if peer == nil {
			p.absent[s.digest] = true
			return &damagedError{errors.New("no peer has it")}
		}
		whole := t.inCurrent == 0
		err = p.fetch(peer, t, s)
		if own := (*ownError)(nil); errors.As(err, &own) {
			return own.err
		}
		if ctxErr := p.r.ctx.Err(); ctxErr != nil {
			return context.Cause(p.r.ctx)
		}
		if err != nil {
			failed[peer]++
			passed[peer] = p.blame(peer, s.digest, err) || failed[peer] >= maxTries
			continue
		}
		there := t.inCurrent
		err = t.endBlob()
		if !errors.Is(err, errContent) {
			return err
		}
		if err := p.count(-there); err != nil {
			return err
		}
		if whole {
			passed[peer] = true
			peer.damaged++
			peer.gone = peer.damaged >= maxDamaged
			if err := p.complain(wire.Trouble{Peer: peer.Name, Blob: s.digest, Damaged: true,
				Text: fmt.Sprintf("blob %s came in wrong: %v", s.digest, err)}); err != nil {
				return err
			}
		} else if tries++; tries >= maxTries {
			p.absent[s.digest] = true
			return &damagedError{err}
		}
	}
}

// next returns the first peer that can be asked for a blob, or nil.
func (p *puller) next(d digest.Digest, passed map[*peer]bool) (*peer, error) {
	if p.absent[d] {
		return nil, nil
	}
	for _, peer := range p.peers {
		if peer.gone || passed[peer] {
			continue
		}
		select {
		case <-peer.probed:
		case <-p.r.ctx.Done():
			return nil, context.Cause(p.r.ctx)
		}
		if peer.probeErr == nil {
			return peer, nil
		}
		peer.gone = true
		if err := p.complain(wire.Trouble{Peer: peer.Name,
			Text: fmt.Sprintf("reach %s: %v", peer.Address, peer.probeErr)}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// blame decides what becomes of a peer that failed; it returns whether another one is to
// be asked for this blob.
func (p *puller) blame(peer *peer, d digest.Digest, err error) bool {
	switch {
	case errors.Is(err, errNotThere), errors.Is(err, errBusyPeer):
		return true
	case errors.Is(err, errRefused), errors.Is(err, errDial), errors.Is(err, errQuiet), errors.Is(err, errStalled),
		errors.Is(err, errSlow):
		peer.gone = true
	default:
		peer.faults++
		peer.gone = peer.faults >= maxFaults
	}
	if peer.gone {
		// When the operator cannot be told, the next frame will fail as well.
		_ = p.complain(wire.Trouble{Peer: peer.Name, Blob: d,
			Text: fmt.Sprintf("take blobs from %s: %v", peer.Address, err)})
	}
	return peer.gone
}

func (p *puller) complain(t wire.Trouble) error {
	if p.troubles++; p.troubles > wire.MaxTroubles {
		return nil
	}
	return p.r.say(wire.Message{Trouble: &t})
}

// ownError is a failure on this node.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// fetch appends what a peer has of the rest of the current blob. The error is an
// *ownError when it is this node's fault.
func (p *puller) fetch(peer *peer, t *target, s segment) error {
	ctx, cancel := context.WithCancelCause(p.r.ctx)
	defer cancel(nil)
	var bytes atomic.Int64
	began, watched := time.Now(), make(chan struct{})
	go func() {
		defer close(watched)
		peer.watch(ctx, &bytes, cancel)
	}()
	err := p.transfer(ctx, peer, t, s, &bytes)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		if own := (*ownError)(nil); !errors.As(err, &own) {
			err = cause
		}
	}
	cancel(nil)
	<-watched
	peer.waited += time.Since(began)
	if peer.given += bytes.Load(); peer.given >= slowBytes {
		peer.waited, peer.given = 0, 0
	}
	return err
}

func (p *puller) transfer(ctx context.Context, peer *peer, t *target, s segment, bytes *atomic.Int64) error {
	response, err := peer.get(ctx, blobsPath+s.digest.String(), t.inCurrent)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	switch response.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
	case http.StatusNotFound:
		return errNotThere
	case http.StatusServiceUnavailable:
		return errBusyPeer
	case http.StatusUnauthorized:
		return errRefused
	default:
		return fmt.Errorf("it answers with status %d", response.StatusCode)
	}
	if response.ContentLength != s.size-t.inCurrent {
		return fmt.Errorf("it offers %d bytes instead of %d", response.ContentLength, s.size-t.inCurrent)
	}
	for t.inCurrent < s.size {
		// A whole buffer, not just the record of 16 KiB that TLS has at hand: each piece wakes
		// those who take the blob from here.
		n, readErr := io.ReadFull(response.Body, p.buffer[:min(int64(len(p.buffer)), s.size-t.inCurrent)])
		if n > 0 {
			bytes.Add(int64(n))
			peer.faults = 0
			if err := t.write(p.buffer[:n]); err != nil {
				return &ownError{err}
			}
			p.total += int64(n)
			if err := p.count(int64(n)); err != nil {
				return &ownError{err}
			}
		}
		if readErr != nil && t.inCurrent < s.size {
			if errors.Is(readErr, io.EOF) {
				readErr = io.ErrUnexpectedEOF
			}
			return readErr
		}
	}
	// The connection can be used again only when the end has been read.
	_, _ = io.ReadFull(response.Body, p.buffer[:1])
	return nil
}

// get asks for something: for a blob from an offset on, or, when that is below zero, on a
// connection that is not to be kept.
func (p *peer) get(ctx context.Context, path string, offset int64) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.Address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+p.token)
	request.Close = offset < 0
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	return p.client.Do(request)
}

// watch ends a transfer whose peer is gone or does not get on. That nothing comes is
// well as long as the peer itself gets bytes, be they others.
func (p *peer) watch(ctx context.Context, bytes *atomic.Int64, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(quietTimeout)
	defer ticker.Stop()
	before, progress, moved := int64(0), int64(-1), time.Now()
	waited, given, since := p.waited, p.given, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch now := given + bytes.Load(); {
		case now >= slowBytes:
			waited, since, given = 0, time.Now(), given-now
		case waited+time.Since(since) > p.patience:
			cancel(errSlow)
			return
		}
		if now := bytes.Load(); now != before {
			before, moved = now, time.Now()
			continue
		}
		now, err := p.progress(ctx, answerTimeout)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			cancel(fmt.Errorf("%w: %w", errQuiet, err))
			return
		case now != progress:
			progress, moved = now, time.Now()
		case time.Since(moved) > stallTimeout:
			cancel(errStalled)
			return
		}
	}
}

func (p *peer) progress(ctx context.Context, timeout time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := p.get(ctx, progressPath, -1)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 32))
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("it answers with status %d", response.StatusCode)
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// count notes bytes that came, or went again, and tells the operator now and then.
func (p *puller) count(n int64) error {
	p.r.left -= n
	p.unsaid += n
	if now := time.Now(); now.Sub(p.said) >= pulledInterval {
		p.said = now
		return p.flush()
	}
	return nil
}

func (p *puller) flush() error {
	if p.unsaid == 0 {
		return nil
	}
	n := p.unsaid
	p.unsaid = 0
	return p.r.say(wire.Message{Pulled: &wire.Pulled{Bytes: n}})
}
