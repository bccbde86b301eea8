package install

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/jointoken"
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

// agentToken is the password that agents join with. It is "" in a cluster where they join with the servers' own
// token: an earlier boxlift began it, and no upgrade has given its agents one yet.
func (c *Cluster) agentToken(ctx context.Context, seed *host) (string, error) {
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
func (c *Cluster) findAgentToken(ctx context.Context, seed *host) (string, error) {
	if c.restoration != nil && c.restoration.agentToken != "" {
		return c.restoration.agentToken, nil
	}
	begun := false
	for _, h := range slices.Concat([]*host{seed}, c.site.servers()) {
		if h.err != nil || h.conn == nil {
			continue
		}
		found, err := ownAgentToken(ctx, h)
		if err != nil || found != "" {
			return found, err
		}
		for _, name := range []string{k3sTokenFile, k3sNodeToken} {
			token, err := h.read(ctx, name)
			if err != nil {
				return "", err
			}
			begun = begun || token != ""
		}
	}
	if begun && c.restoration == nil && !c.splitsToken {
		return "", nil
	}
	c.agentsPassword.exposed = begun || c.restoration != nil
	return jointoken.New(), nil
}

// ownAgentToken is the password that agents alone join a server with, "" when there is none. Where the file with it was
// lost, k3s has its own.
func ownAgentToken(ctx context.Context, h *host) (string, error) {
	password, err := h.read(ctx, k3sAgentTokenFile)
	if err != nil || password != "" {
		return password, err
	}
	full, err := h.read(ctx, k3sAgentToken)
	return jointoken.AgentsOwn(full), err
}

// agentJoinToken is the full token that agents join with.
func (c *Cluster) agentJoinToken(ctx context.Context, seed *host) (string, error) {
	servers, err := c.joinToken(ctx, seed)
	if err != nil || servers == "" {
		return servers, err
	}
	password, err := c.agentToken(ctx, seed)
	if err != nil || password == "" {
		return servers, err
	}
	return jointoken.ForAgent(servers, password)
}

// tokenSteps write what a host joins with, and what others join it with. The agents' comes first: a server that has
// the servers' token, and none of agents, is one of a cluster where these are the same.
func (n *k3sNode) tokenSteps() []step {
	var steps []step
	isServer := n.host.config.Role == config.Server
	if n.exposed && isServer {
		noted := fileStep(n.host, "note that agents have had the servers' token", exposedFile, []byte("until this was written\n"))
		noted.alone = true
		steps = append(steps, noted)
	}
	if n.agentToken != "" && isServer {
		steps = append(steps, restarting(n.host, startedFile,
			fileStep(n.host, writeAgentToken, k3sAgentTokenFile, []byte(n.agentToken+"\n"))))
	}
	return append(steps, restarting(n.host, startedFile, fileStep(n.host, writeToken, k3sTokenFile, []byte(n.token+"\n"))))
}

// Titles of steps.
const (
	writeAgentToken = "write the agents' token"
	writeToken      = "write k3s' token"
)

// namesAgentToken reports whether agents have a token of their own by a config.yaml.
func namesAgentToken(content string) bool {
	var settings map[string]any
	return yaml.Unmarshal([]byte(content), &settings) == nil && settings[agentTokenSetting] != nil
}
