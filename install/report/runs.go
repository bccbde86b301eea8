package report

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/page"
)

// runs are the releases and what was done besides, the newest first.
func (c *Cluster) runs() page.Section {
	s := page.Section{ID: "runs", Title: texts.LastRuns, About: texts.LastRunsAbout}
	if c.Record == nil {
		if !c.has(Releases) {
			s.Notices = append(s.Notices, page.Notice{Mark: page.Faint, Text: texts.NoRecord})
			return s
		}
		return missing(s)
	}
	for i := range c.Record.Releases {
		r := &c.Record.Releases[i]
		s.Timeline = append(s.Timeline, releaseRun(r, r == c.Record.Current()))
	}
	for _, e := range c.Record.Events {
		s.Timeline = append(s.Timeline, eventRun(e))
	}
	slices.SortStableFunc(s.Timeline, func(a, b page.Run) int { return b.Started.Compare(a.Started) })
	return s
}

func releaseRun(r *release.Release, current bool) page.Run {
	run := page.Run{Started: r.Started, Title: texts.Release.With(r.Number, r.Command), State: stateOf(r.State)}
	switch r.State {
	case release.Succeeded:
		run.Mark = page.Good
	case release.Failed:
		run.Mark = page.Bad
	case release.Created, release.Running, release.RolledBack:
		run.Mark = page.Warned
	}
	run.State = run.State.Marked(run.Mark)
	if current {
		run.State = texts.Current.With(run.State).Marked(run.Mark)
	}
	if !r.Ended.IsZero() {
		run.Took = max(r.Ended.Sub(r.Started), 0)
	}
	run.Lines = append(run.Lines, texts.By.With(r.By, r.Boxlift, r.Attempts), page.Plain(versions(r)),
		page.Plain(r.Bundle.String()).Marked(page.Code))
	if len(r.Signers) > 0 {
		run.Lines = append(run.Lines, texts.SignedBy.With(signers(r.Signers)))
	}
	if r.Backup != "" {
		run.Lines = append(run.Lines, texts.Backup.With(r.Backup))
	}
	return withResult(run, r.Result)
}

func signers(all []approval.Signer) string {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.String())
	}
	return strings.Join(names, "; ")
}

func eventRun(e release.Event) page.Run {
	run := page.Run{Started: e.Started, Took: max(e.Ended.Sub(e.Started), 0), Title: page.Plain(e.Command),
		Mark: page.Good, State: stateOf(release.Succeeded).Marked(page.Good)}
	if e.Failed {
		run.Mark, run.State = page.Bad, stateOf(release.Failed).Marked(page.Bad)
	}
	run.Lines = append(run.Lines, texts.By.With(e.By, e.Boxlift, 1))
	return withResult(run, e.Result)
}

func withResult(run page.Run, result string) page.Run {
	if first, _, _ := strings.Cut(result, "\n"); first != "" {
		run.Lines = append(run.Lines, page.Said(first))
	}
	return run
}

func stateOf(s release.State) page.Text {
	switch s {
	case release.Created:
		return texts.Created
	case release.Running:
		return texts.Running
	case release.Succeeded:
		return texts.Succeeded
	case release.Failed:
		return texts.Failed
	case release.RolledBack:
		return texts.RolledBack
	}
	return page.Plain(string(s))
}
