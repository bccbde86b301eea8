package progress

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Size is a terminal's size in characters.
type Size struct{ Columns, Rows int }

// NewTerminal returns a Display that draws on a terminal: a line with a bar for each
// running task, redrawn in place at most ten times a second; above them, for good,
// messages and one line for each task that has ended. While a run through phases goes
// on (see [Begin]), one picture of it takes the place of the bars, and what ends well
// leaves no line. size is asked before every drawing; anything below 1 counts as 80
// columns and 24 rows.
//
// Of what it draws itself all is ASCII, because terminals differ in the width of bar and
// ellipsis characters, East Asian ones most. Every drawing is one Write that shows the
// cursor again at its end, so that a killed process leaves a usable terminal; those that
// know synchronized updates show it at once.
func NewTerminal(w io.Writer, size func() Size) Display {
	return newTerminal(w, size, time.Now).run(100 * time.Millisecond)
}

func newTerminal(w io.Writer, size func() Size, now func() time.Time) *board {
	out, p := &output{w: w}, &picture{}
	b := newBoard(out, &terminal{out: out, size: size, now: now, picture: p}, now)
	b.picture = p
	return b
}

// terminal owns the bottom of a terminal: it knows what stands there, and replaces it.
type terminal struct {
	out     *output
	size    func() Size
	now     func() time.Time
	picture *picture
	above   []string // lines to print for good at the next drawing
	drawn   []string // the lines that stand at the bottom now
}

func (t *terminal) started(snapshot) {}

func (t *terminal) ended(s snapshot, err error) {
	if !t.picture.taskEnded(s.name, err) {
		return
	}
	verb := "done   "
	if err != nil {
		verb = "FAILED "
	}
	t.above = append(t.above, verb+printable.Line(s.name)+"  "+summary(s, err))
}

func (t *terminal) message(_ time.Time, text string) {
	t.above = append(t.above, lines(text)...)
}

func (t *terminal) tick(running []snapshot) {
	size := t.size()
	if size.Columns < 1 || size.Rows < 1 {
		size = Size{80, 24}
	}
	if t.picture.going {
		t.draw(t.picture.lines(t.now(), running, size), size.Columns)
		return
	}
	t.draw(barLines(running, size), size.Columns)
}

func (t *terminal) finish() {
	columns := t.size().Columns
	if columns < 1 {
		columns = 80
	}
	t.draw(nil, columns)
}

const (
	beginUpdate   = "\x1b[?2026h" // https://gist.github.com/christianparpart/d8a62cc1ab659194337d73e399004036
	endUpdate     = "\x1b[?2026l" // what does not know it, passes over it
	hideCursor    = "\x1b[?25l"
	showCursor    = "\x1b[?25h"
	cursorUp      = "\x1b[%dA"
	clearLineEnd  = "\x1b[K"
	clearBelow    = "\x1b[J"
	nextFreshLine = clearLineEnd + "\r\n"
)

// draw replaces the lines at the bottom.
func (t *terminal) draw(bottom []string, columns int) {
	if len(t.above) == 0 && strings.Join(bottom, "\n") == strings.Join(t.drawn, "\n") {
		return
	}
	var b strings.Builder
	// Ctrl-C has left ^C beside the cursor.
	b.WriteString(beginUpdate + hideCursor + "\r")
	// A line that no longer fits since the terminal became narrower takes several rows.
	up := 0
	for _, line := range t.drawn {
		up += max(1, (width(line)+columns-1)/columns)
	}
	if up > 0 {
		fmt.Fprintf(&b, cursorUp, up)
	}
	for _, line := range t.above {
		b.WriteString(line + nextFreshLine)
	}
	for _, line := range bottom {
		b.WriteString(line + nextFreshLine)
	}
	b.WriteString(clearBelow + showCursor + endUpdate)
	t.out.write([]byte(b.String()))
	t.above, t.drawn = nil, bottom
}
