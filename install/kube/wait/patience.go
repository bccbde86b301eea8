package wait

import (
	"time"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
)

// patience knows the setbacks of the objects that are waited for.
//
// What was there at the first look is no reason to give up, since it may have been mended just now:
// only the failure of an attempt after that is one.
type patience struct {
	looked map[kube.Object]bool
	old    map[string]bool           // marks that were there at the first look at their object
	since  map[kube.Object]time.Time // when the objects were first seen to be held up without a break
}

func newPatience() *patience {
	return &patience{looked: map[kube.Object]bool{}, old: map[string]bool{}, since: map[kube.Object]time.Time{}}
}

// over reports whether an object has been held up for too long. It is told of each look at the
// object; s is nil when nothing holds it up.
func (p *patience) over(o kube.Object, s *explain.Setback, now time.Time) bool {
	first := !p.looked[o]
	p.looked[o] = true
	if s == nil || s.Patience == 0 {
		delete(p.since, o)
		return false
	}
	if first {
		p.old[s.Mark] = true
	}
	if p.old[s.Mark] {
		delete(p.since, o)
		return false
	}
	if _, known := p.since[o]; !known {
		p.since[o] = now
	}
	return now.Sub(p.since[o]) >= s.Patience
}
