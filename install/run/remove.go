package run

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/site"
)

// RemoveCommand is what the state calls a removal.
const RemoveCommand = "node remove"

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
	if !en.Changing() {
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
			return fmt.Errorf("%w: %s: %w", site.ErrHosts, h.Name, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			en.Site.Warn("%s: another boxlift that works there at the same time is not kept away: %v", h.Name, err)
		}
	}
	return nil
}

// ErrLastServer says that a cluster would be left without servers.
var ErrLastServer = fmt.Errorf("%w: the last server is never removed: with it the cluster would be gone", site.ErrRefused)
