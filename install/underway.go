package install

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
)

// Whether an upgrade has begun and not ended is known in three places: the state of whoever
// began it, the cluster's record, and what its servers keep to go back to. The last one is
// there for everybody, also while no API answers.

// upgradeBegan tells whether the last run is an upgrade, or a rollback in place, that has
// worked on k3s of a server and not ended.
func upgradeBegan(last journal.State) bool {
	_, isUpgrade := UpgradeOf(last.Command)
	return isUpgrade && last.Unfinished() &&
		slices.ContainsFunc(last.Steps, func(s journal.Step) bool { return s.Phase == "servers" && s.Attempts > 0 })
}

// isKept tells whether a server keeps what it was before it was to get this bundle.
func (o *UpgradeOptions) isKept(ctx context.Context) bool {
	in, err := newInstaller(o.Options)
	if err != nil {
		return false
	}
	defer in.engine.close()
	in.engine.mode = plan
	return in.upgrader.isKept(ctx)
}

// isKept reports whether a server keeps what it was before it was to get this bundle.
func (u *Upgrader) isKept(ctx context.Context) bool {
	var found atomic.Bool
	_ = u.engine.eachHost(ctx, u.site.servers(), func(ctx context.Context, h *host) error { // what cannot be read says nothing
		if err := u.site.connect(ctx, h); err != nil {
			return err
		}
		k, err := readKept(ctx, h)
		if err == nil && k != nil && k.Bundle == u.site.Bundle.Digest() {
			found.Store(true)
		}
		return err
	})
	return found.Load()
}

// mustWait tells whether the run would take the place of an upgrade in the state that has begun
// and not ended. Other upgrades are judged by the cluster's record, and a restore is a way out.
func (en *Engine) mustWait(last journal.State) bool {
	return !en.upgrades && !en.restores && upgradeBegan(last) && last.Cluster == en.site.Config.Cluster.Name
}

// isBeside tells whether the run leaves the state to such an upgrade, with which resume goes on,
// and is done all the same: a host that is gone may be what holds it up, and users that cannot
// work do not have to wait for its end. Its steps are noted among those of the upgrade.
func (en *Engine) isBeside(last journal.State) bool {
	return en.mustWait(last) && slices.Contains([]string{removeCommand, rollbackLiteBoxdCommand}, en.Command)
}

// underWayError says that an upgrade has to come to its end first.
type underWayError struct {
	last  journal.State
	state string
}

func (e *underWayError) Error() string {
	return fmt.Sprintf("%v: boxlift %s with the bundle %s has begun on hosts and did not end", ErrRefused, e.last.Command, short(e.last.Bundle))
}

func (*underWayError) Unwrap() error { return ErrRefused }

func (e *underWayError) Hint() string {
	return "boxlift resume goes on with it; boxlift rollback --to goes back to the release before; if it came to its end from another machine meanwhile, as boxlift history shows, move " + e.state + " away"
}

// Unfinished is a run that has begun on a cluster and not ended, as the cluster tells.
type Unfinished struct {
	// Release is its number on record, 0 when only a server knows that an upgrade has begun.
	Release int
	Command string
	// Flags are those that it was begun with, as far as they are on record and may be kept to.
	Flags []string
	// Anew are the others of them: who goes on has to give each of these flags, with this
	// value or another. Whoever may write the record would else consent in the operator's
	// name, or choose who can read the backup.
	Anew []string
}

// FindUnfinished asks the cluster for the run with this bundle and configuration that has begun
// and not ended, for those who have no state of it. When no API answers, the copy of the record
// beside the state is read, if there is one, and then what servers keep. The error wraps
// [ErrNothingToResume] when there is none, and [ErrChanged] when it was one of something else.
func FindUnfinished(ctx context.Context, o Options) (*Unfinished, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = plan
	var r *release.Record
	if err = in.engine.connectServers(ctx, nil); err == nil {
		r, _, err = readRecord(ctx, in.site.api)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		return unfinishedOf(r, o.Bundle.Digest(), o.Config.Fingerprint())
	}
	if r, copyErr := release.ReadFile(in.record.recordCopy()); copyErr == nil {
		if found, err := unfinishedOf(r, o.Bundle.Digest(), o.Config.Fingerprint()); err == nil {
			return found, nil
		}
	}
	if (&UpgradeOptions{Options: o}).isKept(ctx) {
		return &Unfinished{Command: upgradeCommand}, nil
	}
	return nil, fmt.Errorf("%w: %s holds no run that has not ended, and the cluster cannot be asked: %w", ErrNothingToResume, o.StatePath, err)
}

// unfinishedOf is the run that a record is in the middle of.
func unfinishedOf(r *release.Record, bundle digest.Digest, fingerprint string) (*Unfinished, error) {
	newest := lastStanding(r)
	if newest == nil {
		return nil, fmt.Errorf("%w: the cluster has no record of releases", ErrNothingToResume)
	}
	what := fmt.Sprintf("release %d of the cluster (boxlift %s, bundle %s, by %s)", newest.Number, newest.Command, short(newest.Bundle.String()), newest.By)
	switch {
	case newest.State == release.Succeeded:
		return nil, fmt.Errorf("%w: %s has succeeded", ErrNothingToResume, what)
	case newest.Bundle != bundle:
		return nil, fmt.Errorf("%w: %s has not ended, and this is bundle %s: give that bundle", ErrChanged, what, short(bundle.String()))
	case newest.Config != fingerprint:
		return nil, fmt.Errorf("%w: install.yaml asks for another cluster than in %s: take the change back, or begin anew with boxlift %s", ErrChanged, what, newest.Command)
	}
	shared, anew := sharedFlags(newest.Flags)
	return &Unfinished{Release: newest.Number, Command: newest.Command, Flags: shared, Anew: anew}, nil
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
