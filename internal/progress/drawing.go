package progress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// widestPicture bounds the picture's width: what belongs together is not read across a wider one.
const widestPicture = 120

// lines draws the picture: what the run is and how long it still takes; a line for each phase; below the one that goes
// on, a line for each place that it works on, with what is done there and for how long, and lines with what is waited
// for. running are the tasks in the order of their start.
//
// No line is as wide as the terminal, and there are fewer than it has rows. Where there is not room for all, phases
// that are over or to come are counted, and of the hosts those are shown that have failed or are worked on; the rest
// is counted.
func (p *picture) lines(now time.Time, running []snapshot, size Size) []string {
	// The last column stays free: terminals differ in what they do when it is written. The last row has the cursor, and
	// above the picture is room for what was said last.
	columns, rows := min(size.Columns-1, widestPicture), size.Rows-1-min(size.Rows/8, 3)
	if columns < 1 || rows < 1 {
		return nil
	}
	d := drawing{picture: p, now: now, columns: columns}
	at := p.current()
	groups := d.groups(running)
	drawn := []string{d.header()}
	switch {
	case at < 0:
		return append(drawn, d.coming(d.phases(0, len(p.phases)), 0, rows-1)...)
	case len(p.phases) == 1: // the header names it
		return append(drawn, d.details(groups, rows-1)...)
	case rows == 1:
		return []string{d.phase(at)}
	}
	before, after := d.phases(0, at), d.phases(at+1, len(p.phases))
	details := 0
	for _, g := range groups {
		details += len(g.lines)
	}
	room := rows - 2 // besides the header and the phase that goes on
	// What goes on comes first, but for a line with the phases before and one with those after.
	forBefore, forAfter := min(len(before), room), min(len(after), max(room-len(before), 0))
	if len(before)+len(after)+details > room {
		forBefore, forAfter = 0, 0
		if len(before) > 0 && room > 3 {
			forBefore = 1
		}
		if len(after) > 0 && room-forBefore > 2 {
			forAfter = 1
		}
		details = min(details, room-forBefore-forAfter)
		spare := room - forBefore - forAfter - details
		more := min(spare, len(after)-forAfter, 2*forAfter) // the next ones are of interest
		forAfter, spare = forAfter+more, spare-more
		more = min(spare, len(before)-forBefore)
		forBefore, spare = forBefore+more, spare-more
		forAfter += min(spare, len(after)-forAfter)
	}
	drawn = append(drawn, d.past(before, at, forBefore)...)
	drawn = append(drawn, d.phase(at))
	drawn = append(drawn, d.details(groups, details)...)
	return append(drawn, d.coming(after, at+1, forAfter)...)
}

// drawing is one drawing of a picture.
type drawing struct {
	picture *picture
	now     time.Time
	columns int
}

// header says what the run is, how far it is, and how long it takes.
func (d drawing) header() string {
	p := d.picture
	title := printable.Line(p.plan.Title)
	right := elapsed(d.now.Sub(p.started))
	if left, atLeast, known := p.left(d.now); known {
		about := "about "
		if atLeast {
			about = "more than "
		}
		right += ", " + about + roughly(left) + " left"
	}
	phase, at := "", p.current()
	switch {
	case len(p.phases) == 1:
		phase = ", " + printable.Line(p.phases[0].name)
	case at >= 0:
		phase = fmt.Sprintf(", phase %d of %d", at+1, len(p.phases))
	}
	if room := d.columns - width(phase) - width(right) - 2; room >= minText {
		title = clip(title, room)
	}
	return d.line(0, title+phase, right)
}

// line is a text with another one at the right end, which goes where there is no room for both.
func (d drawing) line(indent int, text, right string) string {
	room := d.columns - indent - width(right) - 2
	if right == "" || room < minText {
		return cut(strings.Repeat(" ", indent)+text, d.columns)
	}
	text = cut(text, room)
	gap := d.columns - indent - width(text) - width(right)
	return strings.Repeat(" ", indent) + text + strings.Repeat(" ", gap) + right
}

// minText is how many columns a text has that something stands beside.
const minText = 12

// phases are the lines of some phases.
func (d drawing) phases(from, to int) []string {
	var drawn []string
	for i := from; i < to; i++ {
		drawn = append(drawn, d.phase(i))
	}
	return drawn
}

func (d drawing) phase(i int) string {
	p := d.picture
	one := p.phases[i]
	name := printable.Line(one.name)
	switch one.state {
	case done:
		return d.line(2, "done     "+name, elapsed(one.took))
	case failed:
		return d.line(2, "FAILED   "+name, elapsed(one.took))
	case working:
		right := elapsed(d.now.Sub(one.began))
		if then, had := p.plan.Took[one.name]; had && then >= time.Second {
			right = "last time " + elapsed(then) + "   " + right
		}
		return d.line(2, "running  "+name, right)
	}
	return d.line(2, "to come  "+name, "")
}

// past are at most so many lines of the phases that are over: the last ones, and those before them counted.
func (d drawing) past(drawn []string, at, most int) []string {
	if len(drawn) <= most {
		return drawn
	}
	if most == 0 {
		return nil
	}
	counted := at - (most - 1)
	var took time.Duration
	failures := 0
	for _, one := range d.picture.phases[:counted] {
		took += one.took
		if one.state == failed {
			failures++
		}
	}
	text := "done     " + counts(counted-failures, "phase")
	if failures > 0 {
		text += fmt.Sprintf(", %d FAILED", failures)
	}
	return append([]string{d.line(2, text, elapsed(took))}, drawn[counted:]...)
}

// coming are at most so many lines of the phases that are to come: the next ones, and the rest in one line.
func (d drawing) coming(drawn []string, from, most int) []string {
	if len(drawn) <= most {
		return drawn
	}
	if most == 0 {
		return nil
	}
	var names []string
	for _, one := range d.picture.phases[from+most-1:] {
		names = append(names, printable.Line(one.name))
	}
	text := "  to come  " + strings.Join(names, ", ")
	if width(text) > d.columns {
		more := ""
		for width(text+more) > d.columns && len(names) > 1 {
			names = names[:len(names)-1]
			text = "  to come  " + strings.Join(names, ", ")
			more = fmt.Sprintf(" and %d more", len(d.picture.phases)-(from+most-1)-len(names))
		}
		text = cut(text+more, d.columns)
	}
	return append(drawn[:most-1:most-1], text)
}

// group is the lines of one place.
type group struct {
	state state
	// whole says that all of its lines come before those of others.
	whole bool
	lines []string
}

// groups are the lines of the places that the phase has to do with, in the order of the plan.
func (d drawing) groups(running []snapshot) []group {
	p := d.picture
	tasks := map[*place][]snapshot{}
	for _, s := range running {
		at := p.placeOf(s.name)
		tasks[at] = append(tasks[at], s)
	}
	longest := 0
	for _, one := range p.places {
		if one.at(tasks[one]) != idle {
			longest = max(longest, width(printable.Line(placeName(one.name))))
		}
	}
	names := min(longest, max(d.columns/4, 8))
	var all []group
	for _, one := range p.places {
		if state := one.at(tasks[one]); state != idle {
			all = append(all, group{state, one.name == "", d.place(one, state, tasks[one], names)})
		}
	}
	return all
}

// at is how far a place is, with its tasks.
func (one *place) at(tasks []snapshot) state {
	if one.state != failed && (len(tasks) > 0 || len(one.steps) > 0 || one.awaits != "" || one.works > 0) {
		return working
	}
	return one.state
}

// place is the lines of a place: what is done there, and what is waited for.
func (d drawing) place(one *place, state state, tasks []snapshot, names int) []string {
	name := cut(printable.Line(placeName(one.name)), names)
	name += strings.Repeat(" ", names-width(name)) + "  "
	indent := d.indent()
	switch state {
	case failed:
		return []string{clip(strings.Repeat(" ", indent)+name+"FAILED: "+printable.Line(one.err), d.columns)}
	case toCome:
		return []string{d.line(indent, name+"to come", "")}
	case done:
		text := "done, nothing to change"
		if one.changes > 0 {
			text = "done, " + counts(one.changes, "change")
		}
		return []string{d.line(indent, name+text, "")}
	}
	lines := d.works(one, tasks, name)
	const most = 3
	missing := strings.Split(oneLine(one.awaits), "; ")
	if one.awaits == "" {
		missing = nil
	}
	for i, text := range missing[:min(most, len(missing))] {
		more := ""
		if i == most-1 && len(missing) > most {
			more = fmt.Sprintf("; and %d more", len(missing)-most)
		}
		text = strings.Repeat(" ", indent+width(name)) + text
		lines = append(lines, cut(clip(text, d.columns-len(more))+more, d.columns))
	}
	return lines
}

// indent is where the names of places begin: below those of phases, where there is room.
func (d drawing) indent() int {
	if d.columns < 60 {
		return 4
	}
	return 11
}

// works are the lines of a place that is worked on: one with the step and its task. The cluster as a whole has one
// more for each task besides.
func (d drawing) works(one *place, tasks []snapshot, name string) []string {
	what, since := "looks", one.since
	if n := len(one.steps); n > 0 {
		what, since = printable.Line(one.steps[n-1].title), one.steps[n-1].since
	}
	if len(tasks) == 0 {
		right := ""
		if !since.IsZero() {
			right = elapsed(d.now.Sub(since))
		}
		return []string{d.line(d.indent(), name+what, right)}
	}
	first := len(tasks) - 1
	if i := slices.IndexFunc(tasks, func(s snapshot) bool { return s.total > 0 }); i >= 0 {
		first = i
	}
	var lines []string
	for i, s := range slices.Concat(tasks[first:first+1], tasks[:first], tasks[first+1:]) {
		if i > 0 && one.name != "" {
			break
		}
		text, taskName := name, printable.Line(shortened(s.name, one.name))
		switch {
		case i > 0:
			text = strings.Repeat(" ", width(name)) + taskName
		case len(one.steps) > 0 && strings.HasPrefix(what, taskName):
			text += what
		case len(one.steps) > 0:
			text += what + ": " + taskName
		default:
			text += taskName
		}
		lines = append(lines, d.task(text, s))
	}
	return lines
}

// shortened is a task's name without the host, where that stands at its end.
func shortened(name, host string) string {
	if host == "" {
		return name
	}
	if short, ends := strings.CutSuffix(name, " "+host); ends {
		return strings.TrimSuffix(short, " on")
	}
	return name
}

// task is the line of a task, with as much of its figures as there is room for beside half a line of text.
func (d drawing) task(text string, s snapshot) string {
	var figures []string // from those that are missed least
	if s.total > 0 {
		figures = []string{amount(s.done, s.total), perSecond(s.rate), percent(s)}
		if s.left >= 0 {
			figures = append(figures, timeLeft(s.left)+" left")
		}
	} else {
		if s.done > 0 {
			figures = []string{perSecond(s.rate), Bytes(s.done)}
		}
		figures = append(figures, elapsed(s.elapsed))
	}
	figures = slices.DeleteFunc(figures, func(one string) bool { return one == "" })
	right := strings.Join(figures, "  ")
	for len(figures) > 1 && d.indent()+min(width(text), d.columns/2)+2+width(right) > d.columns {
		figures = figures[1:]
		right = strings.Join(figures, "  ")
	}
	return d.line(d.indent(), text, right)
}

// details are at most so many lines of the places. Where that is not all, each place has one, and those come first that
// have failed, and then those that are worked on; the rest is counted.
func (d drawing) details(groups []group, most int) []string {
	all := 0
	for _, g := range groups {
		all += len(g.lines)
	}
	if most <= 0 {
		return nil
	}
	shown := make([]int, len(groups)) // lines of each
	if all <= most {
		for i, g := range groups {
			shown[i] = len(g.lines)
		}
	} else {
		room := most
		if len(groups) > most {
			room-- // for those that are counted
		}
		for _, state := range []state{failed, working, toCome, done} {
			for i, g := range groups {
				if g.state != state || room <= 0 {
					continue
				}
				if shown[i] = 1; g.whole {
					shown[i] = min(len(g.lines), room)
				}
				room -= shown[i]
			}
		}
		for i, g := range groups {
			if shown[i] > 0 {
				more := min(room, len(g.lines)-shown[i])
				shown[i], room = shown[i]+more, room-more
			}
		}
	}
	var drawn []string
	rest := map[state]int{}
	for i, g := range groups {
		drawn = append(drawn, g.lines[:shown[i]]...)
		if shown[i] == 0 {
			rest[g.state]++
		}
	}
	var counted []string
	total := 0
	for _, one := range []struct {
		state state
		text  string
	}{{failed, "FAILED"}, {working, "worked on"}, {done, "done"}, {toCome, "to come"}} {
		if n := rest[one.state]; n > 0 {
			counted, total = append(counted, fmt.Sprintf("%d %s", n, one.text)), total+n
		}
	}
	if total > 0 && len(drawn) < most {
		drawn = append(drawn, d.line(d.indent(), fmt.Sprintf("and %d more: %s", total, strings.Join(counted, ", ")),
			""))
	}
	return drawn
}

// elapsed formats a time that has passed, in whole seconds.
func elapsed(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	if d < 10*time.Second {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return Duration(d)
}

// roughly formats an estimate of much: seconds would promise too much.
func roughly(d time.Duration) string {
	up := func(unit time.Duration) time.Duration { return (d + unit - 1) / unit }
	switch {
	case d <= 50*time.Second:
		return fmt.Sprintf("%ds", 10*up(10*time.Second))
	case d <= 59*time.Minute:
		return fmt.Sprintf("%dm", up(time.Minute))
	}
	minutes := up(5*time.Minute) * 5
	return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
}

func counts(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
