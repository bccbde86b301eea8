package k3s

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
)

// agentTokenSetting names the file with what agents join with in config.yaml.
const agentTokenSetting = "agent-token-file"

// agentsPassword is what agents join with, found out once in a run: a new one must be the same for all servers.
type agentsPassword struct {
	sync.Mutex
	known    bool
	password string
	// exposed tells that it is new, and that agents have had the servers' until now.
	exposed bool
}

// AgentToken is the password that agents join with. It is "" in a cluster where they join with the servers' own
// token: an earlier boxlift began it, and no upgrade has given its agents one yet.
func (c *Cluster) AgentToken(ctx context.Context, seed *site.Host) (string, error) {
	known := &c.agentsPassword
	known.Lock()
	defer known.Unlock()
	if known.known {
		return known.password, nil
	}
	password, err := c.findAgentToken(ctx, seed)
	if err != nil {
		return "", fmt.Errorf("find the token that agents join with: %w", err)
	}
	known.known, known.password = true, password
	return password, nil
}

// findAgentToken asks the servers: they have to agree on it, which k3s does not see to.
func (c *Cluster) findAgentToken(ctx context.Context, seed *site.Host) (string, error) {
	if c.Restoration != nil && c.Restoration.AgentToken != "" {
		return c.Restoration.AgentToken, nil
	}
	begun := false
	for _, h := range slices.Concat([]*site.Host{seed}, c.Site.Servers()) {
		if h.Err != nil || h.Conn == nil {
			continue
		}
		found, err := OwnAgentToken(ctx, h)
		if err != nil || found != "" {
			return found, err
		}
		for _, name := range []string{site.K3sTokenFile, site.K3sNodeToken} {
			token, err := h.Read(ctx, name)
			if err != nil {
				return "", err
			}
			begun = begun || token != ""
		}
	}
	if begun && c.Restoration == nil && !c.SplitsToken {
		return "", nil
	}
	c.agentsPassword.exposed = begun || c.Restoration != nil
	return jointoken.New(), nil
}

// OwnAgentToken is the password that agents alone join a server with, "" when there is none. Where the file with it was
// lost, k3s has its own.
func OwnAgentToken(ctx context.Context, h *site.Host) (string, error) {
	password, err := h.Read(ctx, site.K3sAgentTokenFile)
	if err != nil || password != "" {
		return password, err
	}
	full, err := h.Read(ctx, site.K3sAgentToken)
	return jointoken.AgentsOwn(full), err
}

// AgentJoinToken is the full token that agents join with.
func (c *Cluster) AgentJoinToken(ctx context.Context, seed *site.Host) (string, error) {
	servers, err := c.joinToken(ctx, seed)
	if err != nil || servers == "" {
		return servers, err
	}
	password, err := c.AgentToken(ctx, seed)
	if err != nil || password == "" {
		return servers, err
	}
	return jointoken.ForAgent(servers, password)
}

// tokenSteps write what a host joins with, and what others join it with. The agents' comes first: a server that has
// the servers' token, and none of agents, is one of a cluster where these are the same.
func (n *Node) tokenSteps() []run.Step {
	var steps []run.Step
	isServer := n.Host.Config.Role == config.Server
	if n.exposed && isServer {
		noted := setup.FileStep(n.Host, "note that agents have had the servers' token", exposedFile,
			[]byte("until this was written\n"))
		noted.Alone = true
		steps = append(steps, noted)
	}
	if n.agentToken != "" && isServer {
		steps = append(steps, setup.Restarting(n.Host, site.StartedFile,
			setup.FileStep(n.Host, writeAgentToken, site.K3sAgentTokenFile, []byte(n.agentToken+"\n"))))
	}
	return append(steps, setup.Restarting(n.Host, site.StartedFile,
		setup.FileStep(n.Host, writeToken, site.K3sTokenFile, []byte(n.Token+"\n"))))
}

// Titles of steps.
const (
	writeAgentToken = "write the agents' token"
	writeToken      = "write k3s' token"
)

// namesAgentToken reports whether agents have a token of their own by a config.yaml.
func namesAgentToken(content string) bool {
	var settings map[string]any
	return outsideyaml.Unmarshal([]byte(content), &settings) == nil && settings[agentTokenSetting] != nil
}
