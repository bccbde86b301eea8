package progress

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// picture is how far a run through phases has got. It only keeps account: what is drawn of it is in drawing.go.
type picture struct {
	going   bool
	plan    Plan
	started time.Time
	phases  []phase
	// places are the cluster as a whole and the hosts, in the order of the plan.
	places []*place
	byName map[string]*place
	// said are the last errors that were shown, so that what wraps one of them is not shown again.
	said []string
	// above are texts that are to be shown for good.
	above []string
}

// maxSaid bounds how many errors are remembered.
const maxSaid = 64

// Bounds, in bytes, on what is shown of one error while a run goes on, all of which is shown at the end, and on what is
// kept of what is waited for.
const (
	maxFailure = 2 << 10
	maxAwaits  = 16 << 10
)

// state is how far a phase or a place has got.
type state int

const (
	idle   state = iota // a place that the phase has nothing to do with, so far
	toCome              // waits for its turn
	working
	done
	failed
)

type phase struct {
	name  string
	state state
	began time.Time
	took  time.Duration
}

// place is a host, or the cluster as a whole.
type place struct {
	name  string // "" for the cluster
	state state
	// works is how many pieces of work are going on there; since is when the first of them began.
	works int
	since time.Time
	steps []*step // that are going on
	// changes are the steps that were begun in this phase.
	changes int
	awaits  string // what is waited for, "" for nothing
	err     string // why it has failed
}

// step is one that is going on.
type step struct {
	title string
	since time.Time
}

func (p *picture) begin(plan Plan, now time.Time) {
	*p = picture{going: true, plan: plan, started: now, byName: map[string]*place{}}
	for _, name := range plan.Phases {
		p.phases = append(p.phases, phase{name: name, state: toCome})
	}
	p.place("")
	for _, name := range plan.Hosts {
		p.place(name)
	}
}

func (p *picture) end() { *p = picture{above: p.above} }

// place finds a host, or adds it: one that leaves may not be among those of the plan.
func (p *picture) place(name string) *place {
	one, known := p.byName[name]
	if !known {
		one = &place{name: name}
		if !p.going {
			return one
		}
		p.places, p.byName[name] = append(p.places, one), one
	}
	return one
}

// enter begins a phase. Those before it that have not begun are left out.
func (p *picture) enter(name string, now time.Time) {
	if !p.going {
		return
	}
	at := slices.IndexFunc(p.phases, func(one phase) bool { return one.name == name && one.state == toCome })
	if at < 0 {
		at = p.current() + 1
		p.phases = slices.Insert(p.phases, at, phase{name: name})
	} else {
		before := slices.DeleteFunc(slices.Clone(p.phases[:at]), func(one phase) bool { return one.state == toCome })
		p.phases, at = slices.Concat(before, p.phases[at:]), len(before)
	}
	p.phases[at].state, p.phases[at].began = working, now
	for _, one := range p.places {
		if one.state == failed {
			continue
		}
		*one = place{name: one.name, works: one.works, since: one.since, steps: one.steps}
	}
}

// current is the phase that goes on, or the last one that did; it is below 0 before the first.
func (p *picture) current() int {
	at := len(p.phases) - 1
	for at >= 0 && p.phases[at].state == toCome {
		at--
	}
	return at
}

// leave ends a phase.
func (p *picture) leave(name string, err error, now time.Time) {
	for i := range p.phases {
		one := &p.phases[i]
		if one.name != name || one.state != working {
			continue
		}
		one.state, one.took = done, now.Sub(one.began)
		if err != nil {
			one.state = failed
			p.fail(name, err)
		}
	}
}

func (p *picture) queue(hosts []string) {
	for _, name := range hosts {
		if one := p.place(name); one.works == 0 && one.state != failed {
			one.state = toCome
		}
	}
}

func (p *picture) work(host string, now time.Time) {
	one := p.place(host)
	if one.works++; one.works == 1 {
		one.since = now
	}
	one.state, one.err = working, "" // also one that had failed, and that is gone on with all the same
}

func (p *picture) rest(host string, err error) {
	one := p.place(host)
	one.works = max(one.works-1, 0)
	one.awaits = ""
	switch {
	case one.state == failed:
	case err != nil:
		one.state, one.err = failed, printable.Clip(withoutHost(err, host), maxFailure)
		p.fail(placeName(host), err)
	case one.works == 0:
		one.state = done
	}
}

func (p *picture) begins(host, title, reason string, now time.Time) *step {
	if !p.going {
		p.above = append(p.above, placeName(host)+": "+title+" ("+reason+")")
	}
	begun, one := &step{title: title, since: now}, p.place(host)
	one.steps = append(one.steps, begun)
	one.changes++
	return begun
}

func (p *picture) ends(host string, begun *step) {
	one := p.place(host)
	one.steps = slices.DeleteFunc(one.steps, func(s *step) bool { return s == begun })
	if one.awaits = ""; one.state == idle && one.works == 0 && len(one.steps) == 0 {
		one.state = done
	}
}

func (p *picture) wait(host, text string) {
	if !p.going {
		p.above = append(p.above, text)
	}
	p.place(host).awaits = printable.Clip(text, maxAwaits)
}

// taskEnded takes notice of the end of a task, and reports whether that is to be shown for good: what went well is
// part of the picture.
func (p *picture) taskEnded(name string, err error) (show bool) {
	if !p.going {
		return true
	}
	p.placeOf(name).awaits = ""
	if err == nil || errors.Is(err, context.Canceled) { // by the user, who knows
		return false
	}
	p.note(oneLine(err.Error()))
	return true
}

// placeOf is where a task is at work: the host that its name has in it, as a word or several; else the cluster as a
// whole.
func (p *picture) placeOf(task string) *place {
	at := p.place("")
	for _, one := range p.places {
		if len(one.name) > len(at.name) && hasWords(task, one.name) { // the longest: a name may be a part of another one
			at = one
		}
	}
	return at
}

// hasWords reports whether words stand in a text, not at its beginning, and not as a part of longer ones.
func hasWords(text, words string) bool {
	for rest := text; ; {
		_, after, found := strings.Cut(rest, " "+words)
		if !found {
			return false
		}
		if after == "" || strings.ContainsRune(" ,;:", rune(after[0])) {
			return true
		}
		rest = after
	}
}

// withoutHost is an error in one line, without the host that stands beside it anyway.
func withoutHost(err error, host string) string {
	return strings.TrimPrefix(oneLine(err.Error()), host+": ")
}

// fail has an error of a phase or a place shown, unless what it wraps was shown already.
func (p *picture) fail(of string, err error) {
	text := oneLine(err.Error())
	if !p.going || errors.Is(err, context.Canceled) {
		return
	}
	if !slices.ContainsFunc(p.said, func(said string) bool { return strings.Contains(text, said) }) {
		p.above = append(p.above, "FAILED "+of+"  "+printable.Clip(withoutHost(err, of), maxFailure))
	}
	p.note(text)
}

func (p *picture) note(text string) {
	if text == "" { // is in every text
		return
	}
	if p.said = append(p.said, text); len(p.said) > maxSaid {
		p.said = slices.Delete(p.said, 0, 1)
	}
}

func (p *picture) takeAbove() []string {
	taken := p.above
	p.above = nil
	return taken
}

// left estimates how long the run still takes, by the one before. atLeast says that the phase that goes on takes longer
// than it did. known is false where nothing can be said: there was no such run, it did not have all phases that are to
// come, or this one does not go like it.
func (p *picture) left(now time.Time) (left time.Duration, atLeast, known bool) {
	if p.plan.Took == nil {
		return 0, false, false
	}
	var took, before time.Duration // of the phases that are over, now and then
	for _, one := range p.phases {
		then, had := p.plan.Took[one.name]
		switch one.state {
		case toCome:
			if !had {
				return 0, false, false
			}
			left += then
		case working:
			if !had {
				return 0, false, false
			}
			rest := then - now.Sub(one.began)
			left += max(rest, 0)
			atLeast = atLeast || rest < 0
		default:
			took, before = took+one.took, before+then
		}
	}
	if max(took, before) >= alike && (took > 2*before || before > 2*took) {
		return 0, false, false
	}
	return left, atLeast, left > 0
}

// alike is how long phases may take before they are compared with those of the run before: what is short varies.
const alike = 10 * time.Second
