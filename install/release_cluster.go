package install

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// History is the record of a cluster's releases; nil when it has none. When the cluster cannot
// be asked, it is the copy beside the state, and the error says why.
func History(ctx context.Context, o Options) (*release.Record, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Plan
	if err = in.engine.ConnectServers(ctx, nil); err == nil {
		var r *release.Record
		if r, _, err = run.ReadRecord(ctx, in.site.API); err == nil {
			return r, nil
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !errors.Is(err, site.ErrHosts) {
		err = fmt.Errorf("%w: read the record of releases: %w", site.ErrCluster, err)
	}
	r, copyErr := release.ReadFile(in.record.RecordCopy())
	return r, errors.Join(err, copyErr)
}
