package lock

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidity(t *testing.T) {
	end := time.Date(2027, 6, 30, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, text string
		want       Validity
	}{
		{"nothing", "", Validity{}},
		{"a serial", "serial: 7\n", Validity{Serial: 7}},
		{"the largest", "serial: 9007199254740991\n", Validity{Serial: MaxSerial}},
		{"clusters", "audience: [lan-1, \"site-*\"]\n", Validity{Audience: []string{"lan-1", "site-*"}}},
		{"an end", "notAfter: 2027-06-30T00:00:00Z\n", Validity{NotAfter: end}},
		{"an end in quotes", "notAfter: \"2027-06-30T00:00:00Z\"\n", Validity{NotAfter: end}},
		{
			"all", "serial: 1\naudience: [\"*\"]\nnotAfter: 2027-06-30T00:00:00Z\n",
			Validity{Serial: 1, Audience: []string{"*"}, NotAfter: end},
		},
	} {
		l, err := Parse("x", []byte(strings.Replace(good, "kind: Lock\n", "kind: Lock\n"+c.text, 1)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, l.Validity); diff != "" || !l.Validity.Equal(c.want) {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		got, err := ParseValidity(l.SerialText(), l.AudienceText(), l.NotAfterText())
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s, read again: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

func TestValidityEqual(t *testing.T) {
	v := Validity{Serial: 1, Audience: []string{"a"}, NotAfter: time.Unix(1, 0)}
	for name, change := range map[string]func(*Validity){
		"serial":   func(v *Validity) { v.Serial++ },
		"audience": func(v *Validity) { v.Audience = []string{"b"} },
		"end":      func(v *Validity) { v.NotAfter = time.Unix(2, 0) },
	} {
		other := v
		if change(&other); v.Equal(other) {
			t.Errorf("another %s is taken for the same", name)
		}
	}
}

func TestParseValidityErrors(t *testing.T) {
	for name, c := range map[string]struct{ serial, audience, notAfter, want string }{
		"serial":         {"0", "", "", `the serial "0" is not a serial`},
		"serial, signed": {"+5", "", "", `the serial "+5" is not a serial`},
		"serial, large":  {"9007199254740992", "", "", "is not a serial"},
		"audience":       {"", "lan-1,,lan-2", "", `the audience "" is not a cluster's name`},
		"audience twice": {"", "lan-1,lan-1", "", `the audience "lan-1" is there twice`},
		"audience, many": {"", strings.Repeat("a,", MaxAudience) + "a", "", "the audience has 65 entries"},
		"end":            {"", "", "tomorrow", `the end "tomorrow" is not a time`},
	} {
		if _, err := ParseValidity(c.serial, c.audience, c.notAfter); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestIsFor(t *testing.T) {
	for _, c := range []struct {
		audience []string
		cluster  string
		want     bool
	}{
		{nil, "lan-1", true},
		{[]string{"lan-1"}, "lan-1", true},
		{[]string{"lan-1"}, "lan-11", false},
		{[]string{"lan-1"}, "xlan-1", false},
		{[]string{"lan-2", "lan-*"}, "lan-1", true},
		{[]string{"*"}, "default", true},
		{[]string{"*-north"}, "site-north", true},
		{[]string{"*-north"}, "site-south", false},
		{[]string{"s*-n*h"}, "site-north", true},
	} {
		if got := (Validity{Audience: c.audience}).IsFor(c.cluster); got != c.want {
			t.Errorf("%v is for %s: got %v", c.audience, c.cluster, got)
		}
	}
}

// TestSetSerial: a serial is written where it belongs, and nothing else changes.
func TestSetSerial(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"none yet", good, strings.Replace(good, "kind: Lock\n", "kind: Lock\nserial: 7\n", 1)},
		{
			"a comment", strings.Replace(good, "kind: Lock\n", "kind: Lock # a lock\n", 1),
			strings.Replace(good, "kind: Lock\n", "kind: Lock # a lock\nserial: 7\n", 1),
		},
		{
			"one that rises", strings.Replace(good, "components:\n", "serial: 6 # the sixth\ncomponents:\n", 1),
			strings.Replace(good, "components:\n", "serial: 7 # the sixth\ncomponents:\n", 1),
		},
		{
			"the same", strings.Replace(good, "components:\n", "serial: 7\ncomponents:\n", 1),
			strings.Replace(good, "components:\n", "serial: 7\ncomponents:\n", 1),
		},
		{
			"CRLF", strings.ReplaceAll(good, "\n", "\r\n"),
			strings.ReplaceAll(strings.Replace(good, "kind: Lock\n", "kind: Lock\nserial: 7\n", 1), "\n", "\r\n"),
		},
		{
			"braces", "{apiVersion: boxlift.dev/v1, kind: Lock, platforms: [linux/amd64], components: {c: {version: " +
				"v1}}}",
			"{apiVersion: boxlift.dev/v1, kind: Lock, serial: 7, platforms: [linux/amd64], components: {c: {version: " +
				"v1}}}",
		},
		{
			"JSON", `{"apiVersion":"boxlift.dev/v1","kind":"Lock","platforms":["linux/amd64"],"components":{"c":{"version":"v1"}}}`,
			`{"apiVersion":"boxlift.dev/v1","kind":"Lock", "serial": ` +
				`7,"platforms":["linux/amd64"],"components":{"c":{"version":"v1"}}}`,
		},
	} {
		d, err := ParseDocument("versions.lock", []byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := d.SetSerial(7); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, string(d.Bytes())); diff != "" || d.Lock().Serial != 7 {
			t.Errorf("%s: serial %d (-want +got):\n%s", c.name, d.Lock().Serial, diff)
		}
		for serial, want := range map[int64]string{
			6:             "set the serial of versions.lock to 6: it is 7, and never gets lower",
			0:             "set the serial of versions.lock: 0 is not a serial",
			MaxSerial + 1: "is not a serial",
		} {
			before := string(d.Bytes())
			if err := d.SetSerial(serial); err == nil || !strings.Contains(err.Error(), want) ||
				string(d.Bytes()) != before {
				t.Errorf("%s: %d: got %v, want %q, and nothing changed", c.name, serial, err, want)
			}
		}
	}
}
