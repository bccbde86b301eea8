package install

import (
	"context"
	"errors"
	"fmt"
)

// servers brings up k3s on the server.
func (in *installer) servers(ctx context.Context) error {
	servers := in.hosts[:len(in.Config.Cluster.Servers)]
	return in.eachHost(ctx, servers, func(ctx context.Context, h *host) error {
		token, err := h.serverToken(ctx)
		if err != nil {
			return err
		}
		return in.runK3s(ctx, "servers", h, token)
	})
}

// serverToken returns the token that the server was first started with, or a new one.
// Only the server knows it: boxlift keeps no copy.
func (h *host) serverToken(ctx context.Context) (string, error) {
	token, err := h.read(ctx, k3sTokenFile)
	if err != nil || token != "" {
		return token, err
	}
	digests, err := h.digests(ctx, k3sNodeToken)
	if err != nil {
		return "", err
	}
	if digests[k3sNodeToken] != "" {
		return "", errors.New("a k3s server that boxlift did not install runs on this host: remove it with k3s-uninstall.sh, or choose another host")
	}
	return newToken(), nil
}

// agents joins the agents to the server.
func (in *installer) agents(ctx context.Context) error {
	agents := in.hosts[len(in.Config.Cluster.Servers):]
	if len(agents) == 0 {
		return nil
	}
	token, err := in.joinToken(ctx)
	if err != nil {
		for _, h := range agents {
			h.fail(fmt.Errorf("read the cluster's token from %s: %w", in.hosts[0].name, err))
		}
		return err
	}
	return in.eachHost(ctx, agents, func(ctx context.Context, h *host) error {
		return in.runK3s(ctx, "agents", h, token)
	})
}

// joinToken reads the full token, which pins the cluster's certificate authority.
func (in *installer) joinToken(ctx context.Context) (string, error) {
	token, err := in.hosts[0].read(ctx, k3sNodeToken)
	if err != nil {
		return "", err
	}
	if token == "" && !in.DryRun {
		return "", fmt.Errorf("%s is missing or empty", k3sNodeToken)
	}
	return token, nil
}

func (in *installer) runK3s(ctx context.Context, phase string, h *host, token string) error {
	n := &k3sNode{installer: in, host: h, settings: in.settingsFor(h), token: token}
	steps, err := n.steps()
	if err != nil {
		return err
	}
	return in.runSteps(ctx, phase, h, steps)
}
