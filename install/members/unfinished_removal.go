package members

import (
	"context"
	"errors"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
)

// leftCalled is the host that was left behind and has this address or name.
func (m *Members) leftCalled(wanted string) (journal.Left, bool) {
	i := slices.IndexFunc(m.Engine.Left, func(left journal.Left) bool {
		return wanted != "" && (wanted == left.Node || wanted == left.Address)
	})
	if i < 0 {
		return journal.Left{}, false
	}
	return m.Engine.Left[i], true
}

// removalOfLeft finds a host that was left behind. Where it does not answer, what it is has not
// been found out, and it is not uninstalled, even if it answers a moment later.
func (m *Members) removalOfLeft(ctx context.Context, r *removal, left journal.Left,
	nodes []kube.Node) (*removal, error) {
	r.gone, r.node = true, kube.Node{Name: left.Node}
	c := config.Host{}
	if login := m.Site.Config.Cluster.AbsentAgentLogin; login != nil {
		c = *login
	} else {
		r.unasked = errNoLogin
	}
	c.Host, c.Name, c.Role = left.Address, left.Node, config.Agent
	r.host = &site.Host{Config: c, Subject: site.Subject{Name: left.Host}}
	if r.unasked == nil {
		r.unasked = m.Site.Connect(ctx, r.host)
	}
	if r.unasked != nil {
		return r, nil
	}
	if n := m.Site.NodeOf(r.host, nodes); n != nil { // it has registered again
		r.node, r.gone = *n, false
		return r, nil
	}
	has, err := m.ownRemains(ctx, r.host, false)
	r.node.Server = has.server
	return r, err
}

// leftRemovals are those of agents that were broken off when the node was deleted: the cluster tells nothing of
// them any more, and k3s would join it again at its next start.
func (m *Members) leftRemovals(ctx context.Context, nodes []kube.Node) ([]*removal, error) {
	if !m.Site.Config.Runtime.RemoveAbsentAgents {
		return nil, nil
	}
	var removals []*removal
	for _, left := range m.Engine.Left {
		listed := slices.ContainsFunc(m.Site.Hosts, func(h *site.Host) bool {
			return h.Name == left.Host || site.IsCalled(h.Config, left.Address)
		})
		registered := slices.ContainsFunc(nodes, func(n kube.Node) bool { return n.Name == left.Node })
		if listed || registered || !m.Engine.WholeCluster() { // one that is not reached may be this very host
			continue
		}
		r := &removal{members: m, phase: "converge", reason: "it is not in install.yaml"}
		_, err := m.removalOfLeft(ctx, r, left, nodes)
		var stranger *strangerError
		if errors.As(err, &stranger) { // the address is that of another machine now
			m.Site.Warn("%v", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		same := func(h *site.Host) bool { return h.MachineID != "" && h.MachineID == r.host.MachineID }
		if !r.gone || slices.ContainsFunc(m.Site.Hosts, same) {
			continue // it is a host of install.yaml, or a node like others
		}
		if r.node.Server {
			m.Site.Warn("%s is a server, which boxlift never removes by itself: see boxlift node remove", left.Host)
			continue
		}
		removals = append(removals, r)
	}
	return removals, nil
}
