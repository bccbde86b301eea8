package install

import (
	"context"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
)

// PruneOptions say what [Prune] removes. Without Options.Bundle what is recorded on the
// hosts decides; with it, all that the bundle brings stays as well. Options.DryRun only
// says what would go.
type PruneOptions struct {
	Options
	// DropPrevious keeps nothing for the previous release, which is then gone for going
	// back to.
	DropPrevious bool
}

// Prune removes from all hosts what neither the current release nor the previous one needs.
// A host that fails keeps the others from nothing; the error then wraps [site.ErrHosts], and the
// result is complete.
//
// While an installation is not finished, its packs are not yet recorded as those of a
// release: then [Prune] refuses to work without a bundle.
func Prune(ctx context.Context, o PruneOptions) (*images.Pruning, error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	var last journal.State
	if o.DryRun {
		last, err = journal.Read(o.StatePath)
	} else {
		// It is not noted as a run: an installation that was broken off can be gone on with.
		var j *journal.Journal
		if j, err = journal.Open(o.StatePath); err == nil {
			defer j.Close() //nolint:errcheck // it only holds a lock
			last = j.State()
		}
	}
	if err != nil {
		return nil, err
	}
	if o.Bundle == nil && last.Unfinished() && last.Bundle != "" {
		return nil, fmt.Errorf("%w: boxlift %s with the bundle %s (%s) was not finished: go on with boxlift resume, "+
			"or give that bundle, so that what it brought stays",
			site.ErrRefused, last.Command, site.Short(last.Bundle), last.BundleFile)
	}
	started := time.Now()
	in.engine.Command = "prune"
	apply := in.engine.Apply
	if o.DryRun {
		apply = in.engine.Look
	}
	var pruning *images.Pruning
	err = apply(ctx, in.prunePhases(o, &pruning))
	if ctx.Err() != nil {
		return nil, err
	}
	if pruning != nil && !o.DryRun && !pruning.Empty() {
		in.record.Note(ctx, started, progress.Bytes(pruning.Bytes())+" were freed", err)
	}
	in.tellWarnings()
	return pruning, err
}
