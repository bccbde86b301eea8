package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/progress"
)

// Report is what [Send] did.
type Report struct {
	// Held and Placed have the names of packs and the paths of files: those that were on
	// the node already, and those that have been put there now.
	Held, Placed []string
	// Removed are the paths of unfinished packs and files that the node deleted because
	// nobody wants them any more.
	Removed []string
	// Blobs and Bytes are what travelled.
	Blobs int
	Bytes int64
	// Copied is how many bytes the node took from packs and files that it had.
	Copied int64
	// Space is what the node said about its filesystems before it began.
	Space []Space
}

// maxRounds bounds how often a node may ask once more; each time it has found a copy of
// its own to be damaged.
const maxRounds = MaxTargets

// sendBuffer is the length of the pieces in which blobs are sent.
const sendBuffer = 256 << 10

// Send is the operator's end of the protocol: in and out are the standard input and
// output of "boxlift-node receive" on the node, and after it want is there.
//
// Open returns the content of a blob from an offset on; Send closes what it returns.
// Start is called once, when the node has said what it lacks, with the bytes of all blobs
// wanted; those that need not travel are skipped on the task, which Send ends.
//
// When the node says that it failed, the error is a [*Failure]. Send closes in and does
// not return before its last Write to it has, which a node that has ended brings about.
// Only when ctx ends it does not wait: then a Write, or a Read from what open returned,
// may be under way until the caller has closed the connection. Out is Send's until its
// end.
func Send(ctx context.Context, in io.WriteCloser, out io.Reader, want Want,
	open func(d digest.Digest, offset int64) (io.ReadCloser, error),
	start func(total int64) progress.Task,
) (Report, error) {
	s := &sender{in: in, want: want, open: open, start: start}
	s.known, s.sent = make(map[digest.Digest]int64), make(chan error, 1)
	for _, p := range want.Packs {
		for _, b := range p.Blobs {
			s.known[b.Digest] = b.Size
			s.total += b.Size
		}
	}
	for _, f := range want.Files {
		s.known[f.Digest] = f.Size
		s.total += f.Size
	}
	err := s.run(ctx, out)
	if closeErr := in.Close(); err == nil && closeErr != nil && !errors.Is(closeErr, io.EOF) {
		err = fmt.Errorf("close the stream to boxlift-node: %w", closeErr)
	}
	if s.busy {
		select {
		case <-s.sent: //nolint:errcheck // only its end matters: the reason is in err
		case <-ctx.Done():
		}
	}
	if s.task != nil {
		s.task.Done(err)
	}
	s.report.Blobs, s.report.Bytes = int(s.blobs.Load()), s.bytes.Load()
	return s.report, err
}

type sender struct {
	in     io.WriteCloser
	want   Want
	open   func(d digest.Digest, offset int64) (io.ReadCloser, error)
	start  func(total int64) progress.Task
	known  map[digest.Digest]int64
	total  int64
	task   progress.Task
	rounds int
	// busy says that a goroutine writes to in; it puts its result into sent.
	busy   bool
	sent   chan error
	report Report
	// blobs and bytes are counted by the goroutine that sends.
	blobs, bytes atomic.Int64
}

type incoming struct {
	message Message
	err     error
}

// readFrames reads frames until ctx or the input ends.
func readFrames(ctx context.Context, out io.Reader) <-chan incoming {
	frames := make(chan incoming)
	go func() {
		for {
			m, err := ReadFrame(out)
			select {
			case frames <- incoming{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return frames
}

// run takes in frames at all times, so that neither end ever waits for the other to
// read, and sends what the node asks for beside that.
func (s *sender) run(ctx context.Context, out io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	frames := readFrames(ctx, out)
	s.write(func() error { return WriteFrame(s.in, Message{Want: &s.want}) })
	// The node may have read the last byte and gone on before this side knows that it has
	// written it; so what the node asks for is queued.
	finished := false
	var pending []*Lacks
	for {
		if !s.busy && len(pending) > 0 {
			lacks := pending[0]
			pending = pending[1:]
			s.write(func() error { return s.send(ctx, lacks) })
		}
		if !s.busy && finished {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("send to boxlift-node: %w", context.Cause(ctx))
		case err := <-s.sent:
			s.busy = false
			if local := (*openError)(nil); errors.As(err, &local) {
				return err
			}
			if err != nil && finished {
				return notAllTaken(err)
			}
			if err != nil {
				// The node is gone; what it said last is worth more than the broken pipe.
				return s.lastWord(ctx, frames, err)
			}
		case f := <-frames:
			if f.err != nil {
				return streamEnd(f.err)
			}
			lacks, last, err := s.take(f.message)
			if err != nil {
				return err
			}
			if lacks != nil {
				pending = append(pending, lacks)
			}
			if last {
				finished, frames = true, nil
			}
		}
	}
}

// write calls f in a goroutine.
func (s *sender) write(f func() error) {
	s.busy = true
	go func() { s.sent <- f() }()
}

// lastWord waits for the failure that the node sent before it closed its end.
func (s *sender) lastWord(ctx context.Context, frames <-chan incoming, cause error) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("send to boxlift-node: %w", cause)
		case f := <-frames:
			if f.err != nil {
				return fmt.Errorf("send to boxlift-node: it ended early: %w", cause)
			}
			_, finished, err := s.take(f.message)
			if err != nil {
				return err
			}
			if finished {
				return notAllTaken(cause)
			}
		}
	}
}

// notAllTaken is the error of a node that says that it is done too early.
func notAllTaken(cause error) error {
	return fmt.Errorf("%w: boxlift-node says that it is done, but did not take all bytes: %w", ErrProtocol, cause)
}

func streamEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("boxlift-node ended before it had said that it is done: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read what boxlift-node says: %w", err)
}

// take notes what a frame says. It returns the blobs to send, or whether this was the
// last frame.
func (s *sender) take(m Message) (lacks *Lacks, finished bool, err error) {
	switch {
	case m.Failure != nil:
		return nil, false, m.Failure
	case m.Lacks != nil:
		return m.Lacks, false, s.takeLacks(m.Lacks)
	case s.task == nil || m.Want != nil:
		return nil, false, fmt.Errorf("%w: boxlift-node did not begin with what it lacks", ErrProtocol)
	case m.Placed != nil:
		s.report.Placed = append(s.report.Placed, m.Placed.Name)
		if len(s.report.Placed) > len(s.want.Packs)+len(s.want.Files) {
			return nil, false, fmt.Errorf("%w: boxlift-node placed more than it was to", ErrProtocol)
		}
		return nil, false, nil
	default:
		s.report.Copied = m.Finished.Copied
		if n := len(s.report.Placed) + len(s.report.Held); n != len(s.want.Packs)+len(s.want.Files) {
			return nil, false, fmt.Errorf("%w: boxlift-node says that it is done, but named %d of %d packs and files",
				ErrProtocol, n, len(s.want.Packs)+len(s.want.Files))
		}
		return nil, true, nil
	}
}

func (s *sender) takeLacks(l *Lacks) error {
	if s.rounds++; s.rounds > maxRounds {
		return fmt.Errorf("%w: boxlift-node asked for blobs %d times", ErrProtocol, s.rounds)
	}
	seen := make(map[digest.Digest]bool)
	missing := int64(0)
	for _, b := range l.Blobs {
		size, ok := s.known[b.Digest]
		if !ok || seen[b.Digest] || b.Size != size || b.Offset < 0 || b.Offset > size {
			return fmt.Errorf("%w: boxlift-node asks for blob %q of %d bytes from %d on, which is not as it was offered", ErrProtocol, string(b.Digest), b.Size, b.Offset)
		}
		seen[b.Digest] = true
		missing += b.Size - b.Offset
	}
	if s.rounds > 1 {
		s.task.Add(-missing)
		return nil
	}
	s.report.Held, s.report.Removed, s.report.Space = l.Held, l.Removed, l.Space
	s.task = s.start(s.total)
	s.task.Skip(s.total - missing)
	return nil
}

// openError is a failure of the operator's own, which the node knows nothing of.
type openError struct{ err error }

func (e *openError) Error() string { return e.err.Error() }
func (e *openError) Unwrap() error { return e.err }

// send writes the blobs.
func (s *sender) send(ctx context.Context, l *Lacks) error {
	buffer := make([]byte, sendBuffer)
	for _, b := range l.Blobs {
		if err := s.sendBlob(ctx, b, buffer); err != nil {
			return err
		}
		s.blobs.Add(1)
	}
	return nil
}

func (s *sender) sendBlob(ctx context.Context, b Lack, buffer []byte) (err error) {
	r, err := s.open(b.Digest, b.Offset)
	if err != nil {
		return &openError{fmt.Errorf("open blob %s: %w", b.Digest, err)}
	}
	defer func() {
		if closeErr := r.Close(); err == nil && closeErr != nil {
			err = &openError{fmt.Errorf("close blob %s: %w", b.Digest, closeErr)}
		}
	}()
	for left := b.Size - b.Offset; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(left, int64(len(buffer)))
		if _, err := io.ReadFull(r, buffer[:n]); err != nil {
			return &openError{fmt.Errorf("read blob %s at %d of %d bytes: %w", b.Digest, b.Size-left, b.Size, err)}
		}
		if _, err := s.in.Write(buffer[:n]); err != nil {
			return err
		}
		left -= n
		s.bytes.Add(n)
		s.task.Add(n)
	}
	return nil
}
