package run

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// Whether an upgrade has begun and not ended is known in three places: the state of whoever
// began it, the cluster's record, and what its servers keep to go back to. The last one is
// there for everybody, also while no API answers.

// UpgradeBegan reports whether the last run is an upgrade, or a rollback in place, that has
// worked on k3s of a server and not ended.
func UpgradeBegan(last journal.State) bool {
	return last.Verb.IsUpgrade() && last.Unfinished() &&
		slices.ContainsFunc(last.Steps, func(s journal.Step) bool { return s.Phase == "servers" && s.Attempts > 0 })
}

// MustWait reports whether the run would take the place of an upgrade in the state that has begun
// and not ended. Other upgrades are judged by the cluster's record, and a restore is a way out.
func (en *Engine) MustWait(last journal.State) bool {
	return !en.Upgrades && !en.Restores && UpgradeBegan(last) && last.Cluster == en.Site.Config.Cluster.Name
}

// IsBeside reports whether the run leaves the state to such an upgrade, with which resume goes on,
// and is done all the same: a host that is gone may be what holds it up, and users that cannot
// work do not have to wait for its end. Its steps are noted among those of the upgrade.
func (en *Engine) IsBeside(last journal.State) bool {
	return en.MustWait(last) && (en.Verb == journal.Remove || en.Verb == journal.RollbackLiteBoxd)
}

// UnderWayError says that an upgrade has to come to its end first.
type UnderWayError struct {
	Last  journal.State
	State string
}

func (e *UnderWayError) Error() string {
	return fmt.Sprintf("%v: boxlift %s with the bundle %s has begun on hosts and did not end", site.ErrRefused,
		e.Last.Command, site.Short(e.Last.Bundle))
}

func (*UnderWayError) Unwrap() error { return site.ErrRefused }

// Hint says how to go on.
func (e *UnderWayError) Hint() string {
	return "boxlift resume goes on with it; boxlift rollback --to goes back to the release before; if it came to its " +
		"end from another machine meanwhile, as boxlift history shows, move " + e.State + " away"
}

// Unfinished is a run that has begun on a cluster and not ended, as the cluster tells.
type Unfinished struct {
	// Release is its number on record, 0 when only a server knows that an upgrade has begun.
	Release int
	Command string
	// Verb is what the run does, RollbackTo the release that it goes back to, 0 for none.
	Verb       journal.Verb
	RollbackTo int
	// Flags are those that it was begun with, as far as they are on record and may be kept to.
	Flags []string
	// Anew are the others of them: who goes on has to give each of these flags, with this
	// value or another. Whoever may write the record would else consent in the operator's
	// name, or choose who can read the backup.
	Anew []string
}

// UnfinishedOf is the run that a record is in the middle of.
func UnfinishedOf(r *release.Record, bundle digest.Digest, fingerprint string) (*Unfinished, error) {
	newest := LastStanding(r)
	if newest == nil {
		return nil, fmt.Errorf("%w: the cluster has no record of releases", site.ErrNothingToResume)
	}
	what := fmt.Sprintf("release %d of the cluster (boxlift %s, bundle %s, by %s)", newest.Number, newest.Command,
		site.Short(newest.Bundle.String()), newest.By)
	switch {
	case newest.State == release.Succeeded:
		return nil, fmt.Errorf("%w: %s has succeeded", site.ErrNothingToResume, what)
	case newest.Bundle != bundle:
		return nil, fmt.Errorf("%w: %s has not ended, and this is bundle %s: give that bundle", site.ErrChanged, what,
			site.Short(bundle.String()))
	case newest.Config != fingerprint:
		return nil, fmt.Errorf("%w: install.yaml asks for another cluster than in %s: take the change back, or begin "+
			"anew with boxlift %s", site.ErrChanged, what, newest.Command)
	}
	shared, anew := sharedFlags(newest.Flags)
	return &Unfinished{Release: newest.Number, Command: newest.Command, Verb: newest.Verb, RollbackTo: newest.RollbackTo,
		Flags: shared, Anew: anew}, nil
}

// recordedFlags are the flags of a run that mean the same on every machine. Files are those of the
// one that it was begun on, and none that a record names is written anywhere else.
func recordedFlags(flags []string) []string {
	return slices.DeleteFunc(slices.Clone(flags), func(text string) bool {
		name, _, _ := strings.Cut(text, "=")
		return slices.Contains([]string{"--kubeconfig", "--merge-kubeconfig"}, name)
	})
}

// sharedFlags are the flags on record that only say how a run goes about its work. All others are
// anew.
func sharedFlags(recorded []string) (shared, anew []string) {
	harmless := []string{"--batch-size", "--canary", "--max-failures", "--pause-between", "--no-rollback"}
	for _, text := range recordedFlags(recorded) {
		if name, _, _ := strings.Cut(text, "="); slices.Contains(harmless, name) {
			shared = append(shared, text)
		} else {
			anew = append(anew, text)
		}
	}
	return shared, anew
}

// String is the command with the flags that are kept to.
func (u *Unfinished) String() string {
	return strings.Join(append([]string{u.Command}, u.Flags...), " ")
}

// UpgradeCommand is what people call an upgrade.
const UpgradeCommand = "upgrade"

// BatchError says that an upgrade has stopped between agents.
type BatchError struct {
	*HostsError
	Untouched []string
}

func (e *BatchError) Error() string {
	text := e.HostsError.Error()
	if len(e.Untouched) > 0 {
		text += "\nnot touched because of that: " + strings.Join(e.Untouched, ", ")
	}
	return text
}

func (e *BatchError) Unwrap() error { return e.HostsError }

// Hint says how to go on.
func (*BatchError) Hint() string {
	return "mend the cause, and boxlift resume goes on; or go back to the release before with boxlift rollback --to"
}

// LeftBehind are the hosts whose nodes a run that was broken off deleted without getting to
// the uninstall, and those that it knew of from runs before it. Those that are not in
// install.yaml nobody would think of again.
func LeftBehind(last journal.State) []journal.Left {
	if !last.Unfinished() {
		return nil
	}
	known := slices.Clone(last.Left)
	for _, s := range last.Steps {
		if s.Leaves != nil && (s.Result == journal.Done || s.Result == journal.Running) &&
			!slices.Contains(known, *s.Leaves) {
			known = append(known, *s.Leaves)
		}
	}
	return slices.DeleteFunc(known, func(left journal.Left) bool {
		return slices.ContainsFunc(last.Steps, func(s journal.Step) bool {
			return s.Takes && s.Host == left.Host && (s.Result == journal.Done || s.Result == journal.Unchanged)
		})
	})
}

// Recall finds out what a run that only looks is to know of the last one.
func (en *Engine) Recall() error {
	last, err := journal.Read(en.Site.StatePath)
	en.Left = LeftBehind(last)
	return err
}

// Files on hosts: which restore the host waits for, and which one it has had.
const (
	RestoringFile = wire.FilesDir + "/restoring"
	RestoredFile  = wire.FilesDir + "/restored"
	// RestoreDir is where a snapshot of etcd lies while it is restored, with notes of which claims have their files
	// back.
	RestoreDir  = wire.FilesDir + "/restore"
	RestoreUnit = "boxlift-restore"
	// RestorePhase stops k3s for a restore.
	RestorePhase = "restore"
)

// RestoreBegan reports whether the last run is a restore that hosts wait for. Another run would
// take its place in the state, and with it the id by which it is gone on with.
func RestoreBegan(last journal.State) bool {
	return last.Unfinished() && slices.ContainsFunc(last.Steps,
		func(s journal.Step) bool { return s.Phase == RestorePhase && s.Attempts > 0 })
}

// RestoringError says how to go on with a restore that began on a host and did not end.
func (en *Engine) RestoringError() error {
	last, err := journal.Read(en.Site.StatePath)
	if err != nil {
		last = journal.State{}
	}
	return fmt.Errorf("%w: the restore of a backup began on this host and did not end: go on with %s", site.ErrRefused,
		RestoreCommand(last))
}

// RestoreCommand is how a run goes on with a restore that the state tells of. Which backup it is
// of, only the state knows.
func RestoreCommand(last journal.State) string {
	if last.BackupFile == "" {
		return "boxlift backup restore FILE, with the same backup and the bundle of that time"
	}
	return fmt.Sprintf("boxlift %s %s", last.Command, last.BackupFile)
}
