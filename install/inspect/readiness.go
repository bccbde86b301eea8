package inspect

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
)

// Verify proves that every node is Ready, and that Cilium, DNS, LiteBoxd and the ingress that
// leads to it run.
func (ins *Inspector) Verify(ctx context.Context) error {
	if ins.Site.API == nil {
		return nil
	}
	err := ins.verifyNodes(ctx)
	if ins.Engine.GoesOn(err) || err == nil {
		if rolled := ins.verifyWorkloads(ctx); rolled != nil {
			return rolled
		}
	}
	return err
}

// verifyNodes waits until every host's node is Ready in the wanted version.
func (ins *Inspector) verifyNodes(ctx context.Context) error {
	lacks := site.ReadyWith(ins.Site.K3s)
	var nodes []kube.Node
	if err := ins.Engine.RunSteps(ctx, "verify", &ins.Engine.Cluster, []run.Step{{
		ID: "await-nodes", Proves: true,
		Needed: func(ctx context.Context) (_ string, err error) {
			nodes, err = ins.Site.API.Nodes(ctx)
			return "", err // of which each host tells its own
		},
		Run: func(ctx context.Context) error {
			return ins.Site.AwaitEachNode(ctx, "wait for all nodes to be Ready", ins.Site.Hosts, lacks)
		},
	}}); err != nil {
		return err
	}
	for _, h := range ins.Site.Hosts {
		if h.Err != nil {
			continue
		}
		if err := ins.Engine.RunSteps(ctx, "verify", &h.Subject, []run.Step{{
			ID: "find-node", Proves: true,
			Needed: func(context.Context) (string, error) {
				n := ins.Site.NodeOf(h, nodes)
				if n != nil {
					h.Node = n.Name
				}
				return lacks(n), nil
			},
			Run: func(context.Context) error { return nil }, // it was waited for
		}}); err != nil {
			return err
		}
	}
	return nil
}

// workloads have to run in every cluster.
func (ins *Inspector) workloads() []kube.Workload {
	w := cilium.Workloads(ins.Site.Config.Network.Cilium.Values)
	if !slices.Contains(ins.Cluster.Disabled(), "coredns") {
		w = append(w, kube.Workload{Kind: "Deployment", Name: "coredns"})
	}
	return w
}

// verifyWorkloads waits until Cilium, DNS and LiteBoxd run everywhere.
func (ins *Inspector) verifyWorkloads(ctx context.Context) error {
	steps := []run.Step{{
		ID: "await-cilium", Proves: true, Needed: ins.unready(cilium.Namespace),
		Run: func(ctx context.Context) error {
			return ins.Site.Waiting(ctx, "wait for Cilium and DNS", func(ctx context.Context) error {
				return wait.Rollouts(ctx, ins.Site.API, cilium.Namespace, ins.workloads(), ins.Site.Awaits(""))
			})
		},
	}}
	if d := ins.Deployer.Deployment; d != nil {
		namespace := ins.Site.Config.LiteBoxd.NamespaceSystem
		steps = append(steps, run.Step{
			ID: "await-liteboxd", Proves: true, Needed: ins.unready(namespace),
			Run: func(ctx context.Context) error {
				return ins.Site.Waiting(ctx, "wait for LiteBoxd's deployments", func(ctx context.Context) error {
					return wait.Rollouts(ctx, ins.Site.API, namespace, d.Workloads(), ins.Site.Awaits(""))
				})
			},
		})
		if d.Needs(workload.PartTraefik) {
			steps = append(steps, run.Step{
				ID: "await-traefik", Proves: true,
				Run: func(ctx context.Context) error {
					return ins.Site.Waiting(ctx, "wait for Traefik", ins.awaitTraefik)
				},
			})
		}
	}
	for _, w := range ins.Workloads.Workloads {
		steps = append(steps, ins.awaitWorkload(w)...)
	}
	return ins.Engine.RunSteps(ctx, "verify", &ins.Engine.Cluster, steps)
}

// awaitWorkload waits until a workload runs everywhere.
func (ins *Inspector) awaitWorkload(w *workload.Workload) []run.Step {
	var steps []run.Step
	awaited := workload.RolledOut(w.Objects, w.Namespace)
	for _, namespace := range slices.Sorted(maps.Keys(awaited)) {
		steps = append(steps, run.Step{
			ID: "await-" + w.Name + "-in-" + namespace, Proves: true, Needed: ins.unready(namespace, awaited[namespace]...),
			Run: func(ctx context.Context) error {
				return ins.Site.Waiting(ctx, "wait for "+w.Name, func(ctx context.Context) error {
					return wait.Rollouts(ctx, ins.Site.API, namespace, awaited[namespace], ins.Site.Awaits(""))
				})
			},
		})
	}
	return steps
}

// unready says which workloads in a namespace do not run everywhere: those that are named, or all.
func (ins *Inspector) unready(namespace string, named ...kube.Workload) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		rollouts, err := ins.Site.API.Rollouts(ctx, namespace)
		var texts []string
		for _, r := range rollouts {
			isMeant := named == nil || slices.Contains(named, kube.Workload{Kind: r.Kind, Name: r.Name})
			if isMeant && !r.Done {
				texts = append(texts, r.String())
			}
		}
		return strings.Join(texts, "; "), err
	}
}

// awaitTraefik waits until users are let in: k3s installs Traefik by itself, from a chart, and
// the user's HelmChartConfig may have made a DaemonSet of it.
func (ins *Inspector) awaitTraefik(ctx context.Context) error {
	var traefik kube.Workload
	if err := site.Poll(ctx, func(ctx context.Context) (bool, error) {
		rollouts, err := ins.Site.API.Rollouts(ctx, metav1.NamespaceSystem)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(rollouts, func(r kube.Rollout) bool { return r.Name == workload.PartTraefik })
		if i < 0 {
			return false, errors.New("k3s has not installed it: on a server see k3s kubectl -n kube-system describe " +
				"helmchart traefik, and the log of the job helm-install-traefik")
		}
		traefik = kube.Workload{Kind: rollouts[i].Kind, Name: workload.PartTraefik}
		return true, nil
	}); err != nil {
		return err
	}
	return wait.Rollouts(ctx, ins.Site.API, metav1.NamespaceSystem, []kube.Workload{traefik}, ins.Site.Awaits(""))
}
