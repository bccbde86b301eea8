package gate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// version is a version of semver.org's form, with or without the v, and with the revision
// that k3s puts behind it (v1.36.4+k3s1).
type version struct {
	major, minor, patch int
	pre                 string // what follows the hyphen
	revision            int    // N of +k3sN, else 0
	text                string // as it was written
}

var versionPattern = lazyregexp.New(`^v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z.-]{1,100}))?(?:\+([0-9A-Za-z.-]{1,100}))?$`)

func parseVersion(text string) (version, error) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return version{}, fmt.Errorf("%.100q is not a version such as v1.36.4+k3s1", text)
	}
	v := version{pre: m[4], text: text}
	for i, to := range []*int{&v.major, &v.minor, &v.patch} {
		*to, _ = strconv.Atoi(m[i+1]) // nine digits fit
	}
	if revision, ok := strings.CutPrefix(m[5], "k3s"); ok {
		v.revision, _ = strconv.Atoi(revision) // another suffix has no order
	}
	return v, nil
}

// compare is negative when v is older than w. Of one version k3s' revisions have an order,
// too.
func (v version) compare(w version) int {
	for _, pair := range [][2]int{{v.major, w.major}, {v.minor, w.minor}, {v.patch, w.patch}} {
		if pair[0] != pair[1] {
			return pair[0] - pair[1]
		}
	}
	if c := comparePre(v.pre, w.pre); c != 0 {
		return c
	}
	return v.revision - w.revision
}

// comparePre orders what follows the hyphen (semver.org, section 11). A version without
// comes after all that have one.
func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		if c := compareIdentifiers(as[i], bs[i]); c != 0 {
			return c
		}
	}
	return len(as) - len(bs)
}

func compareIdentifiers(a, b string) int {
	x, xErr := strconv.ParseUint(a, 10, 63)
	y, yErr := strconv.ParseUint(b, 10, 63)
	switch {
	case xErr == nil && yErr == nil && x < y:
		return -1
	case xErr == nil && yErr == nil && x > y:
		return 1
	case xErr == nil && yErr == nil:
		return 0
	case xErr == nil: // numbers come first
		return -1
	case yErr == nil:
		return 1
	}
	return strings.Compare(a, b)
}

// minors is how many minor versions w is ahead of v; of another major version it is as good
// as any number.
func (v version) minors(w version) int {
	return (w.major-v.major)*1000 + w.minor - v.minor
}

// SameMinor reports whether two versions of Kubernetes or k3s have the same minor version. What
// is no version has the same as nothing.
func SameMinor(a, b string) bool {
	v, err := parseVersion(a)
	if err != nil {
		return false
	}
	w, err := parseVersion(b)
	return err == nil && v.minors(w) == 0
}

// Older reports whether version a comes before b. What is no version is not older.
func Older(a, b string) bool {
	v, err := parseVersion(a)
	if err != nil {
		return false
	}
	w, err := parseVersion(b)
	return err == nil && v.compare(w) < 0
}

// series is the minor version, such as 1.36.
func (v version) series() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var boundPattern = lazyregexp.New(`^(>=|<=|>|<|=)?v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:-([0-9A-Za-z.-]{1,100}))?$`)

// inRange reports whether a version is in a range of a lock, such as ">=1.19.0 <1.21.0". Parts
// that a bound leaves out are 0, but without a comparison or with =, "1.19" means all of 1.19.
// What is before a release counts as that release: 1.20.0-rc.1 is in the range of 1.20.0's.
// Nothing is in what is no range.
func inRange(v version, text string) bool {
	for bound := range strings.FieldsSeq(text) {
		m := boundPattern.FindStringSubmatch(bound)
		if m == nil {
			return false
		}
		b := version{pre: m[5]}
		given := 0
		for i, to := range []*int{&b.major, &b.minor, &b.patch} {
			if m[i+2] != "" {
				*to, _ = strconv.Atoi(m[i+2])
				given++
			}
		}
		if !v.within(m[1], b, given) {
			return false
		}
	}
	return true
}

// within compares with one bound, of which so many numbers were given.
func (v version) within(operator string, bound version, given int) bool {
	v.revision = 0 // no range names one
	if bound.pre == "" {
		v.pre = ""
	}
	if operator == "" || operator == "=" {
		switch given {
		case 1:
			v.minor, v.patch = 0, 0
		case 2:
			v.patch = 0
		}
	}
	c := v.compare(bound)
	switch operator {
	case ">=":
		return c >= 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	case "<":
		return c < 0
	}
	return c == 0
}
