package k3s

import (
	"context"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

const (
	// stagedTokenFile is the servers' next token, on all of them before k3s is told of it. Where it is, the change has
	// not come to its end.
	stagedTokenFile = site.K3sConfigDir + "/boxlift-token.next"
	// exposedFile is on servers from when agents get a token of their own until the servers have another one: agents
	// have had theirs.
	exposedFile = wire.FilesDir + "/server-token-exposed"
	// previousTokenFile is what a server goes back to when an upgrade fails there.
	previousTokenFile = PreviousDir + "/boxlift-token"
	// TokensPhase changes tokens.
	TokensPhase = "tokens"
)

// OccupyAll reaches all hosts, and keeps other runs away from them: one that does not answer is no time to begin.
func (c *Cluster) OccupyAll(ctx context.Context) error {
	return c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if err := c.Site.Connect(ctx, h); err != nil {
			return err
		}
		if err := LookAtK3s(ctx, h); err != nil {
			return err
		}
		if h.AwaitsRestore {
			return c.Engine.RestoringError()
		}
		if h.Foreign {
			return fmt.Errorf("%w: boxlift did not set up k3s on this host, and does not know where it has its token "+
				"from: "+
				"change the tokens of this cluster with k3s token rotate, and its hosts by hand", site.ErrRefused)
		}
		if err := c.Engine.CheckHelper(ctx, h); err != nil {
			return err
		}
		return c.Engine.Hold(ctx, h)
	})
}

// RotateExposed gives the servers another token when agents have had theirs, or when that was begun.
func (c *Cluster) RotateExposed(ctx context.Context) error {
	if c.keepsTokens() {
		return nil
	}
	seed := c.Site.SeedServer()
	for _, h := range c.Site.Servers() {
		for _, name := range []string{exposedFile, stagedTokenFile} {
			if content, err := h.Read(ctx, name); err != nil {
				return err
			} else if content != "" {
				return c.RotateTokens(ctx, seed, true, false)
			}
		}
	}
	return nil
}

// RotateTokens changes the tokens on all servers, starts k3s there one by one, and then on agents, if theirs changes.
func (c *Cluster) RotateTokens(ctx context.Context, seed *site.Host, servers, agents bool) error {
	return (&rotation{c}).do(ctx, seed, servers, agents)
}

// rotation is a change of tokens.
type rotation struct{ cluster *Cluster }

// do changes the tokens on all servers, starts k3s there one by one, and then on agents, if theirs changes.
func (r *rotation) do(ctx context.Context, seed *site.Host, servers, agents bool) error {
	ordered, err := r.cluster.RotationOrder(ctx)
	if err != nil {
		return err
	}
	ordered = ordered[:len(r.cluster.Site.Servers())]
	if agents {
		r.cluster.agentsPassword.known, r.cluster.agentsPassword.password = true, jointoken.New()
	}
	password, err := r.cluster.AgentToken(ctx, seed)
	if err != nil {
		return err
	}
	full, err := r.cluster.joinToken(ctx, seed)
	if err != nil {
		return err
	}
	if full == "" {
		return fmt.Errorf("read the cluster's token from %s: %s is missing or empty", seed.Name, site.K3sNodeToken)
	}
	next := ""
	if servers {
		if next, err = r.stage(ctx, seed); err != nil {
			return err
		}
	}
	if err := r.cluster.Engine.EachHost(ctx, ordered, func(ctx context.Context, h *site.Host) error {
		n := &Node{Cluster: r.cluster, Host: h, agentToken: password, Token: next}
		if servers && (h != seed || h.Joined != "") {
			if n.Token, err = jointoken.ForServer(full, next); err != nil {
				return err
			}
		}
		return r.cluster.Engine.RunSteps(ctx, TokensPhase, &h.Subject, n.newTokenSteps(servers, agents))
	}); err != nil {
		return err
	}
	if err := r.restart(ctx, ordered); err != nil {
		return err
	}
	if agents {
		if err := r.cluster.Engine.RunSteps(ctx, TokensPhase, &r.cluster.Engine.Cluster, []run.Step{{
			ID: "reach-api", Proves: true,
			Run: func(ctx context.Context) error {
				if r.cluster.Site.API != nil { // a server was started again
					return nil
				}
				return r.cluster.Engine.ReachAPI(ctx, ordered)
			},
		}}); err != nil {
			return err
		}
		if err := r.giveAgents(ctx, full, password); err != nil {
			return err
		}
	}
	return r.forget(ctx, ordered)
}

// stagedStep gives a server the next token to keep.
func stagedStep(h *site.Host, next string) run.Step {
	return setup.FileStep(h, "keep the servers' next token", stagedTokenFile, []byte(next+"\n"))
}

// changeStep lets k3s change to the next token, unless it says on a server that this is what it has.
func (r *rotation) changeStep(seed *site.Host, next string) run.Step {
	return run.Step{
		ID: "change-servers-token", Title: "give the servers another token",
		Needed: func(ctx context.Context) (string, error) {
			for _, h := range r.cluster.Site.Servers() {
				token, err := h.Read(ctx, K3sServerToken)
				if err != nil {
					return "", err
				}
				if jointoken.Password(token) == next {
					return "", nil
				}
			}
			return "the servers are to have another one than now", nil
		},
		Run: func(ctx context.Context) error { return r.changeServers(ctx, seed, next) },
	}
}

// stage gives all servers the next token to keep, and then lets k3s change to it.
func (r *rotation) stage(ctx context.Context, seed *site.Host) (next string, err error) {
	for _, h := range r.cluster.Site.Servers() {
		staged, err := h.Read(ctx, stagedTokenFile)
		if err != nil {
			return "", err
		}
		if next == "" {
			next = staged
		}
	}
	if next == "" {
		next = jointoken.New()
	}
	if err := r.cluster.Engine.EachHost(ctx, r.cluster.Site.Servers(), func(ctx context.Context, h *site.Host) error {
		return r.cluster.Engine.RunSteps(ctx, TokensPhase, &h.Subject, []run.Step{stagedStep(h, next)})
	}); err != nil {
		return "", err
	}
	return next, r.cluster.Engine.RunSteps(ctx, TokensPhase, &r.cluster.Engine.Cluster,
		[]run.Step{r.changeStep(seed, next)})
}

// changeServers asks k3s for it. Where k3s may have failed in the middle, it is started again as it was, once etcd can
// do without it: by what it then says the token is, the next run knows which one holds.
func (r *rotation) changeServers(ctx context.Context, seed *site.Host, next string) error {
	current, err := seed.Read(ctx, K3sServerToken)
	if err != nil {
		return err
	}
	kubeconfig, err := seed.Read(ctx, site.K3sKubeconfig)
	if err != nil {
		return err
	}
	begun, err := kube.RotateToken(ctx, kube.Options{
		Name: seed.Name, Kubeconfig: []byte(kubeconfig), Dial: seed.Conn.DialContext,
	}, jointoken.Password(current), next)
	if err == nil || ctx.Err() != nil || !begun {
		return err
	}
	if lacking := r.cluster.AwaitMajority(ctx, seed); lacking != nil {
		return fmt.Errorf("%w; and k3s is not started again: %w", err, lacking)
	}
	n := &Node{Cluster: r.cluster, Host: seed}
	if again := n.RestartAfter(ctx, n.service()); again != nil {
		return fmt.Errorf("%w; and k3s does not start again: %w", err, again)
	}
	return err
}

// newTokenSteps write the tokens of a server that are another one now, but start nothing.
func (n *Node) newTokenSteps(servers, agents bool) []run.Step {
	var steps []run.Step
	for _, s := range n.tokenSteps() {
		if s.ID == setup.FileID(site.K3sAgentTokenFile) && agents || s.ID == setup.FileID(site.K3sTokenFile) &&
			servers {
			steps = append(steps, s)
		}
	}
	if !servers {
		return steps
	}
	// The old one would keep a server that goes back from starting.
	previous := setup.FileStep(n.Host, "keep the token, to go back to", previousTokenFile, []byte(n.Token+"\n"))
	needed := previous.Needed
	previous.Needed = func(ctx context.Context) (string, error) {
		if kept, err := n.Host.Read(ctx, previousTokenFile); err != nil || kept == "" {
			return "", err
		}
		return needed(ctx)
	}
	return append(steps, previous)
}

// restart starts k3s on hosts where it does not run with what it is to run with.
func (r *rotation) restart(ctx context.Context, hosts []*site.Host) error {
	for _, h := range hosts {
		n := &Node{Cluster: r.cluster, Host: h}
		if err := r.cluster.Engine.EachHost(ctx, []*site.Host{h}, func(ctx context.Context, h *site.Host) error {
			return r.cluster.Engine.RunSteps(ctx, TokensPhase, &h.Subject, []run.Step{n.restartStep()})
		}); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) restartStep() run.Step {
	service := n.service()
	return run.Step{
		ID: StartID, Title: setup.StartTitle(service),
		Needed: func(ctx context.Context) (string, error) {
			// Servers get theirs all together, and start one by one.
			if slices.ContainsFunc(n.Host.Changes, func(c site.Change) bool {
				return c.Phase == TokensPhase &&
					(c.ID == setup.FileID(site.K3sTokenFile) || c.ID == setup.FileID(site.K3sAgentTokenFile))
			}) {
				return "its tokens change", nil
			}
			return setup.StartReason(ctx, n.Host, service, site.StartedFile, func(ctx context.Context) (string, error) {
				return n.Started(ctx, service)
			})
		},
		Run: func(ctx context.Context) error {
			if err := n.Cluster.AwaitMajority(ctx, n.Host); err != nil {
				return err
			}
			if err := n.Start(ctx, service); err != nil {
				return err
			}
			return n.AwaitReady(ctx)
		},
	}
}

// giveAgents gives every agent the agents' token.
func (r *rotation) giveAgents(ctx context.Context, servers, password string) error {
	token, err := jointoken.ForAgent(servers, password)
	if err != nil {
		return err
	}
	for _, h := range r.cluster.Site.Agents() {
		n := &Node{Cluster: r.cluster, Host: h, Token: token}
		if err := r.cluster.Engine.EachHost(ctx, []*site.Host{h}, func(ctx context.Context, h *site.Host) error {
			return r.cluster.Engine.RunSteps(ctx, TokensPhase, &h.Subject, append(n.tokenSteps(), n.restartStep()))
		}); err != nil {
			return err
		}
	}
	return nil
}

// forget ends a change of the servers' token.
func (r *rotation) forget(ctx context.Context, servers []*site.Host) error {
	return r.cluster.Engine.EachHost(ctx, servers, func(ctx context.Context, h *site.Host) error {
		return r.cluster.Engine.RunSteps(ctx, TokensPhase, &h.Subject, []run.Step{forgetChangeStep(h)})
	})
}

// forgetChangeStep takes away what tells that the servers' token is to change.
func forgetChangeStep(h *site.Host) run.Step {
	return run.Step{
		ID: "forget-token-change", Title: "forget the change of the token",
		Needed: func(ctx context.Context) (string, error) {
			for _, name := range []string{stagedTokenFile, exposedFile} {
				if content, err := h.Read(ctx, name); err != nil {
					return "", err
				} else if content != "" {
					return "it is done", nil
				}
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			_, err := h.Root(ctx, "forget the change of the token", "rm", "-f", exposedFile, stagedTokenFile)
			return err
		},
	}
}

// LookAtTokens finds out what is wrong with the tokens that the hosts have.
func (c *Cluster) LookAtTokens(ctx context.Context) {
	tokens := make(map[*site.Host]*jointoken.Host, len(c.Site.Hosts))
	for _, h := range c.Site.Hosts {
		tokens[h] = new(jointoken.Host)
	}
	// the hosts keep their errors
	_ = c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		found := tokens[h]
		for name, to := range map[string]*string{
			site.K3sTokenFile: &found.Own, site.K3sAgentTokenFile: &found.Agents,
			exposedFile: &found.Exposed, stagedTokenFile: &found.Staged,
		} {
			content, err := h.Read(ctx, name)
			if err != nil {
				return err
			}
			*to = content
		}
		return nil
	})
	var servers []jointoken.Host
	for _, h := range c.Site.Servers() {
		servers = append(servers, *tokens[h])
	}
	for _, h := range c.Site.Hosts {
		h.TokenFault = jointoken.Judge(*tokens[h], servers, h.Config.Role == config.Server)
		if h.TokenFault == jointoken.OfServers && c.keepsTokens() {
			h.TokenFault = jointoken.NoFault // nothing can be done about it
		}
		c.SharesToken = c.SharesToken || h.TokenFault == jointoken.OfServers
		if c.SplitsToken {
			h.TokenFault = jointoken.NoFault // this run mends it
		}
	}
}

// changedToken is the servers' next token when k3s on the host has changed to it already, and "" when it has not, or
// when none is to come.
func changedToken(ctx context.Context, h *site.Host) (string, error) {
	staged, err := h.Read(ctx, stagedTokenFile)
	if err != nil || staged == "" {
		return "", err
	}
	running, err := h.Read(ctx, K3sServerToken)
	if err != nil || jointoken.Password(running) != staged {
		return "", err
	}
	return staged, nil
}
