package sitetest

import (
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/release"
)

// RecordOf is a record with one release of a bundle of this serial.
func RecordOf(t *testing.T, serial int64) *release.Record {
	t.Helper()
	r := release.New("lan-1")
	one, err := r.Begin(release.Release{
		State: release.Running, Command: "install", Bundle: digest.FromString("another"), Serial: serial,
		Boxlift: "v1", By: "op@laptop", Config: strings.Repeat("a", 64), Components: []release.Component{}, Started: time.Unix(1000, 0),
	}, []byte("a lock"))
	if err != nil {
		t.Fatal(err)
	}
	r.Set(one.Number, release.Succeeded, "", time.Unix(2000, 0))
	return r
}
