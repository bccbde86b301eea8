package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"sync"

	"github.com/pkg/sftp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Get copies a file's content to w: by SFTP where that is possible (see the package's comment), else by cat. By SFTP, a
// file that is being changed fails when it has not the size any more that it began with. A failure on the host is an
// *[host.ExitError], or one of SFTP.
//
// Get does not return while a Write to w is going on.
func (h *Host) Get(ctx context.Context, o host.GetOptions, w io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get %s: %w", o.Path, err)
		}
	}()
	if err := o.Check(); err != nil {
		return err
	}
	to := &sink{to: w, sum: sha256.New(), limit: math.MaxInt64}
	way, reason := "cat", h.noSFTP(ctx, o.Root)
	if reason == "" {
		var began bool
		if began, err = h.getViaSFTP(ctx, o, to); began || ctx.Err() != nil {
			way = "sftp"
		} else {
			reason = printable.Short(err.Error(), 200)
		}
	}
	if reason != "" {
		err = h.getViaCat(ctx, o, to)
	}
	h.logTransfer(ctx, "get", o.Path, way, reason, "size", to.count)
	if err != nil {
		return err
	}
	if err := o.Prove(to.sum.Sum(nil)); err != nil {
		return fault.OnHost(err, h.Name())
	}
	return nil
}

func (h *Host) getViaCat(ctx context.Context, o host.GetOptions, to *sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := h.begin(ctx, host.Command{Title: "read file", Args: []string{"cat", o.Path}, Root: o.Root})
	if err != nil {
		return err
	}
	if _, err = io.Copy(to, p.stdout); err != nil {
		cancel(err)
	}
	if waitErr := p.wait(); waitErr != nil {
		return waitErr
	}
	return err
}

// getViaSFTP reads a file. It reports whether it began to; if not, cat may do better, or has a better error.
func (h *Host) getViaSFTP(ctx context.Context, o host.GetOptions, to *sink) (began bool, err error) {
	client, err := h.sftpClient(ctx)
	if err != nil {
		return false, err
	}
	var f *sftp.File
	var size int64
	least := h.sftpSize(ctx, -sftpFromTrip)
	err = h.speak(ctx, func() (err error) {
		f, size, err = openRegular(client, o.Path, least)
		return err
	})
	if err != nil {
		return false, err
	}
	to.limit = size
	// Nobody waits for the answer.
	defer func() { go f.Close() }() //nolint:errcheck // it was only read
	err = h.speak(ctx, func() error { return readAll(f, to) })
	to.stop()
	switch {
	case to.err != nil:
		return true, fault.OnHost(to.err, h.Name())
	case ctx.Err() != nil:
		return true, fault.OnHost(context.Cause(ctx), h.Name())
	case err != nil:
		return true, fault.OnHost(fmt.Errorf("SFTP: %w", h.orLost(shown(err))), h.Name())
	}
	return true, nil
}

// openRegular opens a file with content of its own, and enough of it.
func openRegular(client *sftp.Client, name string, least int64) (*sftp.File, int64, error) {
	// The server would wait for the other end of a pipe.
	info, err := client.Stat(name)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no regular file")
	case info.Size() <= 0:
		err = errors.New("it does not say its size") // as those of the kernel do not
	case info.Size() < least:
		err = errors.New(tooSmall)
	}
	if err != nil {
		return nil, 0, shown(err)
	}
	f, err := client.Open(name)
	if err == nil && f == nil {
		err = errNoHandle
	}
	if err != nil {
		return nil, 0, shown(err)
	}
	return f, info.Size(), nil
}

// readAll copies what is in the file to a sink that knows its size.
func readAll(f *sftp.File, to *sink) error {
	n, err := f.WriteTo(to)
	if err == nil && n != to.limit {
		err = fmt.Errorf("%d bytes wanted, %d read: did the file change meanwhile?", to.limit, n)
	}
	return err
}

// sink is what a file is copied to until it is stopped: nothing is written to it then.
type sink struct {
	to    io.Writer
	sum   hash.Hash
	limit int64 // how much may come

	mu      sync.Mutex
	stopped bool
	count   int64
	err     error // of to
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return 0, errStopped
	}
	if int64(len(b)) > s.limit-s.count {
		return 0, errors.New("more came than the file has: did it change meanwhile?")
	}
	n, err := s.to.Write(b)
	s.count += int64(n)
	if err != nil {
		s.err = err
		return n, err
	}
	return s.sum.Write(b)
}

// stop waits for a Write that is going on.
func (s *sink) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}
