package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/doctor"
	"github.com/liteboxd/boxlift/install/figures"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/preflight"
)

// Inspect compares a cluster with what it is to be and changes nothing. It goes through
// the same steps as [Install] and asks each whether it is needed. The error is
// site.ErrDifferent when something differs, and wraps site.ErrHosts when a host cannot be looked
// at; the result is complete in both cases.
func Inspect(ctx context.Context, o Options) (*inspect.Status, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.Look(ctx, in.statusPhases())
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return in.inspector.Status(ctx, err)
}

// CheckHealth tries out what a platform is for: nodes, network, DNS, LiteBoxd, the way from
// outside to LiteBoxd and from there to sandboxes, and what sandboxes must not reach. It
// needs no bundle and changes nothing: a few pods that it makes for it are gone at the end.
// The error is [inspect.ErrUnhealthy] when a check failed, and wraps site.ErrHosts or site.ErrCluster when
// a host or the cluster could not be reached; the result is complete in all these cases.
//
// Only names the checks to make, as [HealthChecks] has them; nil means all but sandbox-to-internet,
// which has to be asked for, since it alone addresses something outside the network. Failures of hosts
// and of the API, on which all others depend, are told of in any case.
func CheckHealth(ctx context.Context, o Options, only []string) (*inspect.Health, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	return in.inspector.Health(ctx, only)
}

// CheckHardening compares hosts and cluster with the CIS Kubernetes Benchmark, item by item. It needs no bundle and
// changes nothing. The error is [inspect.ErrUnhealthy] when an item is not as it is to be, and wraps site.ErrHosts or
// site.ErrCluster when a host or the cluster could not be looked at; the result is complete in all these cases.
func CheckHardening(ctx context.Context, o Options) (*inspect.Hardening, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	return in.inspector.Harden(ctx)
}

// Preflight looks at all hosts and judges them, and changes nothing on them but that it
// puts boxlift's own helper there. The error wraps site.ErrHosts when a host cannot be looked
// at or has a finding that stops an installation.
func Preflight(ctx context.Context, o Options) ([]preflight.Finding, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	in.deployer.WarnOfManifests()
	err = in.engine.Apply(ctx, in.preflightPhases())
	if ctx.Err() != nil {
		return in.surveyor.Findings, err
	}
	return append(in.surveyor.Findings, in.surveyor.Unseen()...), err
}

// Measure gathers the figures of a site. It needs no bundle, and changes nothing but what [CheckHealth] does, whose
// checks only names. The error wraps site.ErrHosts or site.ErrCluster when a host or the cluster could not be reached;
// the figures are complete then as well, and nil only when there is nothing to look at.
func Measure(ctx context.Context, o Options, only []string) (*figures.Figures, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	g := figures.Gatherer{Site: in.site, Engine: in.engine, Renewer: in.renewer, Inspector: in.inspector,
		Boxlift: o.Version}
	return g.Gather(ctx, only)
}

// Observe gathers what is to be seen of a platform that may not be well, for package diagnosis to judge. It needs no
// bundle, and changes nothing but what [CheckHealth] does. The error wraps site.ErrHosts or site.ErrCluster when a host
// or the cluster could not be reached; the observation is complete then as well.
func Observe(ctx context.Context, o Options) (*diagnosis.Observation, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	d := doctor.Doctor{Site: in.site, Engine: in.engine, Cluster: in.cluster, Renewer: in.renewer,
		Inspector: in.inspector}
	return d.Observe(ctx)
}
