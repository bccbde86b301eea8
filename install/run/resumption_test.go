package run

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
)

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
		{name: "no record", is: site.ErrNothingToResume, says: "no record of releases"},
		{name: "all is done", releases: []release.Release{one(1, release.Failed, nil), one(2, release.Succeeded, nil)}, is: site.ErrNothingToResume, says: "release 2 of the cluster (boxlift upgrade"},
		{
			name: "an upgrade", releases: []release.Release{one(1, release.Succeeded, nil), one(2, release.Running, nil)},
			want: &Unfinished{Release: 2, Command: "upgrade", Verb: journal.Upgrade, Flags: []string{"--batch-size=1"}, Anew: []string{"--encrypt-backup-to=age1a"}},
		},
		{
			name: "a rollback that failed", releases: []release.Release{one(4, release.Failed, func(r *release.Release) { r.Command, r.Flags = "rollback --to 1", nil })},
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
