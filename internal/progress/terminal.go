package progress

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"
	"unicode"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Size is a terminal's size in characters.
type Size struct{ Columns, Rows int }

// NewTerminal returns a Display that draws on a terminal: a line with a bar for each
// running task, redrawn in place at most ten times a second; above them, for good,
// messages and one line for each task that has ended. size is asked before every
// drawing; anything below 1 counts as 80 columns and 24 rows.
//
// Only ASCII is drawn, because terminals differ in the width of bar and ellipsis
// characters, East Asian ones most. Every drawing is one Write that shows the cursor
// again at its end, so that a killed process leaves a usable terminal.
func NewTerminal(w io.Writer, size func() Size) Display {
	return newTerminal(w, size, time.Now).run(100 * time.Millisecond)
}

func newTerminal(w io.Writer, size func() Size, now func() time.Time) *board {
	out := &output{w: w}
	return newBoard(out, &terminal{out: out, size: size}, now)
}

type terminal struct {
	out   *output
	size  func() Size
	above []string // lines to print for good at the next drawing
	drawn []string // the lines that stand at the bottom now
}

func (t *terminal) started(snapshot) {}

func (t *terminal) ended(s snapshot, err error) {
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
	b.WriteString(hideCursor)
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
	b.WriteString(clearBelow + showCursor)
	t.out.write([]byte(b.String()))
	t.above, t.drawn = nil, bottom
}

// barLines returns one line for each task, none wider than the terminal and not more
// than fit on it.
func barLines(running []snapshot, size Size) []string {
	hidden := 0
	if most := max(size.Rows-1, 1); len(running) > most {
		hidden = len(running) - (most - 1)
		running = running[:most-1]
	}
	longest := 0
	for _, s := range running {
		longest = max(longest, width(printable.Line(s.name)))
	}
	// The last column stays free: terminals differ in what they do when it is written.
	columns := size.Columns - 1
	layout := chooseLayout(columns, longest)
	var out []string
	for _, s := range running {
		out = append(out, layout.line(s))
	}
	if hidden > 0 {
		out = append(out, cut(fmt.Sprintf("and %d more", hidden), columns))
	}
	return out
}

// layout says which columns a line has. A column that is 0 wide is left out.
type layout struct {
	name, bar, percent, amount, rate, left int
}

// layouts go from rich to poor; name is the narrowest column for names that each is
// good for. The widest contents are 100%, 1023.9/1023.9 MiB, 1023.9 MiB/s and 99h59m.
var layouts = [...]layout{
	{name: 28, bar: 12, percent: 4, amount: 17, rate: 12, left: 6},
	{name: 26, bar: 12, amount: 17, rate: 12, left: 6},
	{name: 20, amount: 17, rate: 12, left: 6},
	{name: 16, percent: 4, rate: 12, left: 6},
	{name: 10, percent: 4, left: 6},
	{percent: 4},
}

// chooseLayout returns the richest layout that leaves room for names.
func chooseLayout(columns, longestName int) layout {
	const widestBar = 40
	var l layout
	for _, l = range layouts {
		enough := min(longestName, l.name)
		if l.name = columns - l.fixed(); l.name >= enough {
			break
		}
	}
	if spare := l.name - longestName; spare > 0 {
		l.name = longestName
		if l.bar > 0 {
			l.bar = min(l.bar+spare, widestBar)
		}
	}
	return l
}

// fixed is the width of everything but the name, with a space before each column.
func (l layout) fixed() int {
	sum := 0
	for _, w := range []int{l.bar, l.percent, l.amount, l.rate, l.left} {
		if w > 0 {
			sum += w + 1
		}
	}
	return sum
}

func (l layout) line(s snapshot) string {
	if l.name < 1 {
		return cut(percent(s), l.name+l.fixed())
	}
	name := cut(printable.Line(s.name), l.name)
	var b strings.Builder
	b.WriteString(name + strings.Repeat(" ", l.name-width(name)))
	column := func(width int, text string) {
		if width > 0 {
			fmt.Fprintf(&b, " %*s", width, text)
		}
	}
	share, size, left := "", Duration(s.elapsed), ""
	switch {
	case s.total > 0:
		share, size = percent(s), amount(s.done, s.total)
	case s.done > 0:
		size = Bytes(s.done)
	}
	if s.left >= 0 {
		left = timeLeft(s.left)
	}
	column(l.bar, bar(s, l.bar))
	column(l.percent, share)
	column(l.amount, size)
	column(l.rate, perSecond(s.rate))
	column(l.left, left)
	return strings.TrimRight(b.String(), " ")
}

// percent rounds down: 100% means that every byte is done.
func percent(s snapshot) string {
	if s.total <= 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", portion(s, 100))
}

// portion is done/total of whole, rounded down, so that it is whole only when not one
// byte is missing.
func portion(s snapshot, whole int) int {
	if s.done >= s.total {
		return whole
	}
	hi, lo := bits.Mul64(uint64(s.done), uint64(whole))
	quotient, _ := bits.Div64(hi, lo, uint64(s.total))
	return int(quotient)
}

func bar(s snapshot, width int) string {
	if s.total <= 0 || width < 3 {
		return ""
	}
	inside := width - 2
	full := portion(s, inside)
	body := strings.Repeat("=", full)
	if full < inside {
		body += ">" + strings.Repeat(" ", inside-full-1)
	}
	return "[" + body + "]"
}

// cut shortens s to at most columns by taking out its middle: both what is done and
// to which host or tag stand at the ends.
func cut(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	if columns <= 0 {
		return ""
	}
	const gap = "..."
	keep := columns - len(gap)
	if keep < 2 {
		return takeColumns(s, columns)
	}
	runes := []rune(s)
	head := takeColumns(s, (keep+1)/2)
	tail, used := len(runes), 0
	for tail > 0 && used+runeWidth(runes[tail-1]) <= keep/2 {
		tail--
		used += runeWidth(runes[tail])
	}
	return head + gap + string(runes[tail:])
}

// takeColumns returns the longest beginning of s that fits.
func takeColumns(s string, columns int) string {
	used := 0
	for i, r := range s {
		if used += runeWidth(r); used > columns {
			return s[:i]
		}
	}
	return s
}

// width is the number of terminal columns that s takes.
func width(s string) int {
	sum := 0
	for _, r := range s {
		sum += runeWidth(r)
	}
	return sum
}

// runeWidth knows the scripts that take two columns, as file names and host
// descriptions may be in Chinese, and marks that take none.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo),
		r >= 0x3000 && r <= 0x303e, r >= 0xff01 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
		return 2
	}
	return 1
}
