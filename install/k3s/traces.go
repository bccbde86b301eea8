package k3s

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
)

// LookAtK3s finds out which part the host has in a cluster already.
func LookAtK3s(ctx context.Context, h *site.Host) error {
	content, err := h.Read(ctx, site.K3sConfigFile)
	if err != nil {
		return err
	}
	takeConfig(h, content)
	out, err := h.Root(ctx, "look for a cluster", append([]string{"/bin/sh", "-c", lookScript, "sh"}, lookedFor...)...)
	if err != nil {
		return err
	}
	if err := takeSeen(h, string(out)); err != nil {
		return err
	}
	return lookAtResolvers(ctx, h)
}

// takeConfig notes what k3s' config.yaml says of the host's part. What cannot be read is as good as not there: it is
// written anew.
func takeConfig(h *site.Host, content string) {
	var c struct {
		Server     string `yaml:"server"`
		Encryption any    `yaml:"secrets-encryption"`
	}
	if err := outsideyaml.Unmarshal([]byte(content), &c); err == nil {
		h.Joined = printable.Short(c.Server, 300)
		h.AtRest.Set = IsSet(c.Encryption)
	}
}

// takeSeen notes what lookScript has printed.
func takeSeen(h *site.Host, out string) error {
	var missing []string
	for line := range strings.Lines(out) {
		switch what, name, _ := strings.Cut(strings.TrimSpace(line), " "); what {
		case "member":
			h.Member, h.AtRest.Begun = true, true
		case "data":
			h.AtRest.Begun = true
		case "key":
			h.AtRest.HasKey = true
		case "own":
			h.Own = true
		case "unit":
			h.ForeignUnit = printable.Short(name, 30)
		case "restoring":
			h.AwaitsRestore = true
		case "cache":
			h.Differences = append(h.Differences, importCache+" is there: with it, k3s forgets at a restart which "+
				"images must not be deleted (k3s before July 2026); remove the file")
		case "setting":
			if h.ForeignUnit != "" && !h.Own {
				continue // its owner's
			}
			h.Differences = append(h.Differences, printable.Short(name, 300)+" is there: k3s takes its settings over "+
				"those of install.yaml; write them there (serverConfig, agentConfig or the host's k3s.config), and "+
				"remove the file")
		case "missing":
			missing = append(missing, printable.Short(name, 30))
		}
	}
	h.Foreign = !h.Own && h.ForeignUnit != ""
	if len(missing) > 0 {
		return fmt.Errorf("the host has no %s; needed: the usual commands of coreutils, tar and systemd; install "+
			"them from the distribution's own packages", strings.Join(missing, ", "))
	}
	return nil
}

// importCache makes k3s import only what changed, if it is there (see the traps of k3s
// issue 14265). boxlift never creates it.
const importCache = site.K3sDataDir + "/agent/images/.cache.json"

// lookedFor are the files that lookScript looks for.
var lookedFor = []string{
	site.K3sNodeToken, importCache, run.RestoringFile, site.K3sConfigDropIns, K3sDatabases, site.K3sEncryptionKey,
	site.K3sTokenFile, site.ServiceFile, site.UnitDir + "k3s.service", site.UnitDir + "k3s-agent.service",
}

// lookScript prints what a host has, and which of the commands that boxlift and k3s'
// install.sh run it does not have.
const lookScript = `[ ! -s "$1" ] || echo member
[ ! -e "$2" ] || echo cache
[ ! -e "$3" ] || echo restoring
[ ! -e "$5" ] || echo data
[ ! -s "$6" ] || echo key
[ ! -e "$7" ] && [ ! -e "$8" ] || echo own
for f in "$9" "${10}"; do [ ! -e "$f" ] || { u="${f##*/}" && echo "unit ${u%.service}"; }; done
for f in "$4"/*.yaml; do [ ! -e "$f" ] || echo "setting $f"; done
for c in cat chmod chown cp cut find grep mkdir mktemp mv rm sed sha256sum sort stat sync tar tee uname systemctl journalctl; do
    command -v "$c" >/dev/null 2>&1 || echo "missing $c"
done`

// lookAtResolvers finds out whether k3s would find nameservers on the host: in the first
// of these files in which all are addresses of other hosts (k3s v1.34).
func lookAtResolvers(ctx context.Context, h *site.Host) error {
	h.Resolverless = true
	for _, name := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		content, err := h.Read(ctx, name)
		if err != nil {
			return err
		}
		if usableResolvers(content) {
			h.Resolverless = false
		}
	}
	return nil
}

// usableResolvers reports whether a resolv.conf names nameservers, and none that is of use
// on the host alone.
func usableResolvers(content string) bool {
	usable := false
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		if err != nil || !address.IsGlobalUnicast() {
			return false
		}
		usable = true
	}
	return usable
}
