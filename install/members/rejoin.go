package members

import (
	"context"
	"slices"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
)

// rejoin starts k3s again on agents that run it and whose node is gone: a kubelet registers
// once, when it starts. Servers are left alone, because who deletes the node of one takes it
// out of etcd.
func (m *Members) rejoin(ctx context.Context) error {
	nodes, err := m.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	var gone []*site.Host
	for _, h := range m.Site.Agents() {
		started := slices.ContainsFunc(h.Changes, func(c site.Change) bool { return c.Title == setup.StartTitle(site.Unit(h.Config.Role)) })
		if h.Err == nil && !started && m.Site.NodeOf(h, nodes) == nil {
			gone = append(gone, h)
		}
	}
	return m.Engine.EachHost(ctx, gone, func(ctx context.Context, h *site.Host) error {
		service := site.Unit(h.Config.Role)
		n := &k3s.Node{Cluster: m.Cluster, Host: h}
		return m.Engine.RunSteps(ctx, "converge", &h.Subject, []run.Step{{
			Title:  setup.StartTitle(service),
			Needed: func(context.Context) (string, error) { return "its node is not registered in the cluster", nil },
			Run:    func(ctx context.Context) error { return n.Start(ctx, service) },
		}})
	})
}
