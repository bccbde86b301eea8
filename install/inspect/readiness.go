package inspect

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// Verify proves that every node is Ready, and that Cilium, DNS, LiteBoxd and the ingress that
// leads to it run.
func (ins *Inspector) Verify(ctx context.Context) error {
	if ins.Engine.Mode == run.Plan || ins.Site.API == nil {
		return nil
	}
	err := ins.verifyNodes(ctx)
	if ins.Engine.GoesOn(err) || err == nil {
		if rolled := ins.verifyWorkloads(ctx); rolled != nil {
			return rolled
		}
	}
	if ins.Engine.Upgrades {
		// k3s was started again where it changed: what ends soon all the same needs somebody.
		ins.Renewer.WarnOfCertificates(ctx, func(certificates.Certificate) bool { return true })
	}
	return err
}

// verifyNodes waits until every host's node is Ready in the wanted version.
func (ins *Inspector) verifyNodes(ctx context.Context) error {
	lacks := site.ReadyWith(ins.Site.K3s)
	if ins.Engine.Changing() {
		return ins.Site.AwaitEachNode(ctx, "wait for all nodes to be Ready", ins.Site.Hosts, lacks)
	}
	nodes, err := ins.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, h := range ins.Site.Hosts {
		n := ins.Site.NodeOf(h, nodes)
		if n != nil {
			h.Node = n.Name
		}
		if text := lacks(n); text != "" && h.Err == nil {
			h.Differences = append(h.Differences, text)
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

// verifyWorkloads waits until Cilium and DNS run everywhere.
func (ins *Inspector) verifyWorkloads(ctx context.Context) error {
	if !ins.Engine.Changing() {
		namespaces := []string{cilium.Namespace}
		if ins.Deployer.Deployment != nil {
			namespaces = append(namespaces, ins.Site.Config.LiteBoxd.NamespaceSystem)
		}
		for _, namespace := range namespaces {
			rollouts, err := ins.Site.API.Rollouts(ctx, namespace)
			if err != nil {
				return err
			}
			for _, r := range rollouts {
				if !r.Done {
					ins.Site.Differences = append(ins.Site.Differences, r.String())
				}
			}
		}
		return nil
	}
	if err := ins.Site.Waiting(ctx, "wait for Cilium and DNS", func(ctx context.Context) error {
		return wait.Rollouts(ctx, ins.Site.API, cilium.Namespace, ins.workloads(), ins.Site.Reporter.Message)
	}); err != nil || ins.Deployer.Deployment == nil {
		return err
	}
	if err := ins.Site.Waiting(ctx, "wait for LiteBoxd's deployments", func(ctx context.Context) error {
		return wait.Rollouts(ctx, ins.Site.API, ins.Site.Config.LiteBoxd.NamespaceSystem,
			ins.Deployer.Deployment.Workloads(), ins.Site.Reporter.Message)
	}); err != nil || !ins.Deployer.Deployment.Needs(liteboxd.PartTraefik) {
		return err
	}
	return ins.Site.Waiting(ctx, "wait for Traefik", ins.awaitTraefik)
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
		i := slices.IndexFunc(rollouts, func(r kube.Rollout) bool { return r.Name == liteboxd.PartTraefik })
		if i < 0 {
			return false, errors.New("k3s has not installed it: on a server see k3s kubectl -n kube-system describe " +
				"helmchart traefik, and the log of the job helm-install-traefik")
		}
		traefik = kube.Workload{Kind: rollouts[i].Kind, Name: liteboxd.PartTraefik}
		return true, nil
	}); err != nil {
		return err
	}
	return wait.Rollouts(ctx, ins.Site.API, metav1.NamespaceSystem, []kube.Workload{traefik}, ins.Site.Reporter.Message)
}
