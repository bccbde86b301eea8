package install

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/liteboxd/boxlift/install/journal"
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
	defer in.close()
	in.mode = plan
	var found atomic.Bool
	_ = in.eachHost(ctx, in.servers(), func(ctx context.Context, h *host) error { // what cannot be read says nothing
		if err := in.connect(ctx, h); err != nil {
			return err
		}
		k, err := h.readKept(ctx)
		if err == nil && k != nil && k.Bundle == o.Bundle.Digest() {
			found.Store(true)
		}
		return err
	})
	return found.Load()
}

// mustWait tells whether the run would take the place of an upgrade in the state that has begun
// and not ended. Other upgrades are judged by the cluster's record, and a restore is a way out.
func (in *installer) mustWait(last journal.State) bool {
	return in.upgrade == nil && in.Restore == nil && upgradeBegan(last) && last.Cluster == in.Config.Cluster.Name
}

// isBeside tells whether the run leaves the state to such an upgrade, with which resume goes on,
// and is done all the same: a host that is gone may be what holds it up, and users that cannot
// work do not have to wait for its end. Its steps are noted among those of the upgrade.
func (in *installer) isBeside(last journal.State) bool {
	return in.mustWait(last) && slices.Contains([]string{removeCommand, rollbackLiteBoxdCommand}, in.Command)
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
