package install

import (
	"context"
	"path"
	"time"

	"github.com/liteboxd/boxlift/install/config"
)

// Overview is what a cluster was seen to be.
type Overview struct {
	Nodes []NodeOverview `json:"nodes"`
	// Workloads are the DaemonSets, Deployments and StatefulSets of all namespaces.
	Workloads  []WorkloadOverview `json:"workloads"`
	Services   []ServiceOverview  `json:"services"`
	Namespaces []string           `json:"namespaces"`
}

// NodeOverview is one node.
type NodeOverview struct {
	Name string `json:"name"`
	// State is Ready, or why it is not; cordoned nodes say so.
	State     string   `json:"state"`
	Role      string   `json:"role"`
	Version   string   `json:"version"`
	Addresses []string `json:"addresses"`
}

// WorkloadOverview is one workload.
type WorkloadOverview struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Wanted    int      `json:"wanted"`
	Ready     int      `json:"ready"`
	Images    []string `json:"images"`
}

// ServiceOverview is one Service.
type ServiceOverview struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Addresses []string `json:"addresses"`
	Ports     []string `json:"ports"`
}

// lookAround looks at the cluster.
func (ins *Inspector) lookAround(ctx context.Context) (*Overview, error) {
	var o Overview
	nodes, err := ins.site.api.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		one := NodeOverview{Name: n.Name, State: "Ready", Role: string(config.Agent), Version: n.Kubelet, Addresses: n.Addresses}
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
	rollouts, err := ins.site.api.Rollouts(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range rollouts {
		o.Workloads = append(o.Workloads, WorkloadOverview{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Wanted: r.Wanted, Ready: r.Ready, Images: r.Images})
	}
	services, err := ins.site.api.Services(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		o.Services = append(o.Services, ServiceOverview{Namespace: s.Namespace, Name: s.Name, Type: s.Type, Addresses: s.Addresses, Ports: s.Ports})
	}
	o.Namespaces, err = ins.site.api.Namespaces(ctx)
	return &o, err
}

// cleanTimeout bounds the removal of temporary files after a failure.
const cleanTimeout = 15 * time.Second

// finish removes temporary files from the hosts, looks at the cluster once more, and
// writes the access to it where the user asked for it. Last of all, old packs go.
func (ins *Inspector) finish(ctx context.Context) error {
	ins.engine.clean(ctx)
	if ins.site.api == nil || ins.engine.mode == plan {
		return nil
	}
	var err error
	if ins.site.overview, err = ins.lookAround(ctx); err != nil {
		return err
	}
	if err := ins.deployer.showLogin(ctx); err != nil {
		return err
	}
	if ins.Kubeconfig != "" {
		if err := ins.exportKubeconfig(ctx); err != nil {
			return err
		}
	}
	ins.importer.removeOldPacks(ctx)
	return nil
}

// clean removes what runs may have left on hosts, whether this one went well or not. What
// has arrived of packs stays where the next run goes on from it: on hosts that do not have
// all of them yet. Failing to clean is no failure of the run: the next one tries again.
func (en *Engine) clean(ctx context.Context) {
	if !en.changing() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	en.site.atOnce(en.site.hosts, func(h *host) {
		if !h.held { // nothing was put there, or another boxlift is at work
			return
		}
		args := []string{"/bin/sh", "-c", `[ ! -x "$1" ] || "$@"`, "sh", helperPath, "clean", "-age", "1s", "-dir", path.Dir(k3sBinary), "-dir", k3sConfigDir,
			"-dir", registryDir, "-dir", path.Dir(registryProgram), "-dir", path.Dir(registryUnit)}
		if h.shipped {
			args = append(args, "-unfinished")
		}
		_, _ = h.root(ctx, "remove temporary files", args...)
	})
}
