package progress

import (
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Display is a Reporter that shows what it is told until it is closed.
type Display interface {
	Reporter
	// Close shows what is still to be shown, gives the terminal back as it was and
	// returns the first error of writing. Tasks that have not ended are not shown
	// any more, and what is reported afterwards is dropped. Calls after the first
	// return the same error and do nothing else.
	Close() error
}

// form is one way of showing a board. Its methods are called one at a time, and none
// after finish.
type form interface {
	started(s snapshot)
	ended(s snapshot, err error)
	message(now time.Time, text string)
	// tick is called regularly with the running tasks in the order of their start.
	tick(running []snapshot)
	// finish is called once, at the end.
	finish()
}

// board keeps the running tasks and hands everything to its form.
type board struct {
	now  func() time.Time
	out  *output
	stop chan struct{} // closed by Close; nil when nothing ticks
	gone chan struct{} // closed when the ticking has ended
	// picture is that of the run that goes on, where the form shows one; nil where it does not. It is guarded by mu.
	picture *picture

	mu      sync.Mutex
	form    form
	running []*task
	closed  bool
}

func newBoard(out *output, f form, now func() time.Time) *board {
	return &board{now: now, out: out, form: f}
}

// run calls tick at every interval until Close.
func (b *board) run(interval time.Duration) *board {
	b.stop, b.gone = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(b.gone)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				b.tick()
			case <-b.stop:
				return
			}
		}
	}()
	return b
}

func (b *board) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	now := b.now()
	running := make([]snapshot, len(b.running))
	for i, t := range b.running {
		running[i] = t.look(now)
	}
	b.form.tick(running)
}

func (b *board) Task(name string, total int64) Task {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	t := &task{board: b, name: name, total: max(total, 0), started: now, samples: []sample{{at: now}}}
	if !b.closed {
		b.running = append(b.running, t)
		b.form.started(t.look(now))
	}
	return t
}

func (b *board) Message(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.form.message(b.now(), text)
	}
}

func (b *board) Close() error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		b.running = nil
		b.form.finish()
		if b.stop != nil {
			close(b.stop)
		}
	}
	b.mu.Unlock()
	if b.gone != nil {
		<-b.gone
	}
	return b.out.err
}

// task is one running task. Add and Skip only touch the two counters, since they
// are called for every chunk of every transfer.
type task struct {
	board   *board
	name    string
	total   int64
	started time.Time
	worked  atomic.Int64
	skipped atomic.Int64

	// Guarded by board.mu.
	ended   bool
	samples []sample // oldest first, over at most rateWindow
	shown   time.Time
}

// sample is how much had been worked at a time.
type sample struct {
	at     time.Time
	worked int64
}

// The rate is taken over the last seconds, so that it follows the line but does not
// jump, from a few samples.
const (
	rateWindow  = 5 * time.Second
	sampleEvery = 500 * time.Millisecond
)

func (t *task) Add(n int64)  { t.worked.Add(n) }
func (t *task) Skip(n int64) { t.skipped.Add(n) }

func (t *task) Done(err error) {
	b := t.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	if b.closed {
		return
	}
	b.running = slices.DeleteFunc(b.running, func(other *task) bool { return other == t })
	b.form.ended(t.look(b.now()), err)
}

// snapshot is a task at one moment.
type snapshot struct {
	task    *task
	name    string
	total   int64
	done    int64 // skipped included
	skipped int64
	now     time.Time
	elapsed time.Duration
	average int64         // bytes per second since the start, without what was skipped; 0 when not known
	rate    int64         // bytes per second lately; 0 when not known
	left    time.Duration // estimate; negative when not known
}

// look takes a snapshot and keeps the samples for the rate.
func (t *task) look(now time.Time) snapshot {
	worked, skipped := max(t.worked.Load(), 0), max(t.skipped.Load(), 0)
	s := snapshot{
		task: t, name: t.name, total: t.total, done: worked + skipped, skipped: skipped,
		now: now, elapsed: now.Sub(t.started), left: -1,
	}
	s.average = bytesPerSecond(worked, s.elapsed)
	if now.Sub(t.samples[len(t.samples)-1].at) >= sampleEvery {
		t.samples = append(t.samples, sample{now, worked})
		for len(t.samples) > 2 && now.Sub(t.samples[1].at) >= rateWindow {
			t.samples = t.samples[1:]
		}
	}
	oldest := t.samples[0]
	s.rate = bytesPerSecond(worked-oldest.worked, now.Sub(oldest.at))
	if rest := t.total - s.done; t.total > 0 && rest <= 0 {
		s.left = 0
	} else if t.total > 0 && s.rate > 0 {
		s.left = time.Duration(float64(rest) / float64(s.rate) * float64(time.Second))
		if s.left < 0 || s.left > maxLeft {
			s.left = -1
		}
	}
	return s
}

// maxLeft is where an estimate stops saying anything.
const maxLeft = 100 * time.Hour

func bytesPerSecond(n int64, d time.Duration) int64 {
	if n <= 0 || d < 100*time.Millisecond {
		return 0
	}
	return int64(float64(n) / d.Seconds())
}

// output keeps the first error of a Writer and writes nothing after it. Where the
// user is told of progress has gone away, the work itself still goes on.
type output struct {
	w   io.Writer
	err error
}

func (o *output) write(p []byte) {
	if o.err == nil {
		_, o.err = o.w.Write(p)
	}
}

// lines splits a text into printable lines.
func lines(s string) []string {
	out := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	for i, line := range out {
		out[i] = printable.Line(strings.TrimRight(line, "\r"))
	}
	return out
}

// oneLine makes a text of several lines into one.
func oneLine(s string) string { return strings.Join(lines(s), "; ") }

// summary says how a task ended, such as "1.0 GiB in 30s, 35.2 MiB/s".
func summary(s snapshot, err error) string {
	var b strings.Builder
	if s.done > 0 || s.total > 0 {
		b.WriteString(Bytes(s.done))
		if err != nil && s.total > 0 {
			b.WriteString(" of " + Bytes(s.total))
		}
		b.WriteString(" ")
	}
	b.WriteString("in " + Duration(s.elapsed))
	if s.average > 0 {
		b.WriteString(", " + perSecond(s.average))
	}
	if s.skipped > 0 {
		b.WriteString(", " + Bytes(s.skipped) + " were there already")
	}
	if err != nil {
		b.WriteString(": " + oneLine(err.Error()))
	}
	return b.String()
}
