package survey

import (
	"context"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
)

// checkTaken refuses hosts that would join under the name of another machine's node, or with its
// machine-id. In the first case, k3s turns such a host away as long as it remembers the node's
// password; where it does not, two kubelets would share one node. In the second, the other
// machine's node would pass for the host's, which may never come. A restore is to give hosts the
// names that others had, and an upgrade joins none.
func (sv *Surveyor) checkTaken(ctx context.Context) error {
	if sv.Engine.Restores || sv.Engine.Upgrades {
		return nil
	}
	var joining []*site.Host
	for _, h := range sv.Site.Hosts {
		if h.Err == nil && k3s.IsNew(h) {
			joining = append(joining, h)
		}
	}
	if len(joining) == 0 {
		return nil
	}
	nodes, err := sv.Engine.Registered(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		sv.Site.Warn("whether the cluster has nodes of other machines with the names or machine-ids of the hosts "+
			"that are to join could not be found out: %v", err)
	}
	var failed error
	for _, h := range joining {
		if n := taken(h, nodes); n != nil {
			h.Fail(&takenError{node: n.Name, addresses: n.Addresses, machineID: n.MachineID, own: h.MachineID})
			failed = h.Err
		} else if n := copied(h, nodes); n != nil {
			h.Fail(&copiedError{node: n.Name, addresses: n.Addresses, machineID: n.MachineID, own: h.NodeName()})
			failed = h.Err
		}
	}
	return failed
}

// taken is the node of another machine that has the host's name, if there is one. A machine that
// was set up anew cannot be told from another one: it has another machine-id, and its node has to
// go first all the same.
func taken(h *site.Host, nodes []kube.Node) *kube.Node {
	for i, n := range nodes {
		if n.Name == h.NodeName() && n.MachineID != "" && h.MachineID != "" && n.MachineID != h.MachineID {
			return &nodes[i]
		}
	}
	return nil
}

// copied is the node under another name that has the machine-id of the host, if there is one. A
// host that has been renamed since it was in the cluster cannot be told from a copy of it: its old
// node has to go first.
func copied(h *site.Host, nodes []kube.Node) *kube.Node {
	var other *kube.Node
	for i, n := range nodes {
		switch {
		case n.MachineID == "" || n.MachineID != h.MachineID:
		case n.Name == h.NodeName():
			return nil // it comes back
		default:
			other = &nodes[i]
		}
	}
	return other
}

// takenError says that a host's name is that of another machine's node.
type takenError struct {
	node           string
	addresses      []string
	machineID, own string
}

func (e *takenError) Error() string {
	return fmt.Sprintf("the host would join as the node %s, and the cluster has that node on another machine: its "+
		"machine-id is %s and its addresses are %s, the host's machine-id is %s",
		e.node, e.machineID, strings.Join(e.addresses, ", "), e.own)
}

// Hint is about both: another machine's name, and a machine that is gone or was set up anew.
func (e *takenError) Hint() string {
	return fmt.Sprintf("give the host another name in install.yaml; or, if the machine of that node is gone, or is "+
		"this one and was set up anew, remove its node first: boxlift node remove --hosts %s --forget-unreachable-host",
		e.node)
}

// copiedError says that a host has the machine-id of another node.
type copiedError struct {
	node           string
	addresses      []string
	machineID, own string
}

func (e *copiedError) Error() string {
	return fmt.Sprintf("the host has the /etc/machine-id %s, as the cluster's node %s (%s) has, and would join as "+
		"the node %s: it is a copy of that machine, or was that node itself under another name",
		e.machineID, e.node, strings.Join(e.addresses, ", "), e.own)
}

// Hint is about both: a copy, and a machine that was renamed after k3s was taken from it.
func (e *copiedError) Hint() string {
	return fmt.Sprintf("give a copy an identity of its own: rm -f /etc/machine-id /var/lib/dbus/machine-id && "+
		"systemd-machine-id-setup, and reboot; if that node is what is left of this very host, remove it first: "+
		"boxlift node remove --hosts %s --forget-unreachable-host", e.node)
}
