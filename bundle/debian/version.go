package debian

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// versionPattern is what a version may look like: an epoch, digits and letters with . + - ~ among them. Policy asks
// for a digit at the beginning, which some packages lack.
var versionPattern = lazyregexp.New(`^([0-9]{1,9}:)?[A-Za-z0-9][A-Za-z0-9.+~-]{0,255}$`)

// CheckVersion refuses what is no version of a package.
func CheckVersion(s string) error {
	if !versionPattern.MatchString(s) {
		return fmt.Errorf("%q is not a version of a package", s)
	}
	return nil
}

// Compare tells which of two versions is older: it is negative when a is, positive when b is, and 0 when they count
// as the same (Policy 5.6.12).
func Compare(a, b string) int {
	epochA, restA := cutEpoch(a)
	epochB, restB := cutEpoch(b)
	upstreamA, revisionA := cutRevision(restA)
	upstreamB, revisionB := cutRevision(restB)
	return cmp.Or(compareNumbers(epochA, epochB), compareParts(upstreamA, upstreamB),
		compareParts(revisionA, revisionB))
}

func cutEpoch(v string) (epoch, rest string) {
	if epoch, rest, ok := strings.Cut(v, ":"); ok {
		return epoch, rest
	}
	return "0", v
}

// cutRevision cuts the Debian revision off; one that is not there counts as 0.
func cutRevision(v string) (upstream, revision string) {
	if at := strings.LastIndexByte(v, '-'); at >= 0 {
		return v[:at], v[at+1:]
	}
	return v, "0"
}

// compareParts compares what is no number and what is one in turn.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		var textA, textB, numberA, numberB string
		textA, a = cutWhile(a, false)
		textB, b = cutWhile(b, false)
		if c := compareTexts(textA, textB); c != 0 {
			return c
		}
		numberA, a = cutWhile(a, true)
		numberB, b = cutWhile(b, true)
		if c := compareNumbers(numberA, numberB); c != 0 {
			return c
		}
	}
	return 0
}

// cutWhile cuts off the digits at the beginning, or all before the first digit.
func cutWhile(s string, digits bool) (part, rest string) {
	at := strings.IndexFunc(s, func(r rune) bool { return ('0' <= r && r <= '9') != digits })
	if at < 0 {
		at = len(s)
	}
	return s[:at], s[at:]
}

// compareTexts has a tilde before the end, the end before letters, and letters before all else.
func compareTexts(a, b string) int {
	for i := range max(len(a), len(b)) {
		if c := cmp.Compare(order(a, i), order(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

func order(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case 'a' <= s[i] && s[i] <= 'z' || 'A' <= s[i] && s[i] <= 'Z':
		return int(s[i])
	}
	return int(s[i]) + 256
}

// compareNumbers compares digits of any length; none of them are 0.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
