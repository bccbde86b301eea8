package progress

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

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
