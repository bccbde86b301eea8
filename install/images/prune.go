package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/images"
)

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

// Empty reports whether nothing goes from any host.
func (p *Pruning) Empty() bool {
	goes := func(i images.PruneItem) bool { return i.Remove }
	return !slices.ContainsFunc(p.Hosts, func(h HostPruning) bool { return slices.ContainsFunc(h.Items, goes) })
}

// PruneAll prunes all hosts, or says what would go from them. The hosts keep their errors.
func (im *Importer) PruneAll(ctx context.Context, dropPrevious, remove bool) *Pruning {
	result := &Pruning{Cluster: im.Site.Config.Cluster.Name, DryRun: !remove,
		Hosts: make([]HostPruning, len(im.Site.Hosts))}
	_ = im.Engine.EachHost(ctx, im.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		report, err := im.pruneHost(ctx, h, images.PruneRequest{Version: images.PruneVersion,
			DropPrevious: dropPrevious, Remove: remove})
		result.Hosts[slices.Index(im.Site.Hosts, h)] = HostPruning{
			Current: report.Current, Previous: report.Previous, Bytes: report.Bytes(), Items: report.Items,
			Note: report.Note,
		}
		return err
	})
	for i, h := range im.Site.Hosts {
		one := &result.Hosts[i]
		one.Host, one.Items = h.Name, append([]images.PruneItem{}, one.Items...)
		if h.Err != nil {
			one.Error = h.Err.Error()
		}
	}
	return result
}

// pruneHost prunes one host for a command of its own.
func (im *Importer) pruneHost(
	ctx context.Context, h *site.Host, request images.PruneRequest,
) (images.PruneReport, error) {
	task := im.Site.Reporter.Task("look for old packs on "+h.Name, 0)
	report, err := im.pruneConnected(ctx, h, request)
	task.Done(err)
	return report, err
}

func (im *Importer) pruneConnected(
	ctx context.Context, h *site.Host, request images.PruneRequest,
) (images.PruneReport, error) {
	if err := im.Site.Connect(ctx, h); err != nil {
		return images.PruneReport{}, err
	}
	if err := im.Engine.CheckHelper(ctx, h); err != nil {
		return images.PruneReport{}, err
	}
	if err := im.Engine.Hold(ctx, h); err != nil {
		return images.PruneReport{}, err
	}
	if im.Site.Bundle != nil {
		var err error
		if h.Packs, err = im.Site.PacksFor(h); err != nil {
			return images.PruneReport{}, err
		}
		if request.Release, err = im.release(h); err != nil {
			return images.PruneReport{}, err
		}
	}
	return Prune(ctx, h, request)
}

// release is what the bundle brings to a host.
func (im *Importer) release(h *site.Host) (*images.Needs, error) {
	want, err := im.Seeder.WantedOn(h)
	if err != nil {
		return nil, err
	}
	release := images.NeedsOf(im.Site.Bundle.Digest(), want)
	return &release, nil
}

// Prune asks the helper.
func Prune(ctx context.Context, h *site.Host, request images.PruneRequest) (images.PruneReport, error) {
	document, err := json.Marshal(request)
	if err != nil {
		return images.PruneReport{}, err
	}
	result, err := h.Conn.Run(ctx, machine.Command{
		Title: "look for old packs", Args: []string{site.HelperPath, "prune"}, Root: true,
		Stdin: bytes.NewReader(document),
	})
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == UsageExit {
		return images.PruneReport{}, fmt.Errorf("%w: %s does not know old packs, since it is of an older boxlift: "+
			"install with a bundle that this boxlift built", err, site.HelperPath)
	}
	if err != nil {
		return images.PruneReport{}, site.HelperError(err)
	}
	return images.ParsePruneReport(result.Stdout)
}

// UsageExit is the exit code of the helper for a command that it does not know.
const UsageExit = 2

// RemoveOldPacks records on each host that the bundle is the current release, and removes
// what neither this nor the previous one needs.
//
// The cluster is as it is to be by now. What fails here is told and tried again by the next
// run.
func (im *Importer) RemoveOldPacks(ctx context.Context) {
	if !im.makesRelease() {
		return
	}
	failed := make([]error, len(im.Site.Hosts))
	notes := make([]string, len(im.Site.Hosts))
	im.Site.AtOnce(im.Site.Hosts, func(h *site.Host) {
		i := slices.Index(im.Site.Hosts, h)
		notes[i], failed[i] = im.removeOldPacksFrom(ctx, h)
	})
	if ctx.Err() != nil {
		return
	}
	for i, h := range im.Site.Hosts {
		if notes[i] != "" {
			im.Site.Warn("%s: %s", h.Name, notes[i])
		}
		if failed[i] != nil {
			im.Site.Warn("%s: old packs were not removed: %v; boxlift prune or the next boxlift install does it",
				h.Name, failed[i])
		}
	}
}

// makesRelease reports whether the run makes its bundle the current release. Only the whole of
// an installation on all hosts does: where a part is left out, what it had before may still
// run.
func (im *Importer) makesRelease() bool {
	return im.Engine.Scope == run.Everything && im.Engine.Only == nil &&
		im.Engine.HostErrors() == nil
}

func (im *Importer) removeOldPacksFrom(ctx context.Context, h *site.Host) (note string, err error) {
	request := images.PruneRequest{Version: images.PruneVersion, Current: true}
	if request.Release, err = im.release(h); err != nil {
		return "", err
	}
	report, err := Prune(ctx, h, request)
	if err != nil {
		return "", err
	}
	return report.Note, im.Engine.RunSteps(ctx, "finish", &h.Subject, []run.Step{{
		ID: "remove-old-packs", Title: "remove old packs",
		Needed: func(context.Context) (string, error) { return oldPacksReason(report), nil },
		Run: func(ctx context.Context) error {
			request.Remove = true
			_, err := Prune(ctx, h, request)
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
	parts := fmt.Sprintf("%s, %s and %s", printable.Counted(packs, "pack"), printable.Counted(imported, "image"),
		printable.Counted(files, "file"))
	if data > 0 {
		parts = fmt.Sprintf("%s, %s, %s and %s of k3s' programs",
			printable.Counted(packs, "pack"), printable.Counted(imported, "image"), printable.Counted(files, "file"),
			printable.Counted(data, "folder"))
	}
	return fmt.Sprintf("neither this release nor the previous one needs %s: %s", parts, progress.Bytes(r.Bytes()))
}
