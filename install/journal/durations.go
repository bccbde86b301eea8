package journal

import (
	"slices"
	"time"
)

// Took is how long the phases of a run took that came to its end at one go.
type Took struct {
	Verb    Verb   `json:"verb"`
	Cluster string `json:"cluster"`
	// Hosts is how many hosts the run worked on.
	Hosts int     `json:"hosts"`
	Kind  RunKind `json:"kind"`
	// Phases are the seconds that each phase took.
	Phases map[string]float64 `json:"phases"`
}

// RunKind is how a run stands to the one before it with the same state: how long it takes depends on that more than on
// anything else.
type RunKind string

// The kinds.
const (
	FirstRun   RunKind = "first"   // of a cluster
	ChangedRun RunKind = "changed" // with another bundle or configuration than the one before, which ended well
	SameRun    RunKind = "same"    // as the one before, which ended well
)

// kindOf is how a run stands to the one in the state. It is "" after one that did not end well: how much of it is left
// nobody knows.
func (s State) kindOf(r Run) RunKind {
	switch {
	case s.Version == 0 || s.Cluster != r.Cluster:
		return FirstRun
	case s.Result != Done:
		return ""
	case s.Bundle == r.Bundle && s.Config == r.Config:
		return SameRun
	}
	return ChangedRun
}

// maxPhase is the longest that a phase is taken to have taken.
const maxPhase = 100 * time.Hour

// TookBefore is how long each phase took in the last run that was like this one: of the same verb, on the same cluster
// with as many hosts, and of the same kind. It is nil when there was none.
func (s State) TookBefore(r Run, hosts int) map[string]time.Duration {
	kind := s.kindOf(r)
	i := slices.IndexFunc(s.Took, func(t Took) bool {
		return kind != "" && t.Verb == r.Verb && t.Cluster == r.Cluster && t.Hosts == hosts && t.Kind == kind
	})
	if i < 0 {
		return nil
	}
	took := map[string]time.Duration{}
	for phase, seconds := range s.Took[i].Phases {
		if seconds < 0 || seconds > maxPhase.Seconds() {
			return nil
		}
		took[phase] = time.Duration(seconds * float64(time.Second))
	}
	return took
}

// maxTook bounds how many runs it is kept of: the last ones.
const maxTook = 20

// Took notes how long the phases of this run took, in seconds, once it has ended well. Of a run that goes on from one
// that was broken off nothing is noted: it is not known how long all of it takes. It is written with the run's end.
func (j *Journal) Took(hosts int, phases map[string]float64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.kind == "" {
		return
	}
	one := Took{Verb: j.state.Verb, Cluster: j.state.Cluster, Hosts: hosts, Kind: j.kind, Phases: phases}
	kept := slices.DeleteFunc(slices.Clone(j.state.Took), func(t Took) bool {
		return t.Verb == one.Verb && t.Cluster == one.Cluster && t.Kind == one.Kind
	})
	kept = append(kept, one)
	j.state.Took = kept[max(0, len(kept)-maxTook):]
}
