package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// RollbackPhase is the name of the phase in which a workload is taken back.
const RollbackPhase = "roll-back-workload"

// Rollback is one of a release to a revision.
type Rollback struct {
	Site    *site.Site
	Release kube.ReleaseName
	// Name is what people call it.
	Name string
	To   int
}

// Target is the revision that a rollback goes to: the last good one before the one that runs where revision is 0.
func Target(ctx context.Context, s *site.Site, release kube.ReleaseName, revision int) (int, error) {
	to, err := helm.RollbackTarget(ctx, s.API, release.Namespace, release.Name, revision)
	if errors.Is(err, helm.ErrNoRevision) {
		return 0, fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	return to, err
}

// Reason says why the release is to be taken back. A run that goes on after one that was broken off must not do it once
// more.
func (r *Rollback) Reason(ctx context.Context) (string, error) {
	now, err := helm.Current(ctx, r.Site.API, r.Release.Namespace, r.Release.Name)
	if err != nil || now != nil && now.Is(r.To) {
		return "", err
	}
	return "it is asked for", nil
}

// Step takes the release back.
func (r *Rollback) Step(id string) run.Step {
	return run.Step{
		ID: id, Title: fmt.Sprintf("take %s back to %s", r.Name, RevisionName(r.To)),
		Needed: r.Reason,
		Run: func(ctx context.Context) error {
			_, err := helm.Rollback(ctx, r.Site.API, r.Release.Namespace, r.Release.Name, r.To,
				r.Site.Config.Runtime.CommandTimeout, r.Site.Awaits(""))
			if err == nil {
				r.Site.Warn("%s is as in %s again; install.yaml and the bundle are not: boxlift install "+
					"brings it to these again", r.Name, RevisionName(r.To))
			}
			return err
		},
	}
}

// RevisionName is what a revision is called.
func RevisionName(revision int) string { return fmt.Sprintf("revision %d", revision) }

// RollBack takes a workload back to an earlier revision, to the last good one when that is 0. Its data stays as it is.
func (r *Room) RollBack(ctx context.Context, name string, revision int) error {
	found, err := r.find(ctx, name)
	if err != nil {
		return err
	}
	release := kube.ReleaseName{Namespace: found.Namespace, Name: found.Name}
	to, err := Target(ctx, r.Site, release, revision)
	if err != nil {
		return err
	}
	back := &Rollback{Site: r.Site, Release: release, Name: name, To: to}
	return r.Engine.RunSteps(ctx, RollbackPhase, &r.Engine.Cluster, []run.Step{back.Step("roll-back-" + name)})
}
