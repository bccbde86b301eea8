package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ReachAPI connects to the API through the first of the servers that answers. Only when none
// does, it waits for them: one whose k3s is down must not hold up the others. A run that
// changes nothing may find that there is none yet.
func (en *Engine) ReachAPI(ctx context.Context, servers []*site.Host) error {
	limits := []time.Duration{site.LookTimeout}
	if en.acts {
		limits = append(limits, en.Site.Config.Runtime.CommandTimeout)
	}
	var errs []error
	for _, limit := range limits {
		errs = nil
		for _, h := range servers {
			if h.Err != nil || h.Conn == nil {
				continue
			}
			api, err := en.Site.APIThrough(ctx, h)
			if errors.Is(err, site.ErrNoCluster) && !en.acts {
				continue
			}
			if err == nil {
				err = en.Site.WaitingFor(ctx, limit, "wait for the API on "+h.Name, api.WaitReady)
			}
			if err == nil {
				en.Site.API, en.Site.APIServer = api, h
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: reach the API: %w", h.Name, err))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// ConnectServers connects to the servers that can be reached, and to the API through one
// of them: if possible not one that leaves, whose API ends with its node.
func (en *Engine) ConnectServers(ctx context.Context, leaving []string) error {
	_ = en.EachHost(ctx, en.Site.Servers(), en.Site.Connect)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var reasons []error
	for _, h := range en.Site.Servers() {
		if h.Err != nil {
			reasons = append(reasons, h.Err)
			// A server that is down may be the very one that is to be removed.
			h.Err = nil
		}
	}
	if err := en.holdServers(ctx); err != nil {
		return err
	}
	var stay, leave []*site.Host
	for _, h := range en.Site.Servers() {
		if slices.ContainsFunc(leaving, func(name string) bool {
			return site.IsCalled(h.Config, name) || name == h.NodeName()
		}) {
			leave = append(leave, h)
		} else {
			stay = append(stay, h)
		}
	}
	if err := en.ReachAPI(ctx, append(stay, leave...)); err != nil {
		return errors.Join(append(reasons, err)...)
	}
	if en.Site.API == nil {
		return errors.Join(append(reasons, fmt.Errorf("%w: %w", site.ErrHosts, site.ErrNoCluster))...)
	}
	return nil
}

// holdServers keeps other runs away from the cluster. Without a bundle there is only the
// helper that is on a server already.
func (en *Engine) holdServers(ctx context.Context) error {
	if !en.acts {
		return nil
	}
	for _, h := range en.Site.Servers() {
		if h.Conn == nil {
			continue
		}
		err := en.Hold(ctx, h)
		var busy *BusyError
		switch {
		case errors.As(err, &busy):
			return fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(err, h.Name))
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			en.Site.Warn("%s: another boxlift that works there at the same time is not kept away: %v", h.Name, err)
		}
	}
	return nil
}

// Registered are the nodes of the cluster, from the first server that tells them. There are none
// while no server runs.
func (en *Engine) Registered(ctx context.Context) ([]kube.Node, error) {
	api, _, err := en.Answering(ctx)
	if api == nil {
		return nil, err
	}
	return api.Nodes(ctx)
}

// Answering is the API through the first server that runs and answers. There is none while no server runs.
func (en *Engine) Answering(ctx context.Context) (*kube.Cluster, *site.Host, error) {
	var errs []error
	for _, h := range en.Site.Servers() {
		if h.Conn == nil || !h.Member || h.Facts != nil && h.Facts.Unit(site.Unit(config.Server)+
			".service").ActiveState != "active" {
			continue
		}
		ctx, cancel := context.WithTimeoutCause(ctx, site.LookTimeout,
			fmt.Errorf("given up after %v", site.LookTimeout))
		api, err := en.Site.APIThrough(ctx, h)
		if err == nil {
			_, err = api.Nodes(ctx)
		}
		cancel()
		if err == nil {
			return api, h, nil
		}
		errs = append(errs, fault.OnHost(err, h.Name))
	}
	return nil, nil, errors.Join(errs...)
}
