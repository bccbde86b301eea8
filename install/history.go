package install

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/journal"
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

// isKept reports whether a server keeps what it was before it was to get this bundle.
func (o *UpgradeOptions) isKept(ctx context.Context) bool {
	in, err := newInstaller(o.Options)
	if err != nil {
		return false
	}
	defer in.engine.Close()
	return in.upgrader.IsKept(ctx)
}

// FindUnfinished asks the cluster for the run with this bundle and configuration that has begun
// and not ended, for those who have no state of it. When no API answers, the copy of the record
// beside the state is read, if there is one, and then what servers keep. The error wraps
// [site.ErrNothingToResume] when there is none, and [site.ErrChanged] when it was one of something else.
func FindUnfinished(ctx context.Context, o Options) (*run.Unfinished, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	var r *release.Record
	if err = in.engine.ConnectServers(ctx, nil); err == nil {
		r, _, err = run.ReadRecord(ctx, in.site.API)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		return run.UnfinishedOf(r, o.Bundle.Digest(), o.Config.Fingerprint())
	}
	if r, copyErr := release.ReadFile(in.record.RecordCopy()); copyErr == nil {
		if found, err := run.UnfinishedOf(r, o.Bundle.Digest(), o.Config.Fingerprint()); err == nil {
			return found, nil
		}
	}
	if (&UpgradeOptions{Options: o}).isKept(ctx) {
		return &run.Unfinished{Command: run.UpgradeCommand, Verb: journal.Upgrade}, nil
	}
	return nil, fmt.Errorf("%w: %s holds no run that has not ended, and the cluster cannot be asked: %w",
		site.ErrNothingToResume, o.StatePath, err)
}
