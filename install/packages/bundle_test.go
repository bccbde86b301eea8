package packages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
)

// Each release and platform has what is for it, and other files of the bundle are not among it.
func TestSetsOf(t *testing.T) {
	sum := digest.FromString("chrony")
	file := func(suite, name, arch string) bundle.File {
		return bundle.File{Component: "hosts", Version: "1", Name: name + "_1_" + arch + ".deb", Platform: "linux/arm64", Digest: sum, Size: 6,
			Package: bundle.OSPackage{Family: "debian", Suite: suite, Name: name, Version: "1", Architecture: arch}}
	}
	got := setsOf(&bundle.Contents{Files: []bundle.File{
		{Component: "k3s", Name: "k3s"}, file("bookworm", "chrony", "arm64"), file("trixie", "tzdata", "all"),
	}})
	of := func(suite, name, arch string) Set {
		return Set{ID: "debian", Codename: suite, Architecture: "arm64", Packages: []Package{{Name: name, Version: "1", Architecture: arch,
			Filename: name + "_1_" + arch + ".deb", Size: 6, SHA256: sum}}}
	}
	if diff := cmp.Diff([]Set{of("bookworm", "chrony", "arm64"), of("trixie", "tzdata", "all")}, got); diff != "" {
		t.Error(diff)
	}
}
