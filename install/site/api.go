package site

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// K3sKubeconfig is where a server writes the administrator's access, for itself.
const K3sKubeconfig = K3sConfigDir + "/k3s.yaml"

// APIThrough makes the API client that goes through a server's SSH connection.
func (s *Site) APIThrough(ctx context.Context, h *Host) (*kube.Cluster, error) {
	kubeconfig, err := h.Read(ctx, K3sKubeconfig)
	if err != nil {
		return nil, err
	}
	if kubeconfig == "" {
		return nil, ErrNoCluster
	}
	return kube.Connect(kube.Options{Name: h.Name, Kubeconfig: []byte(kubeconfig), Dial: h.Conn.DialContext, Log: s.Log,
		Waiting: s.Meter.Wait, Absent: s.unlisted})
}

// ErrNoCluster says that there is no Kubernetes yet.
var ErrNoCluster = fault.NewKind(fault.Input, "no k3s server runs yet")

// AwaitServer waits until a server answers and its node is registered.
func (s *Site) AwaitServer(ctx context.Context, h *Host) error {
	api, err := s.APIThrough(ctx, h)
	if err != nil {
		return fmt.Errorf("reach the API: %w", err)
	}
	return s.Waiting(ctx, "wait for the API on "+h.Name, func(ctx context.Context) error {
		if err := api.WaitReady(ctx); err != nil {
			return err
		}
		return Poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := api.Nodes(ctx)
			if err != nil {
				return false, err
			}
			if s.NodeOf(h, nodes) == nil {
				return false, errors.New("its node is not registered")
			}
			return true, nil
		})
	})
}

// LookTimeout bounds what only looks.
const LookTimeout = 20 * time.Second

// Waiting runs what only waits, no longer than one command may take.
func (s *Site) Waiting(ctx context.Context, what string, wait func(context.Context) error) error {
	return s.WaitingFor(ctx, s.Config.Runtime.CommandTimeout, what, wait)
}

// WaitingFor runs what only waits, no longer than limit.
func (s *Site) WaitingFor(ctx context.Context, limit time.Duration, what string,
	wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("given up after %v", limit))
	defer cancel()
	task := s.Reporter.Task(what, 0)
	err := s.Meter.Wait(func() error { return wait(ctx) })
	task.Done(err)
	return err
}

// Awaits tells people of what is waited for on a host, "" for the cluster as a whole, see [progress.Await].
func (s *Site) Awaits(host string) func(text string) { return progress.Await(s.Reporter, host) }

// Poll asks until it is done, well or not; the error of a wait in vain has the last answer.
func Poll(ctx context.Context, ask func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(PollInterval)
	defer ticker.Stop()
	for {
		done, err := ask(ctx)
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// NodeOf finds a host's node: by its machine-id, else by name, else by address. A node may be
// known under another address than the host. Of machines that were cloned, which have one
// machine-id, the name tells them apart.
func (s *Site) NodeOf(h *Host, nodes []kube.Node) *kube.Node {
	for _, same := range []func(kube.Node) bool{
		func(n kube.Node) bool {
			return h.MachineID != "" && n.MachineID == h.MachineID && n.Name == h.NodeName()
		},
		func(n kube.Node) bool { return h.MachineID != "" && n.MachineID == h.MachineID },
		func(n kube.Node) bool { return n.Name == h.NodeName() },
		func(n kube.Node) bool {
			for _, a := range n.Addresses {
				if a == h.Config.Host || a == h.LanAddress() {
					return true
				}
			}
			return false
		},
	} {
		for i, n := range nodes {
			if same(n) {
				return &nodes[i]
			}
		}
	}
	return nil
}
