// Package images makes the images in the containerd of every host complete, as its packs promise, safe from the
// kubelet, and removes what no release needs any more.
package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/images"
)

// Importer makes the images on hosts complete, and removes old ones.
type Importer struct {
	Site   *site.Site
	Engine *run.Engine
	Seeder *seed.Seeder
}

// Images proves that every host runs k3s in the wanted version with all images of the
// bundle, complete and safe from the kubelet. k3s itself only logs an image that it could
// not import.
func (im *Importer) Images(ctx context.Context) error {
	return im.Engine.EachHost(ctx, im.Site.Hosts, im.ImagesOn)
}

// ImagesOn proves that a host runs k3s in the wanted version with all images of the bundle.
func (im *Importer) ImagesOn(ctx context.Context, h *site.Host) error {
	known := true // whether there is more to see
	steps := im.ImagesSteps(h)
	complete := &steps[len(steps)-1]
	look := complete.Needed
	complete.Needed = func(ctx context.Context) (string, error) {
		if !known {
			return "", nil
		}
		return look(ctx)
	}
	version := run.Step{
		ID: "find-version", Proves: true,
		Needed: func(ctx context.Context) (difference string, err error) {
			if known, err = im.lookAtService(ctx, h); err != nil || !known {
				return "", err
			}
			if h.K3s, err = h.K3sVersion(ctx); err != nil || h.K3s == im.Site.K3s {
				return "", err
			}
			known = false
			return fmt.Sprintf("k3s is %s, the bundle carries %s", h.K3s, im.Site.K3s), nil
		},
		Run: func(ctx context.Context) (err error) {
			if h.K3s, err = h.K3sVersion(ctx); err == nil && h.K3s != im.Site.K3s {
				err = fmt.Errorf("%s is version %s, the bundle carries %s", site.K3sBinary, h.K3s, im.Site.K3s)
			}
			return err
		},
	}
	return im.Engine.RunSteps(ctx, "images", &h.Subject, append([]run.Step{version}, steps...))
}

// lookAtService looks at a host's k3s, and reports whether there is more to see.
func (im *Importer) lookAtService(ctx context.Context, h *site.Host) (bool, error) {
	state, err := machine.FindService(ctx, h.Conn, site.Unit(h.Config.Role))
	if err != nil {
		return false, err
	}
	h.Service = site.OrUnknown(state.Active)
	if state.Load == "not-found" {
		h.Service = "not installed"
	}
	digest, err := k3s.BinaryDigest(ctx, h)
	return digest != "" && h.Service == "active" && h.Facts != nil, err
}

// ImagesSteps wait until k3s on a host has imported what it is importing, and complete the images.
func (im *Importer) ImagesSteps(h *site.Host) []run.Step {
	var found *images.Report // when it was waited for
	complete := im.ImagesStep(h)
	look := complete.Needed
	complete.Needed = func(ctx context.Context) (string, error) {
		if found != nil {
			return imagesReason(*found), nil
		}
		return look(ctx)
	}
	return []run.Step{
		{
			ID: "await-import", Proves: true,
			Run: func(ctx context.Context) error {
				report, err := im.awaitContainerd(ctx, h)
				found = &report
				return err
			},
		},
		complete,
	}
}

// ImagesStep makes sure that containerd holds every image that the packs promise, with
// all its content, and that the kubelet leaves them alone.
func (im *Importer) ImagesStep(h *site.Host) run.Step {
	return run.Step{
		ID: "complete-images", Title: "make the images in containerd complete",
		Needed: func(ctx context.Context) (string, error) {
			report, err := im.askContainerd(ctx, h)
			if err != nil {
				return "", err
			}
			return imagesReason(report), nil
		},
		Run: func(ctx context.Context) error {
			report, err := im.awaitContainerd(ctx, h, "--repair", "--pin")
			if err != nil {
				return err
			}
			if reason := imagesReason(report); reason != "" {
				return fault.WithHint(errors.New("k3s runs, but "+reason), "see `journalctl -u "+
					site.Unit(h.Config.Role)+
					" | grep import` on the host, then restart the service, which imports again")
			}
			return nil
		},
	}
}

// awaitContainerd lets the helper compare containerd with the packs, when k3s has
// imported what it is importing. It waits for containerd itself not as long, which k3s starts before anything else.
func (im *Importer) awaitContainerd(ctx context.Context, h *site.Host, flags ...string) (images.Report, error) {
	report, err := im.askContainerd(ctx, h, flags...)
	if err != nil || report.Pending == "" {
		return report, err
	}
	start := time.Now()
	waited := im.Site.Waiting(ctx, "wait for k3s to import its images on "+h.Name, func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			report, err = im.askContainerd(ctx, h, flags...)
			switch {
			case err != nil || report.Pending == "":
				return true, nil
			case len(report.Problems) == 0 && time.Since(start) > containerdTime:
				err = fmt.Errorf("check the images in containerd: %s, %v after it was first asked", report.Pending,
					containerdTime)
				return true, nil
			}
			return false, errors.New(report.Pending)
		})
	})
	return report, cmp.Or(waited, err)
}

// containerdTime is how long containerd may take to answer once k3s runs.
const containerdTime = 3 * time.Minute

// askContainerd lets the helper compare containerd with the packs, as it is now.
// Where the packs of two releases disagree, those of the run's bundle are right.
func (im *Importer) askContainerd(ctx context.Context, h *site.Host, flags ...string) (images.Report, error) {
	var report images.Report
	args := append([]string{site.HelperPath, "check", "--containerd"}, flags...)
	for _, p := range h.Packs {
		args = append(args, "--current", site.PackName(p))
	}
	// What a registry of somebody else's gives for a name may have another digest: one that does not take
	// indexes of platforms that it lacks gets reduced ones.
	if im.Site.PackOptions(h).Boot && im.Site.Config.Seeding.Mode == config.SeedRegistry {
		for _, image := range im.Site.Contents.Images {
			if !strings.Contains(image.Name, "@") {
				args = append(args, "--image", image.Name+"@"+image.Digest.String())
			}
		}
	}
	if site.NamesDigests(im.Site.K3s) {
		args = append(args, "--digests")
	}
	out, err := h.Root(ctx, "check the images in containerd", args...)
	if err != nil {
		return report, err
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return report, fmt.Errorf("check the images in containerd: the answer of boxlift-node cannot be read: %w", err)
	}
	return report, nil
}

// imagesReason sums up what is wrong with the images of a host.
func imagesReason(r images.Report) string {
	switch {
	case r.OK:
		return ""
	case r.Pending != "":
		return printable.Clip(printable.Text(r.Pending), 300)
	}
	if len(r.Problems) == 0 {
		return "boxlift-node says that they are not complete, and not why"
	}
	const shown = 3
	texts := make([]string, 0, shown)
	for _, p := range r.Problems[:min(len(r.Problems), shown)] {
		texts = append(texts, printable.Clip(printable.Text(p.Text), 300))
	}
	more := ""
	if n := len(r.Problems) - shown; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return strings.Join(texts, "; ") + more
}
