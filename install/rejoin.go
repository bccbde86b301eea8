package install

import (
	"context"
	"slices"
)

// rejoin starts k3s again on agents that run it and whose node is gone: a kubelet registers
// once, when it starts. Servers are left alone, because who deletes the node of one takes it
// out of etcd.
func (m *Members) rejoin(ctx context.Context) error {
	nodes, err := m.site.api.Nodes(ctx)
	if err != nil {
		return err
	}
	var gone []*host
	for _, h := range m.site.agents() {
		started := slices.ContainsFunc(h.changes, func(c Change) bool { return c.Title == startTitle(unit(h.config.Role)) })
		if h.err == nil && !started && m.site.nodeOf(h, nodes) == nil {
			gone = append(gone, h)
		}
	}
	return m.engine.eachHost(ctx, gone, func(ctx context.Context, h *host) error {
		service := unit(h.config.Role)
		n := &k3sNode{cluster: m.cluster, host: h}
		return m.engine.runSteps(ctx, "converge", &h.subject, []step{{
			title:  startTitle(service),
			needed: func(context.Context) (string, error) { return "its node is not registered in the cluster", nil },
			run:    func(ctx context.Context) error { return n.start(ctx, service) },
		}})
	})
}

// startTitle names the step that starts a service.
func startTitle(service string) string { return "start " + service }
