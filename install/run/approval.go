package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
)

// Who signed the bundle was judged before any host was asked, by what the operator has named. The cluster may know
// better: it keeps the newest trust file that it was shown. So the bundle is judged once more by that one, where its
// age is found out too: before hosts are changed, and where the run's release comes into the record.

// Approve judges the bundle by the trust file that a record, nil for none, keeps, or a newer one that follows on it, as
// hosts may have. What the operator does without is told as a warning, where the bundle is revoked.
func (rec *Record) Approve(r *release.Record) error {
	now := time.Now()
	held, by, err := rec.keptTrust(r, now)
	if err != nil || held == nil || rec.Site.Bundle == nil {
		return err
	}
	if rec.Demand.IsNone() {
		one := release.Release{Bundle: rec.Site.Bundle.Digest()}
		for _, text := range one.Revocations(held.Version()) {
			rec.Site.Warn("THE BUNDLE IS REVOKED, which is not asked for with --insecure-skip-signature: %s",
				text)
		}
		return nil
	}
	demand, warnings, err := rec.Demand.Under(held, by, now)
	var approved *approval.Approval
	if err == nil {
		approved, err = demand.Approve(rec.Site.Bundle)
	}
	if err != nil && len(warnings) > 0 {
		err = fmt.Errorf("%s: %w", strings.Join(warnings, "; "), err)
	}
	if err != nil {
		return err
	}
	for _, text := range slices.Concat(warnings, approved.Warnings) {
		rec.Site.Warn("%s", text)
	}
	rec.Approval = approved
	return nil
}

// Admit judges the bundle as Approve does, where a release of it comes into the record, and has the record keep the
// trust file by which it is good. The error wraps [site.ErrRefused].
func (rec *Record) Admit(r *release.Record) error {
	err := rec.Approve(r)
	if err == nil {
		_, err = rec.keepTrust(r)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	return nil
}

// keepTrust has the record keep the trust file by which the bundle was judged, and reports whether it is a newer one.
func (rec *Record) keepTrust(r *release.Record) (isNewer bool, err error) {
	if rec.Approval == nil || rec.Approval.Policy == nil {
		return false, nil
	}
	return r.KeepTrust(rec.Approval.Policy, time.Now())
}

// KeepTrust has the cluster keep the trust file that the operator names. The error wraps [site.ErrRefused] when it does
// not follow on the one that is kept, or that hosts have. Agents are reached for that, as far as they can be.
func (rec *Record) KeepTrust(ctx context.Context) error {
	rec.reachAgents(ctx)
	rec.askHosts(ctx)
	named := rec.Demand.Policy
	refused := func(err error) error { return fmt.Errorf("%w: %w", site.ErrRefused, err) }
	return rec.Engine.RunSteps(ctx, "trust", &rec.Engine.Cluster, []Step{{
		ID: "trust", Title: "keep the trust file",
		Needed: func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
			defer cancel()
			_, r, _, err := rec.OpenRecord(ctx)
			if err != nil {
				return "", err
			}
			held, by, err := rec.keptTrust(r, time.Now())
			if err != nil {
				return "", err
			}
			if held == nil {
				return fmt.Sprintf("version %d is the first one that the cluster is shown", named.Version().Number), nil
			}
			newest, err := held.Accept(named.File(), time.Now())
			switch {
			case err != nil:
				return "", refused(fmt.Errorf("%s version %d of the trust file: %w", by, held.Version().Number, err))
			case newest == held:
				return "", nil
			}
			return fmt.Sprintf("version %d follows on version %d", newest.Version().Number, held.Version().Number), nil
		},
		Run: func(ctx context.Context) error {
			return rec.ChangeRecord(ctx, func(r *release.Record) error {
				_, err := r.KeepTrust(named, time.Now())
				if err != nil {
					return refused(err)
				}
				return nil
			})
		},
	}})
}

// errNothingNew says that the record has what there is to tell.
var errNothingNew = errors.New("the record keeps the newest trust file already")

// keepApproval has the record know of a newer trust file, and of who counts for the bundle now, where a run had nothing
// to change. It is an event of the record.
func (rec *Record) keepApproval(ctx context.Context) {
	a := rec.Approval
	if rec.Site.API == nil || a == nil || a.Policy == nil {
		return
	}
	err := rec.ChangeRecord(ctx, func(r *release.Record) error {
		isNewer, err := rec.keepTrust(r)
		if err != nil {
			return err
		}
		var news []string
		if isNewer {
			news = append(news, fmt.Sprintf("version %d of the trust file", a.Version()))
		}
		if r.Resign(rec.Site.Bundle.Digest(), a.Signers, a.Version()) {
			news = append(news, "the bundle that runs is good by others than before")
		}
		if news == nil {
			return errNothingNew
		}
		r.Note(release.Event{
			Command: rec.Engine.Journal.State().Command, Boxlift: rec.Version, By: site.Operator(),
			Started: time.Now(), Ended: time.Now(),
			Result: strings.Join(news, "; "),
		})
		return nil
	})
	if err != nil && !errors.Is(err, errNothingNew) {
		rec.Site.Warn("the cluster could not be told of version %d of the trust file, and who has signed: %v", a.Version(),
			err)
	}
}
