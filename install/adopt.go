package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// A k3s that boxlift did not set up is refused, unless the cluster's record says that it was adopted. Then it stays as
// it is: its unit, its settings and its tokens are its owner's. boxlift looks whether it runs, brings images, and
// replaces its program when the cluster is upgraded. What it cannot be kept with is refused whenever it is looked at,
// for its owner may change it at any time.

// Adoption is what was found out about a cluster that was adopted.
type Adoption struct {
	Cluster string `json:"cluster"`
	// Release is the cluster's, New whether it was recorded now.
	Release release.Release `json:"release"`
	New     bool            `json:"new"`
	// Nodes are the versions of k3s by the names of the nodes, Cilium and LiteBoxd theirs.
	Nodes    map[string]string `json:"nodes"`
	Cilium   string            `json:"cilium"`
	LiteBoxd string            `json:"liteboxd,omitempty"`
	// Adopted are the hosts whose k3s boxlift has not set up, and keeps as it is.
	Adopted []string `json:"adopted,omitempty"`
	// Differences are what install.yaml asks for on these hosts in vain, by host.
	Differences map[string][]string `json:"differences,omitempty"`
}

// Adopt records a bundle as the one that a cluster runs, when its versions are those of the
// bundle and its nodes the hosts of install.yaml, and the hosts whose k3s boxlift has not set up, when it can be kept
// as it is. Nothing but the record is written. The error
// wraps [site.ErrRefused] and lists all that does not match, when something does not.
func Adopt(ctx context.Context, o Options) (*Adoption, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.EachHost(ctx, in.site.Hosts, in.cluster.LookAtMember)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, in.engine.HostErrors()
	}
	if err := in.engine.ReachAPI(ctx, in.site.Servers()); err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	if in.site.API == nil {
		return nil, fmt.Errorf("%w: %w", site.ErrRefused, site.ErrNoCluster)
	}
	found, err := in.inspector.FindRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return in.adopt(ctx, found)
}

// adopt writes what was found into the record, if it can stay.
func (in *installation) adopt(ctx context.Context, found *inspect.Running) (*Adoption, error) {
	reasons := append(found.Mismatches(in.site.Version), in.strangers(found.Nodes)...)
	if found.Cilium != nil {
		for _, text := range cilium.Unchangeable(found.Cilium.Values, in.network.CiliumValues("", false)) {
			reasons = append(reasons, "Cilium: "+text)
		}
	}
	adopted, unfit, err := in.cluster.Adoptable(ctx, found.Nodes)
	if err != nil {
		return nil, err
	}
	if reasons = append(reasons, unfit...); len(reasons) > 0 {
		return nil, &k3s.AdoptError{Reasons: reasons}
	}
	a := &Adoption{Cluster: in.site.Config.Cluster.Name, Nodes: make(map[string]string),
		Cilium: found.Cilium.ChartVersion, LiteBoxd: found.LiteBoxd}
	for _, n := range found.Nodes {
		a.Nodes[n.Name] = n.Kubelet
	}
	for _, h := range in.site.Hosts {
		if h.Adopted == nil {
			continue
		}
		if a.Adopted = append(a.Adopted, h.Name); len(h.Differences) > 0 {
			if a.Differences == nil {
				a.Differences = make(map[string][]string)
			}
			a.Differences[h.Name] = h.Differences
		}
	}
	return a, in.recordAdoption(ctx, a, adopted)
}

// recordAdoption notes the release that runs, if the record has none, and the nodes.
func (in *installation) recordAdoption(ctx context.Context, a *Adoption, nodes []release.Adopted) error {
	r, _, err := run.ReadRecord(ctx, in.site.API)
	if errors.Is(err, release.ErrInvalid) {
		return fmt.Errorf("%w: %w", site.ErrRefused, &run.RecordError{Err: err})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	newest := r.Newest()
	if newest != nil && (newest.State != release.Succeeded || newest.Bundle != in.site.Bundle.Digest()) {
		return fmt.Errorf("%w: the cluster has a record already, whose release %d, of bundle %s, is %s: boxlift "+
			"history shows it",
			site.ErrRefused, newest.Number, site.Short(newest.Bundle.String()), newest.State)
	}
	if newest != nil && !slices.ContainsFunc(nodes, func(n release.Adopted) bool { return !r.HasAdopted(n) }) {
		a.Release = *newest
		return in.record.CopyRecord(r)
	}
	err = in.record.ChangeRecord(ctx, func(r *release.Record) error {
		if now := r.Newest(); now != nil && (newest == nil || now.Number != newest.Number) {
			return fmt.Errorf("%w: somebody else has recorded a release meanwhile", site.ErrRefused)
		}
		if err := in.record.Admit(r); err != nil {
			return err
		}
		r.Adopt(nodes...)
		if a.New = true; newest != nil {
			a.Release = *newest
			return nil
		}
		run, text, err := in.record.NewRelease(journal.Adopt, "adopt", release.Running)
		if err != nil {
			return err
		}
		one, err := r.Begin(run, text)
		if err != nil {
			return err
		}
		in.record.KeepSoftware(r)
		r.Set(one.Number, release.Succeeded, fmt.Sprintf("adopted as it was found, with %s",
			printable.Counted(len(a.Nodes), "node")), time.Now())
		a.Release = *r.Newest()
		return nil
	})
	if err != nil && !errors.Is(err, site.ErrRefused) {
		err = fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return err
}

// strangers are hosts without a node, and nodes without a host.
func (in *installation) strangers(nodes []kube.Node) []string {
	var texts []string
	for _, h := range in.site.Hosts {
		if in.site.NodeOf(h, nodes) == nil {
			texts = append(texts, h.Name+" is in install.yaml, and has no node in the cluster")
		}
	}
	for _, n := range in.site.Absent(nodes) {
		texts = append(texts, fmt.Sprintf("the node %s (%s) is not in install.yaml", n.Name,
			strings.Join(n.Addresses, ", ")))
	}
	return texts
}
