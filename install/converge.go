package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
)

// converge brings the cluster's nodes to what install.yaml has: labels and taints of the
// hosts in it, and, if it says so, nodes that are not in it away.
func (m *Members) converge(ctx context.Context) error {
	if m.site.api == nil {
		return nil
	}
	var failed error // of a host, which harms no other
	if m.engine.changing() {
		if failed = cmp.Or(m.rejoin(ctx), m.awaitNodes(ctx)); failed != nil && !m.engine.goesOn(failed) {
			return failed
		}
	}
	nodes, err := m.site.api.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, h := range m.site.hosts {
		node := m.site.nodeOf(h, nodes)
		if h.err != nil || node == nil {
			continue
		}
		if node.Unschedulable {
			m.site.warn("the node %s of %s is cordoned, so that nothing new runs there: uncordon it when it is to work again", node.Name, h.name)
		}
		err := m.engine.runSteps(ctx, "converge", &h.subject, []step{m.nodeStep(h, node.Name)})
		if errors.Is(err, kube.ErrNoNode) {
			h.fail(err) // it has gone meanwhile
			failed = cmp.Or(failed, h.err)
		} else if err != nil {
			return err
		}
	}
	if m.engine.Only != nil {
		return failed // what is absent can be told from all hosts only
	}
	if err := m.removeAbsent(ctx, nodes); err != nil {
		return err
	}
	return failed
}

// nodeStep brings labels and taints of a node to those of install.yaml.
func (m *Members) nodeStep(h *host, name string) step {
	taints := make([]kube.Taint, 0, len(h.config.Taints))
	for _, t := range h.config.Taints {
		taints = append(taints, kube.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return step{
		title: "label the node " + name,
		needed: func(ctx context.Context) (string, error) {
			return m.site.api.NodeDiffers(ctx, name, h.config.Labels, taints)
		},
		run: func(ctx context.Context) error {
			_, err := m.site.api.SetNode(ctx, name, h.config.Labels, taints)
			return err
		},
	}
}

// awaitNodes waits until every host's node is registered. A host whose node does not
// come fails, and harms no other.
func (m *Members) awaitNodes(ctx context.Context) error {
	return m.site.awaitEachNode(ctx, "wait for the nodes", m.site.hosts, func(n *kube.Node) string {
		if n == nil {
			return "its node is not registered in the cluster"
		}
		return ""
	})
}

// awaitEachNode waits until lacks has nothing to say about the node of any of the hosts, which
// is nil while it is not registered.
func (s *Site) awaitEachNode(ctx context.Context, what string, hosts []*host, lacks func(*kube.Node) string) error {
	var waiting []*host
	for _, h := range hosts {
		if h.err == nil {
			waiting = append(waiting, h)
		}
	}
	last := make(map[*host]string)
	err := s.waiting(ctx, what, func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := s.api.Nodes(ctx)
			if err != nil {
				return false, err
			}
			clear(last)
			for _, h := range waiting {
				if text := lacks(s.nodeOf(h, nodes)); text != "" {
					last[h] = text
				}
			}
			return len(last) == 0, nil
		})
	})
	if err == nil || len(last) == 0 {
		return err
	}
	for _, h := range waiting {
		if last[h] != "" {
			e := &nodeError{text: fmt.Sprintf("%s (%v)", last[h], err), service: unit(h.config.Role), node: h.nodeName()}
			if ctx.Err() == nil {
				e.explanation = strings.TrimSpace(explain.Object(ctx, s.api, kube.Object{Kind: "Node", Name: h.nodeName()}))
			}
			h.fail(e)
			err = h.err
		}
	}
	return err
}

// nodeError says what is wrong with a host's node.
type nodeError struct{ text, service, node, explanation string }

func (e *nodeError) Error() string {
	if e.explanation == "" {
		return e.text
	}
	return e.text + "; what the cluster says of it:\n    " + strings.ReplaceAll(e.explanation, "\n", "\n    ")
}

func (e *nodeError) Hint() string {
	return fmt.Sprintf("see `journalctl -u %s` on the host and `k3s kubectl describe node %s` on a server; then run the same command again", e.service, e.node)
}

// absent are the nodes that no host of install.yaml is.
func (s *Site) absent(nodes []kube.Node) []kube.Node { return s.nodesBeside(s.hosts, nodes) }

// nodesBeside are the nodes that none of the hosts is.
func (s *Site) nodesBeside(hosts []*host, nodes []kube.Node) []kube.Node {
	wanted := make(map[string]bool)
	for _, h := range hosts {
		if n := s.nodeOf(h, nodes); n != nil {
			wanted[n.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n kube.Node) bool { return wanted[n.Name] })
}

// unlisted are the nodes that no host of install.yaml is, nor one that this run does not work
// on. None are, as long as a host that could not be asked who it is may be any of them.
func (s *Site) unlisted(nodes []kube.Node) []kube.Node {
	hosts := slices.Clone(s.hosts)
	for _, c := range s.Config.Hosts() {
		if !slices.ContainsFunc(hosts, func(h *host) bool { return h.name == hostName(c) }) {
			hosts = append(hosts, &host{config: c})
		}
	}
	if slices.ContainsFunc(hosts, func(h *host) bool { return h.hostname == "" && s.nodeOf(h, nodes) == nil }) {
		return nil
	}
	return s.nodesBeside(hosts, nodes)
}

// leftOut are the nodes that hold up nothing: they are unlisted, and not Ready.
func (s *Site) leftOut(nodes []kube.Node) []kube.Node {
	return slices.DeleteFunc(s.unlisted(nodes), func(n kube.Node) bool { return n.Ready })
}

// forgetCommand takes a node out of the cluster whose host is gone for good.
func forgetCommand(node string) string {
	return "boxlift node remove --hosts " + node + " --forget-unreachable-host"
}

// removeAbsent goes on with removals that were broken off, and removes nodes that install.yaml does not have, if
// it says so: one after the other, until one cannot be removed. All are judged before the first is touched.
func (m *Members) removeAbsent(ctx context.Context, nodes []kube.Node) error {
	removals, err := m.absentRemovals(ctx, nodes)
	if err != nil {
		return err
	}
	err = m.judgeData(ctx, removals)
	var held *heldError
	if m.engine.mode == inspect && errors.As(err, &held) {
		m.site.warn("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if err := m.backUpGivenUp(ctx, removals); err != nil {
		return err
	}
	for _, r := range removals {
		if err := r.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// absentRemovals are the removals of what a run that was broken off has left behind, and of the agents that
// install.yaml does not have, if it says that they go. It warns of absent nodes that stay. One that is down, so
// that its host cannot be reached, stays and holds up nothing.
func (m *Members) absentRemovals(ctx context.Context, nodes []kube.Node) ([]*removal, error) {
	removals, err := m.leftRemovals(ctx, nodes)
	if err != nil {
		return nil, err
	}
	for _, n := range m.site.absent(nodes) {
		what := fmt.Sprintf("the node %s (%s) is in the cluster and not in install.yaml", n.Name, strings.Join(n.Addresses, ", "))
		down := fmt.Sprintf("%s, and is not Ready: nothing waits for it; if its host is gone for good: %s", what, forgetCommand(n.Name))
		switch {
		case !n.Ready && (n.Server || !m.site.Config.Runtime.RemoveAbsentAgents):
			m.site.warn("%s", down)
		case n.Server:
			m.site.warn("%s; it is a server, which boxlift never removes by itself: see boxlift node remove", what)
		case !m.site.Config.Runtime.RemoveAbsentAgents:
			m.site.warn("%s; it stays: remove it with boxlift node remove, or set runtime.removeAbsentAgents", what)
		case !m.engine.wholeCluster():
			// A host that is not reached may be this very node under another name.
			m.site.warn("%s; it stays until every host of install.yaml is there", what)
		case m.site.resembles(n) != nil:
			m.site.warn("%s; it stays, because its name, machine-id or an address is that of %s: "+
				"remove it with boxlift node remove --hosts %s if it is another machine", what, m.site.resembles(n).name, n.Name)
		default:
			r := &removal{members: m, node: n, phase: "converge", reason: "it is not in install.yaml"}
			if !n.Ready {
				if _, err := r.connectTo(ctx); ctx.Err() != nil {
					return nil, context.Cause(ctx)
				} else if err != nil {
					m.site.warn("%s", down)
					continue
				}
			}
			removals = append(removals, r)
		}
	}
	return removals, nil
}

// resembles is a host of install.yaml that has anything in common with a node. Such a node is
// never removed unasked, even when another node is more like the host.
func (s *Site) resembles(n kube.Node) *host {
	for _, h := range s.hosts {
		if s.nodeOf(h, []kube.Node{n}) != nil {
			return h
		}
	}
	return nil
}

// wholeCluster tells whether every host of install.yaml is well so far.
func (en *Engine) wholeCluster() bool {
	return !slices.ContainsFunc(en.site.hosts, func(h *host) bool { return h.err != nil })
}
