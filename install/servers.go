package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/jointoken"
)

// seedServer is the server that the others join: the one that began the cluster, or else
// one that is in it, or else the first, which will begin it. A server that was set up anew
// must never begin a second cluster while another one has the first. It is nil when no
// server is well.
func (s *Site) seedServer() *host {
	var member, well *host
	for _, h := range slices.Backward(s.servers()) {
		if h.err != nil {
			continue
		}
		well = h
		if h.member && (member == nil || member.joined != "" || h.joined == "") {
			member = h
		}
	}
	return cmp.Or(member, well)
}

// place brings k3s' program and its service to all hosts that have none, at the same time and
// before any k3s runs, which takes the time of all others on the way. Nothing is started, nor
// will be when a host boots. What runs already is changed when it is its host's turn.
func (c *Cluster) place(ctx context.Context) error {
	if !c.engine.changing() {
		return nil // who only looks is told of these steps with all others of a host
	}
	return c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error {
		if h.adopted != nil {
			return nil
		}
		n := &k3sNode{cluster: c, host: h}
		file := unitDir + n.service() + ".service"
		digests, err := machine.Digests(ctx, h.conn, file)
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
		return c.engine.runSteps(ctx, "place", &h.subject, []step{binary, unit})
	})
}

// runServers brings up k3s on the servers, one after the other: etcd takes in one member
// at a time, and a restart of two at once may cost it its majority.
func (c *Cluster) runServers(ctx context.Context) error {
	return c.eachServer(ctx, func(ctx context.Context, n *k3sNode) error {
		if c.engine.changing() {
			reason, err := n.startingReason(ctx)
			if err == nil && reason != "" {
				err = c.awaitMajority(ctx, n.host)
			}
			if err != nil {
				return err
			}
		}
		return c.runServer(ctx, n)
	})
}

// eachServer works on the servers that way.
func (c *Cluster) eachServer(ctx context.Context, run func(context.Context, *k3sNode) error) error {
	seed := c.site.seedServer()
	if seed == nil {
		return c.engine.hostErrors()
	}
	if err := c.startMembers(ctx); err != nil {
		return err
	}
	ordered := []*host{seed}
	for _, h := range c.site.servers() {
		switch {
		case h == seed:
		case h.member && h.facts != nil && h.facts.Unit(unit(config.Server)+".service").ActiveState != "active":
			// While a member is down, restarting another one may cost the majority.
			ordered = slices.Insert(ordered, 0, h)
		default:
			ordered = append(ordered, h)
		}
	}
	for _, h := range ordered {
		err := c.engine.eachHost(ctx, []*host{h}, func(ctx context.Context, h *host) error {
			n, err := c.serverNode(ctx, h, seed)
			if err != nil {
				return err
			}
			return run(ctx, n)
		})
		if err != nil && c.engine.changing() {
			return err
		}
	}
	if err := c.engine.reachAPI(ctx, c.site.servers()); err != nil {
		return err
	}
	return c.record.recordPending(ctx)
}

// startMembers starts k3s on the servers where it is stopped, when so few members of etcd run
// that the next one alone would wait for a majority in vain, as after all hosts were off. It
// waits for none of them: all are then worked on one by one, as always.
func (c *Cluster) startMembers(ctx context.Context) error {
	if !c.engine.changing() || c.restoration != nil { // a restore has stopped them, and takes their data away
		return nil
	}
	service := unit(config.Server)
	servers := c.site.servers()
	states := make([]*machine.Service, len(servers))
	err := c.engine.eachHost(ctx, servers, func(ctx context.Context, h *host) error {
		const script = `[ ! -d "$1/etcd/member" ] || echo member`
		out, err := h.root(ctx, "look for etcd's data", "/bin/sh", "-c", script, "sh", k3sDatabases)
		if err != nil || len(out) == 0 {
			return err
		}
		state, err := machine.FindService(ctx, h.conn, service)
		states[slices.Index(servers, h)] = &state
		return err
	})
	if err != nil {
		return err
	}
	stopped, reason := stoppedMembers(states)
	var hosts []*host
	for _, i := range stopped {
		hosts = append(hosts, servers[i])
	}
	if len(hosts) > 0 {
		(&k3sNode{cluster: c, host: hosts[0]}).startsUnseen()
	}
	return c.engine.eachHost(ctx, hosts, func(ctx context.Context, h *host) error {
		return c.engine.runSteps(ctx, "servers", &h.subject, []step{{
			title:  startTitle(service) + " together with other servers",
			needed: func(context.Context) (string, error) { return reason, nil },
			run: func(ctx context.Context) error {
				return machine.Restart(ctx, h.conn, service, *states[slices.Index(servers, h)])
			},
		}})
	})
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
	return stopped, fmt.Sprintf("it runs on %d of %s of etcd, which needs %d of them", active, counted(members, "member"), majority)
}

// serverNode is what a server runs k3s with. seed is the one that the others join.
func (c *Cluster) serverNode(ctx context.Context, h, seed *host) (*k3sNode, error) {
	var token string
	var err error
	switch {
	case h == seed && c.restoration != nil:
		token = c.restoration.token
	case h == seed:
		token, err = serverToken(ctx, h)
	default:
		token, err = c.joinToken(ctx, seed)
	}
	if err != nil {
		return nil, err
	}
	n := c.nodeWith(h, seed, token)
	n.agentToken, err = c.agentToken(ctx, seed)
	n.exposed = c.agentsPassword.exposed
	return n, err
}

// nodeWith is what a host runs k3s with that has a token.
func (c *Cluster) nodeWith(h, seed *host, token string) *k3sNode {
	return &k3sNode{cluster: c, host: h, server: c.joinURL(h, seed), token: token}
}

// startingReason says why k3s will be started, or started again; "" when it will not.
func (n *k3sNode) startingReason(ctx context.Context) (string, error) {
	steps, err := n.steps()
	if err != nil {
		return "", err
	}
	return startingReason(ctx, steps)
}

func (c *Cluster) runServer(ctx context.Context, n *k3sNode) error {
	h := n.host
	changes := len(h.changes)
	if err := n.run(ctx, "servers"); err != nil {
		return err
	}
	if c.engine.changing() && (len(h.changes) > changes || len(c.site.servers()) > 1) {
		// The next server must not be touched before this one answers again, also when it was
		// an earlier run that started it.
		return c.site.awaitServer(ctx, h)
	}
	return nil
}

// serverToken returns the token that the server was first started with, or a new one.
// Only the servers know it: boxlift keeps no copy. Where the file with it was lost, k3s has
// its own, and the cluster that runs must get no other one.
func serverToken(ctx context.Context, h *host) (string, error) {
	token, err := h.read(ctx, k3sTokenFile)
	if err != nil {
		return "", err
	}
	switch changed, err := changedToken(ctx, h); {
	case err != nil:
		return "", err
	case changed != "" && h.joined != "":
		return h.read(ctx, k3sNodeToken)
	case changed != "":
		return changed, nil
	case token != "":
		return token, nil
	}
	full, err := h.read(ctx, k3sNodeToken)
	if err != nil {
		return "", err
	}
	if full == "" {
		return jointoken.New(), nil
	}
	made, err := h.read(ctx, serviceFile)
	if err != nil {
		return "", err
	}
	if made == "" && h.adopted == nil {
		return "", errors.New("a k3s server that boxlift did not install runs on this host: boxlift adopt finds out whether it can stay as it is; otherwise remove it with k3s-uninstall.sh, or choose another host")
	}
	_, password, ok := strings.Cut(full, "::server:")
	switch {
	case !ok:
		return "", fmt.Errorf("%s is missing, and %s has no token of a server: write the cluster's token, which other servers have in the same file, to it; do not uninstall k3s, which would delete the cluster", k3sTokenFile, k3sNodeToken)
	case h.joined != "":
		return full, nil
	}
	return password, nil // which it began the cluster with
}

// findServers reaches the API of a cluster that is there.
func (c *Cluster) findServers(ctx context.Context) error {
	if err := c.engine.reachAPI(ctx, c.site.servers()); err != nil {
		return err
	}
	if c.site.api == nil {
		return fmt.Errorf("%w: run boxlift install without --only first", errNoCluster)
	}
	return nil
}

// runAgents joins the agents to the servers.
func (c *Cluster) runAgents(ctx context.Context) error {
	if len(c.site.agents()) == 0 {
		return nil
	}
	run, err := c.agentRunner(ctx, func(ctx context.Context, n *k3sNode) error { return n.run(ctx, "agents") })
	if err != nil {
		return err
	}
	return c.engine.eachHost(ctx, c.site.agents(), run)
}

// agentRunner returns what works on an agent that joins the servers. Without their token, all agents fail.
func (c *Cluster) agentRunner(ctx context.Context, run func(context.Context, *k3sNode) error) (func(context.Context, *host) error, error) {
	seed := c.site.seedServer()
	if seed == nil {
		return func(context.Context, *host) error { return nil }, nil
	}
	token, err := c.agentJoinToken(ctx, seed)
	if err != nil {
		for _, h := range c.site.agents() {
			h.fail(err)
		}
		return nil, err
	}
	return func(ctx context.Context, h *host) error {
		return run(ctx, c.nodeWith(h, seed, token))
	}, nil
}

// joinToken reads the servers' full token, which pins the cluster's certificate authority.
func (c *Cluster) joinToken(ctx context.Context, seed *host) (string, error) {
	token, err := seed.read(ctx, k3sNodeToken)
	if err == nil && token == "" && c.engine.changing() {
		err = fmt.Errorf("%s is missing or empty", k3sNodeToken)
	}
	if err != nil {
		return "", fmt.Errorf("read the cluster's token from %s: %w", seed.name, err)
	}
	return token, nil
}

// checkForeign refuses hosts that are in another cluster than the seed server, also one
// that is still to begin: beside hosts of another cluster it would be of no use. The part of
// a token before :: is the digest of the cluster's certificate authority.
func (c *Cluster) checkForeign(ctx context.Context) error {
	seed := c.site.seedServer()
	if seed == nil {
		return nil
	}
	wanted, err := clusterCA(ctx, seed)
	if err != nil {
		seed.fail(err)
		return seed.err
	}
	return c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error {
		if h == seed {
			return nil
		}
		ca, err := clusterCA(ctx, h)
		if err != nil || ca == "" || ca == wanted {
			return err
		}
		return &foreignError{server: h.config.Role == config.Server}
	})
}

// clusterCA is the digest of the certificate authority of the cluster that a host is in, or
// "" when it is in none.
func clusterCA(ctx context.Context, h *host) (string, error) {
	// The server that began a cluster was given the password alone. What it made of it
	// names its authority; without that nothing has begun there.
	for _, name := range []string{k3sTokenFile, k3sNodeToken} {
		token, err := h.read(ctx, name)
		if err != nil {
			return "", err
		}
		if ca, _, full := strings.Cut(token, "::"); full {
			return ca, nil
		}
	}
	return "", nil
}

// foreignError says that a host belongs to another cluster.
type foreignError struct{ server bool }

func (*foreignError) Error() string {
	return "the host is in another cluster: its token is that of another one"
}

func (e *foreignError) Hint() string {
	return "take the host out of install.yaml, or, if it is to change clusters, remove it from the other one first; " + uninstaller(e.server) + " and rm -r /var/lib/boxlift make it free"
}

// run brings the host's k3s to the wanted state.
func (n *k3sNode) run(ctx context.Context, phase string) error {
	steps, err := n.steps()
	if err != nil {
		return err
	}
	return n.cluster.engine.runSteps(ctx, phase, &n.host.subject, steps)
}
