package install

import (
	"context"
	"fmt"
	"strings"
)

// verify proves on every host that k3s runs in the wanted version with all images that
// the bundle promises. k3s itself only logs an image that it could not import.
func (in *installer) verify(ctx context.Context) error {
	if in.DryRun {
		return nil
	}
	return in.eachHost(ctx, in.hosts, func(ctx context.Context, h *host) error {
		version, err := h.k3sVersion(ctx)
		if err != nil {
			return err
		}
		if version != in.k3s {
			return fmt.Errorf("%s is version %s, the bundle carries %s", k3sBinary, version, in.k3s)
		}
		h.k3s = version
		missing, err := h.missingImages(ctx)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return &imagesError{missing: missing, service: unit(h.config.Role)}
		}
		return nil
	})
}

// k3sVersion reads the second word of "k3s version v1.36.4+k3s1 (...)".
func (h *host) k3sVersion(ctx context.Context) (string, error) {
	out, err := h.root(ctx, "ask k3s for its version", k3sBinary, "--version")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[0] != "k3s" || fields[1] != "version" {
		return "", fmt.Errorf("ask k3s for its version: it printed %.200q", out)
	}
	return clip(printable(fields[2]), 100), nil
}

// missingImages compares the names in containerd with those of the packs.
func (h *host) missingImages(ctx context.Context) ([]string, error) {
	out, err := h.root(ctx, "list the images of containerd", k3sBinary, "ctr", "-n", "k8s.io", "images", "ls", "-q")
	if err != nil {
		return nil, err
	}
	have := make(map[string]bool)
	for name := range strings.Lines(string(out)) {
		have[strings.TrimSpace(name)] = true
	}
	var missing []string
	for _, p := range h.packs {
		for _, name := range p.Images {
			if !have[name] {
				missing = append(missing, name)
			}
		}
	}
	return missing, nil
}

// imagesError says which images k3s did not import.
type imagesError struct {
	missing []string
	service string
}

func (e *imagesError) Error() string {
	return fmt.Sprintf("k3s runs, but %d images are not in containerd: %s", len(e.missing), strings.Join(e.missing, ", "))
}

func (e *imagesError) Hint() string {
	return "see `journalctl -u " + e.service + " | grep import` on the host, then restart the service, which imports again"
}
