package k3s

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Place brings k3s' program and its service to all hosts that have none, at the same time and
// before any k3s runs, which takes the time of all others on the way. Nothing is started, nor
// will be when a host boots. What runs already is changed when it is its host's turn.
func (c *Cluster) Place(ctx context.Context) error {
	return c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if h.Adopted != nil {
			return nil
		}
		n := &Node{Cluster: c, Host: h}
		file := site.UnitDir + n.service() + ".service"
		digests, err := machine.Digests(ctx, h.Conn, file)
		if err != nil || digests[file] != "" {
			return err
		}
		binary, err := n.binaryStep()
		if err != nil {
			return err
		}
		unit, err := n.unitStep(disabled)
		if err != nil {
			return err
		}
		return c.Engine.RunSteps(ctx, "place", &h.Subject, []run.Step{binary, unit})
	})
}

// RunServers brings up k3s on the servers, one after the other: etcd takes in one member
// at a time, and a restart of two at once may cost it its majority.
func (c *Cluster) RunServers(ctx context.Context) error {
	return c.EachServer(ctx, func(ctx context.Context, n *Node) error {
		if err := c.Engine.RunSteps(ctx, "servers", &n.Host.Subject, []run.Step{n.majorityStep()}); err != nil {
			return err
		}
		return c.RunServer(ctx, n)
	})
}

// majorityStep waits until etcd can do without the server, where k3s is about to be started there, or started again.
func (n *Node) majorityStep() run.Step {
	return run.Step{
		ID: "await-majority", Proves: true,
		Run: func(ctx context.Context) error {
			reason, err := n.StartingReason(ctx)
			if err != nil || reason == "" {
				return err
			}
			return n.Cluster.AwaitMajority(ctx, n.Host)
		},
	}
}

// EachServer works on the servers that way.
func (c *Cluster) EachServer(ctx context.Context, run func(context.Context, *Node) error) error {
	seed := c.Site.SeedServer()
	if seed == nil {
		return c.Engine.HostErrors()
	}
	ordered := []*site.Host{seed}
	for _, h := range c.Site.Servers() {
		switch {
		case h == seed:
		case h.Member && h.Facts != nil && h.Facts.Unit(site.Unit(config.Server)+".service").ActiveState != "active":
			// While a member is down, restarting another one may cost the majority.
			ordered = slices.Insert(ordered, 0, h)
		default:
			ordered = append(ordered, h)
		}
	}
	if err := c.Engine.InTurn(ctx, ordered, func(ctx context.Context, h *site.Host) error {
		n, err := c.ServerNode(ctx, h, seed)
		if err != nil {
			return err
		}
		return run(ctx, n)
	}); err != nil && !c.Engine.GoesOn(err) {
		return err
	}
	if err := c.Engine.ReachAPI(ctx, c.Site.Servers()); err != nil {
		return err
	}
	return c.Record.RecordPending(ctx)
}

// StartMembers starts k3s on the servers where it is stopped, when so few members of etcd run
// that the next one alone would wait for a majority in vain, as after all hosts were off. It
// waits for none of them: all are then worked on one by one, as always.
func (c *Cluster) StartMembers(ctx context.Context) error {
	if c.Restoration != nil { // it has stopped them, and takes their data away
		return nil
	}
	service := site.Unit(config.Server)
	servers := c.Site.Servers()
	states := make([]*machine.Service, len(servers))
	err := c.Engine.EachHost(ctx, servers, func(ctx context.Context, h *site.Host) error {
		const script = `[ ! -d "$1/etcd/member" ] || echo member`
		out, err := h.Root(ctx, "look for etcd's data", "/bin/sh", "-c", script, "sh", K3sDatabases)
		if err != nil || len(out) == 0 {
			return err
		}
		state, err := machine.FindService(ctx, h.Conn, service)
		states[slices.Index(servers, h)] = &state
		return err
	})
	if err != nil {
		return err
	}
	stopped, reason := stoppedMembers(states)
	var hosts []*site.Host
	for _, i := range stopped {
		hosts = append(hosts, servers[i])
	}
	if len(hosts) > 0 {
		(&Node{Cluster: c, Host: hosts[0]}).startsUnseen()
	}
	return c.Engine.EachHost(ctx, hosts, func(ctx context.Context, h *site.Host) error {
		return c.Engine.RunSteps(ctx, "servers", &h.Subject,
			[]run.Step{startTogetherStep(h, service, *states[slices.Index(servers, h)], reason)})
	})
}

// startTogetherStep starts k3s on a server on which it is in a state, for a reason, and waits for nothing.
func startTogetherStep(h *site.Host, service string, state machine.Service, reason string) run.Step {
	return run.Step{
		ID: "start-k3s-together", Title: setup.StartTitle(service) + " together with other servers",
		Needed: func(context.Context) (string, error) { return reason, nil },
		Run:    func(ctx context.Context) error { return machine.Restart(ctx, h.Conn, service, state) },
	}
}

// stoppedMembers are the servers that have to be started together, and why, by what systemd
// says of their k3s; nil is a server that is no member of etcd. While one more member makes a
// majority, there are none, and the order stays one by one. One that is just being started is
// left to it: it may be waiting for the others.
func stoppedMembers(states []*machine.Service) (stopped []int, reason string) {
	members, active := 0, 0
	for i, state := range states {
		switch {
		case state == nil:
			continue
		case state.Active == "active":
			active++
		case state.Active != "activating" && state.Load == "loaded":
			stopped = append(stopped, i)
		}
		members++
	}
	majority := members/2 + 1
	if members < 2 || active+1 >= majority {
		return nil, ""
	}
	return stopped, fmt.Sprintf("it runs on %d of %s of etcd, which needs %d of them", active,
		printable.Counted(members, "member"), majority)
}

// ServerNode is what a server runs k3s with. seed is the one that the others join.
func (c *Cluster) ServerNode(ctx context.Context, h, seed *site.Host) (*Node, error) {
	var token string
	var err error
	switch {
	case h == seed && c.Restoration != nil:
		token = c.Restoration.Token
	case h == seed:
		token, err = serverToken(ctx, h)
	default:
		token, err = c.joinToken(ctx, seed)
	}
	if err != nil {
		return nil, err
	}
	n := c.NodeWith(h, seed, token)
	n.agentToken, err = c.AgentToken(ctx, seed)
	n.exposed = c.agentsPassword.exposed
	return n, err
}

// NodeWith is what a host runs k3s with that has a token.
func (c *Cluster) NodeWith(h, seed *site.Host, token string) *Node {
	return &Node{Cluster: c, Host: h, Server: c.JoinURL(h, seed), Token: token}
}

// StartingReason says why k3s will be started, or started again; "" when it will not.
func (n *Node) StartingReason(ctx context.Context) (string, error) {
	steps, err := n.steps()
	if err != nil {
		return "", err
	}
	return setup.StartingReason(ctx, steps)
}

// RunServer brings k3s on a server to what it is to be, and waits until the server answers.
func (c *Cluster) RunServer(ctx context.Context, n *Node) error {
	h := n.Host
	changes := len(h.Changes)
	steps, err := n.steps()
	if err != nil {
		return err
	}
	steps = append(steps, run.Step{
		ID: "await-server", Proves: true,
		Run: func(ctx context.Context) error {
			if len(h.Changes) == changes && len(c.Site.Servers()) == 1 {
				return nil
			}
			// The next server must not be touched before this one answers again, also when it was
			// an earlier run that started it.
			return c.Site.AwaitServer(ctx, h)
		},
	})
	return c.Engine.RunSteps(ctx, "servers", &h.Subject, steps)
}

// serverToken returns the token that the server was first started with, or a new one.
// Only the servers know it: boxlift keeps no copy. Where the file with it was lost, k3s has
// its own, and the cluster that runs must get no other one.
func serverToken(ctx context.Context, h *site.Host) (string, error) {
	token, err := h.Read(ctx, site.K3sTokenFile)
	if err != nil {
		return "", err
	}
	switch changed, err := changedToken(ctx, h); {
	case err != nil:
		return "", err
	case changed != "" && h.Joined != "":
		return h.Read(ctx, site.K3sNodeToken)
	case changed != "":
		return changed, nil
	case token != "":
		return token, nil
	}
	full, err := h.Read(ctx, site.K3sNodeToken)
	if err != nil {
		return "", err
	}
	if full == "" {
		return jointoken.New(), nil
	}
	made, err := h.Read(ctx, site.ServiceFile)
	if err != nil {
		return "", err
	}
	if made == "" && h.Adopted == nil {
		return "", errors.New("a k3s server that boxlift did not install runs on this host: boxlift adopt finds out " +
			"whether it can stay as it is; otherwise remove it with k3s-uninstall.sh, or choose another host")
	}
	_, password, ok := strings.Cut(full, "::server:")
	switch {
	case !ok:
		return "", fmt.Errorf("%s is missing, and %s has no token of a server: write the cluster's token, which "+
			"other servers have in the same file, to it; do not uninstall k3s, which would delete the cluster",
			site.K3sTokenFile, site.K3sNodeToken)
	case h.Joined != "":
		return full, nil
	}
	return password, nil // which it began the cluster with
}

// FindServers reaches the API of a cluster that is there.
func (c *Cluster) FindServers(ctx context.Context) error {
	if err := c.Engine.ReachAPI(ctx, c.Site.Servers()); err != nil {
		return err
	}
	if c.Site.API == nil {
		return fmt.Errorf("%w: run boxlift install without --only first", site.ErrNoCluster)
	}
	return nil
}

// RunAgents joins the agents to the servers.
func (c *Cluster) RunAgents(ctx context.Context) error {
	if len(c.Site.Agents()) == 0 {
		return nil
	}
	run, err := c.AgentRunner(ctx, func(ctx context.Context, n *Node) error { return n.Run(ctx, "agents") })
	if err != nil {
		return err
	}
	return c.Engine.EachHost(ctx, c.Site.Agents(), run)
}

// AgentRunner returns what works on an agent that joins the servers. Without their token, all agents fail.
func (c *Cluster) AgentRunner(ctx context.Context, run func(context.Context,
	*Node) error) (func(context.Context, *site.Host) error, error) {
	seed := c.Site.SeedServer()
	if seed == nil {
		return func(context.Context, *site.Host) error { return nil }, nil
	}
	token, err := c.AgentJoinToken(ctx, seed)
	if err != nil {
		for _, h := range c.Site.Agents() {
			h.Fail(err)
		}
		return nil, err
	}
	return func(ctx context.Context, h *site.Host) error {
		return run(ctx, c.NodeWith(h, seed, token))
	}, nil
}

// joinToken reads the servers' full token, which pins the cluster's certificate authority. It is "" before the seed
// server has begun the cluster.
func (c *Cluster) joinToken(ctx context.Context, seed *site.Host) (string, error) {
	token, err := seed.Read(ctx, site.K3sNodeToken)
	if err != nil {
		return "", fmt.Errorf("read the cluster's token from %s: %w", seed.Name, err)
	}
	return token, nil
}

// CheckForeign refuses hosts that are in another cluster than the seed server, also one
// that is still to begin: beside hosts of another cluster it would be of no use. The part of
// a token before :: is the digest of the cluster's certificate authority.
func (c *Cluster) CheckForeign(ctx context.Context) error {
	seed := c.Site.SeedServer()
	if seed == nil {
		return nil
	}
	wanted, err := ClusterCA(ctx, seed)
	if err != nil {
		seed.Fail(err)
		return seed.Err
	}
	return c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if h == seed {
			return nil
		}
		ca, err := ClusterCA(ctx, h)
		if err != nil || ca == "" || ca == wanted {
			return err
		}
		return &ForeignError{Server: h.Config.Role == config.Server}
	})
}

// ClusterCA is the digest of the certificate authority of the cluster that a host is in, or
// "" when it is in none.
func ClusterCA(ctx context.Context, h *site.Host) (string, error) {
	// The server that began a cluster was given the password alone. What it made of it
	// names its authority; without that nothing has begun there.
	for _, name := range []string{site.K3sTokenFile, site.K3sNodeToken} {
		token, err := h.Read(ctx, name)
		if err != nil {
			return "", err
		}
		if ca, _, full := strings.Cut(token, "::"); full {
			return ca, nil
		}
	}
	return "", nil
}

// ForeignError says that a host belongs to another cluster.
type ForeignError struct{ Server bool }

func (*ForeignError) Error() string {
	return "the host is in another cluster: its token is that of another one"
}

// Hint says how the host becomes free.
func (e *ForeignError) Hint() string {
	return "take the host out of install.yaml, or, if it is to change clusters, remove it from the other one first; " +
		Uninstaller(e.Server) + " and rm -r /var/lib/boxlift make it free"
}

// Run brings the host's k3s to the wanted state.
func (n *Node) Run(ctx context.Context, phase string) error {
	steps, err := n.steps()
	if err != nil {
		return err
	}
	return n.Cluster.Engine.RunSteps(ctx, phase, &n.Host.Subject, steps)
}
