package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/site"
)

// Before anything is fetched, a lock is found to lack what a site will need.
func TestCheckLock(t *testing.T) {
	version := "v0.6.10"
	parse := func(images ...string) *lock.Lock {
		t.Helper()
		var b strings.Builder
		b.WriteString("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\n" +
			"components:\n  liteboxd:\n    version: " + version + "\n    images:\n")
		for _, image := range images {
			b.WriteString("      - {ref: " + image + "}\n")
		}
		l, err := lock.Parse("versions.lock", []byte(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	all := []string{"ghcr.io/fslongjin/liteboxd-server:v0.6.10", "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10", "ghcr.io/fslongjin/web:v0.6.10", "docker.io/library/ubuntu:24.04"}
	if err := CheckLock(t.Context(), parse(all...), nil); err != nil {
		t.Error(err)
	}
	for i, image := range all {
		rest := append(append([]string{}, all[:i]...), all[i+1:]...)
		if err := CheckLock(t.Context(), parse(rest...), nil); !errors.Is(err, site.ErrLock) {
			t.Errorf("without %s: %v", image, err)
		}
	}
	for old, refused := range map[string]bool{"v0.6.8": true, "v0.5.0": true, "v0.6.9": false, "v0.7.0-site1": false} {
		version = old
		err := CheckLock(t.Context(), parse(all...), nil)
		right := errors.Is(err, site.ErrLock) && strings.Contains(err.Error(), "take v0.6.9 or newer")
		if refused && !right || !refused && err != nil {
			t.Errorf("LiteBoxd %s: %v", old, err)
		}
	}
}
