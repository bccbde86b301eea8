package images

import (
	"errors"
	"testing"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestOldPacksReason(t *testing.T) {
	goes := func(kind images.PruneKind, size int64) images.PruneItem {
		return images.PruneItem{Kind: kind, Name: "x", Size: size, Remove: true}
	}
	stays := images.PruneItem{Kind: images.PrunePack, Name: "y", Size: 1 << 40}
	tests := map[string]struct {
		items []images.PruneItem
		want  string
	}{
		"nothing":   {nil, ""},
		"all stays": {[]images.PruneItem{stays}, ""},
		"a file":    {[]images.PruneItem{stays, goes(images.PruneFile, 512)}, "neither this release nor the previous one needs 0 packs, 0 images and 1 file: 512 B"},
		"programs": {
			[]images.PruneItem{goes(images.PruneData, 1<<20)},
			"neither this release nor the previous one needs 0 packs, 0 images, 0 files and 1 folder of k3s' programs: 1.0 MiB",
		},
		"packs and more": {[]images.PruneItem{goes(images.PrunePack, 1<<30), goes(images.PrunePack, 1<<29), goes(images.PruneImage, 1<<29), stays}, "neither this release nor the previous one needs 2 packs, 1 image and 0 files: 2.0 GiB"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := oldPacksReason(images.PruneReport{Items: test.items}); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Only the whole of an installation makes a release.
func TestMakesRelease(t *testing.T) {
	tests := map[string]struct {
		change func(*installation)
		want   bool
	}{
		"install":       {func(*installation) {}, true},
		"dry run":       {func(in *installation) { in.engine.Mode = run.Plan }, false},
		"status":        {func(in *installation) { in.engine.Mode = run.Inspect }, false},
		"only liteboxd": {func(in *installation) { in.engine.Scope = run.OnlyLiteBoxd }, false},
		"skip liteboxd": {func(in *installation) { in.engine.Scope = run.WithoutLiteBoxd }, false},
		"node add":      {func(in *installation) { in.engine.Only = []string{"10.0.0.12"} }, false},
		"a host failed": {func(in *installation) { in.site.Hosts[1].Err = errors.New("it failed") }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
			test.change(in)
			if got := in.importer.makesRelease(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
