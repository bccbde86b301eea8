package progress

import (
	"io"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// brief is how long a task may take that is told of in one line.
const brief = time.Second

// NewPlain returns a Display of plain lines for logs: one when a task ends; and of a task that
// takes longer than a second one that it has started, and one at every interval while it runs.
// An interval of 0 means 5 s.
func NewPlain(w io.Writer, interval time.Duration) Display {
	if interval <= 0 {
		interval = 5 * time.Second
	}
	return newPlain(w, interval, time.Now).run(min(interval, brief/2))
}

func newPlain(w io.Writer, interval time.Duration, now func() time.Time) *board {
	out := &output{w: w}
	return newBoard(out, &plain{out, interval}, now)
}

type plain struct {
	out      *output
	interval time.Duration
}

func (p *plain) line(text string) { p.out.write([]byte(text + "\n")) }

func (p *plain) started(snapshot) {}

// announce tells of a task that has gone on for a while.
func (p *plain) announce(s snapshot) {
	s.task.shown = s.now
	text := printable.Line(s.name) + ": started"
	if s.total > 0 {
		text += ", " + Bytes(s.total)
	}
	p.line(text)
}

func (p *plain) tick(running []snapshot) {
	for _, s := range running {
		if s.task.shown.IsZero() {
			if s.elapsed >= brief {
				p.announce(s)
			}
			continue
		}
		if s.now.Sub(s.task.shown) < p.interval {
			continue
		}
		s.task.shown = s.now
		text := printable.Line(s.name) + ": "
		switch {
		case s.total > 0:
			text += percent(s) + ", " + amount(s.done, s.total)
		case s.done > 0:
			text += Bytes(s.done)
		default:
			text += "running for " + Duration(s.elapsed)
		}
		if s.rate > 0 {
			text += ", " + perSecond(s.rate)
		}
		if s.left > 0 {
			text += ", " + timeLeft(s.left) + " left"
		}
		p.line(text)
	}
}

func (p *plain) ended(s snapshot, err error) {
	verb := ": done, "
	if err != nil {
		verb = ": failed, "
	}
	p.line(printable.Line(s.name) + verb + summary(s, err))
}

func (p *plain) message(_ time.Time, text string) {
	for _, line := range lines(text) {
		p.line(line)
	}
}

func (p *plain) finish() {}
