package pack

import (
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/node/wire"
)

// AsideSuffix ends the name of a pack that is set aside. K3s imports the folder in the order of its names at each
// start, so of two packs that give one name to different images the last one would count, which is chance. It takes
// only files whose names end as archives' do, and so the pack of the release that does not run waits beside the other
// until that release comes again.
const AsideSuffix = ".aside"

// IsStored reports whether a file of this name can be a pack, be it one that k3s imports or one that is set aside.
func IsStored(name string) bool { return wire.IsPackName(strings.TrimSuffix(name, AsideSuffix)) }

// Stored finds the packs among the names in a folder, and returns the file of each. One that is there twice is
// the one that k3s imports.
func Stored(names []string) map[string]string {
	files := make(map[string]string)
	for _, name := range names {
		pack := strings.TrimSuffix(name, AsideSuffix)
		if IsStored(name) && files[pack] != pack {
			files[pack] = name
		}
	}
	return files
}

// Sorted are the packs that Stored has found, by their names.
func Sorted(files map[string]string) []string { return slices.Sorted(maps.Keys(files)) }
