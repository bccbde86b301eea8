package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/recovery"
)

// Everything that is lost is told, also that there is none of it.
func TestPrintLosses(t *testing.T) {
	l := &recovery.Losses{
		Cluster: "lan-1", Since: time.Now().Add(-time.Hour), Releases: []string{"4 (upgrade, k3s v1.36.4+k3s1, succeeded)"},
		Objects: []string{"Namespace shop", "ConfigMap shop/settings"}, MoreObjects: 7, Sandboxes: []string{"box on a1"},
	}
	var b strings.Builder
	printLosses(&b, l)
	_, told, _ := strings.Cut(b.String(), "ordinary sandboxes have ended for good.\n")
	const want = `  releases since: 4 (upgrade, k3s v1.36.4+k3s1, succeeded)
  nodes that joined: none
  objects that were made: Namespace shop, ConfigMap shop/settings and 7 more
  rows of LiteBoxd's database: none
  sandboxes: box on a1
`
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
