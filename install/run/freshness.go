package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Whether a bundle is older than one that the cluster has had, or not good by the trust file that the cluster keeps, is
// found out twice: before hosts are changed, from the record or its copy, and where the run's release comes into the
// record. The latter sees every run, also one to whose cluster nobody could talk before.

// mayBeOlder reports whether the run says by itself that its bundle may be an older one: it goes
// back to a release or a backup of the operator's choice, or the operator has accepted it.
func (rec *Record) mayBeOlder() bool {
	return rec.AcceptOlderBundle || rec.Engine.Restores || rec.TakesBack > 0
}

// refuseOlder returns an error when the bundle is older than one that a record, nil for none, has.
func (rec *Record) refuseOlder(r *release.Record) error {
	serial := rec.Site.Bundle.Validity().Serial
	if rec.mayBeOlder() || !r.IsOlder(rec.Site.Bundle.Digest(), serial) {
		return nil
	}
	return &olderBundleError{gate.OlderText(serial, r.Serial)}
}

// CheckBundle refuses an older bundle, and one that is not good by the trust file that the cluster keeps, as early as
// the cluster tells. When it does not tell, the copy beside the state does, if hosts are in a cluster at all: those
// that are not may begin with any bundle. The newest trust file that hosts have counts beside.
func (rec *Record) CheckBundle(ctx context.Context) error {
	rec.askHosts(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, RecordTimeout, fmt.Errorf("given up after %v", RecordTimeout))
	defer cancel()
	_, r, _, err := rec.OpenRecord(ctx)
	switch {
	case errors.Is(err, release.ErrInvalid) && rec.mayBeOlder():
		return rec.refuse(nil)
	case errors.Is(err, release.ErrInvalid):
		return fmt.Errorf("%w: %w", site.ErrRefused, &RecordError{err})
	case err == nil:
		return rec.refuse(r)
	case rec.Site.StatePath == "" || !slices.ContainsFunc(rec.Site.Servers(),
		func(h *site.Host) bool { return h.Member }):
		return rec.refuse(nil)
	}
	if r, err = release.ReadFile(rec.RecordCopy()); err != nil {
		rec.Site.Warn("whether the bundle is older than one that the cluster has had, or revoked, is not known yet: %v", err)
		return rec.refuse(nil)
	}
	return rec.refuse(r)
}

// refuse returns an error when a record, nil for none, says that the bundle may not be used.
func (rec *Record) refuse(r *release.Record) error {
	if err := rec.Approve(r); err != nil {
		return fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	return rec.refuseOlder(r)
}

// keepNewest makes a record that was brought back with its cluster know what the copy beside the state still does, the
// highest serial and the newest trust file, and what hosts do that survived, the latter.
func (rec *Record) keepNewest(r *release.Record) {
	if !rec.Engine.Restores {
		return
	}
	rec.keepNewestOfCopy(r)
	newest, by, err := rec.keptTrust(r, time.Now())
	if err != nil || newest == nil {
		return
	}
	if _, err := r.KeepTrust(newest, time.Now()); err != nil {
		rec.Site.Warn("%s version %d of the trust file, and the record does not: %v", by, newest.Version().Number, err)
	}
}

// keepNewestOfCopy makes a record know what the copy beside the state does.
func (rec *Record) keepNewestOfCopy(r *release.Record) {
	before, err := release.ReadFile(rec.RecordCopy())
	if err != nil || before == nil || before.Cluster != r.Cluster {
		return
	}
	r.RaiseSerial(before.Serial)
	kept, err := before.KeptTrust()
	if err != nil || kept == nil {
		return
	}
	if _, err := r.KeepTrust(kept, time.Now()); err != nil && !errors.Is(err, trust.ErrOlder) {
		rec.Site.Warn("the trust file of the copy beside the state does not follow on the one in the backup: %v", err)
	}
}

// CheckAudience refuses a bundle that its lock says is for other clusters. No flag goes past that:
// the lock's authors said it on purpose and signed it, and a bundle for one cluster more is built in
// minutes from one that is there.
func CheckAudience(v lock.Validity, cluster string) error {
	if v.IsFor(cluster) {
		return nil
	}
	return fault.WithHint(
		fmt.Errorf("%w: the bundle is for the clusters %s, and install.yaml describes the cluster %s",
			site.ErrConfig, strings.Join(v.Audience, ", "), cluster),
		"take the bundle that was built for this cluster, or add its name to audience in versions.lock "+
			"and build one; the name is cluster.name in install.yaml")
}

// olderBundleError says that a bundle is older than one that the cluster has had.
type olderBundleError struct{ text string }

func (e *olderBundleError) Error() string { return fmt.Sprintf("%v: %s", site.ErrRefused, e.text) }

func (*olderBundleError) Unwrap() error { return site.ErrRefused }

func (*olderBundleError) Hint() string {
	return "take the newest bundle that was built; boxlift rollback --to goes back to a release on purpose; " +
		"boxlift install and boxlift upgrade go on with this bundle with --accept-older-bundle"
}
