package lock

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/strictyaml"
)

// Validity is what a lock says of the order, the place and the time in which bundles of it are to
// be used. The zero value says nothing.
type Validity struct {
	// Serial rises when what the lock pins changes, from 1 to MaxSerial; 0 is a lock without one.
	Serial int64 `json:"serial,omitempty"`
	// Audience are the clusters that bundles are for, by their names in install.yaml, in which *
	// stands for any characters. Nil is for all.
	Audience []string `json:"audience,omitempty"`
	// NotAfter is until when bundles are meant to be used, in UTC and whole seconds; the zero time
	// is no end.
	NotAfter time.Time `json:"notAfter,omitzero"`
}

const (
	// MaxSerial is the largest serial: every program that reads JSON has it exactly.
	MaxSerial = 1<<53 - 1
	// MaxAudience is how many clusters or patterns an audience may have.
	MaxAudience = 64
)

// IsFor reports whether bundles are for the cluster of that name.
func (v Validity) IsFor(cluster string) bool {
	return v.Audience == nil || slices.ContainsFunc(v.Audience, func(pattern string) bool {
		matched, err := path.Match(pattern, cluster)
		return err == nil && matched
	})
}

// Equal reports whether both say the same.
func (v Validity) Equal(other Validity) bool {
	return v.Serial == other.Serial && slices.Equal(v.Audience, other.Audience) && v.NotAfter.Equal(other.NotAfter)
}

// clone shares nothing with v.
func (v Validity) clone() Validity {
	v.Audience = slices.Clone(v.Audience)
	return v
}

// SerialText is the serial in decimal digits, "" for none.
func (v Validity) SerialText() string {
	if v.Serial == 0 {
		return ""
	}
	return strconv.FormatInt(v.Serial, 10)
}

// AudienceText is the audience with commas between, "" for all clusters.
func (v Validity) AudienceText() string { return strings.Join(v.Audience, ",") }

// NotAfterText is the end in RFC 3339, "" for none.
func (v Validity) NotAfterText() string {
	if v.NotAfter.IsZero() {
		return ""
	}
	return v.NotAfter.Format(time.RFC3339)
}

// ParseValidity reads what SerialText, AudienceText and NotAfterText write, as strictly as a lock
// is read.
func ParseValidity(serial, audience, notAfter string) (Validity, error) {
	var v Validity
	for _, one := range []struct {
		what, text string
		check      check
	}{{"serial", serial, checkSerial}, {"end", notAfter, checkNotAfter}} {
		if reason := one.check(one.text); one.text != "" && reason != "" {
			return v, fmt.Errorf("the %s %.80q %s", one.what, one.text, reason)
		}
	}
	v.Serial, _ = strconv.ParseInt(serial, 10, 64)
	v.NotAfter, _ = time.Parse(time.RFC3339, notAfter)
	if audience == "" {
		return v, nil
	}
	if n := strings.Count(audience, ",") + 1; n > MaxAudience {
		return v, fmt.Errorf("the audience has %d entries: expected %d at most", n, MaxAudience)
	}
	v.Audience = strings.Split(audience, ",")
	for i, pattern := range v.Audience {
		if reason := checkPattern(pattern); reason != "" {
			return v, fmt.Errorf("the audience %.80q %s", pattern, reason)
		}
		if slices.Contains(v.Audience[:i], pattern) {
			return v, fmt.Errorf("the audience %q is there twice: expected it once", pattern)
		}
	}
	return v, nil
}

// clusterPattern matches the names of clusters, with * in them.
var clusterPattern = lazyregexp.New(`^[a-z0-9*]([a-z0-9*-]{0,61}[a-z0-9*])?$`)

func checkPattern(s string) string {
	return matches(clusterPattern, "is not a cluster's name: expected lower-case letters, digits and hyphens, "+
		"with * for any of them, 63 at most")(s)
}

func checkSerial(s string) string {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > MaxSerial || strconv.FormatInt(n, 10) != s {
		return fmt.Sprintf("is not a serial: expected a whole number from 1 to %d in decimal digits", int64(MaxSerial))
	}
	return ""
}

func checkNotAfter(s string) string {
	// Parse also takes forms that RFC 3339 does not have, and other time zones.
	if t, err := time.Parse(time.RFC3339, s); err != nil || t.UTC().Format(time.RFC3339) != s || t.IsZero() {
		return "is not a time: expected one in UTC and whole seconds, for example 2027-06-30T00:00:00Z"
	}
	return ""
}

// validity are the fields of a lock that say when and where its bundles are to be used.
func (r *reader) validity(v *Validity) []field {
	return []field{
		{"serial", optional, r.serial(&v.Serial)},
		{"audience", optional, r.audience(&v.Audience)},
		{"notAfter", optional, r.notAfter(&v.NotAfter)},
	}
}

func (r *reader) serial(dst *int64) func(value) {
	return func(v value) {
		serial, ok := strictyaml.Int(v.YAML.Value, 1, MaxSerial)
		if v.Kind() != strictyaml.Integer || !ok {
			r.failf(v, "%s: expected a whole number from 1 to %d in decimal digits, without quotes", found(v),
				int64(MaxSerial))
			return
		}
		*dst = serial
	}
}

func (r *reader) audience(dst *[]string) func(value) {
	return func(v value) {
		if n := v.Len(); v.Kind() == strictyaml.List && n > MaxAudience {
			r.failf(v, "has %d items: expected %d at most", n, MaxAudience)
			return
		}
		seen := make(map[string]int)
		r.some(v, func(v value) {
			var pattern string
			text(r, &pattern, checkPattern)(v)
			r.once(v, seen, pattern)
			*dst = append(*dst, pattern)
		})
	}
}

// notAfter returns a function that reads a time, which YAML need not take for a text.
func (r *reader) notAfter(dst *time.Time) func(value) {
	return func(v value) {
		if v.Kind() == strictyaml.Date {
			v = asText(v)
		}
		var s string
		if text(r, &s, checkNotAfter)(v); s != "" {
			*dst, _ = time.Parse(time.RFC3339, s) // it was checked
		}
	}
}

// SetSerial gives the lock a serial, at least as high as the one that it has.
func (d *Document) SetSerial(serial int64) error {
	if reason := checkSerial(strconv.FormatInt(serial, 10)); reason != "" {
		return fmt.Errorf("set the serial of %s: %d %s", d.name, serial, reason)
	}
	if serial < d.lock.Serial {
		return fmt.Errorf("set the serial of %s to %d: it is %d, and never gets lower", d.name, serial, d.lock.Serial)
	}
	wanted := d.lock.withoutLines()
	wanted.Serial = serial
	number := strconv.FormatInt(serial, 10)
	var e edit
	switch old, kind := lookup(d.root, "serial"), lookup(d.root, "kind"); {
	case old != nil:
		e = edit{d.offset(old), d.end(old), number}
	case d.root.Style&yaml.FlowStyle != 0:
		at := d.end(kind)
		e = edit{at, at, ", " + quoteLike(d.rootKey("kind")) + ": " + number}
	default:
		at := d.lineEnd(d.end(kind))
		e = edit{at, at, newline(d.root.Column-1) + "serial: " + number}
	}
	return d.change("set the serial of", wanted, []edit{e})
}

// quoteLike is the key serial, in quotes where another key is, so that JSON stays JSON.
func quoteLike(key *yaml.Node) string {
	if key.Style&yaml.DoubleQuotedStyle != 0 {
		return `"serial"`
	}
	return "serial"
}
