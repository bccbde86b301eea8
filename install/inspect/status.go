package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
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
	Differences []string       `json:"differences,omitempty"`
	Overview    *site.Overview `json:"overview,omitempty"`
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

// Status sums up what a look at everything, which ended with err, has found.
func (ins *Inspector) Status(ctx context.Context, err error) (*Status, error) {
	disks := ins.measureDisks(ctx)
	s := &Status{Cluster: ins.Site.Config.Cluster.Name, Bundle: ins.Site.Bundle.Digest().String(),
		Overview: ins.Site.Overview}
	different := false
	for i, h := range ins.Site.Hosts {
		one := statusOf(h)
		one.Disk = disks[i]
		different = different || len(one.Differences) > 0
		s.Hosts = append(s.Hosts, one)
	}
	s.Differences = append(differencesOf(ins.Engine.Cluster.Changes), ins.Engine.Cluster.Differences...)
	var unrecorded []string
	s.Release, unrecorded = ins.compareRecord(ctx)
	s.Differences = append(append(s.Differences, unrecorded...), ins.Site.Warnings...)
	different = different || len(s.Differences) > 0
	if err == nil && different {
		err = site.ErrDifferent
	}
	return s, err
}

// measureDisks finds out how full the hosts are, in their order. A host of which that
// cannot be found out differs from nothing because of it.
func (ins *Inspector) measureDisks(ctx context.Context) []*images.DiskUse {
	disks := make([]*images.DiskUse, len(ins.Site.Hosts))
	ins.Site.AtOnce(ins.Site.Hosts, func(h *site.Host) {
		if h.Facts == nil { // it has another helper, or none
			return
		}
		out, err := h.Root(ctx, "measure the disk", site.HelperPath, "disk")
		var use images.DiskUse
		if err == nil {
			use, err = images.ParseDiskUse(out)
		}
		if err != nil {
			ins.Site.Reporter.Message(fmt.Sprintf("%s: the use of its disk is unknown: %v", h.Name, err))
			return
		}
		disks[slices.Index(ins.Site.Hosts, h)] = &use
	})
	return disks
}

// differencesOf turns steps that are needed into what differs.
func differencesOf(changes []site.Change) []string {
	var texts []string
	for _, c := range changes {
		texts = append(texts, fmt.Sprintf("%s; boxlift install would %s", c.Reason, c.Title))
	}
	return texts
}

func statusOf(h *site.Host) HostStatus {
	s := HostStatus{
		Host: h.Name, Role: h.Config.Role, Service: site.OrUnknown(h.Service), K3s: h.K3s, Node: h.Node,
		Images: h.Images, Differences: append(differencesOf(h.Changes), h.Differences...),
	}
	if h.Facts != nil {
		for _, p := range h.Facts.Packs {
			s.PackBytes += p.Size
			for _, wanted := range h.Packs {
				if p.Name == site.PackName(wanted) {
					s.Packs++
				}
			}
		}
	}
	if h.Err != nil && !errors.Is(h.Err, site.ErrDifferent) {
		s.Error = h.Err.Error()
	}
	return s
}
