package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/images"
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

// Pruning is what was removed from the hosts of a cluster, or would be.
type Pruning struct {
	Cluster string        `json:"cluster"`
	DryRun  bool          `json:"dryRun,omitempty"`
	Hosts   []HostPruning `json:"hosts"`
}

// HostPruning is what was removed from one host, or would be, and what stays.
type HostPruning struct {
	Host string `json:"host"`
	// Current and Previous are the digests of the bundles of the recorded releases.
	Current  digest.Digest `json:"current,omitempty"`
	Previous digest.Digest `json:"previous,omitempty"`
	// Bytes is the room of what goes.
	Bytes int64              `json:"bytes"`
	Items []images.PruneItem `json:"items"`
	Note  string             `json:"note,omitempty"`
	Error string             `json:"error,omitempty"`
}

// Bytes is the room of all that goes.
func (p *Pruning) Bytes() int64 {
	var sum int64
	for _, h := range p.Hosts {
		sum += h.Bytes
	}
	return sum
}

// Empty tells whether nothing goes from any host.
func (p *Pruning) Empty() bool {
	goes := func(i images.PruneItem) bool { return i.Remove }
	return !slices.ContainsFunc(p.Hosts, func(h HostPruning) bool { return slices.ContainsFunc(h.Items, goes) })
}

// Prune removes from all hosts what neither the current release nor the previous one needs.
// A host that fails keeps the others from nothing; the error then wraps [ErrHosts], and the
// result is complete.
//
// While an installation is not finished, its packs are not yet recorded as those of a
// release: then [Prune] refuses to work without a bundle.
func Prune(ctx context.Context, o PruneOptions) (*Pruning, error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	var last journal.State
	if o.DryRun {
		in.engine.mode = plan
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
		return nil, fmt.Errorf("%w: boxlift %s with the bundle %s (%s) was not finished: go on with boxlift resume, or give that bundle, so that what it brought stays",
			ErrRefused, last.Command, short(last.Bundle), last.BundleFile)
	}
	return in.importer.pruneAll(ctx, o.DropPrevious)
}

// pruneAll prunes all hosts.
func (im *Importer) pruneAll(ctx context.Context, dropPrevious bool) (*Pruning, error) {
	result := &Pruning{Cluster: im.site.Config.Cluster.Name, DryRun: !im.engine.changing(), Hosts: make([]HostPruning, len(im.site.hosts))}
	_ = im.engine.eachHost(ctx, im.site.hosts, func(ctx context.Context, h *host) error {
		report, err := im.pruneHost(ctx, h, dropPrevious)
		result.Hosts[slices.Index(im.site.hosts, h)] = HostPruning{
			Current: report.Current, Previous: report.Previous, Bytes: report.Bytes(), Items: report.Items, Note: report.Note,
		}
		return err
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for i, h := range im.site.hosts {
		one := &result.Hosts[i]
		one.Host, one.Items = h.name, append([]images.PruneItem{}, one.Items...)
		if h.err != nil {
			one.Error = h.err.Error()
		}
	}
	return result, im.engine.hostErrors()
}

// pruneHost prunes one host for a command of its own.
func (im *Importer) pruneHost(ctx context.Context, h *host, dropPrevious bool) (images.PruneReport, error) {
	task := im.site.Reporter.Task("look for old packs on "+h.name, 0)
	report, err := im.pruneConnected(ctx, h, dropPrevious)
	task.Done(err)
	return report, err
}

func (im *Importer) pruneConnected(ctx context.Context, h *host, dropPrevious bool) (images.PruneReport, error) {
	if err := im.site.connect(ctx, h); err != nil {
		return images.PruneReport{}, err
	}
	if err := im.engine.checkHelper(ctx, h); err != nil {
		return images.PruneReport{}, err
	}
	if im.engine.changing() {
		if err := im.engine.hold(ctx, h); err != nil {
			return images.PruneReport{}, err
		}
	}
	request := images.PruneRequest{Version: images.PruneVersion, DropPrevious: dropPrevious, Remove: im.engine.changing()}
	if im.site.Bundle != nil {
		var err error
		if h.packs, err = im.site.packsFor(h); err != nil {
			return images.PruneReport{}, err
		}
		if request.Release, err = im.release(h); err != nil {
			return images.PruneReport{}, err
		}
	}
	return prune(ctx, h, request)
}

// checkHelper makes sure that the helper is there: this command puts nothing on hosts.
func (en *Engine) checkHelper(ctx context.Context, h *host) error {
	_, err := h.root(ctx, "look for boxlift-node", "test", "-x", helperPath)
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == 1 {
		return errNoHelper
	}
	return err
}

var errNoHelper = errors.New("there is no " + helperPath + ": boxlift install brings it")

// release is what the bundle brings to a host.
func (im *Importer) release(h *host) (*images.Release, error) {
	want, err := im.seeder.wantedOn(h)
	if err != nil {
		return nil, err
	}
	release := images.ReleaseOf(im.site.Bundle.Digest(), want)
	return &release, nil
}

// prune asks the helper.
func prune(ctx context.Context, h *host, request images.PruneRequest) (images.PruneReport, error) {
	document, err := json.Marshal(request)
	if err != nil {
		return images.PruneReport{}, err
	}
	result, err := h.conn.Run(ctx, machine.Command{
		Title: "look for old packs", Args: []string{helperPath, "prune"}, Root: true, Stdin: bytes.NewReader(document),
	})
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == usageExit {
		return images.PruneReport{}, fmt.Errorf("%w: %s does not know old packs, since it is of an older boxlift: install with a bundle that this boxlift built", err, helperPath)
	}
	if err != nil {
		return images.PruneReport{}, helperError(err)
	}
	return images.ParsePruneReport(result.Stdout)
}

// usageExit is the exit code of the helper for a command that it does not know.
const usageExit = 2

// removeOldPacks records on each host that the bundle is the current release, and removes
// what neither this nor the previous one needs.
//
// The cluster is as it is to be by now. What fails here is told and tried again by the next
// run.
func (im *Importer) removeOldPacks(ctx context.Context) {
	if !im.makesRelease() {
		return
	}
	failed := make([]error, len(im.site.hosts))
	notes := make([]string, len(im.site.hosts))
	im.site.atOnce(im.site.hosts, func(h *host) {
		i := slices.Index(im.site.hosts, h)
		notes[i], failed[i] = im.removeOldPacksFrom(ctx, h)
	})
	if ctx.Err() != nil {
		return
	}
	for i, h := range im.site.hosts {
		if notes[i] != "" {
			im.site.warn("%s: %s", h.name, notes[i])
		}
		if failed[i] != nil {
			im.site.warn("%s: old packs were not removed: %v; boxlift prune or the next boxlift install does it", h.name, failed[i])
		}
	}
}

// makesRelease tells whether the run makes its bundle the current release. Only the whole of
// an installation on all hosts does: where a part is left out, what it had before may still
// run.
func (im *Importer) makesRelease() bool {
	return im.engine.changing() && im.engine.Scope == Everything && im.engine.Only == nil && im.engine.hostErrors() == nil
}

func (im *Importer) removeOldPacksFrom(ctx context.Context, h *host) (note string, err error) {
	request := images.PruneRequest{Version: images.PruneVersion, Current: true}
	if request.Release, err = im.release(h); err != nil {
		return "", err
	}
	report, err := prune(ctx, h, request)
	if err != nil {
		return "", err
	}
	return report.Note, im.engine.runSteps(ctx, "finish", &h.subject, []step{{
		title:  "remove old packs",
		needed: func(context.Context) (string, error) { return oldPacksReason(report), nil },
		run: func(ctx context.Context) error {
			request.Remove = true
			_, err := prune(ctx, h, request)
			return err
		},
	}})
}

// oldPacksReason sums up what goes, or is "".
func oldPacksReason(r images.PruneReport) string {
	packs, imported, files := r.Count(images.PrunePack), r.Count(images.PruneImage), r.Count(images.PruneFile)
	data := r.Count(images.PruneData)
	if packs+imported+files+data == 0 {
		return ""
	}
	parts := fmt.Sprintf("%s, %s and %s", counted(packs, "pack"), counted(imported, "image"), counted(files, "file"))
	if data > 0 {
		parts = fmt.Sprintf("%s, %s, %s and %s of k3s' programs",
			counted(packs, "pack"), counted(imported, "image"), counted(files, "file"), counted(data, "folder"))
	}
	return fmt.Sprintf("neither this release nor the previous one needs %s: %s", parts, progress.Bytes(r.Bytes()))
}
