package install

import (
	"context"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/node/wire"
)

const (
	// stagedTokenFile is the servers' next token, on all of them before k3s is told of it. Where it is, the change has
	// not come to its end.
	stagedTokenFile = k3sConfigDir + "/boxlift-token.next"
	// exposedFile is on servers from when agents get a token of their own until the servers have another one: agents
	// have had theirs.
	exposedFile = wire.FilesDir + "/server-token-exposed"
	// previousTokenFile is what a server goes back to when an upgrade fails there.
	previousTokenFile = previousDir + "/boxlift-token"
	// tokensPhase changes tokens.
	tokensPhase = "tokens"
)

// RotateOptions say which tokens to change.
type RotateOptions struct {
	Options
	Servers, Agents bool
}

// RotateTokens gives the servers another token, or the agents, or both, one host after the other. One of the servers'
// that was broken off is gone on with; of the agents' it begins anew, which harms nothing.
func RotateTokens(ctx context.Context, o RotateOptions) (*Summary, error) {
	o.Command = "token rotate"
	return o.runPhase(ctx, tokensPhase, func(ctx context.Context, in *installation) error {
		if err := in.cluster.occupyAll(ctx); err != nil {
			return err
		}
		seed := in.site.seedServer()
		if seed == nil {
			return in.engine.hostErrors()
		}
		password, err := in.cluster.agentToken(ctx, seed)
		if err != nil {
			return err
		}
		if password == "" && len(in.site.agents()) > 0 {
			return fmt.Errorf("%w: agents join with the servers' token: boxlift upgrade gives them one of their own, "+
				"and the servers another one; it may be to the bundle that the cluster runs", ErrRefused)
		}
		return in.cluster.rotateTokens(ctx, seed, o.Servers, o.Agents)
	})
}

// occupyAll reaches all hosts, and keeps other runs away from them: one that does not answer is no time to begin.
func (c *Cluster) occupyAll(ctx context.Context) error {
	return c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error {
		if err := c.site.connect(ctx, h); err != nil {
			return err
		}
		if err := lookAtK3s(ctx, h); err != nil {
			return err
		}
		if h.awaitsRestore {
			return c.engine.restoringError()
		}
		if h.foreign {
			return fmt.Errorf("%w: boxlift did not set up k3s on this host, and does not know where it has its token from: "+
				"change the tokens of this cluster with k3s token rotate, and its hosts by hand", ErrRefused)
		}
		if err := c.engine.checkHelper(ctx, h); err != nil || !c.engine.changing() {
			return err
		}
		return c.engine.hold(ctx, h)
	})
}

// rotateExposed gives the servers another token when agents have had theirs, or when that was begun.
func (c *Cluster) rotateExposed(ctx context.Context) error {
	if c.keepsTokens() {
		return nil
	}
	seed := c.site.seedServer()
	for _, h := range c.site.servers() {
		for _, name := range []string{exposedFile, stagedTokenFile} {
			if content, err := h.read(ctx, name); err != nil {
				return err
			} else if content != "" {
				return c.rotateTokens(ctx, seed, true, false)
			}
		}
	}
	return nil
}

// rotateTokens changes the tokens on all servers, starts k3s there one by one, and then on agents, if theirs changes.
func (c *Cluster) rotateTokens(ctx context.Context, seed *host, servers, agents bool) error {
	ordered, err := c.rotationOrder(ctx)
	if err != nil {
		return err
	}
	ordered = ordered[:len(c.site.servers())]
	if agents {
		c.agentsPassword.known, c.agentsPassword.password = true, jointoken.New()
	}
	password, err := c.agentToken(ctx, seed)
	if err != nil {
		return err
	}
	full, err := c.joinToken(ctx, seed)
	if err != nil {
		return err
	}
	next := ""
	if servers {
		if next, err = c.stageToken(ctx, seed); err != nil {
			return err
		}
	}
	if err := c.engine.eachHost(ctx, ordered, func(ctx context.Context, h *host) error {
		n := &k3sNode{cluster: c, host: h, agentToken: password, token: next}
		if servers && (h != seed || h.joined != "") {
			if n.token, err = jointoken.ForServer(full, next); err != nil {
				return err
			}
		}
		return c.engine.runSteps(ctx, tokensPhase, &h.subject, n.newTokenSteps(servers, agents))
	}); err != nil {
		return err
	}
	if err := c.restartOneByOne(ctx, ordered); err != nil {
		return err
	}
	if agents {
		if c.site.api == nil && c.engine.changing() { // no server was started again
			if err := c.engine.reachAPI(ctx, ordered); err != nil {
				return err
			}
		}
		if err := c.rotateOnAgents(ctx, full, password); err != nil {
			return err
		}
	}
	return c.forgetStaged(ctx, ordered)
}

// stageToken gives all servers the next token to keep, and then lets k3s change to it.
func (c *Cluster) stageToken(ctx context.Context, seed *host) (next string, err error) {
	var running []string // what k3s on the servers says the token is
	for _, h := range c.site.servers() {
		staged, err := h.read(ctx, stagedTokenFile)
		if err != nil {
			return "", err
		}
		if next == "" {
			next = staged
		}
		token, err := h.read(ctx, k3sServerToken)
		if err != nil {
			return "", err
		}
		running = append(running, jointoken.Password(token))
	}
	if next == "" {
		next = jointoken.New()
	}
	if err := c.engine.eachHost(ctx, c.site.servers(), func(ctx context.Context, h *host) error {
		return c.engine.runSteps(ctx, tokensPhase, &h.subject, []step{
			fileStep(h, "keep the servers' next token", stagedTokenFile, []byte(next+"\n")),
		})
	}); err != nil {
		return "", err
	}
	return next, c.engine.runSteps(ctx, tokensPhase, &c.engine.cluster, []step{{
		title: "give the servers another token",
		needed: func(context.Context) (string, error) {
			if slices.Contains(running, next) {
				return "", nil
			}
			return "the servers are to have another one than now", nil
		},
		run: func(ctx context.Context) error { return c.changeServersToken(ctx, seed, next) },
	}})
}

// changeServersToken asks k3s for it. Where k3s fails in the middle, it is started again as it was: by what it then
// says the token is, the next run knows which one holds.
func (c *Cluster) changeServersToken(ctx context.Context, seed *host, next string) error {
	current, err := seed.read(ctx, k3sServerToken)
	if err != nil {
		return err
	}
	kubeconfig, err := seed.read(ctx, k3sKubeconfig)
	if err != nil {
		return err
	}
	err = kube.RotateToken(ctx, kube.Options{
		Name: seed.name, Kubeconfig: []byte(kubeconfig), Dial: seed.conn.DialContext,
	}, jointoken.Password(current), next)
	if err == nil || ctx.Err() != nil {
		return err
	}
	n := &k3sNode{cluster: c, host: seed}
	if again := n.restartAfter(ctx, n.service()); again != nil {
		return fmt.Errorf("%w; and k3s does not start again: %w", err, again)
	}
	return err
}

// newTokenSteps write the tokens of a server that are another one now, but start nothing.
func (n *k3sNode) newTokenSteps(servers, agents bool) []step {
	var steps []step
	for _, s := range n.tokenSteps() {
		if s.title == writeAgentToken && agents || s.title == writeToken && servers {
			steps = append(steps, s)
		}
	}
	if !servers {
		return steps
	}
	// The old one would keep a server that goes back from starting.
	previous := fileStep(n.host, "keep the token, to go back to", previousTokenFile, []byte(n.token+"\n"))
	needed := previous.needed
	previous.needed = func(ctx context.Context) (string, error) {
		if kept, err := n.host.read(ctx, previousTokenFile); err != nil || kept == "" {
			return "", err
		}
		return needed(ctx)
	}
	return append(steps, previous)
}

// restartOneByOne starts k3s on hosts where it does not run with what it is to run with.
func (c *Cluster) restartOneByOne(ctx context.Context, hosts []*host) error {
	for _, h := range hosts {
		n := &k3sNode{cluster: c, host: h}
		if err := c.engine.eachHost(ctx, []*host{h}, func(ctx context.Context, h *host) error {
			return c.engine.runSteps(ctx, tokensPhase, &h.subject, []step{n.restartStep()})
		}); err != nil {
			return err
		}
	}
	return nil
}

func (n *k3sNode) restartStep() step {
	service := n.service()
	return step{
		title: startTitle(service),
		needed: func(ctx context.Context) (string, error) {
			if !n.cluster.engine.changing() {
				return "its tokens change", nil
			}
			return startReason(ctx, n.host, service, startedFile, func(ctx context.Context) (string, error) {
				return n.started(ctx, service)
			})
		},
		run: func(ctx context.Context) error {
			if err := n.cluster.awaitMajority(ctx, n.host); err != nil {
				return err
			}
			if err := n.start(ctx, service); err != nil {
				return err
			}
			return n.awaitReady(ctx)
		},
	}
}

// rotateOnAgents gives every agent the agents' token.
func (c *Cluster) rotateOnAgents(ctx context.Context, servers, password string) error {
	token, err := jointoken.ForAgent(servers, password)
	if err != nil {
		return err
	}
	for _, h := range c.site.agents() {
		n := &k3sNode{cluster: c, host: h, token: token}
		if err := c.engine.eachHost(ctx, []*host{h}, func(ctx context.Context, h *host) error {
			return c.engine.runSteps(ctx, tokensPhase, &h.subject, append(n.tokenSteps(), n.restartStep()))
		}); err != nil {
			return err
		}
	}
	return nil
}

// forgetStaged ends a change of the servers' token.
func (c *Cluster) forgetStaged(ctx context.Context, servers []*host) error {
	return c.engine.eachHost(ctx, servers, func(ctx context.Context, h *host) error {
		return c.engine.runSteps(ctx, tokensPhase, &h.subject, []step{{
			title: "forget the change of the token",
			needed: func(ctx context.Context) (string, error) {
				for _, name := range []string{stagedTokenFile, exposedFile} {
					if content, err := h.read(ctx, name); err != nil {
						return "", err
					} else if content != "" {
						return "it is done", nil
					}
				}
				return "", nil
			},
			run: func(ctx context.Context) error {
				_, err := h.root(ctx, "forget the change of the token", "rm", "-f", exposedFile, stagedTokenFile)
				return err
			},
		}})
	})
}

// lookAtTokens finds out what is wrong with the tokens that the hosts have.
func (c *Cluster) lookAtTokens(ctx context.Context) {
	tokens := make(map[*host]*jointoken.Host, len(c.site.hosts))
	for _, h := range c.site.hosts {
		tokens[h] = new(jointoken.Host)
	}
	_ = c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error { // the hosts keep their errors
		found := tokens[h]
		for name, to := range map[string]*string{
			k3sTokenFile: &found.Own, k3sAgentTokenFile: &found.Agents,
			exposedFile: &found.Exposed, stagedTokenFile: &found.Staged,
		} {
			content, err := h.read(ctx, name)
			if err != nil {
				return err
			}
			*to = content
		}
		return nil
	})
	var servers []jointoken.Host
	for _, h := range c.site.servers() {
		servers = append(servers, *tokens[h])
	}
	for _, h := range c.site.hosts {
		h.tokenFault = jointoken.Judge(*tokens[h], servers, h.config.Role == config.Server)
		if h.tokenFault == jointoken.OfServers && c.keepsTokens() {
			h.tokenFault = jointoken.NoFault // nothing can be done about it
		}
		c.sharesToken = c.sharesToken || h.tokenFault == jointoken.OfServers
		if c.splitsToken {
			h.tokenFault = jointoken.NoFault // this run mends it
		}
		if f, ok := preflight.TokenFinding(h.tokenFault); ok && c.engine.mode == inspect {
			h.differences = append(h.differences, fmt.Sprintf("%s: %s", f.Found, f.Hint))
		}
	}
}

// changedToken is the servers' next token when k3s on the host has changed to it already, and "" when it has not, or
// when none is to come.
func changedToken(ctx context.Context, h *host) (string, error) {
	staged, err := h.read(ctx, stagedTokenFile)
	if err != nil || staged == "" {
		return "", err
	}
	running, err := h.read(ctx, k3sServerToken)
	if err != nil || jointoken.Password(running) != staged {
		return "", err
	}
	return staged, nil
}
