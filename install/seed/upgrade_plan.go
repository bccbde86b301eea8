package seed

import (
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
)

// Account splits what a host is to hold into what it lacks and what it has, each blob once.
// there are the packs and files that it has whole, by path, held the sizes of the blobs in
// any of its packs.
func Account(want wire.Want, there map[string]bool, held map[digest.Digest]int64) (ship, kept map[digest.Digest]int64) {
	ship, kept = make(map[digest.Digest]int64), make(map[digest.Digest]int64)
	add := func(d digest.Digest, size int64, has bool) {
		if has {
			kept[d] = size
		} else {
			ship[d] = size
		}
	}
	for _, p := range want.Packs {
		for _, b := range p.Blobs {
			size, isHeld := held[b.Digest]
			add(b.Digest, b.Size, there[want.ImagesDir+"/"+p.Name] || isHeld && size == b.Size)
		}
	}
	for _, f := range want.Files {
		add(f.Digest, f.Size, there[f.Path])
	}
	for d := range kept {
		delete(ship, d) // one pack has it, and gives it to the other
	}
	return ship, kept
}
