// Package members decides which nodes a cluster has: it brings those of install.yaml to their labels and taints,
// and takes others out. What a host holds that is on no other host is never lost by the way.
package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/prepare"
	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/timekeeping"
)

// Members are the nodes of the cluster: which of them stay, and which leave.
type Members struct {
	Site       *site.Site
	Engine     *run.Engine
	Cluster    *k3s.Cluster
	Deployer   *liteboxd.Deployer
	Preparer   *prepare.Preparer
	Namer      *names.Namer
	Front      *front.Keeper
	Packages   *packages.Room
	Timekeeper *timekeeping.Keeper
	Renewal    *renewal.Keeper

	GiveUpDataOn []string
}

// Converge brings the cluster's nodes to what install.yaml has: labels and taints of the
// hosts in it, and, if it says so, nodes that are not in it away.
func (m *Members) Converge(ctx context.Context) error {
	if m.Site.API == nil {
		return nil
	}
	// Of a host, which harms no other.
	failed := m.rejoin(ctx)
	if failed == nil {
		failed = m.Engine.RunSteps(ctx, "converge", &m.Engine.Cluster,
			[]run.Step{{ID: "await-nodes", Proves: true, Run: m.awaitNodes}})
	}
	if failed != nil && !m.Engine.GoesOn(failed) {
		return failed
	}
	nodes, err := m.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, h := range m.Site.Hosts {
		node := m.Site.NodeOf(h, nodes)
		if h.Err != nil || node == nil {
			continue
		}
		if node.Unschedulable {
			m.Site.Warn("the node %s of %s is cordoned, so that nothing new runs there: uncordon it when it is to "+
				"work again", node.Name, h.Name)
		}
		err := m.Engine.RunSteps(ctx, "converge", &h.Subject, []run.Step{m.NodeStep(h, node.Name)})
		if errors.Is(err, kube.ErrNoNode) {
			h.Fail(err) // it has gone meanwhile
			failed = cmp.Or(failed, h.Err)
		} else if err != nil {
			return err
		}
	}
	if m.Engine.Only != nil {
		return failed // what is absent can be told from all hosts only
	}
	if err := m.removeAbsent(ctx, nodes); err != nil {
		return err
	}
	return failed
}

// NodeStep brings labels and taints of a node to those of install.yaml.
func (m *Members) NodeStep(h *site.Host, name string) run.Step {
	taints := make([]kube.Taint, 0, len(h.Config.Taints))
	for _, t := range h.Config.Taints {
		taints = append(taints, kube.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return run.Step{
		ID: "label-node", Title: "label the node " + name,
		Needed: func(ctx context.Context) (string, error) {
			return m.Site.API.NodeDiffers(ctx, name, h.Config.Labels, taints)
		},
		Run: func(ctx context.Context) error {
			_, err := m.Site.API.SetNode(ctx, name, h.Config.Labels, taints)
			return err
		},
	}
}

// awaitNodes waits until every host's node is registered. A host whose node does not
// come fails, and harms no other.
func (m *Members) awaitNodes(ctx context.Context) error {
	return m.Site.AwaitEachNode(ctx, "wait for the nodes", m.Site.Hosts, func(n *kube.Node) string {
		if n == nil {
			return "its node is not registered in the cluster"
		}
		return ""
	})
}

// ForgetCommand takes a node out of the cluster whose host is gone for good.
func ForgetCommand(node string) string {
	return "boxlift node remove --hosts " + node + " --forget-unreachable-host"
}

// removeAbsent goes on with removals that were broken off, and removes nodes that install.yaml does not have, if
// it says so: one after the other, until one cannot be removed. All are judged before the first is touched.
func (m *Members) removeAbsent(ctx context.Context, nodes []kube.Node) error {
	removals, err := m.absentRemovals(ctx, nodes)
	if err != nil {
		return err
	}
	var held heldError
	if err := m.Engine.RunSteps(ctx, "converge", &m.Engine.Cluster, []run.Step{m.judgeStep(removals, &held)}); err != nil {
		return err
	}
	if held.held != nil { // none would be removed
		return nil
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

// judgeStep refuses removals of hosts with data that is on no other host. Who only looks finds in held what that is.
func (m *Members) judgeStep(removals []*removal, held *heldError) run.Step {
	return run.Step{
		ID: "judge-data", Proves: true,
		Needed: func(ctx context.Context) (string, error) {
			err := m.judgeData(ctx, removals)
			if found := new(heldError); errors.As(err, &found) {
				*held = *found
				return found.Error(), nil
			}
			return "", err
		},
		Run: func(ctx context.Context) error { return m.judgeData(ctx, removals) },
	}
}

// absentRemovals are the removals of what a run that was broken off has left behind, and of the agents that
// install.yaml does not have, if it says that they go. It warns of absent nodes that stay. One that is down, so
// that its host cannot be reached, stays and holds up nothing.
func (m *Members) absentRemovals(ctx context.Context, nodes []kube.Node) ([]*removal, error) {
	removals, err := m.leftRemovals(ctx, nodes)
	if err != nil {
		return nil, err
	}
	for _, n := range m.Site.Absent(nodes) {
		what := fmt.Sprintf("the node %s (%s) is in the cluster and not in install.yaml", n.Name,
			strings.Join(n.Addresses, ", "))
		down := fmt.Sprintf("%s, and is not Ready: nothing waits for it; if its host is gone for good: %s", what,
			ForgetCommand(n.Name))
		switch {
		case !n.Ready && (n.Server || !m.Site.Config.Runtime.RemoveAbsentAgents):
			m.Site.Warn("%s", down)
		case n.Server:
			m.Site.Warn("%s; it is a server, which boxlift never removes by itself: see boxlift node remove", what)
		case !m.Site.Config.Runtime.RemoveAbsentAgents:
			m.Site.Warn("%s; it stays: remove it with boxlift node remove, or set runtime.removeAbsentAgents", what)
		case !m.Engine.WholeCluster():
			// A host that is not reached may be this very node under another name.
			m.Site.Warn("%s; it stays until every host of install.yaml is there", what)
		case m.Site.Resembles(n) != nil:
			m.Site.Warn("%s; it stays, because its name, machine-id or an address is that of %s: "+
				"remove it with boxlift node remove --hosts %s if it is another machine", what,
				m.Site.Resembles(n).Name, n.Name)
		default:
			r := &removal{members: m, node: n, phase: "converge", reason: "it is not in install.yaml"}
			if !n.Ready {
				if _, err := r.connectTo(ctx); ctx.Err() != nil {
					return nil, context.Cause(ctx)
				} else if err != nil {
					m.Site.Warn("%s", down)
					continue
				}
			}
			removals = append(removals, r)
		}
	}
	return removals, nil
}

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
		started := slices.ContainsFunc(h.Changes, func(c site.Change) bool { return c.ID == k3s.StartID })
		if h.Err == nil && !started && m.Site.NodeOf(h, nodes) == nil {
			gone = append(gone, h)
		}
	}
	return m.Engine.EachHost(ctx, gone, func(ctx context.Context, h *site.Host) error {
		return m.Engine.RunSteps(ctx, "converge", &h.Subject, []run.Step{m.rejoinStep(h)})
	})
}

// rejoinStep starts k3s again on a host whose node is gone.
func (m *Members) rejoinStep(h *site.Host) run.Step {
	service := site.Unit(h.Config.Role)
	n := &k3s.Node{Cluster: m.Cluster, Host: h}
	return run.Step{
		ID: k3s.StartID, Title: setup.StartTitle(service),
		Needed: func(context.Context) (string, error) { return "its node is not registered in the cluster", nil },
		Run:    func(ctx context.Context) error { return n.Start(ctx, service) },
	}
}
