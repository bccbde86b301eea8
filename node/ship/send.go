package ship

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/wire"
)

// Report is what [ToOne], or [ToAll] for one host, did.
type Report struct {
	// Held and Placed have the names of packs and the paths of files: those that were on
	// the node already, and those that have been put there now.
	Held, Placed []string
	// Removed are the paths of unfinished packs and files that the node deleted because
	// nobody wants them any more.
	Removed []string
	// Blobs and Bytes are what travelled from here.
	Blobs int
	Bytes int64
	// Copied is how many bytes the node took from packs and files that it had, Pulled how
	// many it took from peers.
	Copied int64
	Pulled int64
	// Space is what the node said about its filesystems before it began.
	Space []wire.Space
	// NotServing is why the node could not listen for its peers, if it was to.
	NotServing string
	// Troubles are what the node had to say about its peers, in the node's words. One whose
	// Peer is the node itself is said of it here: it is no source for the others.
	Troubles []wire.Trouble
}

// StallTimeout is for how long a node may make no progress. It reads through what it has,
// copies and writes to its disk without a word, so this is longer than slow disks take for
// many GiB, and longer than it waits for a peer.
const StallTimeout = 15 * time.Minute

// ErrStalled is wrapped by the error of a node that made no progress for too long.
var ErrStalled = fault.NewKind(fault.Host, "boxlift-node stands still")

// Open returns the content of a blob from an offset on.
type Open func(d digest.Digest, offset int64) (io.ReadCloser, error)

const (
	// maxRounds bounds how often a node may ask once more; each time it has found a copy of
	// its own to be damaged, or its peers do not have a blob.
	maxRounds = 4 * wire.MaxTargets
	// sendBuffer is the length of the pieces in which blobs are sent.
	sendBuffer = 256 << 10
	// aliveInterval is after how long without anything to send the node is told that the
	// operator is still there.
	aliveInterval = 20 * time.Second
)

// ToOne is the operator's end of the protocol: in and out are the standard input and
// output of "boxlift-node receive" on the node, and after it want is there.
//
// Open returns the content of a blob from an offset on; ToOne closes what it returns.
// Start is called once, when the node has said what it lacks, with the bytes of all blobs
// wanted; those that need not travel are skipped on the task, which ToOne ends.
//
// When the node says that it failed, the error is a [*wire.Failure]. ToOne closes in and does
// not return before its last Write to it has, which a node that has ended brings about.
// Only when ctx ends, or the node makes no progress for [StallTimeout], it does not wait:
// then a Write, or a Read from what open returned, may be under way until the caller has
// closed the connection. Out is ToOne's until its end.
func ToOne(ctx context.Context, in io.WriteCloser, out io.Reader, want wire.Want, open Open,
	start func(total int64) progress.Task,
) (Report, error) {
	r := ToAll(ctx, []Host{{Want: want, In: in, Out: out, Start: start}}, 1, open)[0]
	return r.Report, r.Err
}

// sender is the conversation with one node.
type sender struct {
	name  string // what the node's peers call it
	in    io.WriteCloser
	want  wire.Want
	open  Open
	start func(total int64) progress.Task
	// ready is called with the node's state; peers then gives what to answer. Done is
	// called when the node has what it wants, and over is closed when nobody needs it as a
	// source any more.
	ready func(*wire.State)
	peers <-chan *wire.Peers
	done  func()
	over  <-chan struct{}

	stallTimeout time.Duration
	// moves counts what the node did; idle says that it is not its turn.
	moves atomic.Int64
	idle  atomic.Bool
	// pulled is what the node says that peers gave it, most the most that it ever was.
	pulled, most int64

	known map[digest.Digest]int64
	// outstanding are the names of packs and the paths of files that the node has not named.
	outstanding map[string]bool

	total  int64
	task   progress.Task
	ended  bool // the task
	rounds int
	// busy says that a goroutine writes to in; it puts its result into sent. What is to be
	// written after that is in queue.
	busy     bool
	sent     chan error
	queue    []func(context.Context) error
	finished bool
	report   Report
	// blobs and bytes are counted by the goroutine that sends.
	blobs, bytes atomic.Int64
}

// converse runs the conversation to its end.
func (s *sender) converse(ctx context.Context, out io.Reader) (Report, error) {
	s.known, s.outstanding, s.sent = make(map[digest.Digest]int64), make(map[string]bool), make(chan error, 1)
	for _, p := range s.want.Packs {
		s.outstanding[p.Name] = true
		for _, b := range p.Blobs {
			s.known[b.Digest] = b.Size
			s.total += b.Size
		}
	}
	for _, f := range s.want.Files {
		s.outstanding[f.Path] = true
		s.known[f.Digest] = f.Size
		s.total += f.Size
	}
	err := s.run(ctx, out)
	if closeErr := s.in.Close(); err == nil && closeErr != nil && !errors.Is(closeErr, io.EOF) {
		err = fmt.Errorf("close the stream to boxlift-node: %w", closeErr)
	}
	if s.busy {
		select {
		case <-s.sent: //nolint:errcheck // only its end matters: the reason is in err
		case <-ctx.Done():
		case <-after(s.stallTimeout, errors.Is(err, ErrStalled)):
		}
	}
	s.end(err)
	s.report.Blobs, s.report.Bytes = int(s.blobs.Load()), s.bytes.Load()
	return s.report, err
}

// after is closed after so long, or when it has been that long already.
func after(d time.Duration, over bool) <-chan time.Time {
	if over {
		d = 0
	}
	return time.After(d)
}

// watch ends a conversation in which the node makes no progress. Only what brings it
// nearer to its end counts, so that it cannot go on for ever with words.
func (s *sender) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(max(s.stallTimeout/8, time.Millisecond))
	defer ticker.Stop()
	seen, since := s.moves.Load(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		moves := s.moves.Load()
		if moves != seen || s.idle.Load() {
			seen, since = moves, time.Now()
		} else if time.Since(since) >= s.stallTimeout {
			cancel(fmt.Errorf("%w: for %s it has said nothing new and taken no bytes", ErrStalled, s.stallTimeout))
			return
		}
	}
}

// end ends the task, once.
func (s *sender) end(err error) {
	if s.task != nil && !s.ended {
		s.ended = true
		s.task.Done(err)
	}
}

type incoming struct {
	message wire.Message
	err     error
}

// readFrames reads frames until ctx or the input ends.
func readFrames(ctx context.Context, out io.Reader) <-chan incoming {
	frames := make(chan incoming)
	go func() {
		for {
			m, err := wire.ReadFrame(out)
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go s.watch(ctx, cancel)
	frames := readFrames(ctx, out)
	ticker := time.NewTicker(aliveInterval)
	defer ticker.Stop()
	s.say(wire.Message{Want: &s.want})
	for {
		if !s.busy && len(s.queue) > 0 {
			next := s.queue[0]
			s.queue = s.queue[1:]
			s.busy = true
			go func() { s.sent <- next(ctx) }()
		}
		if s.finished && !s.busy {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("send to boxlift-node: %w", context.Cause(ctx))
		case peers := <-s.peers:
			s.idle.Store(false)
			s.say(wire.Message{Peers: peers})
		case <-ticker.C:
			s.alive()
		case err := <-s.sent:
			s.busy = false
			if local := (*openError)(nil); errors.As(err, &local) {
				return err
			}
			if err != nil && s.finished {
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
			if err := s.take(f.message); err != nil {
				return err
			}
			if s.finished {
				frames = nil
			}
		}
	}
	s.end(nil)
	s.idle.Store(true)
	s.done()
	// As long as it is a source for others it is told that
	// they, and the operator, are there; should it end before that, it is their peers that
	// notice.
	for {
		select {
		case <-s.over:
			return nil
		case <-ctx.Done():
			return nil
		case err := <-s.sent:
			s.busy = false
			if err != nil {
				return nil //nolint:nilerr // it has ended, and that is its right
			}
		case <-ticker.C:
			s.alive()
			if !s.busy && len(s.queue) > 0 {
				next := s.queue[0]
				s.queue, s.busy = nil, true
				go func() { s.sent <- next(ctx) }()
			}
		}
	}
}

// say queues a frame.
func (s *sender) say(m wire.Message) {
	s.queue = append(s.queue, func(context.Context) error { return wire.WriteFrame(s.in, m) })
}

// alive queues a word when there is nothing else to send.
func (s *sender) alive() {
	if !s.busy && len(s.queue) == 0 {
		s.say(wire.Message{Alive: &wire.Alive{}})
	}
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
			if err := s.take(f.message); err != nil {
				return err
			}
			if s.finished {
				return notAllTaken(cause)
			}
		}
	}
}

// notAllTaken is the error of a node that says that it is done too early.
func notAllTaken(cause error) error {
	return fmt.Errorf("%w: boxlift-node says that it is done, but did not take all bytes: %w", wire.ErrProtocol, cause)
}

func streamEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("boxlift-node ended before it had said that it is done: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read what boxlift-node says: %w", err)
}

// take notes what a frame says.
func (s *sender) take(m wire.Message) error {
	switch {
	case m.Failure != nil:
		return m.Failure
	case m.State != nil && s.task == nil:
		return s.takeState(m.State)
	case s.task == nil || m.State != nil:
		return fmt.Errorf("%w: boxlift-node did not begin with its state", wire.ErrProtocol)
	case m.Lacks != nil:
		return s.takeLacks(m.Lacks)
	case m.Pulled != nil:
		s.task.Add(m.Pulled.Bytes)
		if s.pulled += m.Pulled.Bytes; s.pulled > s.most && s.pulled <= s.total {
			s.most = s.pulled
			s.moves.Add(1)
		}
		return nil
	case m.Trouble != nil:
		if len(s.report.Troubles) == wire.MaxTroubles {
			return fmt.Errorf("%w: boxlift-node complains of its peers for the %dth time", wire.ErrProtocol,
				wire.MaxTroubles+1)
		}
		t := *m.Trouble
		t.Peer, t.Text = said(t.Peer), said(t.Text)
		s.report.Troubles = append(s.report.Troubles, t)
		s.moves.Add(1)
		return nil
	case m.Placed != nil:
		if !s.outstanding[m.Placed.Name] {
			return fmt.Errorf("%w: boxlift-node placed %.200q, which it was not to, or not again", wire.ErrProtocol,
				m.Placed.Name)
		}
		delete(s.outstanding, m.Placed.Name)
		s.moves.Add(1)
		s.report.Placed = append(s.report.Placed, m.Placed.Name)
		return nil
	case m.Finished != nil:
		s.report.Copied, s.report.Pulled = m.Finished.Copied, m.Finished.Pulled
		if n := len(s.outstanding); n > 0 {
			return fmt.Errorf("%w: boxlift-node says that it is done, but did not name %d of %d packs and files",
				wire.ErrProtocol, n, len(s.want.Packs)+len(s.want.Files))
		}
		s.finished = true
		return nil
	}
	return fmt.Errorf("%w: boxlift-node says what only the operator may", wire.ErrProtocol)
}

// said makes a node's words fit to be shown.
func said(text string) string {
	const most = 1000 // bytes
	return printable.Short(text, most)
}

func (s *sender) takeState(state *wire.State) error {
	for _, name := range state.Held {
		if !s.outstanding[name] {
			return fmt.Errorf("%w: boxlift-node has %.200q, which nobody asked for, or names it twice",
				wire.ErrProtocol, name)
		}
		delete(s.outstanding, name)
	}
	s.report.Held, s.report.Removed, s.report.Space = state.Held, state.Removed, state.Space
	s.report.NotServing = said(state.NotServing)
	if state.Missing < 0 || state.Missing > s.total {
		return fmt.Errorf("%w: boxlift-node lacks %d bytes of the %d that are wanted", wire.ErrProtocol, state.Missing,
			s.total)
	}
	if err := state.Serving.Check(); err != nil {
		// Its peers, which did nothing wrong, go without it, and so may it without them.
		text := said(fmt.Sprintf("it is not used as a source: where it serves: %v", err))
		s.report.Troubles = append(s.report.Troubles, wire.Trouble{Peer: s.name, Text: text})
		state.Serving = nil
	}
	s.task = s.start(s.total)
	s.task.Skip(s.total - state.Missing)
	s.idle.Store(true) // until it is told its peers
	s.ready(state)
	return nil
}

func (s *sender) takeLacks(l *wire.Lacks) error {
	if s.rounds++; s.rounds > maxRounds {
		return fmt.Errorf("%w: boxlift-node asked for blobs %d times", wire.ErrProtocol, s.rounds)
	}
	seen := make(map[digest.Digest]bool)
	for _, b := range l.Blobs {
		size, ok := s.known[b.Digest]
		if !ok || seen[b.Digest] || b.Size != size || b.Offset < 0 || b.Offset > size {
			return fmt.Errorf("%w: boxlift-node asks for blob %q of %d bytes from %d on, which is not as it was offered",
				wire.ErrProtocol, string(b.Digest), b.Size, b.Offset)
		}
		seen[b.Digest] = true
	}
	s.task.Add(-l.Again)
	if len(l.Blobs) > 0 {
		s.moves.Add(1)
		s.queue = append(s.queue, func(ctx context.Context) error { return s.send(ctx, l) })
	}
	return nil
}

// openError is a failure of the operator's own, which the node knows nothing of.
type openError struct{ err error }

func (e *openError) Error() string { return e.err.Error() }
func (e *openError) Unwrap() error { return e.err }

// send writes the blobs, each behind its frame. Many may be small, so they are gathered.
func (s *sender) send(ctx context.Context, l *wire.Lacks) error {
	b := &batch{w: s.in, buffer: make([]byte, 0, sendBuffer), sent: func(n int64) {
		s.bytes.Add(n)
		s.task.Add(n)
		s.moves.Add(1)
	}}
	for _, blob := range l.Blobs {
		if err := s.sendBlob(ctx, blob, b); err != nil {
			// What was read before is good.
			return errors.Join(err, b.flush())
		}
		s.blobs.Add(1)
	}
	return b.flush()
}

func (s *sender) sendBlob(ctx context.Context, l wire.Lack, b *batch) (err error) {
	r, err := s.open(l.Digest, l.Offset)
	if err != nil {
		return &openError{fmt.Errorf("open blob %s: %w", l.Digest, err)}
	}
	defer func() {
		if closeErr := r.Close(); err == nil && closeErr != nil {
			err = &openError{fmt.Errorf("close blob %s: %w", l.Digest, closeErr)}
		}
	}()
	data := wire.Data{Digest: l.Digest, Offset: l.Offset, Size: l.Size - l.Offset}
	if err := b.frame(wire.Message{Data: &data}); err != nil {
		return err
	}
	for left := l.Size - l.Offset; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := b.fill(r, left)
		if local := (*openError)(nil); errors.As(err, &local) {
			return &openError{fmt.Errorf("read blob %s at %d of %d bytes: %w", l.Digest, l.Size-left, l.Size,
				local.err)}
		}
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// batch gathers frames and blobs to large writes.
type batch struct {
	w      io.Writer
	buffer []byte
	// raw is how many bytes of blobs are in the buffer; sent is told of them when they
	// have been written.
	raw  int64
	sent func(int64)
}

func (b *batch) frame(m wire.Message) error {
	content, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	if len(b.buffer)+4+len(content) > cap(b.buffer) {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.buffer = append(binary.BigEndian.AppendUint32(b.buffer, uint32(len(content))), content...)
	return nil
}

// fill takes at most limit bytes from r, as many as there is room for.
func (b *batch) fill(r io.Reader, limit int64) (int64, error) {
	if len(b.buffer) == cap(b.buffer) {
		if err := b.flush(); err != nil {
			return 0, err
		}
	}
	at := len(b.buffer)
	n := int(min(limit, int64(cap(b.buffer)-at)))
	if _, err := io.ReadFull(r, b.buffer[at:at+n]); err != nil {
		return 0, &openError{err}
	}
	b.buffer = b.buffer[:at+n]
	b.raw += int64(n)
	return int64(n), nil
}

func (b *batch) flush() error {
	if len(b.buffer) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buffer)
	if err == nil {
		b.sent(b.raw)
	}
	b.buffer, b.raw = b.buffer[:0], 0
	return err
}
