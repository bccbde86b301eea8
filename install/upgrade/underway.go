package upgrade

import (
	"context"
	"sync/atomic"

	"github.com/liteboxd/boxlift/install/site"
)

// IsKept reports whether a server keeps what it was before it was to get this bundle.
func (u *Upgrader) IsKept(ctx context.Context) bool {
	var found atomic.Bool
	_ = u.Engine.EachHost(ctx, u.Site.Servers(), func(ctx context.Context, h *site.Host) error { // what cannot be read says nothing
		if err := u.Site.Connect(ctx, h); err != nil {
			return err
		}
		k, err := readKept(ctx, h)
		if err == nil && k != nil && k.Bundle == u.Site.Bundle.Digest() {
			found.Store(true)
		}
		return err
	})
	return found.Load()
}
