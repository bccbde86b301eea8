package install

import (
	"errors"
	"testing"

	"github.com/liteboxd/boxlift/node"
)

func TestOldPacksReason(t *testing.T) {
	goes := func(kind node.PruneKind, size int64) node.PruneItem {
		return node.PruneItem{Kind: kind, Name: "x", Size: size, Remove: true}
	}
	stays := node.PruneItem{Kind: node.PrunePack, Name: "y", Size: 1 << 40}
	tests := map[string]struct {
		items []node.PruneItem
		want  string
	}{
		"nothing":   {nil, ""},
		"all stays": {[]node.PruneItem{stays}, ""},
		"a file":    {[]node.PruneItem{stays, goes(node.PruneFile, 512)}, "neither this release nor the previous one needs 0 packs, 0 images and 1 file: 512 B"},
		"programs": {
			[]node.PruneItem{goes(node.PruneData, 1<<20)},
			"neither this release nor the previous one needs 0 packs, 0 images, 0 files and 1 folder of k3s' programs: 1.0 MiB",
		},
		"packs and more": {[]node.PruneItem{goes(node.PrunePack, 1<<30), goes(node.PrunePack, 1<<29), goes(node.PruneImage, 1<<29), stays}, "neither this release nor the previous one needs 2 packs, 1 image and 0 files: 2.0 GiB"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := oldPacksReason(node.PruneReport{Items: test.items}); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Only the whole of an installation makes a release.
func TestMakesRelease(t *testing.T) {
	tests := map[string]struct {
		change func(*installer)
		want   bool
	}{
		"install":       {func(*installer) {}, true},
		"dry run":       {func(in *installer) { in.mode = plan }, false},
		"status":        {func(in *installer) { in.mode = inspect }, false},
		"only liteboxd": {func(in *installer) { in.Scope = OnlyLiteBoxd }, false},
		"skip liteboxd": {func(in *installer) { in.Scope = WithoutLiteBoxd }, false},
		"node add":      {func(in *installer) { in.Only = []string{"10.0.0.12"} }, false},
		"a host failed": {func(in *installer) { in.hosts[1].err = errors.New("it failed") }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := example(t, exampleConfig, "k3s=v1.36.4+k3s1")
			test.change(in)
			if got := in.makesRelease(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
