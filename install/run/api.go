package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/install/site"
)

// ReachAPI connects to the API through the first of the servers that answers. Only when none
// does, it waits for them: one whose k3s is down must not hold up the others. A run that
// changes nothing may find that there is none yet.
func (en *Engine) ReachAPI(ctx context.Context, servers []*site.Host) error {
	limits := []time.Duration{site.LookTimeout}
	if en.Changing() {
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
			if errors.Is(err, site.ErrNoCluster) && !en.Changing() {
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
