package members

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/anchors"
	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/hardening"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/drain"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Settings say which hosts leave a cluster, and how.
type Settings struct {
	// Hosts are addresses or names, as install.yaml or the cluster has them.
	Hosts []string
	// DeleteUnmanagedPods ends pods that no controller brings back elsewhere, such as
	// sandboxes. Without it, such a pod keeps its node from being drained.
	DeleteUnmanagedPods bool
	// ForgetUnreachable removes the node of a host that cannot be reached, which then is
	// not uninstalled.
	ForgetUnreachable bool
}

// Remove takes hosts out of the cluster, one after the other, until one cannot be taken out.
func (m *Members) Remove(ctx context.Context, o Settings) error {
	if err := m.Engine.ConnectServers(ctx, o.Hosts); err != nil {
		return err
	}
	nodes, err := m.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	var removals []*removal
	for _, wanted := range o.Hosts {
		r, err := m.removalOf(ctx, wanted, nodes)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(removals, func(other *removal) bool {
			return r.host != nil && other.host == r.host || r.gone == other.gone && other.node.Name == r.node.Name
		}) {
			continue // it was named twice
		}
		r.forgetUnreachable, r.unmanaged = o.ForgetUnreachable, o.DeleteUnmanagedPods
		removals = append(removals, r)
	}
	if err := checkServersLeft(nodes, removals); err != nil {
		return err
	}
	if err := m.checkGivenUp(removals); err != nil {
		return err
	}
	if err := m.judgeData(ctx, removals); err != nil {
		return err
	}
	if err := m.backUpGivenUp(ctx, removals); err != nil {
		return err
	}
	for i, r := range removals {
		err := m.checkStill(ctx, removals[i:])
		if err == nil {
			err = r.run(ctx)
		}
		if err != nil {
			if left := removals[i+1:]; len(left) > 0 {
				names := make([]string, 0, len(left))
				for _, r := range left {
					names = append(names, r.node.Name)
				}
				err = fmt.Errorf("%w\nnot touched because of that: %s", err, strings.Join(names, ", "))
			}
			return err
		}
		if r.host != nil && slices.Contains(m.Site.Hosts, r.host) {
			m.Site.Warn("%s is still in install.yaml: take it out, or the next boxlift install brings it back",
				r.host.Name)
		}
	}
	return nil
}

// checkStill judges once more whether the servers that are still to be removed can be
// missed: since the last time others may have failed.
func (m *Members) checkStill(ctx context.Context, removals []*removal) error {
	if !removals[0].node.Server {
		return nil
	}
	nodes, err := m.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, r := range removals {
		i := slices.IndexFunc(nodes, func(n kube.Node) bool { return n.Name == r.node.Name })
		if i >= 0 {
			r.node.Ready = nodes[i].Ready
		}
	}
	return checkServersLeft(nodes, removals)
}

// removalOf finds what is to be removed, by what install.yaml or the cluster calls it.
func (m *Members) removalOf(ctx context.Context, wanted string, nodes []kube.Node) (*removal, error) {
	r := &removal{members: m, phase: "remove", reason: "it is to be removed"}
	for _, h := range m.Site.Hosts {
		if !site.IsCalled(h.Config, wanted) {
			continue
		}
		if r.host != nil {
			return nil, fmt.Errorf("%w: install.yaml calls both %s and %s %q: give another of its names",
				site.ErrRefused, r.host.Name, h.Name, wanted)
		}
		r.host = h
	}
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	if r.host == nil {
		return m.removalOfNode(ctx, r, wanted, nodes, names)
	}
	// Only the host knows its own name and machine-id. Without them the node of a host that
	// install.yaml calls otherwise than the cluster would be taken to be gone.
	unseen := m.Site.Connect(ctx, r.host)
	if n := m.Site.NodeOf(r.host, nodes); n != nil {
		r.node = *n
		if unseen == nil && n.Name != r.host.NodeName() {
			// A copy of the machine that has the node is not to be taken for it.
			_, err := m.ownRemains(ctx, r.host, true)
			return r, err
		}
		return r, nil
	}
	if unseen != nil {
		return nil, fmt.Errorf("%w: which node is %s cannot be told, since the host does not say it: give the name "+
			"of its node, which is one of %s: %w",
			site.ErrHosts, r.host.Name, strings.Join(names, ", "), unseen)
	}
	// It may have been deleted by an earlier run that did not get to the uninstall.
	has, err := m.ownRemains(ctx, r.host, false)
	r.node = kube.Node{Name: r.host.NodeName(), Server: has.server || r.host.Config.Role == config.Server}
	r.gone = true
	return r, err
}

// removalOfNode finds what is to be removed by what the cluster alone calls it. The host may
// be in install.yaml nevertheless, without a name.
func (m *Members) removalOfNode(ctx context.Context, r *removal, wanted string, nodes []kube.Node,
	names []string) (*removal, error) {
	found := slices.DeleteFunc(slices.Clone(nodes), func(n kube.Node) bool { return n.Name != wanted })
	if len(found) == 0 && wanted != "" {
		found = slices.DeleteFunc(slices.Clone(nodes), func(n kube.Node) bool {
			return !slices.Contains(n.Addresses,
				wanted)
		})
	}
	switch len(found) {
	case 0:
		if left, ok := m.leftCalled(wanted); ok {
			return m.removalOfLeft(ctx, r, left, nodes)
		}
		if _, err := netip.ParseAddr(wanted); err == nil && m.Site.Config.Cluster.AbsentAgentLogin != nil {
			return m.removalOfRest(ctx, r, wanted, nodes)
		}
		return nil, fmt.Errorf("%w: neither install.yaml nor the cluster has a host %q; the cluster's nodes are %s",
			site.ErrRefused, wanted, strings.Join(names, ", "))
	case 1:
		r.node = found[0]
	default:
		return nil, fmt.Errorf("%w: the nodes %s and %s both have the address %s: give a node's name", site.ErrRefused,
			found[0].Name, found[1].Name, wanted)
	}
	for _, h := range m.Site.Hosts {
		if n := m.Site.NodeOf(h, nodes); n != nil && n.Name == r.node.Name {
			r.host = h
		}
	}
	return r, nil
}

// removalOfRest finds a host that is in neither install.yaml nor the cluster, because an
// earlier run deleted its node and did not get to the uninstall.
func (m *Members) removalOfRest(ctx context.Context, r *removal, address string, nodes []kube.Node) (*removal, error) {
	login := *m.Site.Config.Cluster.AbsentAgentLogin
	login.Host, login.Role = address, config.Agent
	h := &site.Host{Config: login, Subject: site.Subject{Name: site.HostName(login)}}
	if err := m.Site.Connect(ctx, h); err != nil {
		return nil, fmt.Errorf("%w: neither install.yaml nor the cluster has a host %s: %w", site.ErrHosts, address,
			err)
	}
	if n := m.Site.NodeOf(h, nodes); n != nil {
		r.host, r.node = h, *n
		return r, nil
	}
	has, err := m.ownRemains(ctx, h, true)
	r.host, r.node, r.gone = h, kube.Node{Name: h.NodeName(), Server: has.server}, true
	return r, err
}

// checkServersLeft refuses to take servers away so that etcd loses its majority on the
// way, or that none is left. A server without a node counts nothing in that, but may be the
// only one that runs.
func checkServersLeft(nodes []kube.Node, removals []*removal) error {
	members, well := 0, 0
	gone := slices.DeleteFunc(slices.Clone(removals), func(r *removal) bool { return !r.gone || !r.node.Server })
	for _, n := range nodes {
		if n.Server && !slices.ContainsFunc(gone, func(r *removal) bool { return r.node.Name == n.Name }) {
			members++
			if n.Ready {
				well++
			}
		}
	}
	majority := func() int { return members/2 + 1 }
	for _, r := range removals {
		if !r.node.Server || r.gone {
			continue
		}
		if members == 1 {
			return errLastServer
		}
		// Taking a member out is a decision of the majority, too.
		possible := well >= majority()
		members--
		if r.node.Ready {
			well--
		}
		if !possible || well < majority() {
			return fmt.Errorf("%w: without %s, %d of %s would be left that are Ready, and etcd needs a majority of "+
				"%d to go on: bring the others back first",
				site.ErrRefused, r.node.Name, well, printable.Counted(members, "server"), majority())
		}
	}
	if len(gone) > 0 && well == 0 {
		return errLastServer
	}
	return nil
}

var errLastServer = fmt.Errorf("%w: the last server is never removed: with it the cluster would be gone",
	site.ErrRefused)

// removal takes one node out of the cluster.
type removal struct {
	members *Members
	node    kube.Node
	// host is the entry of install.yaml, if there is one.
	host              *site.Host
	phase, reason     string
	forgetUnreachable bool
	unmanaged         bool
	unreachable       bool
	// gone says that the node is not in the cluster any more.
	gone bool
	// unasked is why the host of a node that is gone could not be asked what it is.
	unasked error
	// seen is what was seen on the host, held what it holds that no other does, and company the others that
	// leave with it.
	seen    localdata.Host
	held    []localdata.Holding
	company []localdata.Host
}

// run carries out the removal's steps. Whether the host can be reached is found out
// before anything is changed.
func (r *removal) run(ctx context.Context) error {
	name := r.name()
	conn, err := r.connectTo(ctx)
	if err != nil {
		if !r.forgetUnreachable {
			return &unreachableError{node: name, err: err}
		}
		r.unreachable = true
		r.members.Site.Warn("%s cannot be reached and is not uninstalled: if it comes back, run %s on it before it "+
			"is used again", name, k3s.Uninstaller(r.node.Server))
		conn = nil
	}
	s := &site.Subject{Name: name}
	err = r.members.Engine.RunSteps(ctx, r.phase, s, append(r.steps(conn), run.Step{
		ID: "tell-given-up", Proves: true,
		Run: func(context.Context) error {
			r.tellGivenUp()
			return nil
		},
	}))
	// What is removed is not one of the hosts that a summary lists.
	for _, c := range s.Changes {
		r.members.Engine.Cluster.Changes = append(r.members.Engine.Cluster.Changes,
			site.Change{Phase: c.Phase, ID: c.ID, Title: c.Title + " on " + name, Reason: c.Reason})
	}
	if err != nil {
		return fmt.Errorf("%w: remove %s: %w", site.ErrHosts, name, err)
	}
	return nil
}

func (r *removal) steps(conn machine.Host) []run.Step {
	inCluster := func(context.Context) (string, error) {
		if r.gone {
			return "", nil
		}
		return r.reason, nil
	}
	var steps []run.Step
	if !r.gone {
		steps = append(steps,
			run.Step{
				ID: "cordon-node", Title: "cordon the node " + r.node.Name, Needed: inCluster,
				Run: func(ctx context.Context) error {
					err := r.checkData(ctx, false)
					if err == nil {
						_, err = r.members.Site.API.Cordon(ctx, r.node.Name)
					}
					return err
				},
			},
			run.Step{
				ID: "drain-node", Title: "drain the node " + r.node.Name, Needed: inCluster,
				Run: func(ctx context.Context) error { return r.drain(ctx, conn) },
			},
			run.Step{
				ID: "delete-node", Title: "delete the node " + r.node.Name, Needed: inCluster, Leaves: r.left(),
				Run: func(ctx context.Context) error {
					if err := r.checkData(ctx, false); err != nil {
						return err
					}
					return r.members.Site.API.DeleteNode(ctx, r.node.Name)
				},
			})
	}
	if conn != nil {
		// Before the uninstall, which takes away what the host was before. None takes away data: it is judged before the
		// first of them that is needed, and once more before the uninstall.
		judged := false
		for _, step := range []run.Step{
			r.members.Front.TakeAway(conn),
			schedule.TakeAway(conn),
			r.members.Renewal.TakeAway(conn),
			nameserver.TakeAway(conn),
			r.members.Timekeeper.TakeAway(conn),
			r.members.Preparer.GiveBack(conn, r.name()),
			r.members.Namer.TakeAway(conn),
		} {
			do := step.Run
			step.Run = func(ctx context.Context) error {
				if !judged {
					if err := r.checkData(ctx, true); err != nil {
						return err
					}
				}
				judged = true
				return do(ctx)
			}
			steps = append(steps, step)
		}
		steps = append(steps, run.Step{
			ID: "uninstall-k3s", Title: "uninstall k3s", Takes: true,
			Needed: func(ctx context.Context) (string, error) { return uninstallReason(ctx, conn) },
			Run: func(ctx context.Context) error {
				if err := r.checkData(ctx, true); err != nil {
					return err
				}
				return r.uninstall(ctx, conn)
			},
		})
	}
	return steps
}

// left is what is left behind when the node was deleted, and k3s is still on its host.
func (r *removal) left() *journal.Left {
	left := &journal.Left{Host: r.name(), Node: r.node.Name}
	switch {
	case r.host != nil:
		left.Address = r.host.Config.Host
	case len(r.node.Addresses) > 0:
		left.Address = r.node.Addresses[0]
	}
	return left
}

func (r *removal) drain(ctx context.Context, conn machine.Host) error {
	gone, err := r.kubeletIsGone(ctx, conn)
	if err != nil {
		return err
	}
	options := drain.Options{Timeout: r.members.Site.Config.Runtime.DrainTimeout,
		Report: r.members.Site.Awaits(r.name()), Unmanaged: r.unmanaged, Gone: gone}
	task := r.members.Site.Reporter.Task("drain "+r.node.Name, 0)
	err = r.members.Site.Meter.Wait(func() error { return drain.Node(ctx, r.members.Site.API, r.node.Name, options) })
	task.Done(err)
	return err
}

// kubeletIsGone reports whether nobody will say of the node's pods that they have ended. Its host
// may answer all the same: what runs there still, the uninstall ends.
func (r *removal) kubeletIsGone(ctx context.Context, conn machine.Host) (bool, error) {
	if r.node.Ready || conn == nil {
		return !r.node.Ready && r.unreachable, nil
	}
	const script = `for name in k3s k3s-agent; do ! systemctl is-active --quiet "$name.service" || echo active; done`
	result, err := conn.Run(ctx, machine.Command{Title: "ask systemd about k3s",
		Args: []string{"/bin/sh", "-c", script}, Root: true})
	return len(result.Stdout) == 0, err
}

// connectTo logs in to the host whose node is to be removed.
func (r *removal) connectTo(ctx context.Context) (machine.Host, error) {
	if r.unasked != nil {
		return nil, r.unasked
	}
	if r.host != nil {
		if err := r.members.Site.Connect(ctx, r.host); err != nil {
			return nil, err
		}
		if has, is := r.node.MachineID, r.host.MachineID; !r.gone && has != "" && is != "" && has != is {
			return nil, otherHostError(r.host.Config.Host, is, has)
		}
		return r.host.Conn, nil
	}
	login := r.members.Site.Config.Cluster.AbsentAgentLogin
	if login == nil {
		return nil, errNoLogin
	}
	var errs []error
	for _, address := range r.node.Addresses {
		h := *login
		h.Host = address
		conn, err := r.members.Site.Conns.To(ctx, h)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// Another host may have got the address since.
		id, err := site.Identify(ctx, conn)
		if err != nil {
			return nil, err
		}
		if id.MachineID == "" || id.MachineID != r.node.MachineID {
			errs = append(errs, otherHostError(address, id.MachineID, r.node.MachineID))
			continue
		}
		return conn, nil
	}
	return nil, errors.Join(errs...)
}

var errNoLogin = errors.New("install.yaml does not say how to log in to it: give cluster.absentAgentLogin")

func otherHostError(address, is, has string) error {
	return fmt.Errorf("%s: the host at that address has the machine-id %q, the node has %q: it is another host",
		address, is, has)
}

// unreachableError says that a host that is to be removed cannot be uninstalled.
type unreachableError struct {
	node string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("remove %s: nothing was changed, since k3s cannot be uninstalled from it: %v", e.node, e.err)
}

func (e *unreachableError) Unwrap() []error { return []error{site.ErrHosts, e.err} }

func (e *unreachableError) Hint() string {
	return "bring the host back, or, when it is gone for good, remove its node alone with boxlift node remove " +
		"--forget-unreachable-host"
}

// installed says why k3s has to be uninstalled, or "".
func installed(ctx context.Context, conn machine.Host) (string, error) {
	const script = `for f in /usr/local/bin/k3s-uninstall.sh /usr/local/bin/k3s-agent-uninstall.sh \
    /usr/local/bin/k3s /usr/local/bin/k3s-killall.sh /var/lib/rancher/k3s \
    ` + run.RegistryUnit + ` ` + run.RegistryDir + ` /var/lib/boxlift; do
[ ! -e "$f" ] || { echo "$f"; exit; }
done`
	result, err := conn.Run(ctx, machine.Command{Title: "look for k3s", Args: []string{"/bin/sh", "-c", script},
		Root: true})
	found := strings.TrimSpace(string(result.Stdout))
	if err != nil || found == "" {
		return "", err
	}
	return printable.Short(strings.TrimSpace(found), 100) + " is there", nil
}

// uninstallReason says why k3s has to be uninstalled, and which packages go with it, or "".
func uninstallReason(ctx context.Context, conn machine.Host) (string, error) {
	reason, err := installed(ctx, conn)
	if err != nil || reason == "" {
		return "", err
	}
	placed, err := packages.Placed(ctx, conn)
	if err != nil {
		return "", err
	}
	if len(placed) > 0 {
		reason += ", and packages that boxlift has installed: " + apt.List(placed)
	}
	return reason, nil
}

// TakeCiliumOut has to come before k3s' own scripts, which know nothing of Cilium: its
// interfaces and rules would take the host's network with them (k3s documentation, "Custom
// CNI").
const TakeCiliumOut = `for link in cilium_host cilium_net cilium_vxlan cilium_geneve cilium_wg0 lxc_health; do
    ip link delete "$link" >/dev/null 2>&1 || :
done
for family in iptables ip6tables; do
    if command -v "$family-save" >/dev/null && rules=$("$family-save" 2>/dev/null) && [ -n "$rules" ]; then
        printf '%s\n' "$rules" | grep -iv cilium | "$family-restore" || echo "the $family rules of Cilium are still there" >&2
    fi
done
`

// uninstallScript removes everything that boxlift brought, but for what forgetScript removes. Each part may have been
// removed before. A host may have got no further than boxlift-node: the kubelet and Cilium that are on
// it then are somebody else's; one that has begun with k3s notes it, since k3s' own scripts leave
// nothing to tell by. Units go before the token: one without it would not be taken for this
// cluster's by a run that goes on.
const uninstallScript = `set -u
begun=/var/lib/boxlift/uninstalling-k3s
for f in /usr/local/bin/k3s /usr/local/bin/k3s-uninstall.sh /usr/local/bin/k3s-agent-uninstall.sh /var/lib/rancher/k3s \
    "$begun"; do
    [ ! -e "$f" ] || k3s=there
done
if [ -n "${k3s-}" ]; then
mkdir -p /var/lib/boxlift && : >"$begun"
for unit in k3s k3s-agent; do
    systemctl disable --now "$unit.service" >/dev/null 2>&1 || :
done
` + TakeCiliumOut + `for script in k3s-uninstall.sh k3s-agent-uninstall.sh; do
    [ ! -x "/usr/local/bin/$script" ] || "/usr/local/bin/$script" || exit 1
done
rm -rf /etc/cni/net.d/05-cilium.conflist /var/run/cilium /var/lib/cilium /opt/cni/bin/cilium-cni /usr/local/bin/cilium /var/lib/kubelet
fi
(` + seed.RemoveRegistryScript + `) || :
(` + anchors.RemoveScript + `) || :
rm -f /etc/systemd/system/k3s.service /etc/systemd/system/k3s.service.env \
    /etc/systemd/system/k3s-agent.service /etc/systemd/system/k3s-agent.service.env
rm -f /usr/local/bin/k3s /usr/local/bin/k3s-killall.sh ` + hardening.SysctlFile + `
systemctl daemon-reload
`

// forgetScript removes what tells that the host was this cluster's, and which packages boxlift has installed: until
// then a run that was broken off goes on.
const forgetScript = `rm -rf /var/lib/rancher/k3s /etc/rancher/k3s /var/lib/boxlift`

// uninstall has a limit for each of its scripts; what removes packages has its own.
func (r *removal) uninstall(ctx context.Context, conn machine.Host) error {
	script := func(title, text string) error {
		ctx, cancel := context.WithTimeout(ctx, max(r.members.Site.Config.Runtime.CommandTimeout, time.Minute))
		defer cancel()
		_, err := conn.Run(ctx, machine.Command{Title: title, Args: []string{"/bin/sh", "-c", text}, Root: true})
		return err
	}
	return r.members.Site.Meter.Wait(func() error {
		if err := script("uninstall k3s", uninstallScript); err != nil {
			return err
		}
		// Now that nothing of k3s' uses them.
		notes, err := r.members.Packages.Remove(ctx, conn)
		if err != nil {
			return fmt.Errorf("remove packages: %w", err)
		}
		for _, text := range notes {
			r.members.Site.Warn("%s: %s", r.name(), text)
		}
		if err := script("remove boxlift's folders", forgetScript); err != nil {
			return err
		}
		reason, err := installed(ctx, conn)
		if err == nil && reason != "" {
			err = fmt.Errorf("uninstall k3s: %s after its uninstall script ran", reason)
		}
		return err
	})
}
