// Package diagnosis says what is wrong with a platform, why, and what to do about it: symptom, cause, remedy.
//
// Contract: [Judge] is a function of an [Observation] alone, so that what was observed in one place can be judged in
// another. It compares it with a fixed list of faults, the [Catalogue], which docs/doctor.md has as well. A [Finding]
// names the fault, the host, what was seen of it, and the remedy, in commands that work without a network outside. What
// is not known is no finding.
//
// Findings that another one explains say so and come after it: of a cluster whose etcd has lost its majority, also the
// API does not answer, and its nodes are not Ready.
//
// The words by which faults are recognised are those of k3s, etcd, containerd, the kubelet and systemd; where they come
// from stands beside them. Observations come from hosts and files, and are bounded and strictly read ([Read]).
package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Severity says what a fault means.
type Severity string

// The severities.
const (
	// Critical is what the platform, or a part of it, does not work with.
	Critical Severity = "critical"
	// Warning is what it works with, but not for ever, or not as well.
	Warning Severity = "warning"
)

// Evidence is one thing that shows a fault.
type Evidence struct {
	// Host is the host's name, "" for the cluster as a whole.
	Host string
	// Subject is what the fault is of, where that is not the host: what has the same host and subject is one finding.
	Subject string
	// Line is what was seen.
	Line string
	// Severity is "" for that of the entry.
	Severity Severity
	// Hint is the remedy of whoever has found it, which comes first.
	Hint string
	// Values are what the words in capitals of the remedy stand for.
	Values map[string]string
}

// Finding is a fault that was recognised.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Host     string   `json:"host,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	Symptom  string   `json:"symptom"`
	Cause    string   `json:"cause"`
	Evidence []string `json:"evidence"`
	Remedy   []string `json:"remedy"`
	// FollowsFrom are the IDs of findings that explain this one: mend them first.
	FollowsFrom []string `json:"followsFrom,omitempty"`
}

// maxEvidence is how many lines of evidence a finding has at most, maxLine how long one is, in bytes.
const (
	maxEvidence = 5
	maxLine     = 600
)

// Judge recognises the faults of the catalogue. What is critical comes first, what explains others before them, and
// then in the order of the catalogue, which has the likeliest causes first, and of the hosts.
func Judge(o *Observation) []Finding {
	catalogue := Catalogue()
	var findings []Finding
	for i := range catalogue {
		findings = append(findings, catalogue[i].find(o)...)
	}
	place := make(map[string]int)
	for i, e := range catalogue {
		place[e.ID] = i
	}
	for i := range findings {
		f := &findings[i]
		for _, other := range findings {
			if other.ID != f.ID && catalogue[place[other.ID]].explains(o, other, f) &&
				!slices.Contains(f.FollowsFrom, other.ID) {
				f.FollowsFrom = append(f.FollowsFrom, other.ID)
			}
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)),
			cmp.Compare(min(len(a.FollowsFrom), 1), min(len(b.FollowsFrom), 1)), // causes first
			cmp.Compare(place[a.ID], place[b.ID]))
	})
	return findings
}

func rank(s Severity) int {
	if s == Critical {
		return 0
	}
	return 1
}

// explains reports whether a finding of the entry explains another: one of the same host, or one of both of which one
// is of the whole cluster. Of the whole cluster, only servers explain something.
func (e *Entry) explains(o *Observation, own Finding, other *Finding) bool {
	if !slices.Contains(e.Explains, other.ID) {
		return false
	}
	if own.Host != "" && other.Host == "" {
		h := o.host(own.Host)
		return h != nil && h.Server
	}
	return own.Host == "" || own.Host == other.Host
}

// find makes findings of what shows the fault, one for each host and subject, in the order of hosts and evidence.
func (e *Entry) find(o *Observation) []Finding {
	var findings []Finding
	more := make(map[int]int)
	for _, seen := range e.recognize(o) {
		severity := cmp.Or(seen.Severity, e.Severity)
		line := printable.Short(seen.Line, maxLine)
		subject := printable.Short(seen.Subject, maxLine)
		i := slices.IndexFunc(findings, func(f Finding) bool { return f.Host == seen.Host && f.Subject == subject })
		if i < 0 {
			f := Finding{ID: e.ID, Severity: severity, Host: seen.Host, Subject: subject,
				Symptom: e.Symptom, Cause: e.Cause, Evidence: []string{line}, Remedy: e.remedy(o, seen)}
			findings = append(findings, f)
			continue
		}
		f := &findings[i]
		if severity == Critical {
			f.Severity = Critical
		}
		switch {
		case slices.Contains(f.Evidence, line):
		case len(f.Evidence) == maxEvidence:
			more[i]++
		default:
			f.Evidence = append(f.Evidence, line)
		}
	}
	for i, n := range more {
		findings[i].Evidence = append(findings[i].Evidence, fmt.Sprintf("and %d more", n))
	}
	place := func(name string) int { // the cluster comes before the hosts
		return slices.IndexFunc(o.Hosts, func(h Host) bool { return h.Name == name })
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return cmp.Compare(place(a.Host), place(b.Host)) })
	return findings
}

// remedy is the entry's, with what is known in the place of the words in capitals.
func (e *Entry) remedy(o *Observation, seen Evidence) []string {
	values := map[string]string{}
	if h := o.host(seen.Host); h != nil {
		values["HOST"], values["UNIT"], values["NODE"] = h.Name, h.Service.Unit, h.Node
	}
	maps.Copy(values, seen.Values)
	var pairs []string
	for _, word := range slices.Sorted(maps.Keys(values)) {
		if values[word] != "" {
			pairs = append(pairs, word, printable.Short(values[word], maxLine))
		}
	}
	replace := strings.NewReplacer(pairs...)
	var steps []string
	if seen.Hint != "" {
		steps = append(steps, printable.Short(seen.Hint, maxLine))
	}
	for _, step := range e.Remedy {
		steps = append(steps, replace.Replace(step))
	}
	return steps
}

// Sick reports whether something is critical.
func Sick(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Critical })
}
