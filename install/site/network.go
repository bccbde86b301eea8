package site

import (
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
)

const (
	// CiliumComponent is the component of a lock that has Cilium's chart.
	CiliumComponent = "cilium"
	// MaxChart bounds a chart archive in bytes; Cilium's has some 230 kB.
	MaxChart = 8 << 20
)

// NamesDigests tells whether a version of k3s names imported images by digest too (k3s
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

func (s *Site) CiliumCLIFile(h *Host) (bundle.File, bool) {
	_, arch, _ := strings.Cut(string(h.Platform), "/")
	return s.Contents.File(CiliumComponent, CiliumCLIArchive+arch+".tar.gz", h.Platform)
}
