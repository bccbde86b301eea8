package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// BufferSize is the largest piece, in bytes, in which a stream is read and written on.
const BufferSize = 512 << 10

// Stream reads a file, in general a pipe or a socket, until a context ends.
//
// It reads in the goroutine that takes the bytes: while that hashes and writes, the
// kernel's buffer fills, so that the next read gets more. Measured under sshd, a
// goroutine that reads ahead took a fifth more CPU time for waking the other side up.
type Stream struct {
	ctx    context.Context //nolint:containedctx // the life of one call of what reads
	in     *os.File
	idle   time.Duration
	wake   *os.File // is readable when ctx has ended
	close  func()
	buffer []byte
	rest   []byte
}

// Open begins to read r. What is not a file goes through a pipe, where its errors
// look like its end. When nothing comes for the time idle, reading fails with [ErrIdle].
// Close must be called.
func Open(ctx context.Context, r io.Reader, idle time.Duration) (*Stream, error) {
	wake, end, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = end.Close() })
	s := &Stream{ctx: ctx, idle: idle, wake: wake, buffer: make([]byte, BufferSize)}
	s.close = func() {
		if stop() {
			_ = end.Close()
		}
		hostfile.CloseRead(wake)
	}
	if f, ok := r.(*os.File); ok {
		s.in = f
	} else {
		in, out, err := os.Pipe()
		if err != nil {
			s.close()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		s.in = in
		go func() {
			_, _ = io.Copy(out, r)
			_ = out.Close()
		}()
		closeWake := s.close
		s.close = func() {
			closeWake()
			hostfile.CloseRead(in)
		}
	}
	// Fewer, larger reads. It is refused for what is not a pipe, and beyond a limit.
	_ = hostfile.Control(s.in, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<20)
		return err
	})
	return s, nil
}

// ErrIdle says that nothing came for too long.
var ErrIdle = fault.NewKind(fault.Host, "nothing came")

// wait returns when there is something to read, with the context's error, or with
// ErrIdle.
func (s *Stream) wait() error {
	return hostfile.Control(s.wake, func(wake int) error {
		return hostfile.Control(s.in, func(in int) error {
			fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
			for {
				n, err := unix.Poll(fds, int(s.idle.Milliseconds()))
				if fds[1].Revents != 0 {
					return context.Cause(s.ctx)
				}
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if n == 0 && err == nil {
					return fmt.Errorf("%w for %v", ErrIdle, s.idle)
				}
				return err
			}
		})
	})
}

// Close ends the stream; what it reads from stays open if it was a file. It must not be
// called while it is read from.
func (s *Stream) Close() { s.close() }

// HungUp reports whether the other end is closed, whatever is still to be read.
func (s *Stream) HungUp() bool {
	closed := false
	_ = hostfile.Control(s.in, func(in int) error {
		fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		closed = err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
		return nil
	})
	return closed
}

// Next returns at least one and at most limit bytes, which are valid until the next
// call, or the error that ended the input.
func (s *Stream) Next(limit int64) ([]byte, error) {
	for len(s.rest) == 0 {
		if err := s.wait(); err != nil {
			return nil, err
		}
		n, err := s.in.Read(s.buffer)
		if n == 0 && err != nil {
			return nil, err
		}
		s.rest = s.buffer[:n]
	}
	n := min(int64(len(s.rest)), limit)
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b, nil
}

func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := s.Next(int64(len(p)))
	return copy(p, b), err
}
