package upstream

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// ciliumCLIVersion is the form of cilium-cli's versions, and ciliumCLISum what follows the name of
// an archive in that of its checksum.
var ciliumCLIVersion = lazyregexp.New(`^v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}$`)

const ciliumCLISum = ".sha256sum"

// forms say how the projects number their releases.
var forms = map[string]struct {
	pattern *lazyregexp.Regexp
	example string
}{
	K3s: {lazyregexp.New(`^v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(-[0-9A-Za-z.-]{1,32})?\+k3s[0-9]{1,6}$`),
		"v1.36.4+k3s1"},
	Cilium: {lazyregexp.New(`^[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(-[0-9A-Za-z.-]{1,32})?$`),
		"1.20.0, without a v"},
	LiteBoxd: {lazyregexp.New(`^v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(-[0-9A-Za-z.-]{1,32})?$`), "v0.6.10"},
}

var versionPattern = lazyregexp.New(`^v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(-[^+]*)?(?:\+k3s([0-9]{1,6}))?$`)

// version is one that matches a form.
type version struct {
	major, minor, patch int
	candidate           bool // a release candidate or the like
	build               int  // of k3s; 0 for others
}

func parseVersion(s string) (v version, ok bool) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return v, false
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(s) // digits, or "", which is 0
		return n
	}
	return version{number(m[1]), number(m[2]), number(m[3]), m[4] != "", number(m[5])}, true
}

// newerPatch reports whether v is a finished release of the same minor version as old, and
// a later one.
func (v version) newerPatch(old version) bool {
	if v.candidate || v.major != old.major || v.minor != old.minor {
		return false
	}
	finished := func(v version) int {
		if v.candidate {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(v.patch, old.patch), cmp.Compare(finished(v), finished(old)),
		cmp.Compare(v.build, old.build)) > 0
}

// newest returns the newest patch among the versions of a component; "" when there is
// none.
func newest(name, current string, versions []string) string {
	best, ok := parseVersion(current)
	if !ok {
		return ""
	}
	found := ""
	for _, candidate := range versions {
		v, ok := parseVersion(candidate)
		if ok && Check(name, candidate) == nil && v.newerPatch(best) {
			best, found = v, candidate
		}
	}
	return found
}

// UpgradesFrom says which versions may be upgraded to one: nil when nothing is known.
//
// Kubernetes and Cilium move by one minor version at a time. LiteBoxd migrates its
// database at start, from any earlier version, and never back.
func UpgradesFrom(name, current string) []string {
	v, ok := parseVersion(current)
	if !ok {
		return nil
	}
	switch name {
	case K3s, Cilium:
		return []string{fmt.Sprintf(">=%d.%d.0 <%d.%d.0", v.major, max(v.minor-1, 0), v.major, v.minor+1)}
	case LiteBoxd:
		return []string{fmt.Sprintf("<=%d.%d.%d", v.major, v.minor, v.patch)}
	}
	return nil
}
