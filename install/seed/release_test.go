package seed

import (
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
)

// What is the same counts once, wherever a host has it.
func TestAccount(t *testing.T) {
	blob := func(name string, size int64) wire.Blob { return wire.Blob{Digest: digest.FromString(name), Size: size} }
	want := wire.Want{
		ImagesDir: "/images",
		Packs: []wire.PackWant{
			{Name: "whole.tar", Blobs: []wire.Blob{blob("a", 1), blob("shared", 10)}},
			{Name: "lacking.tar", Blobs: []wire.Blob{blob("shared", 10), blob("old", 100), blob("new", 1000), blob("twice", 10000)}},
			{Name: "other.tar", Blobs: []wire.Blob{blob("twice", 10000)}},
		},
		Files: []wire.FileWant{{Path: "/files/k3s", Digest: digest.FromString("k3s"), Size: 5}, {Path: "/files/new", Digest: digest.FromString("file"), Size: 7}},
	}
	ship, kept := Account(want, map[string]bool{"/images/whole.tar": true, "/files/k3s": true}, map[digest.Digest]int64{digest.FromString("old"): 100, digest.FromString("new"): 1})
	sum := func(m map[digest.Digest]int64) (n int64) {
		for _, size := range m {
			n += size
		}
		return n
	}
	if got := [2]int64{sum(ship), sum(kept)}; got != [2]int64{11007, 116} {
		t.Errorf("ship and kept are %v", got)
	}
}
