package helm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"helm.sh/helm/v4/pkg/action"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// ErrNoRevision is wrapped by errors about a revision that a release does not have.
var ErrNoRevision = fault.NewKind(fault.Input, "no such revision")

// State is what Helm has on record about a revision of a release.
type State struct {
	Chart        string // the chart's name
	ChartVersion string
	Revision     int
	Status       string // Helm's word: deployed, superseded, failed, pending-upgrade and so on
	Since        time.Time
	Description  string
	Values       map[string]any
	// RolledBackTo is the revision that this one repeats, 0 when it repeats none.
	RolledBackTo int
}

// Is reports whether a revision is what runs now: the current one, or the one that the current
// one repeats.
func (s State) Is(revision int) bool {
	return s.Status == common.StatusDeployed.String() && (s.Revision == revision || s.RolledBackTo == revision)
}

func newState(r *release.Release) State {
	s := State{
		Revision: r.Version, Status: r.Info.Status.String(), Since: r.Info.LastDeployed,
		Description: kube.Brief(r.Info.Description), Values: r.Config,
		ChartVersion: chartVersion(r), RolledBackTo: r.Info.RollbackRevision,
	}
	if r.Chart != nil && r.Chart.Metadata != nil {
		s.Chart = printable.Line(r.Chart.Metadata.Name)
	}
	return s
}

// Current returns the newest revision, nil when there is no such release.
func Current(ctx context.Context, c *kube.Cluster, namespace, name string) (*State, error) {
	states, err := History(ctx, c, namespace, name)
	if err != nil || len(states) == 0 {
		return nil, err
	}
	return &states[len(states)-1], nil
}

// History returns the revisions that are on record, oldest first: the last ten, and as
// many more as failed, up to 20; none when there is no such release.
func History(ctx context.Context, c *kube.Cluster, namespace, name string) ([]State, error) {
	revisions, err := revisions(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	var states []State
	for _, r := range revisions {
		states = append(states, newState(r))
	}
	return states, nil
}

// Manifest returns what the newest revision that was rolled out has sent to the
// cluster: YAML documents. The error wraps ErrNoRevision when there is none.
func Manifest(ctx context.Context, c *kube.Cluster, namespace, name string) ([]byte, error) {
	revisions, err := revisions(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	good := lastGood(revisions)
	if good == nil {
		return nil, fmt.Errorf("%s: release %s/%s: %w: none was rolled out", c.Name, namespace, name, ErrNoRevision)
	}
	return []byte(good.Manifest), nil
}

func revisions(ctx context.Context, c *kube.Cluster, namespace, name string) ([]*release.Release, error) {
	h, err := bind(ctx, c, namespace, name, nil)
	if err != nil {
		return nil, err
	}
	defer h.close()
	revisions, err := h.revisions(name)
	if err != nil {
		return nil, fmt.Errorf("%s: read release %s/%s: %w", c.Name, namespace, name, err)
	}
	return revisions, nil
}

// Rollback makes an earlier revision of a release the current one again, as a new
// revision, and waits like Apply; to is the revision that it goes back to. With
// revision 0 that is the last good one before the current one, which is another one in what
// it has unless the current one has failed. A release that was left pending is taken up. The
// timeout bounds the wait, 10 minutes when it is 0. What does not roll out stays as it is.
//
// The error wraps ErrNoRevision when the release has no such revision, or nothing that it
// could go back to.
func Rollback(
	ctx context.Context, c *kube.Cluster, namespace, name string, revision int,
	timeout time.Duration, report func(string),
) (to int, err error) {
	if report == nil {
		report = func(string) {}
	}
	if timeout <= 0 {
		timeout = releaseTimeout
	}
	h, err := bind(ctx, c, namespace, name, report)
	if err != nil {
		return 0, err
	}
	defer h.close()
	revisions, err := h.revisions(name)
	if err != nil {
		return 0, fmt.Errorf("%s: read release %s/%s: %w", c.Name, namespace, name, err)
	}
	o := kube.ReleaseName{Namespace: namespace, Name: name}
	target, err := rollbackTarget(revisions, revision)
	if err != nil {
		return 0, noTarget(c, namespace, name, err)
	}
	to = target.Version
	doing := fmt.Sprintf("roll back release %s/%s to revision %d, chart %s", namespace, name, to, chartVersion(target))
	objects, err := decodeManifest(target.Manifest)
	if err != nil {
		return to, fmt.Errorf("%s: %s: %w", c.Name, doing, err)
	}
	if refused := refusalOf(ctx, c, objects, o); refused != nil {
		return to, releaseError(ctx, c, o, doing, refused, nothingChanged)
	}
	last, good := revisions[len(revisions)-1], lastGood(revisions)
	if err := h.takeUp(revisions, good, report); err != nil {
		return to, fmt.Errorf("%s: take up release %s/%s: %w", c.Name, namespace, name, err)
	}
	h.history = historyLimit(revisions)
	// Helm takes away what the last revision has. When that one has failed, objects of the one
	// before it may still be there.
	h.client.leftover = append(h.client.leftover, good.Manifest)
	report(fmt.Sprintf("rolling back to revision %d, chart %s", to, chartVersion(target)))
	if err := h.rollback(last, to, timeout); err != nil {
		return to, releaseError(ctx, c, o, doing, err, "")
	}
	return to, nil
}

// RollbackTarget is the revision that Rollback would go back to. The error is as
// there.
func RollbackTarget(ctx context.Context, c *kube.Cluster, namespace, name string, revision int) (int, error) {
	revisions, err := revisions(ctx, c, namespace, name)
	if err != nil {
		return 0, err
	}
	target, err := rollbackTarget(revisions, revision)
	if err != nil {
		return 0, noTarget(c, namespace, name, err)
	}
	return target.Version, nil
}

func noTarget(c *kube.Cluster, namespace, name string, err error) error {
	return c.Fail(fmt.Errorf("roll back release %s/%s: %w", namespace, name, err),
		"the release's history says which revisions it has")
}

// rollbackTarget finds the revision to go back to.
func rollbackTarget(revisions []*release.Release, revision int) (*release.Release, error) {
	if len(revisions) == 0 {
		return nil, fmt.Errorf("%w: it is not installed", ErrNoRevision)
	}
	if revision != 0 {
		i := slices.IndexFunc(revisions, func(r *release.Release) bool { return r.Version == revision })
		switch {
		case i < 0:
			return nil, fmt.Errorf("%w: %d", ErrNoRevision, revision)
		case !rolledOut(revisions[i]):
			return nil, fmt.Errorf("%w that was rolled out: %d is %s",
				ErrNoRevision, revision, revisions[i].Info.Status)
		}
		return revisions[i], nil
	}
	current := revisions[len(revisions)-1]
	if to := current.Info.RollbackRevision; to != 0 && current.Info.Status != common.StatusDeployed {
		// A rollback that was broken off goes where it was going.
		i := slices.IndexFunc(revisions, func(r *release.Release) bool { return r.Version == to && rolledOut(r) })
		if i >= 0 {
			return revisions[i], nil
		}
	}
	for _, r := range slices.Backward(revisions[:len(revisions)-1]) {
		if rolledOut(r) && (current.Info.Status != common.StatusDeployed || r.Manifest != current.Manifest) {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: before revision %d there is none that was rolled out and differs",
		ErrNoRevision, current.Version)
}

// rolledOut reports whether a revision has been good once.
func rolledOut(r *release.Release) bool {
	return r.Info.Status == common.StatusDeployed || r.Info.Status == common.StatusSuperseded
}

// lastGood is the newest revision that was rolled out, nil when none was.
func lastGood(revisions []*release.Release) *release.Release {
	for _, r := range slices.Backward(revisions) {
		if rolledOut(r) {
			return r
		}
	}
	return nil
}

// historyLimit is how many revisions to keep, the one that is about to be made among them.
func historyLimit(revisions []*release.Release) int {
	failed := 0
	for _, r := range revisions {
		if !rolledOut(r) {
			failed++
		}
	}
	return maxHistory + min(failed, maxFailed)
}

// rollback goes back to a revision. last is the newest one.
func (h *binding) rollback(last *release.Release, to int, timeout time.Duration) error {
	back := action.NewRollback(h.config)
	back.Version, back.Timeout, back.MaxHistory = to, timeout, h.history
	back.WaitStrategy = helmkube.HookOnlyStrategy
	back.ServerSideApply, back.ForceConflicts = "true", true
	err := back.Run(last.Name)
	if err != nil && last.Info.Status == common.StatusFailed {
		// When objects cannot be applied, Helm puts the revision down as superseded, which is
		// what those are called that were good once.
		err = errors.Join(err, h.config.Releases.Update(last))
	}
	return err
}
