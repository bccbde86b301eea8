package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node"
)

// HostStatus is what runs on one host, and how it differs from what is wanted.
type HostStatus struct {
	Host    string      `json:"host"`
	Role    config.Role `json:"role"`
	Service string      `json:"service"`
	K3s     string      `json:"k3s,omitempty"`
	// Packs and Images are those of the bundle that the host holds.
	Packs  int `json:"packs"`
	Images int `json:"images"`
	// PackBytes is the room that packs take on the disk, those of other bundles included.
	PackBytes int64 `json:"packBytes"`
	// Differences is empty when the host is as it is to be.
	Differences []string `json:"differences,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// Status compares all hosts with the bundle and changes nothing on them. The error is
// [ErrDifferent] when a host differs, and wraps [ErrHosts] when one cannot be looked at;
// the result is complete in both cases.
func Status(ctx context.Context, o Options) ([]HostStatus, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.close()
	result := make([]HostStatus, len(in.hosts))
	index := make(map[*host]int)
	for i, h := range in.hosts {
		index[h] = i
		result[i] = HostStatus{Host: h.name, Role: h.config.Role}
	}
	_ = in.eachHost(ctx, in.hosts, func(ctx context.Context, h *host) error { return in.look(ctx, h, &result[index[h]]) })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	different := false
	for i, h := range in.hosts {
		if h.err != nil {
			result[i].Error = h.err.Error()
		}
		different = different || len(result[i].Differences) > 0
	}
	if err := in.hostErrors(); err != nil {
		return result, err
	}
	if different {
		return result, ErrDifferent
	}
	return result, nil
}

func (in *installer) look(ctx context.Context, h *host, s *HostStatus) error {
	if err := in.connect(ctx, h); err != nil {
		return err
	}
	var err error
	if h.packs, err = in.Bundle.Packs(h.platform); err != nil {
		return err
	}
	differ := func(format string, args ...any) { s.Differences = append(s.Differences, fmt.Sprintf(format, args...)) }
	service := unit(h.config.Role)
	state, err := h.serviceState(ctx, service)
	if err != nil {
		return err
	}
	s.Service = orUnknown(state["ActiveState"])
	if state["LoadState"] == "not-found" {
		s.Service = "not installed"
	}
	if s.Service != "active" {
		differ("the service %s is %s", service, s.Service)
	}
	digests, err := h.digests(ctx, helperPath, k3sBinary)
	if err != nil {
		return err
	}
	if digests[k3sBinary] == "" {
		differ("k3s is not installed")
	} else if err := in.lookAtK3s(ctx, h, s, differ); err != nil {
		return err
	}
	if digests[helperPath] == "" {
		differ("boxlift-node is not on the host")
		return nil
	}
	if err := h.gatherFacts(ctx); err != nil {
		return err
	}
	for _, p := range h.facts.Packs {
		s.PackBytes += p.Size
	}
	for _, p := range h.packs {
		if slices.ContainsFunc(h.facts.Packs, func(held node.Pack) bool { return held.Name == packName(p) }) {
			s.Packs++
		} else {
			differ("the pack %s is missing", packName(p))
		}
	}
	return nil
}

func (in *installer) lookAtK3s(ctx context.Context, h *host, s *HostStatus, differ func(string, ...any)) error {
	var err error
	if s.K3s, err = h.k3sVersion(ctx); err != nil {
		return err
	}
	if s.K3s != in.k3s {
		differ("k3s is %s, the bundle carries %s", s.K3s, in.k3s)
	}
	if s.Service != "active" {
		return nil
	}
	missing, err := h.missingImages(ctx)
	if err != nil {
		return err
	}
	for _, p := range h.packs {
		s.Images += len(p.Images)
	}
	s.Images -= len(missing)
	if len(missing) > 0 {
		differ("images are missing in containerd: %s", strings.Join(missing, ", "))
	}
	return nil
}
