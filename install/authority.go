package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/site"
)

// FinishRotation gives up the former root of the site's authority when nothing of the site is under it any more. Hosts
// are only asked: the next install takes the root out of their trust stores. The error wraps [anchors.ErrUsed] when
// something is under it still, [ca.ErrStage] when there is none, and [site.ErrHosts] when a host could not be asked; a
// cluster that does not answer is an error, too.
func FinishRotation(ctx context.Context, o Options) (*ca.Authority, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	authority, err := in.site.Authority()
	switch {
	case err != nil:
		return nil, err
	case authority == nil:
		return nil, fmt.Errorf("%w: install.yaml names no authority (authority.folder)", site.ErrRefused)
	case len(authority.Former()) == 0:
		return nil, authority.Finish() // which says so
	}
	if err := in.anchors.CheckFormer(ctx, authority); err != nil {
		return nil, err
	}
	return authority, authority.Finish()
}
