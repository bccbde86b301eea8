//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A renewal and a run of boxlift keep each other away, and who comes second says who works on the host.
func TestHoldForRenewal(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second time it is free again
		release, by, err := holdForRenewal(t.Context(), dir)
		if err != nil || by != "" {
			t.Fatalf("%q, %v", by, err)
		}
		if _, by, err := holdForRenewal(t.Context(), dir); err != nil || !strings.HasPrefix(by,
			"another boxlift is working on this host: the renewal of certificates on this host, since ") {
			t.Errorf("held already: %q, %v", by, err)
		}
		release()
	}
	if _, by, err := holdForRenewal(t.Context(), filepath.Join("/proc/1/none", "x")); err == nil || by != "" {
		t.Errorf("no folder: %q, %v", by, err)
	}
}
