package run

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
)

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
		if h.Conn == nil || !h.Member || h.Facts != nil && h.Facts.Unit(site.Unit(config.Server)+".service").ActiveState != "active" {
			continue
		}
		ctx, cancel := context.WithTimeoutCause(ctx, site.LookTimeout, fmt.Errorf("given up after %v", site.LookTimeout))
		api, err := en.Site.APIThrough(ctx, h)
		if err == nil {
			_, err = api.Nodes(ctx)
		}
		cancel()
		if err == nil {
			return api, h, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", h.Name, err))
	}
	return nil, nil, errors.Join(errs...)
}
