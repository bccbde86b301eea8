package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// The list is the page, and each phase says in one line what it does.
func TestPhases(t *testing.T) {
	var names []string
	for _, p := range Phases() {
		if names = append(names, p.Name); p.Does == "" || strings.ContainsAny(p.Does, "\n") || strings.HasSuffix(p.Does, ".") {
			t.Errorf("%s: %q", p.Name, p.Does)
		}
	}
	if diff := cmp.Diff(namesOf(example(t, sitetest.ExampleConfig).installPhases()), names); diff != "" {
		t.Error(diff)
	}
}

// What cannot be run alone is refused before any host is asked, and leaves no state behind.
func TestRunPhaseRefuses(t *testing.T) {
	for _, test := range []struct{ name, phase, want, hint string }{
		{"no phase", "agnts", `there is no phase "agnts", did you mean agents?`, "the phases are preflight, leaving, ship"},
		{"a phase of another verb", "backup", `there is no phase "backup"`, "the phases are"},
		{"one that is not looked at", "place", "a dry run shows nothing of the phase place", ""},
		{"the last one", "finish", "a dry run shows nothing of the phase finish", ""},
	} {
		w := newWorld(t, sitetest.ExampleConfig)
		w.DryRun = test.hint == ""
		before := w.snapshot(t)
		summary, err := RunPhase(t.Context(), w.Options, test.phase)
		if summary != nil || fault.ClassOf(err) != fault.Usage || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(strings.Join(fault.Hints(err), ""), test.hint) {
			t.Errorf("%s: %+v, %v, %q", test.name, summary, err, fault.Hints(err))
		}
		if diff := cmp.Diff(before, w.snapshot(t)); diff != "" {
			t.Errorf("%s: it has changed %s", test.name, diff)
		}
	}
}

// A phase that k3s is placed or started in is refused while hosts lack what the phase prepare brings, and no host is
// touched. What is only better prepared keeps nothing back.
func TestRunPhaseNeedsPreparedHosts(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	h := in.site.Hosts[0].Name
	for _, test := range []struct {
		findings []preflight.Finding
		refused  bool
	}{
		{[]preflight.Finding{{Host: h, Severity: preflight.Prepared, Unprepared: preflight.Warning, Found: "1 GiB of swap"}}, false},
		{[]preflight.Finding{{Host: h, Severity: preflight.Warning, Found: "a slow clock"}}, false},
		{[]preflight.Finding{
			{Host: h, Severity: preflight.Prepared, Unprepared: preflight.Warning, Found: "1 GiB of swap"},
			{Host: h, Severity: preflight.Prepared, Unprepared: preflight.Error, Found: "IPv6 is switched off", Needed: "IPv6"},
			{Host: h, Check: preflight.CheckClock, Severity: preflight.Prepared, Unprepared: preflight.Error, Found: "an hour", Needed: "none"},
		}, true},
	} {
		in.surveyor.Findings = test.findings
		var refuse []string
		for _, p := range in.installPhases() {
			if p.Needs == nil {
				continue
			}
			hints := func(err error) string { return strings.Join(fault.Hints(err), "; ") }
			if err := p.Needs(t.Context()); errors.Is(err, site.ErrRefused) && strings.Contains(err.Error(), h+": ") &&
				strings.Contains(err.Error(), "IPv6 is switched off; needed: IPv6") && !strings.Contains(err.Error(), "swap") &&
				strings.Contains(hints(err), "boxlift phase run prepare") && strings.Contains(hints(err), "boxlift phase run time") {
				refuse = append(refuse, p.Name)
			}
		}
		var want []string
		if test.refused {
			want = []string{"place", "servers", "agents"}
		}
		if diff := cmp.Diff(want, refuse); diff != "" {
			t.Error(diff)
		}
	}
}

// A phase is a run in the state, that is no installation: resume does not take it for one.
func TestRunPhaseIsNoted(t *testing.T) {
	w := newWorld(t, sitetest.ExampleConfig)
	if _, err := RunPhase(t.Context(), w.Options, "agents"); err == nil {
		t.Fatal("agents have joined servers that are not there")
	}
	state, err := journal.Read(w.StatePath)
	if err != nil || state.Verb != journal.RunPhase || state.Command != "phase run agents" || state.Result != journal.Failed {
		t.Errorf("%+v, %v", state, err)
	}
	w.Resume = true
	if _, err := Install(t.Context(), w.Options); err == nil ||
		!strings.Contains(err.Error(), "the last run was boxlift phase run agents: run that command again") {
		t.Errorf("resume: %v", err)
	}
}
