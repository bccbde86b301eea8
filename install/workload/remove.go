package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// RemovalPhase is the name of the phase in which a workload is removed.
const RemovalPhase = "remove-workload"

// Remove takes a workload off the cluster that install.yaml no longer lists. Its claims, and what else has data or
// objects of others, stay unless withData says otherwise.
func (r *Room) Remove(ctx context.Context, name string, withData bool) error {
	if slices.ContainsFunc(r.Site.Config.Workloads, func(w workloads.Workload) bool { return w.Name == name }) {
		return fmt.Errorf("%w: install.yaml lists the workload %s, and the next run would bring it back: take it out "+
			"there first", site.ErrRefused, name)
	}
	found, err := r.find(ctx, name)
	if err != nil {
		return err
	}
	namespace := found.Namespace
	kept, err := helm.Kept(ctx, r.Site.API, namespace, name)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(kept))
	for _, o := range kept {
		names = append(names, o.String())
	}
	reason := "install.yaml does not have it"
	switch {
	case len(kept) == 0:
	case withData:
		reason += "; these go too, with what is in them: " + strings.Join(names, ", ")
	default:
		reason += "; these stay, with what is in them: " + strings.Join(names, ", ")
	}
	return r.Engine.RunSteps(ctx, RemovalPhase, &r.Engine.Cluster, []run.Step{{
		ID: "remove-" + name, Title: "remove " + name,
		Needed: func(ctx context.Context) (string, error) {
			state, err := helm.Current(ctx, r.Site.API, namespace, name)
			if state == nil || err != nil {
				return "", err
			}
			return reason, nil
		},
		Run: func(ctx context.Context) error {
			task := r.Site.Reporter.Task("remove "+name, 0)
			err := helm.Uninstall(ctx, r.Site.API, namespace, name, helm.Removal{WithData: withData,
				Timeout: r.Site.Config.Runtime.CommandTimeout}, r.Site.Awaits(""))
			task.Done(err)
			if err != nil || withData || len(kept) == 0 {
				return err
			}
			r.Site.Warn("kept, with what is in them: %s; a workload %s in the namespace %s takes them over again",
				strings.Join(names, ", "), name, namespace)
			return nil
		},
	}})
}

// find is a workload that is on the cluster.
func (r *Room) find(ctx context.Context, name string) (helm.Installed, error) {
	list, err := r.installed(ctx)
	if err != nil {
		return helm.Installed{}, err
	}
	names := make([]string, 0, len(list))
	for _, i := range list {
		if i.Name == name {
			return i, nil
		}
		names = append(names, i.Name)
	}
	there := "there are none"
	if len(names) > 0 {
		there = "there are " + strings.Join(names, ", ")
	}
	return helm.Installed{}, fmt.Errorf("%w: no workload %s is on the cluster; %s", site.ErrRefused, name, there)
}
