package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	// sftpFrom is the size in bytes from which on Put goes by SFTP to a host that is near.
	sftpFrom = 1 << 20
	// sftpFromTrip is how much is added to that for every millisecond of a round trip.
	sftpFromTrip = 4 << 20
	// sftpFromFar is where that ends: larger files go by SFTP to every host.
	sftpFromFar = 64 << 20
	// sftpPacket is how much one packet carries where the server says that it takes more than the 32 KiB that every
	// server takes.
	sftpPacket = 128 << 10
	// sftpRequests is how many packets of one file are on their way at once.
	sftpRequests = 32
)

// subsystem is SFTP on one connection. It is opened once, when it is first needed, and not again after a failure.
type subsystem struct {
	mu     sync.Mutex
	opened chan struct{} // nil at first; closed when client or err is set
	client *sftp.Client
	err    error
	trip   time.Duration // how long a round trip takes; 0 when that is not known
	always bool          // for files of every size, in tests
}

// sftpSize returns the size in bytes from which on a file goes by SFTP, which needs more round trips than cat and is
// then as fast or faster. near is what it is for a host without round trips.
func (h *Host) sftpSize(ctx context.Context, near int64) int64 {
	if h.subsystem.always {
		return 0
	}
	milliseconds := float64(h.roundTrip(ctx)) / float64(time.Millisecond)
	return int64(min(float64(near)+milliseconds*sftpFromTrip, sftpFromFar))
}

// roundTrip returns how long a round trip to the host takes. It is measured once.
func (h *Host) roundTrip(ctx context.Context) time.Duration {
	s := &h.subsystem
	s.mu.Lock()
	trip := s.trip
	s.mu.Unlock()
	if trip > 0 {
		return trip
	}
	const often = 2 // one of which nothing else holds up
	measured := make(chan time.Duration, 1)
	go func() {
		shortest := time.Hour
		for range often {
			begin := time.Now()
			if _, _, err := h.client.SendRequest("keepalive@openssh.com", true, nil); err != nil {
				break // the connection has ended: whatever comes next tells
			}
			shortest = min(shortest, time.Since(begin))
		}
		measured <- shortest
	}()
	select {
	case trip = <-measured:
	case <-ctx.Done():
		return time.Hour
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trip = trip
	return trip
}

// noSFTP says why SFTP cannot take the place of a command; "" when it may be tried.
func (h *Host) noSFTP(ctx context.Context, root bool) string {
	if root {
		if _, _, err := h.asRoot(ctx, ""); err != nil {
			return "it needs root" // the command has the error
		}
		h.elevate.mu.Lock()
		sudo := h.elevate.sudo != ""
		h.elevate.mu.Unlock()
		if sudo {
			return "it goes through sudo"
		}
	}
	s := &h.subsystem
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return printable.Short(s.err.Error(), 200)
	}
	return ""
}

// tooSmall is why a file does not go by SFTP although it could.
const tooSmall = "it is too small to make up for more round trips"

// logTransfer tells which way a file went, and why not by SFTP.
func (h *Host) logTransfer(ctx context.Context, what, name, way, reason string, more ...any) {
	log := h.target.log().With("host", h.Name(), "path", name, "way", way)
	if reason != "" {
		log = log.With("because", reason)
	}
	log.DebugContext(ctx, what, more...)
}

// sftpClient opens the subsystem if that has not been done yet. ctx bounds the waiting only.
func (h *Host) sftpClient(ctx context.Context) (*sftp.Client, error) {
	s := &h.subsystem
	s.mu.Lock()
	if s.opened == nil {
		s.opened = make(chan struct{})
		go h.openSFTP()
	}
	opened := s.opened
	s.mu.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client, s.err
}

// openSFTP fills h.subsystem.
func (h *Host) openSFTP() {
	s := &h.subsystem
	type result struct {
		client *sftp.Client
		err    error
	}
	begun := make(chan result, 1)
	go func() {
		client, err := newSFTP(h.client)
		begun <- result{client, err}
	}()
	var got result
	select {
	case got = <-begun:
	case <-time.After(h.target.connectTimeout()):
		// A server that says nothing is left alone: only the end of the connection is sure to end it.
		got.err = fmt.Errorf("no answer within %s", h.target.connectTimeout())
		go func() {
			if late := <-begun; late.err == nil {
				_ = late.client.Close() // nobody has it
			}
		}()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got.err != nil {
		s.err = fmt.Errorf("open SFTP: %w", shown(got.err))
	} else {
		s.client = got.client
		go func() { h.dropSFTP(fmt.Errorf("SFTP has ended: %w", shown(got.client.Wait()))) }()
	}
	close(s.opened)
}

// dropSFTP makes whatever comes next go other ways.
func (h *Host) dropSFTP(why error) {
	s := &h.subsystem
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = why
		go s.client.Close() //nolint:errcheck // it waits for the server's end, or that of the connection
	}
}

// newSFTP opens the subsystem.
func newSFTP(conn *ssh.Client) (*sftp.Client, error) {
	session, err := conn.NewSession()
	if err != nil {
		return nil, err
	}
	client, err := beginSFTP(session)
	if err != nil {
		_ = session.Close() // the first error is the one to tell
		return nil, err
	}
	return client, nil
}

func beginSFTP(session *ssh.Session) (*sftp.Client, error) {
	stdin, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := session.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := session.RequestSubsystem("sftp"); err != nil {
		return nil, err
	}
	// What is not read would keep the rest from coming.
	go io.Copy(io.Discard, stderr) //nolint:errcheck // it ends with the session
	return greetSFTP(stdout, sessionPipe{stdin, session})
}

// greetSFTP begins to speak SFTP. What the server sends is bounded by the package: 256 KiB for a packet.
func greetSFTP(in io.Reader, out io.WriteCloser) (*sftp.Client, error) {
	client, err := sftp.NewClientPipe(in, out, sftp.UseFstat(true), sftp.MaxConcurrentRequestsPerFile(sftpRequests))
	if err != nil {
		return nil, err
	}
	// OpenSSH since 8.5, with limits of 255 KiB. Before, it read no more than 64 KiB at once, and did not say so.
	if version, _ := client.HasExtension("limits@openssh.com"); version == "1" {
		err = sftp.MaxPacketUnchecked(sftpPacket)(client)
	}
	return client, err
}

// sessionPipe closes the session with its stdin.
type sessionPipe struct {
	io.WriteCloser
	session *ssh.Session
}

func (p sessionPipe) Close() error { return errors.Join(p.WriteCloser.Close(), p.session.Close()) }

// speak runs what speaks SFTP, which knows no contexts, in a goroutine of its own. When ctx has ended and the server
// does not answer for a while, SFTP is given up, and do is left behind: the caller then keeps it from what is the
// caller's. nil means that do has ended well, whatever ctx says.
func (h *Host) speak(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- guarded(do) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
	case <-time.After(killGrace):
		h.dropSFTP(errors.New("SFTP did not answer"))
	}
	return context.Cause(ctx)
}

// guarded makes an error of a panic. Package sftp has a pointer to nothing where a server answers a question by "fine",
// and itself goes on with it in File.WriteTo.
func guarded(do func() error) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("the server's answer makes no sense: %v", found)
		}
	}()
	return do()
}

// together saves a round trip.
func together(one, other func() error) error {
	var g errgroup.Group
	g.Go(func() error { return guarded(one) })
	g.Go(func() error { return guarded(other) })
	return g.Wait()
}

var errNoHandle = errors.New("the server opened nothing")

// shown makes an error of SFTP fit to be shown: the server has a say in its text.
func shown(err error) error {
	if err == nil {
		return nil
	}
	for _, kind := range []error{fs.ErrNotExist, fs.ErrPermission, sftp.ErrSSHFxConnectionLost} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return errors.New(printable.Short(err.Error(), 200))
}

// source is a content that can be stopped: nothing is read from it then.
type source struct {
	in   io.Reader
	told func(int64)

	mu      sync.Mutex
	stopped bool
	count   int64
	err     error // of in
}

var errStopped = errors.New("it is not needed any more")

func (s *source) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return 0, errStopped
	}
	n, err := s.in.Read(b)
	s.count += int64(n)
	if n > 0 && s.told != nil {
		s.told(int64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// stop waits for a Read that is going on.
func (s *source) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}
