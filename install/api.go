package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/install/kube"
)

// k3sKubeconfig is where a server writes the administrator's access, for itself.
const k3sKubeconfig = k3sConfigDir + "/k3s.yaml"

// apiThrough makes the API client that goes through a server's SSH connection.
func (s *Site) apiThrough(ctx context.Context, h *host) (*kube.Cluster, error) {
	kubeconfig, err := h.read(ctx, k3sKubeconfig)
	if err != nil {
		return nil, err
	}
	if kubeconfig == "" {
		return nil, errNoCluster
	}
	return kube.Connect(kube.Options{Name: h.name, Kubeconfig: []byte(kubeconfig), Dial: h.conn.DialContext, Log: s.Log, Waiting: s.meter.wait, Absent: s.unlisted})
}

// errNoCluster says that there is no Kubernetes yet.
var errNoCluster = errors.New("no k3s server runs yet")

// awaitServer waits until a server answers and its node is registered.
func (s *Site) awaitServer(ctx context.Context, h *host) error {
	api, err := s.apiThrough(ctx, h)
	if err != nil {
		return fmt.Errorf("reach the API: %w", err)
	}
	return s.waiting(ctx, "wait for the API on "+h.name, func(ctx context.Context) error {
		if err := api.WaitReady(ctx); err != nil {
			return err
		}
		return poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := api.Nodes(ctx)
			if err != nil {
				return false, err
			}
			if s.nodeOf(h, nodes) == nil {
				return false, errors.New("its node is not registered")
			}
			return true, nil
		})
	})
}

// reachAPI connects to the API through the first of the servers that answers. Only when none
// does, it waits for them: one whose k3s is down must not hold up the others. A run that
// changes nothing may find that there is none yet.
func (en *Engine) reachAPI(ctx context.Context, servers []*host) error {
	limits := []time.Duration{lookTimeout}
	if en.changing() {
		limits = append(limits, en.site.Config.Runtime.CommandTimeout)
	}
	var errs []error
	for _, limit := range limits {
		errs = nil
		for _, h := range servers {
			if h.err != nil || h.conn == nil {
				continue
			}
			api, err := en.site.apiThrough(ctx, h)
			if errors.Is(err, errNoCluster) && !en.changing() {
				continue
			}
			if err == nil {
				err = en.site.waitingFor(ctx, limit, "wait for the API on "+h.name, api.WaitReady)
			}
			if err == nil {
				en.site.api, en.site.apiServer = api, h
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: reach the API: %w", h.name, err))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// lookTimeout bounds what only looks.
const lookTimeout = 20 * time.Second

// waiting runs what only waits, no longer than one command may take.
func (s *Site) waiting(ctx context.Context, what string, wait func(context.Context) error) error {
	return s.waitingFor(ctx, s.Config.Runtime.CommandTimeout, what, wait)
}

func (s *Site) waitingFor(ctx context.Context, limit time.Duration, what string, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("given up after %v", limit))
	defer cancel()
	task := s.Reporter.Task(what, 0)
	err := s.meter.wait(func() error { return wait(ctx) })
	task.Done(err)
	return err
}

// poll asks until it is done; the error of a wait in vain has the last answer.
func poll(ctx context.Context, ask func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		done, err := ask(ctx)
		if done && err == nil {
			return nil
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

// nodeOf finds a host's node: by its machine-id, else by name, else by address. A node may be
// known under another address than the host. Of machines that were cloned, which have one
// machine-id, the name tells them apart.
func (s *Site) nodeOf(h *host, nodes []kube.Node) *kube.Node {
	for _, same := range []func(kube.Node) bool{
		func(n kube.Node) bool {
			return h.machineID != "" && n.MachineID == h.machineID && n.Name == h.nodeName()
		},
		func(n kube.Node) bool { return h.machineID != "" && n.MachineID == h.machineID },
		func(n kube.Node) bool { return n.Name == h.nodeName() },
		func(n kube.Node) bool {
			for _, a := range n.Addresses {
				if a == h.config.Host || a == h.lanAddress() {
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
