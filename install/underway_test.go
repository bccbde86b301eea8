package install

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
)

// What an upgrade has left in the state stays there until it is gone on with or gone back from:
// only the state has its flags.
func TestUpgradeKeepsItsState(t *testing.T) {
	const upgraded, rolledBack = "upgrade", "rollback --to 3"
	failed := errors.New("k3s does not start")
	tests := []struct {
		name string
		// began is the command in the state, phase that of its last step, and ended how it ended.
		began, phase string
		ended        error
		cluster      string // in the state; "" is the same
		command      string // that is run now
		upgrade      bool
		// left is the command in the state afterwards, refused whether the run is.
		left    string
		refused bool
	}{
		{name: "an installation", began: upgraded, phase: "servers", ended: failed, left: upgraded, refused: true},
		{name: "an installation in a rollback", began: rolledBack, phase: "servers", ended: failed, left: rolledBack, refused: true},
		{name: "certificates", began: upgraded, phase: "servers", ended: failed, command: "certs rotate", left: upgraded, refused: true},
		{name: "its confirmation", began: upgraded, phase: "servers", ended: failed, command: "upgrade confirm", left: upgraded, refused: true},
		{name: "a host that is gone", began: upgraded, phase: "servers", ended: failed, command: "node remove", left: upgraded},
		{name: "LiteBoxd alone", began: rolledBack, phase: "servers", ended: failed, command: "rollback liteboxd", left: rolledBack},
		{name: "the way back", began: upgraded, phase: "servers", ended: failed, command: rolledBack, upgrade: true, left: rolledBack},
		{name: "forth again", began: rolledBack, phase: "servers", ended: failed, command: upgraded, upgrade: true, left: upgraded},
		{name: "after its end", began: upgraded, phase: "servers", left: "install"},
		{name: "before any k3s was changed", began: upgraded, phase: "ship", ended: failed, left: "install"},
		{name: "another cluster", began: upgraded, phase: "servers", ended: failed, cluster: "other", left: "install"},
		{name: "no upgrade", began: "install --skip liteboxd", phase: "servers", ended: failed, command: "node remove", left: "node remove"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, exampleConfig)
			in.site.StatePath, in.engine.Command = filepath.Join(t.TempDir(), "state.json"), test.command
			if test.upgrade {
				in.engine.upgrades = true
			}
			if test.cluster == "" {
				test.cluster = in.site.Config.Cluster.Name
			}
			began := journal.Run{Command: test.began, Cluster: test.cluster, Bundle: "sha256:0123456789abcdef", Flags: []string{"--batch-size=1"}}
			before := writeState(t, in.site.StatePath, began, test.phase, test.ended)

			worked := false
			err := in.recorded(func() error {
				worked = true
				end, err := in.engine.journal.Start("remove", "10.0.0.12", "uninstall k3s", "it is asked for")
				return errors.Join(err, end(nil))
			})
			if test.refused != errors.Is(err, ErrRefused) || !test.refused && err != nil || worked == test.refused {
				t.Fatalf("it has worked: %t, %v", worked, err)
			}
			var hinted interface{ Hint() string }
			if test.refused && (!errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "boxlift resume")) {
				t.Errorf("it does not say how to go on: %v", err)
			}
			after, err := journal.Read(in.site.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			if after.Command != test.left {
				t.Errorf("the state is that of %s, want %s", after.Command, test.left)
			}
			if test.left != test.began {
				return
			}
			if !test.refused {
				before.Steps = append(before.Steps, after.Steps[len(after.Steps)-1])
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("what is known of the upgrade: %s", diff)
			}
		})
	}
}

// writeState writes the state of a run with one step.
func writeState(t *testing.T, path string, run journal.Run, phase string, ended error) journal.State {
	t.Helper()
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Begin(run); err != nil {
		t.Fatal(err)
	}
	end, err := j.Start(phase, "10.0.0.11", "start k3s", "it changed")
	if err := errors.Join(err, end(ended), j.End(ended), j.Close()); err != nil {
		t.Fatal(err)
	}
	last, err := journal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// What a machine without a state goes on with.
func TestUnfinishedOf(t *testing.T) {
	const config = "config"
	bundle, other := digest.FromString("next"), digest.FromString("other")
	one := func(number int, state release.State, change func(*release.Release)) release.Release {
		r := release.Release{
			Number: number, State: state, Command: "upgrade", Bundle: bundle, Config: config, By: "op@laptop",
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
		{name: "no record", is: ErrNothingToResume, says: "no record of releases"},
		{name: "all is done", releases: []release.Release{one(1, release.Failed, nil), one(2, release.Succeeded, nil)}, is: ErrNothingToResume, says: "release 2 of the cluster (boxlift upgrade"},
		{
			name: "an upgrade", releases: []release.Release{one(1, release.Succeeded, nil), one(2, release.Running, nil)},
			want: &Unfinished{Release: 2, Command: "upgrade", Flags: []string{"--batch-size=1"}, Anew: []string{"--encrypt-backup-to=age1a"}},
		},
		{
			name: "a rollback that failed", releases: []release.Release{one(4, release.Failed, func(r *release.Release) { r.Command, r.Flags = "rollback --to 1", nil })},
			want: &Unfinished{Release: 4, Command: "rollback --to 1"},
		},
		{name: "what was taken back", releases: []release.Release{one(1, release.Succeeded, nil), one(2, release.RolledBack, nil)}, is: ErrNothingToResume, says: "release 1"},
		{name: "another bundle", releases: []release.Release{one(2, release.Created, func(r *release.Release) { r.Bundle = other })}, is: ErrChanged, says: "give that bundle"},
		{name: "another configuration", releases: []release.Release{one(2, release.Running, func(r *release.Release) { r.Config = "another" })}, is: ErrChanged, says: "begin anew with boxlift upgrade"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var r *release.Record
			if test.releases != nil {
				r = &release.Record{Releases: test.releases}
			}
			got, err := unfinishedOf(r, bundle, config)
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
