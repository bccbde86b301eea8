package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/supportbundle"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/redact"
)

// examinationTimeout bounds what doctor, and what status takes for a support bundle.
const examinationTimeout = 15 * time.Minute

// maxConfigFile is how much of install.yaml gets into a support bundle, in bytes.
const maxConfigFile = 4 << 20

// SupportOptions say what a support bundle is to have. A Bundle is not needed: with one, what [Inspect] finds is in it.
type SupportOptions struct {
	Options
	supportbundle.Settings
	// Path is the file to write; one that is there is replaced.
	Path string
	// Created is when collecting began.
	Created time.Time
	// NoHealth leaves out what [Observe] sees, with all checks of health: alone of all they make something, a few pods.
	NoHealth bool
	// About is what this boxlift says of itself.
	About any
}

// CollectSupport writes a support bundle: what somebody elsewhere needs to see of a cluster, without secrets. It only
// looks. The error wraps [site.ErrHosts] or [supportbundle.ErrUnreached] when a host or the API could not be reached;
// the file is written and the index is there all the same.
func CollectSupport(ctx context.Context, o SupportOptions) (*archive.Index, error) {
	bundle := o.Bundle
	o.Bundle = nil // only status has a use for it, and one that does not fit must not be in the way of all else
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	folder := filepath.Dir(o.Path)
	draft, err := os.CreateTemp(folder, ".boxlift-support-*.part")
	if err != nil {
		return nil, supportFile(o.Path, err)
	}
	defer os.Remove(draft.Name()) //nolint:errcheck // it has another name by then, or is left for the next to see
	defer draft.Close()           //nolint:errcheck // it was closed before if it is to stay
	var secrets []string
	for _, s := range o.Config.Secrets() {
		secrets = append(secrets, s.Reveal())
	}
	a := archive.NewWriter(draft, redact.New(secrets...), archive.Index{
		Cluster: o.Config.Cluster.Name, Created: o.Created, Boxlift: o.Version, Since: o.Since,
	}, folder)
	collector := &supportbundle.Collector{Site: in.site, Engine: in.engine, Settings: o.Settings}
	if err := in.operatorSupport(ctx, a, o); err != nil {
		return nil, supportFile(o.Path, err)
	}
	unreached := collector.Collect(ctx, a)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if unreached != nil && !errors.Is(unreached, site.ErrHosts) && !errors.Is(unreached, supportbundle.ErrUnreached) {
		return nil, supportFile(o.Path, unreached)
	}
	withBundle := o.Options
	withBundle.Bundle = bundle
	err = errors.Join(addObservation(ctx, a, o), addStatus(ctx, a, withBundle))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, supportFile(o.Path, err)
	}
	index, err := a.Close()
	if err == nil {
		err = errors.Join(draft.Sync(), ownfile.Rename(draft, o.Path), draft.Close(), volume.SyncDirectory(folder))
	}
	if err != nil {
		return nil, supportFile(o.Path, err)
	}
	return index, unreached
}

func supportFile(path string, err error) error {
	return fault.WithHint(fmt.Errorf("write the support bundle %s: %w", path, err),
		"--output names another place; it takes room for the largest item besides the archive")
}

// operatorSupport adds what there is on this machine.
func (in *installation) operatorSupport(ctx context.Context, a *archive.Writer, o SupportOptions) error {
	item := func(name, source string) archive.Item { return archive.Item{Path: "operator/" + name, Source: source} }
	return errors.Join(
		a.AddJSON(ctx, item("boxlift.json", "boxlift version -o json"),
			func(context.Context) (any, error) { return o.About, nil }),
		a.Add(ctx, item("install.yaml", o.ConfigPath), maxConfigFile,
			func(_ context.Context, w io.Writer) (archive.Cut, error) {
				content, err := boundedfile.Read(o.ConfigPath, maxConfigFile)
				if errors.Is(err, os.ErrNotExist) {
					err = archive.ErrAbsent
				}
				_, writeErr := w.Write(content)
				return archive.Whole, errors.Join(err, writeErr)
			}),
		a.AddJSON(ctx, item("state.json", o.StatePath), func(context.Context) (any, error) {
			state, err := journal.Read(o.StatePath)
			if err == nil && state.Version == 0 {
				err = archive.ErrAbsent
			}
			if err != nil {
				return nil, err
			}
			return state, nil
		}),
		a.AddJSON(ctx, item("releases.json", in.record.RecordCopy()), func(context.Context) (any, error) {
			r, err := release.ReadFile(in.record.RecordCopy())
			if err == nil && r == nil {
				err = archive.ErrAbsent
			}
			if err != nil {
				return nil, err
			}
			return supportbundle.ReleasesOf(r), nil
		}),
	)
}

// addObservation adds what doctor judges.
func addObservation(ctx context.Context, a *archive.Writer, o SupportOptions) error {
	return a.AddJSON(ctx, archive.Item{Path: archive.Observation, Source: "boxlift doctor --save"},
		func(ctx context.Context) (any, error) {
			if o.NoHealth {
				return nil, archive.ErrAbsent
			}
			ctx, cancel := context.WithTimeoutCause(ctx, examinationTimeout,
				fmt.Errorf("given up after %v", examinationTimeout))
			defer cancel()
			seen, err := Observe(ctx, o.Options)
			if seen == nil {
				return nil, err
			}
			return seen, nil // what is wrong is in it
		})
}

// addStatus adds what status says, if there is a bundle.
func addStatus(ctx context.Context, a *archive.Writer, o Options) error {
	return a.AddJSON(ctx, archive.Item{Path: "status.json", Source: "boxlift status -o json"},
		func(ctx context.Context) (any, error) {
			if o.Bundle == nil {
				return nil, archive.ErrAbsent
			}
			ctx, cancel := context.WithTimeoutCause(ctx, examinationTimeout,
				fmt.Errorf("given up after %v", examinationTimeout))
			defer cancel()
			status, err := Inspect(ctx, o)
			if status == nil {
				return nil, err
			}
			return status, nil // what differs is in it
		})
}
