package install

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
)

// checkTaken refuses hosts that would join under the name of another machine's node, or with its
// machine-id. In the first case, k3s turns such a host away as long as it remembers the node's
// password; where it does not, two kubelets would share one node. In the second, the other
// machine's node would pass for the host's, which may never come. A restore is to give hosts the
// names that others had, and an upgrade joins none.
func (sv *Surveyor) checkTaken(ctx context.Context) error {
	if sv.engine.mode == inspect || sv.engine.restores || sv.engine.upgrades {
		return nil
	}
	var joining []*host
	for _, h := range sv.site.hosts {
		if h.err == nil && isNew(h) {
			joining = append(joining, h)
		}
	}
	if len(joining) == 0 {
		return nil
	}
	nodes, err := sv.engine.registered(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		sv.site.warn("whether the cluster has nodes of other machines with the names or machine-ids of the hosts that are to join could not be found out: %v", err)
	}
	var failed error
	for _, h := range joining {
		if n := taken(h, nodes); n != nil {
			h.fail(&takenError{node: n.Name, addresses: n.Addresses, machineID: n.MachineID, own: h.machineID})
			failed = h.err
		} else if n := copied(h, nodes); n != nil {
			h.fail(&copiedError{node: n.Name, addresses: n.Addresses, machineID: n.MachineID, own: h.nodeName()})
			failed = h.err
		}
	}
	return failed
}

// isNew tells whether the host has never been in a cluster, as far as it knows: no run has begun
// to set up k3s there. One that has been goes on as the node that it is, whatever its machine-id
// is now.
func isNew(h *host) bool {
	return !h.member && h.joined == "" && h.adopted == nil && (h.facts == nil || !h.facts.K3s.Managed)
}

// taken is the node of another machine that has the host's name, if there is one. A machine that
// was set up anew cannot be told from another one: it has another machine-id, and its node has to
// go first all the same.
func taken(h *host, nodes []kube.Node) *kube.Node {
	for i, n := range nodes {
		if n.Name == h.nodeName() && n.MachineID != "" && h.machineID != "" && n.MachineID != h.machineID {
			return &nodes[i]
		}
	}
	return nil
}

// copied is the node under another name that has the machine-id of the host, if there is one. A
// host that has been renamed since it was in the cluster cannot be told from a copy of it: its old
// node has to go first.
func copied(h *host, nodes []kube.Node) *kube.Node {
	var other *kube.Node
	for i, n := range nodes {
		switch {
		case n.MachineID == "" || n.MachineID != h.machineID:
		case n.Name == h.nodeName():
			return nil // it comes back
		default:
			other = &nodes[i]
		}
	}
	return other
}

// registered are the nodes of the cluster, from the first server that tells them. There are none
// while no server runs.
func (en *Engine) registered(ctx context.Context) ([]kube.Node, error) {
	api, _, err := en.answering(ctx)
	if api == nil {
		return nil, err
	}
	return api.Nodes(ctx)
}

// answering is the API through the first server that runs and answers. There is none while no server runs.
func (en *Engine) answering(ctx context.Context) (*kube.Cluster, *host, error) {
	var errs []error
	for _, h := range en.site.servers() {
		if h.conn == nil || !h.member || h.facts != nil && h.facts.Unit(unit(config.Server)+".service").ActiveState != "active" {
			continue
		}
		ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("given up after %v", lookTimeout))
		api, err := en.site.apiThrough(ctx, h)
		if err == nil {
			_, err = api.Nodes(ctx)
		}
		cancel()
		if err == nil {
			return api, h, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", h.name, err))
	}
	return nil, nil, errors.Join(errs...)
}

// takenError says that a host's name is that of another machine's node.
type takenError struct {
	node           string
	addresses      []string
	machineID, own string
}

func (e *takenError) Error() string {
	return fmt.Sprintf("the host would join as the node %s, and the cluster has that node on another machine: its machine-id is %s and its addresses are %s, the host's machine-id is %s",
		e.node, e.machineID, strings.Join(e.addresses, ", "), e.own)
}

// Hint is about both: another machine's name, and a machine that is gone or was set up anew.
func (e *takenError) Hint() string {
	return fmt.Sprintf("give the host another name in install.yaml; or, if the machine of that node is gone, or is this one and was set up anew, remove its node first: boxlift node remove --hosts %s --forget-unreachable-host", e.node)
}

// copiedError says that a host has the machine-id of another node.
type copiedError struct {
	node           string
	addresses      []string
	machineID, own string
}

func (e *copiedError) Error() string {
	return fmt.Sprintf("the host has the /etc/machine-id %s, as the cluster's node %s (%s) has, and would join as the node %s: it is a copy of that machine, or was that node itself under another name",
		e.machineID, e.node, strings.Join(e.addresses, ", "), e.own)
}

// Hint is about both: a copy, and a machine that was renamed after k3s was taken from it.
func (e *copiedError) Hint() string {
	return fmt.Sprintf("give a copy an identity of its own: rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup, and reboot; if that node is what is left of this very host, remove it first: boxlift node remove --hosts %s --forget-unreachable-host", e.node)
}
