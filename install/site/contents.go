package site

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/wire"
)

// PacksFor are the packs that a host has to hold.
func (s *Site) PacksFor(h *Host) ([]bundle.Pack, error) {
	return s.Bundle.Packs(h.Platform, s.PackOptions(h))
}

// PackOptions say which packs a host has to hold: agents may have only what they need to
// start.
func (s *Site) PackOptions(h *Host) bundle.PackOptions {
	return bundle.PackOptions{Boot: h.Config.Role == config.Agent && s.Config.Seeding.Agents == config.AgentsBoot}
}

// CarriedRegistries are the registries whose images the bundle has, sorted.
func (s *Site) CarriedRegistries() []string {
	names := make(map[string]bool)
	for _, image := range s.Contents.Images {
		registry, _, _ := strings.Cut(image.Name, "/")
		names[registry] = true
	}
	return slices.Sorted(maps.Keys(names))
}

const (
	// CiliumComponent is the component of a lock that has Cilium's chart.
	CiliumComponent = "cilium"
	// MaxChart bounds a chart archive in bytes; Cilium's has some 230 kB.
	MaxChart = 8 << 20
)

// NamesDigests reports whether a version of k3s names imported images by digest too (k3s
// pull request 13221: v1.32.11, v1.33.7, v1.34.3, and all from v1.35.0 on).
func NamesDigests(k3s string) bool {
	var minor, patch int
	if n, _ := fmt.Sscanf(k3s, "v1.%d.%d", &minor, &patch); n != 2 {
		return false
	}
	since, ok := map[int]int{32: 11, 33: 7, 34: 3}[minor]
	return minor >= 35 || ok && patch >= since
}

// CiliumCLI is where the cilium command lies on the first server, and the prefix of the
// name of its archive (releases of cilium-cli).
const (
	CiliumCLI        = "/usr/local/bin/cilium"
	CiliumCLIArchive = "cilium-linux-"
)

// CiliumCLIFile is the archive with the cilium command for a host, if the bundle carries one.
func (s *Site) CiliumCLIFile(h *Host) (bundle.File, bool) {
	_, arch, _ := strings.Cut(string(h.Platform), "/")
	return s.Contents.File(CiliumComponent, CiliumCLIArchive+arch+".tar.gz", h.Platform)
}

// ReadFile reads a small file of the bundle, proven by its digest.
func (s *Site) ReadFile(f bundle.File, most int64) ([]byte, error) {
	if f.Size > most {
		return nil, fmt.Errorf("%w: the bundle's %s has %d bytes, %d is the most", ErrConfig, f.Name, f.Size, most)
	}
	content, err := s.Bundle.Content(f.Digest, f.Size)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(content)
}

// Login is the first user of LiteBoxd.
type Login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

const (
	// K3sComponent is the component of a lock that has k3s; the others are its files.
	K3sComponent = "k3s"
	// K3sProgram is k3s itself, InstallScript its install.sh.
	K3sProgram = "k3s"
	// InstallScript sets up its service.
	InstallScript = "install.sh"
)

// PackName is the name of a pack's file on hosts.
func PackName(p bundle.Pack) string { return wire.PackName(p.Component, p.Index) }

// StoredPath is where a file of the bundle lies on a host. The digest in the name lets
// files of several bundles lie beside each other.
func StoredPath(f bundle.File) string {
	return wire.FilesDir + "/files/" + f.Name + "-" + f.Digest.Encoded()[:12]
}

// K3sFile finds one of k3s' files for a host.
func (s *Site) K3sFile(name string, platform lock.Platform) (bundle.File, error) {
	f, ok := s.Contents.File(K3sComponent, name, platform)
	if !ok {
		return bundle.File{}, fmt.Errorf("the bundle's component %s has no file %s for %s: add it to the lock",
			K3sComponent, name, platform)
	}
	return f, nil
}
