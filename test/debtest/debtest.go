// Package debtest makes packages of Debian's, as small as they can be, without Debian's tools.
package debtest

import (
	"maps"
	"testing"

	"github.com/liteboxd/boxlift/test/packagearchive"
)

// Deb is a package.
type Deb struct {
	// Control is the file of that name, Scripts are those of the maintainer such as postinst, by name.
	Control string
	Scripts map[string]string
	// Compression of the control files: "", "gz", "xz" or "zst".
	Compression string
}

// Make is the file of a package that installs no files.
func Make(t testing.TB, d Deb) []byte {
	t.Helper()
	files := maps.Clone(d.Scripts)
	if files == nil {
		files = make(map[string]string)
	}
	files["control"] = d.Control
	made, err := packagearchive.Build(files, nil, d.Compression)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
