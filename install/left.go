package install

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
)

// leftBehind are the hosts whose nodes a run that was broken off deleted without getting to
// the uninstall, and those that it knew of from runs before it. Those that are not in
// install.yaml nobody would think of again.
func leftBehind(last journal.State) []journal.Left {
	if !last.Unfinished() {
		return nil
	}
	known := slices.Clone(last.Left)
	for _, s := range last.Steps {
		node, deleted := strings.CutPrefix(s.Title, deleteTitle)
		if left := (journal.Left{Host: s.Host, Node: node}); deleted && (s.Result == journal.Done || s.Result == journal.Running) && !slices.Contains(known, left) {
			known = append(known, left)
		}
	}
	return slices.DeleteFunc(known, func(left journal.Left) bool {
		return slices.ContainsFunc(last.Steps, func(s journal.Step) bool {
			return s.Title == uninstallTitle && s.Host == left.Host && (s.Result == journal.Done || s.Result == journal.Unchanged)
		})
	})
}

// recall finds out what a run that only looks is to know of the last one.
func (en *Engine) recall() error {
	last, err := journal.Read(en.site.StatePath)
	en.left = leftBehind(last)
	return err
}

// deleteTitle is what the titles of steps that delete a node begin with; uninstallTitle is the
// title of the last step of a removal.
const (
	deleteTitle    = "delete the node "
	uninstallTitle = "uninstall k3s"
)

// addressOf is the address in what a removal's steps call a host: see hostName and removal.run.
func addressOf(name string) string {
	if _, address, ok := strings.Cut(name, " ("); ok {
		return strings.TrimSuffix(address, ")")
	}
	return name
}

// leftCalled is the host that was left behind and has this address or name.
func (m *Members) leftCalled(wanted string) (journal.Left, bool) {
	i := slices.IndexFunc(m.engine.left, func(left journal.Left) bool {
		return wanted != "" && (wanted == left.Node || wanted == addressOf(left.Host))
	})
	if i < 0 {
		return journal.Left{}, false
	}
	return m.engine.left[i], true
}

// removalOfLeft finds a host that was left behind. Where it does not answer, what it is has not
// been found out, and it is not uninstalled, even if it answers a moment later.
func (m *Members) removalOfLeft(ctx context.Context, r *removal, left journal.Left, nodes []kube.Node) (*removal, error) {
	r.gone, r.node = true, kube.Node{Name: left.Node}
	c := config.Host{}
	if login := m.site.Config.Cluster.AbsentAgentLogin; login != nil {
		c = *login
	} else {
		r.unasked = errNoLogin
	}
	c.Host, c.Name, c.Role = addressOf(left.Host), left.Node, config.Agent
	r.host = &host{config: c, subject: subject{name: left.Host}}
	if r.unasked == nil {
		r.unasked = m.site.connect(ctx, r.host)
	}
	if r.unasked != nil {
		return r, nil
	}
	if n := m.site.nodeOf(r.host, nodes); n != nil { // it has registered again
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
	if !m.site.Config.Runtime.RemoveAbsentAgents {
		return nil, nil
	}
	var removals []*removal
	for _, left := range m.engine.left {
		listed := slices.ContainsFunc(m.site.hosts, func(h *host) bool { return h.name == left.Host || isCalled(h.config, addressOf(left.Host)) })
		registered := slices.ContainsFunc(nodes, func(n kube.Node) bool { return n.Name == left.Node })
		if listed || registered || !m.engine.wholeCluster() { // one that is not reached may be this very host
			continue
		}
		r := &removal{members: m, phase: "converge", reason: "it is not in install.yaml"}
		_, err := m.removalOfLeft(ctx, r, left, nodes)
		var stranger *strangerError
		if errors.As(err, &stranger) { // the address is that of another machine now
			m.site.warn("%v", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		same := func(h *host) bool { return h.machineID != "" && h.machineID == r.host.machineID }
		if !r.gone || slices.ContainsFunc(m.site.hosts, same) {
			continue // it is a host of install.yaml, or a node like others
		}
		if r.node.Server {
			m.site.warn("%s is a server, which boxlift never removes by itself: see boxlift node remove", left.Host)
			continue
		}
		removals = append(removals, r)
	}
	return removals, nil
}
