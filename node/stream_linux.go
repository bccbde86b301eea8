package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// streamBuffer is the largest piece, in bytes, in which a stream is read and written on.
const streamBuffer = 512 << 10

// stream reads a file, in general a pipe or a socket, until a context ends.
//
// It reads in the goroutine that takes the bytes: while that hashes and writes, the
// kernel's buffer fills, so that the next read gets more. Measured under sshd, a
// goroutine that reads ahead took a fifth more CPU time for waking the other side up.
type stream struct {
	ctx    context.Context //nolint:containedctx // the life of one Receive call
	in     *os.File
	idle   time.Duration
	wake   *os.File // is readable when ctx has ended
	close  func()
	buffer []byte
	rest   []byte
}

// newStream begins to read r. What is not a file goes through a pipe, where its errors
// look like its end. When nothing comes for the time idle, reading fails with [errIdle].
// Close must be called.
func newStream(ctx context.Context, r io.Reader, idle time.Duration) (*stream, error) {
	wake, end, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = end.Close() })
	s := &stream{ctx: ctx, idle: idle, wake: wake, buffer: make([]byte, streamBuffer)}
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

// errIdle says that nothing came for too long.
var errIdle = errors.New("nothing came")

// wait returns when there is something to read, with the context's error, or with
// errIdle.
func (s *stream) wait() error {
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
					return fmt.Errorf("%w for %v", errIdle, s.idle)
				}
				return err
			}
		})
	})
}

// hungUp tells whether the other end is closed, whatever is still to be read.
func (s *stream) hungUp() bool {
	closed := false
	_ = hostfile.Control(s.in, func(in int) error {
		fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		closed = err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
		return nil
	})
	return closed
}

// next returns at least one and at most limit bytes, which are valid until the next
// call, or the error that ended the input.
func (s *stream) next(limit int64) ([]byte, error) {
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

func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := s.next(int64(len(p)))
	return copy(p, b), err
}
