package install

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/install/rehearsal"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// ErrRehearsalFailed says that something did not go well in a rehearsal: what, the rehearsal tells.
var ErrRehearsalFailed = fault.NewKind(fault.Different, "the rehearsal failed")

// RehearseOptions say what to rehearse, and how. Options.Bundle is the bundle, and the hosts of Options.Config are
// thrown away afterwards. Options.StatePath is where the runs keep their state meanwhile.
type RehearseOptions struct {
	Options
	// From is the bundle to upgrade from, which is installed first; nil for an installation alone. FromApproval is what
	// came of its signatures.
	From         *bundle.Reader
	FromApproval *approval.Approval
	// Inside are networks that belong to the site beside its own.
	Inside []netip.Prefix
	// Checks are those of health that are made, as for [CheckHealth]; nil for all that it makes by itself.
	Checks []string
	// Watch is how long the platform is left running at the end, before packets are counted.
	Watch time.Duration
}

// Names of stages.
const (
	stageInstall       = "install"
	stageHealth        = "health"
	stageUpgrade       = "upgrade"
	stageHealthUpgrade = "health after the upgrade"
)

// Rehearse installs a bundle on hosts that are thrown away afterwards and have no way out meanwhile, tries out whether
// the platform does what it is for, and tells what came of it. The verbs are [Install], [Upgrade] and [CheckHealth].
// The error wraps [ErrRehearsalFailed] when something did not go well, and the rehearsal is there. It is nil when
// nothing was rehearsed: where a host is not one to throw away ([site.ErrRefused]), cannot be reached
// ([site.ErrHosts]), or ctx ended. The hosts have their way out back in the end, and nothing else is taken back there.
func Rehearse(ctx context.Context, o RehearseOptions) (_ *attestation.Rehearsal, err error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	room := &rehearsal.Room{Site: in.site, Engine: in.engine, Inside: o.Inside}
	r := &attestation.Rehearsal{Boxlift: o.Version, Started: time.Now(), Versions: rehearsal.Versions(in.site.Contents)}
	confined, err := room.Confine(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, confined.End()) }()
	in.site.Reporter.Message("no host has a way out from now on")
	o.Command = "bundle rehearse"
	first := o.Options
	if o.From != nil {
		r.UpgradedFrom = o.From.Digest()
		first.Bundle, first.Approval = o.From, o.FromApproval
	}
	stages := []struct {
		name string
		do   func() error
	}{
		{stageInstall, func() error { _, err := Install(ctx, first); return err }},
		{stageHealth, func() error { return rehearseHealth(ctx, first, o.Checks, r) }},
		{stageUpgrade, func() error {
			_, err := Upgrade(ctx, UpgradeOptions{Options: o.Options, Settings: upgrade.Settings{}})
			return err
		}},
		{stageHealthUpgrade, func() error { return rehearseHealth(ctx, o.Options, o.Checks, r) }},
	}
	if o.From == nil {
		stages = stages[:2]
	}
	var unknown error // why pods could not be asked for
	for _, s := range stages {
		begin := time.Now()
		err := s.do()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		stage := attestation.Stage{Name: s.name, Seconds: int64(time.Since(begin).Seconds())}
		if err != nil {
			stage.Error = err.Error()
		}
		r.Stages = append(r.Stages, stage)
		unknown = room.LearnPods(ctx)
		if err != nil {
			break
		}
	}
	if err := watch(ctx, in.site.Reporter, o.Watch); err != nil {
		return nil, err
	}
	if err := room.LearnPods(ctx); err != nil && unknown != nil {
		in.site.Reporter.Message(fmt.Sprintf("warning: pods are not named: %v", err))
	}
	var open error
	r.Packets, r.Flows, open = confined.Seen()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.Confined, r.Finished, r.Hosts = open == nil, time.Now(), room.Hosts()
	if r.Failed() == nil {
		return r, nil
	}
	return r, errors.Join(ErrRehearsalFailed, open)
}

// rehearseHealth makes the checks, and notes what came of them.
func rehearseHealth(ctx context.Context, o Options, checks []string, r *attestation.Rehearsal) error {
	o.Bundle, o.StatePath = nil, ""
	health, err := CheckHealth(ctx, o, checks)
	if health != nil {
		r.Checks = nil
		for _, c := range health.Checks {
			r.Checks = append(r.Checks, attestation.Check{Check: c.Check, Subject: c.Subject, State: string(c.State),
				Detail: c.Detail})
		}
	}
	return err
}

// watch leaves the platform running for a while.
func watch(ctx context.Context, reporter progress.Reporter, long time.Duration) error {
	if long <= 0 {
		return nil
	}
	reporter.Message(fmt.Sprintf("the platform is left running for %v, to see what tries to leave", long))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(long):
		return nil
	}
}
