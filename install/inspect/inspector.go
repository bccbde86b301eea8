// Package inspect tells how a platform is: how it differs from what is asked for, whether it does what it is for,
// and, at the end of a run, that all of it runs.
package inspect

import (
	"context"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// Inspector proves that the platform runs, and tells how it is.
type Inspector struct {
	Site      *site.Site
	Engine    *run.Engine
	Seeder    *seed.Seeder
	Cluster   *k3s.Cluster
	Importer  *images.Importer
	Deployer  *liteboxd.Deployer
	Workloads *workload.Room
	Renewer   *certificates.Renewer
	Namer     *names.Namer
	// Nameserver knows the DNS servers that are asked for.
	Nameserver *nameserver.Keeper
	Front      *front.Keeper

	// Trust is the trust file that the operator names, nil for none.
	Trust           *trust.Policy
	Kubeconfig      string
	MergeKubeconfig bool
}

// overview is what there is in the cluster.
func (ins *Inspector) overview(ctx context.Context) (*site.Overview, error) {
	var o site.Overview
	nodes, err := ins.Site.API.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		one := site.NodeOverview{Name: n.Name, State: "Ready", Role: string(config.Agent), Version: n.Kubelet,
			Addresses: n.Addresses}
		if !n.Ready {
			one.State = n.Reason
		}
		if n.Unschedulable {
			one.State += ", cordoned"
		}
		if n.Server {
			one.Role = string(config.Server)
		}
		o.Nodes = append(o.Nodes, one)
	}
	rollouts, err := ins.Site.API.Rollouts(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range rollouts {
		o.Workloads = append(o.Workloads, site.WorkloadOverview{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name,
			Wanted: r.Wanted, Ready: r.Ready, Images: r.Images})
	}
	services, err := ins.Site.API.Services(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		o.Services = append(o.Services, site.ServiceOverview{Namespace: s.Namespace, Name: s.Name, Type: s.Type,
			Addresses: s.Addresses, Ports: s.Ports})
	}
	o.Namespaces, err = ins.Site.API.Namespaces(ctx)
	return &o, err
}

// LookAround finds out what there is in the cluster.
func (ins *Inspector) LookAround(ctx context.Context) (err error) {
	if ins.Site.API == nil {
		return nil
	}
	ins.Site.Overview, err = ins.overview(ctx)
	return err
}

// Finish removes temporary files from the hosts, looks at the cluster once more, and
// writes the access to it where the user asked for it. Last of all, old packs go.
func (ins *Inspector) Finish(ctx context.Context) error {
	ins.Engine.Clean(ctx)
	if ins.Site.API == nil {
		return nil
	}
	if err := ins.LookAround(ctx); err != nil {
		return err
	}
	if err := ins.Deployer.ShowLogin(ctx); err != nil {
		return err
	}
	if ins.Kubeconfig != "" {
		if err := ins.exportKubeconfig(ctx); err != nil {
			return err
		}
	}
	ins.warnOfPeers(ctx)
	ins.Importer.RemoveOldPacks(ctx)
	return nil
}

// allRegistries is k3s' name for the registries that have no mirror of their own.
const allRegistries = rewrite.All
