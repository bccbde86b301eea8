package run

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What a machine without a state goes on with.
func TestUnfinishedOf(t *testing.T) {
	const config = "config"
	bundle, other := digest.FromString("next"), digest.FromString("other")
	one := func(number int, state release.State, change func(*release.Release)) release.Release {
		r := release.Release{
			Number: number, State: state, Verb: journal.Upgrade, Command: "upgrade", Bundle: bundle, Config: config, By: "op@laptop",
			Flags: []string{"--batch-size=1", "--kubeconfig=/home/op/k.yaml", "--merge-kubeconfig=true", "--encrypt-backup-to=age1a"},
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	tests := []struct {
		name     string
		releases []release.Release
		want     *Unfinished
		is       error
		says     string
	}{
		{name: "no record", is: site.ErrNothingToResume, says: "no record of releases"},
		{name: "all is done", releases: []release.Release{one(1, release.Failed, nil), one(2, release.Succeeded, nil)}, is: site.ErrNothingToResume, says: "release 2 of the cluster (boxlift upgrade"},
		{
			name: "an upgrade", releases: []release.Release{one(1, release.Succeeded, nil), one(2, release.Running, nil)},
			want: &Unfinished{Release: 2, Command: "upgrade", Verb: journal.Upgrade, Flags: []string{"--batch-size=1"}, Anew: []string{"--encrypt-backup-to=age1a"}},
		},
		{
			name: "a rollback that failed", releases: []release.Release{one(4, release.Failed, func(r *release.Release) {
				r.Command, r.Verb, r.RollbackTo, r.Flags = "rollback --to 1", journal.Rollback, 1, nil
			})},
			want: &Unfinished{Release: 4, Command: "rollback --to 1", Verb: journal.Rollback, RollbackTo: 1},
		},
		{name: "what was taken back", releases: []release.Release{one(1, release.Succeeded, nil), one(2, release.RolledBack, nil)}, is: site.ErrNothingToResume, says: "release 1"},
		{name: "another bundle", releases: []release.Release{one(2, release.Created, func(r *release.Release) { r.Bundle = other })}, is: site.ErrChanged, says: "give that bundle"},
		{name: "another configuration", releases: []release.Release{one(2, release.Running, func(r *release.Release) { r.Config = "another" })}, is: site.ErrChanged, says: "begin anew with boxlift upgrade"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var r *release.Record
			if test.releases != nil {
				r = &release.Record{Releases: test.releases}
			}
			got, err := UnfinishedOf(r, bundle, config)
			if !errors.Is(err, test.is) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v: %q", err, test.is, test.says)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Where files are on one machine says nothing on another, and nobody but the operator agrees to
// anything, or says who can read a backup; flags that are not known here are no exception.
func TestSharedFlags(t *testing.T) {
	given := []string{
		"--kubeconfig=/k.yaml", "--canary=1", "--merge-kubeconfig=true", "--batch-size=2", "--max-failures=1",
		"--pause-between=1m0s",
		"--no-rollback=true", "--drain-nodes-and-end-their-sandboxes=true", "--accept-drift=true", "--accept-untested-cilium=true",
		"--encrypt-backup-to=age1a", "--encrypt-backup-to=age1b", "--force-after=1s", "--of-a-later-boxlift=true", "",
	}
	before := slices.Clone(given)
	shared, anew := sharedFlags(given)
	want := []string{"--canary=1", "--batch-size=2", "--max-failures=1", "--pause-between=1m0s", "--no-rollback=true"}
	if diff := cmp.Diff(want, shared); diff != "" {
		t.Errorf("kept to: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(given[7:], anew); diff != "" {
		t.Errorf("to be given anew: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(before, given); diff != "" {
		t.Errorf("the run's own flags have changed: %s", diff)
	}
}

func TestBatchError(t *testing.T) {
	broken := errors.New("10.0.0.12: it does not start")
	err := error(&BatchError{HostsError: &HostsError{Failed: []error{broken}, Total: 4}, Untouched: []string{"10.0.0.13", "10.0.0.14"}})
	const want = `1 of 4 hosts failed
10.0.0.12: it does not start
not touched because of that: 10.0.0.13, 10.0.0.14`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !errors.Is(err, site.ErrHosts) || !errors.Is(err, broken) {
		t.Errorf("%v wraps neither", err)
	}
}

// stateOf is a state with one step.
func stateOf(verb journal.Verb, result journal.Result, phase string, attempts int) journal.State {
	return journal.State{
		Version: journal.Version, Result: result, Steps: []journal.Step{{Phase: phase, Attempts: attempts}},
		Run: journal.Run{Verb: verb, Cluster: "example", Command: "upgrade", Bundle: "sha256:0123456789abcdef0123"},
	}
}

// An upgrade that has begun on a server, and a restore that hosts wait for, are in the way of other runs; what has not
// got so far, or is of another cluster, is in nobody's.
func TestUnderWay(t *testing.T) {
	const upgraded, restored = 1, 2
	for _, test := range []struct {
		name  string
		last  journal.State
		began int
	}{
		{"no state", journal.State{}, 0},
		{"an upgrade on a server", stateOf(journal.Upgrade, journal.Failed, "servers", 1), upgraded},
		{"one that boxlift died in", stateOf(journal.Upgrade, journal.Running, "servers", 2), upgraded},
		{"a way back on a server", stateOf(journal.Rollback, journal.Failed, "servers", 1), upgraded},
		{"one that found nothing to do there", stateOf(journal.Upgrade, journal.Failed, "servers", 0), 0},
		{"one that has ended", stateOf(journal.Upgrade, journal.Done, "servers", 1), 0},
		{"one that only imported", stateOf(journal.Upgrade, journal.Failed, "import", 1), 0},
		{"an installation on a server", stateOf(journal.Install, journal.Failed, "servers", 1), 0},
		{"a verb of another boxlift", stateOf("", journal.Failed, "servers", 1), 0},
		{"a restore", stateOf(journal.Restore, journal.Failed, RestorePhase, 1), restored},
		{"one that was refused before it", stateOf(journal.Restore, journal.Failed, "ship", 1), 0},
		{"one that has ended", stateOf(journal.Restore, journal.Done, RestorePhase, 1), 0},
	} {
		if got := UpgradeBegan(test.last); got != (test.began == upgraded) {
			t.Errorf("%s: an upgrade has begun: %t", test.name, got)
		}
		if got := RestoreBegan(test.last); got != (test.began == restored) {
			t.Errorf("%s: a restore has begun: %t", test.name, got)
		}
		for _, verb := range []journal.Verb{journal.Install, journal.Remove, journal.RollbackLiteBoxd, journal.RotateTokens} {
			in := example(t, sitetest.ExampleConfig)
			in.engine.Verb = verb
			beside := verb == journal.Remove || verb == journal.RollbackLiteBoxd
			if waits, is := in.engine.MustWait(test.last), in.engine.IsBeside(test.last); waits != (test.began == upgraded) ||
				is != (waits && beside) {
				t.Errorf("%s: %s waits: %t, is beside: %t", test.name, verb, waits, is)
			}
			in.site.Config.Cluster.Name = "another"
			if in.engine.MustWait(test.last) {
				t.Errorf("%s: %s on another cluster waits", test.name, verb)
			}
			in.site.Config.Cluster.Name, in.engine.Restores = "example", true
			if in.engine.MustWait(test.last) {
				t.Errorf("%s: a restore, the way out, waits", test.name)
			}
		}
	}
	err := error(&UnderWayError{Last: stateOf(journal.Upgrade, journal.Failed, "servers", 1), State: "/home/op/state.json"})
	const want = "refused: boxlift upgrade with the bundle sha256:0123456789ab has begun on hosts and did not end"
	if err.Error() != want || !errors.Is(err, site.ErrRefused) || !strings.Contains(fault.Hints(err)[0], "move /home/op/state.json away") {
		t.Errorf("%v, %q", err, fault.Hints(err))
	}
}

// A host that waits for a restore says with which command it is gone on with; which backup, only the state knows, and
// one that cannot be read costs no more than that.
func TestRestoringError(t *testing.T) {
	for name, test := range map[string]struct{ state, want string }{
		"the state of the restore": {`{"version":2,"command":"backup restore","verb":"restore","backupFile":"/b/1.tar","steps":[]}`,
			"go on with boxlift backup restore /b/1.tar"},
		"another state":             {`{"version":2,"command":"install","verb":"install","steps":[]}`, "boxlift backup restore FILE, with the same backup"},
		"no state":                  {"", "boxlift backup restore FILE, with the same backup"},
		"one of a later boxlift":    {`{"version":9,"backupFile":"/b/1.tar"}`, "boxlift backup restore FILE"},
		"one that nobody can read ": {"\x00\x1b[2J", "boxlift backup restore FILE"},
	} {
		in := example(t, sitetest.ExampleConfig)
		in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
		if test.state != "" {
			if err := os.WriteFile(in.site.StatePath, []byte(test.state), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := in.engine.RestoringError(); !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		recalled := in.engine.Recall()
		if later := strings.Contains(test.state, "9") || strings.Contains(test.state, "\x00"); errors.Is(recalled, journal.ErrInvalid) != later {
			t.Errorf("%s: recalled with %v", name, recalled)
		}
	}
}

// Who goes on is shown the command with the flags that are kept to, and no others.
func TestUnfinishedIsShown(t *testing.T) {
	u := &Unfinished{Command: "upgrade", Flags: []string{"--batch-size=1", "--canary=1"}, Anew: []string{"--encrypt-backup-to=x"}}
	if got := u.String(); got != "upgrade --batch-size=1 --canary=1" {
		t.Errorf("it is %q", got)
	}
}
