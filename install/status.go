package install

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/node/images"
)

// Status is how a cluster compares with install.yaml and a bundle.
type Status struct {
	Cluster string       `json:"cluster"`
	Bundle  string       `json:"bundle"`
	Hosts   []HostStatus `json:"hosts"`
	// Release is the cluster's newest, nil when it has no record of any.
	Release *release.Release `json:"release,omitempty"`
	// Differences are those of the cluster as a whole.
	Differences []string  `json:"differences,omitempty"`
	Overview    *Overview `json:"overview,omitempty"`
}

// HostStatus is what runs on one host, and how it differs from what is wanted.
type HostStatus struct {
	Host    string      `json:"host"`
	Role    config.Role `json:"role"`
	Service string      `json:"service"`
	K3s     string      `json:"k3s,omitempty"`
	// Node is the name of the host's node in the cluster.
	Node string `json:"node,omitempty"`
	// Packs are those of the bundle that the host holds, Images how many images the bundle
	// has for it.
	Packs  int `json:"packs"`
	Images int `json:"images"`
	// PackBytes is the room that packs take on the disk, those of other bundles included.
	PackBytes int64 `json:"packBytes"`
	// Disk is nil when the helper of the bundle is not on the host.
	Disk *images.DiskUse `json:"disk,omitempty"`
	// Differences is empty when the host is as it is to be.
	Differences []string `json:"differences,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// Inspect compares a cluster with what it is to be and changes nothing. It goes through
// the same steps as [Install] and asks each whether it is needed. The error is
// [ErrDifferent] when something differs, and wraps [ErrHosts] when a host cannot be looked
// at; the result is complete in both cases.
func Inspect(ctx context.Context, o Options) (*Status, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = inspect
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.run(ctx, in.installation())
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return in.inspector.status(ctx, err)
}

// status sums up what a look at everything, which ended with err, has found.
func (ins *Inspector) status(ctx context.Context, err error) (*Status, error) {
	disks := ins.measureDisks(ctx)
	s := &Status{Cluster: ins.site.Config.Cluster.Name, Bundle: ins.site.Bundle.Digest().String(), Overview: ins.site.overview}
	different := false
	for i, h := range ins.site.hosts {
		one := statusOf(h)
		one.Disk = disks[i]
		different = different || len(one.Differences) > 0
		s.Hosts = append(s.Hosts, one)
	}
	s.Differences = append(differencesOf(ins.engine.cluster.changes), ins.site.differences...)
	var unrecorded []string
	s.Release, unrecorded = ins.compareRecord(ctx)
	s.Differences = append(append(s.Differences, unrecorded...), ins.site.warnings...)
	different = different || len(s.Differences) > 0
	if err == nil && different {
		err = ErrDifferent
	}
	return s, err
}

// measureDisks finds out how full the hosts are, in their order. A host of which that
// cannot be found out differs from nothing because of it.
func (ins *Inspector) measureDisks(ctx context.Context) []*images.DiskUse {
	disks := make([]*images.DiskUse, len(ins.site.hosts))
	ins.site.atOnce(ins.site.hosts, func(h *host) {
		if h.facts == nil { // it has another helper, or none
			return
		}
		out, err := h.root(ctx, "measure the disk", helperPath, "disk")
		var use images.DiskUse
		if err == nil {
			use, err = images.ParseDiskUse(out)
		}
		if err != nil {
			ins.site.Reporter.Message(fmt.Sprintf("%s: the use of its disk is unknown: %v", h.name, err))
			return
		}
		disks[slices.Index(ins.site.hosts, h)] = &use
	})
	return disks
}

// differencesOf turns steps that are needed into what differs.
func differencesOf(changes []Change) []string {
	var texts []string
	for _, c := range changes {
		texts = append(texts, fmt.Sprintf("%s; boxlift install would %s", c.Reason, c.Title))
	}
	return texts
}

func statusOf(h *host) HostStatus {
	s := HostStatus{
		Host: h.name, Role: h.config.Role, Service: orUnknown(h.service), K3s: h.k3s, Node: h.node,
		Images: h.images, Differences: append(differencesOf(h.changes), h.differences...),
	}
	if h.facts != nil {
		for _, p := range h.facts.Packs {
			s.PackBytes += p.Size
			for _, wanted := range h.packs {
				if p.Name == packName(wanted) {
					s.Packs++
				}
			}
		}
	}
	if h.err != nil && !errors.Is(h.err, ErrDifferent) {
		s.Error = h.err.Error()
	}
	return s
}
