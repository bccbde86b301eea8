package k3s

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
)

// RotationOrder has servers first, and of these those that are down: restarting another one
// beside them could cost etcd its majority.
func (c *Cluster) RotationOrder(ctx context.Context) ([]*site.Host, error) {
	var down, up []*site.Host
	for _, h := range c.Site.Servers() {
		state, err := machine.FindService(ctx, h.Conn, site.Unit(config.Server))
		if err != nil {
			return nil, err
		}
		if state.IsReady() {
			up = append(up, h)
		} else {
			down = append(down, h)
		}
	}
	return slices.Concat(down, up, c.Site.Agents()), nil
}

// RestartAfter starts k3s and waits for it.
func (n *Node) RestartAfter(ctx context.Context, service string) error {
	state, err := machine.FindService(ctx, n.Host.Conn, service)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, n.Host.Conn, service, state); err != nil {
		return err
	}
	return n.waitReady(ctx, service)
}

// AwaitReady waits until the host's node is Ready again: only then the next host's turn
// comes.
func (n *Node) AwaitReady(ctx context.Context) error {
	if n.Host.Config.Role == config.Server {
		if err := n.Cluster.Site.AwaitServer(ctx, n.Host); err != nil {
			return err
		}
		if n.Cluster.Site.API == nil {
			api, err := n.Cluster.Site.APIThrough(ctx, n.Host)
			if err != nil {
				return err
			}
			n.Cluster.Site.API = api
		}
	}
	return n.Cluster.Site.Waiting(ctx, "wait for the node of "+n.Host.Name, func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := n.Cluster.Site.API.Nodes(ctx)
			if err != nil {
				return false, err
			}
			return readyAgain(n.Cluster.Site.NodeOf(n.Host, nodes))
		})
	})
}

func readyAgain(n *kube.Node) (bool, error) {
	switch {
	case n == nil:
		return false, errors.New("its node is not registered")
	case !n.Ready:
		return false, fmt.Errorf("its node is not Ready: %s", n.Reason)
	}
	return true, nil
}
