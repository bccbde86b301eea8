// Package report makes of what was read of a cluster a document for people: its nodes, what was done to it, what is
// wrong, its certificates, its images, and how it differs from what is asked for.
//
// Contract: it only computes, from what history, doctor, certs status and status have read. What could not be read is
// named in the document, where it would be, and keeps nothing else out of it. Texts of hosts and of the cluster stay
// texts (see package page); what programs say is in their own words, English.
package report

import (
	"fmt"
	"strings"
	"time"

	bundlereport "github.com/liteboxd/boxlift/bundle/report"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/page"
)

// Part is a part of what was to be read.
type Part string

// The parts.
const (
	Releases     Part = "releases"
	Observation  Part = "observation"
	Certificates Part = "certificates"
	Drift        Part = "drift"
)

// Problem is what could not be read, or not as a whole, and why.
type Problem struct {
	Part Part
	Err  error
}

// Cluster is what was read of a cluster. What is nil could not be read, or was not asked for.
type Cluster struct {
	Name string
	// Taken is when reading began, by the operator's clock.
	Taken        time.Time
	Record       *release.Record
	Observation  *diagnosis.Observation
	Certificates *certificates.Certificates
	// Status is how it differs from a bundle and install.yaml, Bundle that bundle; nil where none was named.
	Status   *inspect.Status
	Bundle   *bundlereport.Bundle
	Problems []Problem
}

// Reached reports whether anything of the cluster was seen: a host, or its API.
func (c *Cluster) Reached() bool {
	if c.Observation == nil {
		return false
	}
	for _, h := range c.Observation.Hosts {
		if h.Error == "" {
			return true
		}
	}
	return c.Observation.API.Answers
}

// Make makes the document. Version is that of this boxlift. Errors wrap bundle.ErrInvalid when the bundle is damaged.
func Make(c *Cluster, version string) (*page.Document, error) {
	d := &page.Document{Kind: texts.Kind, Title: page.Plain(c.Name), Made: texts.Made.With(version,
		page.Moment(c.Taken)), Facts: c.facts()}
	for _, p := range c.Problems {
		d.Notices = append(d.Notices, page.Notice{Mark: page.Warned,
			Text: texts.Unread.With(texts.parts()[p.Part], page.Said(p.Err.Error()))})
	}
	d.Sections = []page.Section{c.findings(), c.nodes(), c.runs(), c.drift(), c.certificates(), c.images()}
	if c.Bundle == nil {
		return d, nil
	}
	sections, err := bundlereport.Sections(*c.Bundle)
	d.Sections = append(d.Sections, sections...)
	return d, err
}

func (c *Cluster) facts() []page.Fact {
	var facts []page.Fact
	if c.Record != nil {
		if r := c.Record.Current(); r != nil {
			facts = append(facts, page.Fact{Name: texts.Runs, Value: texts.ReleaseOf.With(r.Number, versions(r))},
				page.Fact{Name: texts.Bundle, Value: page.Plain(r.Bundle.String()).Marked(page.Code)})
		}
	}
	if c.Observation != nil {
		api := texts.NoAnswer.Marked(page.Bad)
		if c.Observation.API.Answers {
			api = page.Plain("Kubernetes " + c.Observation.API.Version)
		}
		facts = append(facts, page.Fact{Name: texts.API, Value: api},
			page.Fact{Name: texts.Hosts, Value: page.Number(len(c.Observation.Hosts))})
		bad, warned := 0, 0
		for _, f := range diagnosis.Judge(c.Observation) {
			if f.Severity == diagnosis.Critical {
				bad++
			} else {
				warned++
			}
		}
		value := texts.Counts.With(bad, warned)
		switch {
		case bad > 0:
			value = value.Marked(page.Bad)
		case warned > 0:
			value = value.Marked(page.Warned)
		}
		facts = append(facts, page.Fact{Name: texts.Findings, Value: value})
	}
	if c.Record != nil && c.Record.Serial > 0 {
		facts = append(facts, page.Fact{Name: texts.Serial, Value: page.Number(int(c.Record.Serial))})
	}
	return facts
}

// versions are those of a release's components.
func versions(r *release.Release) string {
	names := make([]string, 0, len(r.Components))
	for _, c := range r.Components {
		names = append(names, c.Name+" "+c.Version)
	}
	return strings.Join(names, ", ")
}

// missing says that a section has nothing to show.
func missing(s page.Section) page.Section {
	s.Notices = append(s.Notices, page.Notice{Mark: page.Warned, Text: texts.Missing})
	return s
}

func (c *Cluster) findings() page.Section {
	s := page.Section{ID: "findings", Title: texts.Findings}
	if c.Observation == nil {
		return missing(s)
	}
	t := page.Table{Columns: []page.Column{{Title: texts.Fault}, {Title: texts.Severity}, {Title: texts.Where},
		{Title: texts.Symptom}, {Title: texts.Cause}, {Title: texts.Remedy}}}
	for _, f := range diagnosis.Judge(c.Observation) {
		severity, where := texts.Warning.Marked(page.Warned), texts.Whole
		if f.Severity == diagnosis.Critical {
			severity = texts.Critical.Marked(page.Bad)
		}
		if f.Host != "" {
			where = page.Plain(f.Host)
		}
		if f.Subject != "" {
			where = texts.Of.With(where, f.Subject)
		}
		t.Rows = append(t.Rows, []page.Text{page.Plain(f.ID), severity, where, page.Said(f.Symptom), page.Said(f.Cause),
			page.Said(numbered(f.Remedy))})
	}
	if len(t.Rows) == 0 {
		s.Notices = append(s.Notices, page.Notice{Mark: page.Good, Text: texts.Well})
	} else {
		s.Tables = append(s.Tables, t)
	}
	if len(c.Observation.Problems) > 0 {
		t := page.Table{Title: texts.NotSeen, Columns: []page.Column{{Title: texts.What}}}
		for _, text := range c.Observation.Problems {
			t.Rows = append(t.Rows, []page.Text{page.Said(text)})
		}
		s.Tables = append(s.Tables, t)
	}
	return s
}

// numbered are steps in one line.
func numbered(steps []string) string {
	if len(steps) == 1 {
		return steps[0]
	}
	var all []string
	for i, step := range steps {
		all = append(all, fmt.Sprintf("%d. %s", i+1, step))
	}
	return strings.Join(all, " ")
}

func (c *Cluster) certificates() page.Section {
	s := page.Section{ID: "certificates", Title: texts.Certificates, About: texts.CertificatesAbout}
	if c.Certificates == nil {
		return missing(s)
	}
	t := page.Table{Columns: []page.Column{{Title: texts.Path}, {Title: texts.Host}, {Title: texts.For},
		{Title: texts.Subject}, {Title: texts.Ends}, {Title: texts.Days, Numeric: true}, {Title: texts.Renewal}}}
	for _, one := range c.Certificates.Certificates {
		days := page.Number(one.DaysLeft)
		switch {
		case one.DaysLeft < 0:
			days = days.Marked(page.Bad)
		case one.Renewal != "":
			days = days.Marked(page.Warned)
		}
		t.Rows = append(t.Rows, []page.Text{page.Plain(one.Path), page.Plain(one.Host), kindOf(one.Kind),
			page.Plain(one.Subject), page.Moment(one.NotAfter), days, page.Said(one.Renewal)})
	}
	s.Tables = append(s.Tables, t)
	if len(c.Certificates.Problems) > 0 {
		t := page.Table{Title: texts.NotSeen, Columns: []page.Column{{Title: texts.What}}}
		for _, text := range c.Certificates.Problems {
			t.Rows = append(t.Rows, []page.Text{page.Said(text)})
		}
		s.Tables = append(s.Tables, t)
	}
	return s
}

func kindOf(k certificates.Kind) page.Text {
	switch k {
	case certificates.ForServer:
		return texts.ForServer
	case certificates.ForClient:
		return texts.ForClient
	case certificates.Authority:
		return texts.Authority
	case certificates.ForRegistry:
		return texts.ForRegistry
	case certificates.InSecret:
		return texts.InSecret
	case certificates.InKubeconfig:
		return texts.InKubeconfig
	}
	return page.Plain(string(k))
}

// drift is how the cluster differs from what is asked for.
func (c *Cluster) drift() page.Section {
	s := page.Section{ID: "drift", Title: texts.Drift, About: texts.DriftAbout}
	switch {
	case c.Status == nil && c.Bundle == nil:
		s.Notices = append(s.Notices, page.Notice{Mark: page.Faint, Text: texts.NoBundle})
		return s
	case c.Status == nil:
		return missing(s)
	}
	t := page.Table{Columns: []page.Column{{Title: texts.Host}, {Title: texts.Difference}}}
	for _, text := range c.Status.Differences {
		t.Rows = append(t.Rows, []page.Text{texts.Whole, page.Said(text)})
	}
	failed := false
	for _, h := range c.Status.Hosts {
		for _, text := range h.Differences {
			t.Rows = append(t.Rows, []page.Text{page.Plain(h.Host), page.Said(text)})
		}
		if h.Error != "" {
			failed = true
			t.Rows = append(t.Rows, []page.Text{page.Plain(h.Host), page.Said(h.Error).Marked(page.Bad)})
		}
	}
	switch {
	case len(t.Rows) > 0:
		s.Tables = append(s.Tables, t)
	case !failed && !c.has(Drift):
		s.Notices = append(s.Notices, page.Notice{Mark: page.Good, Text: texts.NoDrift})
	}
	return s
}

// has reports whether a part was not read as a whole.
func (c *Cluster) has(part Part) bool {
	for _, p := range c.Problems {
		if p.Part == part {
			return true
		}
	}
	return false
}
