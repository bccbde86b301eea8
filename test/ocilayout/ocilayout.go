// Package ocilayout makes OCI image layouts in tars, in memory, for tests that read them.
package ocilayout

import (
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// Pack makes a layout of an index.json and blobs, in their order.
func Pack(t testing.TB, index []byte, blobs ...[]byte) []byte {
	t.Helper()
	members := []ocitar.Member{{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))}, {Name: ocitar.IndexFile, Size: int64(len(index))}}
	contents := [][]byte{[]byte(ocitar.LayoutContent), index}
	for _, b := range blobs {
		members, contents = append(members, ocitar.Blob(digest.FromBytes(b), int64(len(b)))), append(contents, b)
	}
	return Tar(t, members, contents)
}

// Tar makes a layout of members and their contents. Nothing says that a blob's content is
// what its name promises.
func Tar(t testing.TB, members []ocitar.Member, contents [][]byte) []byte {
	t.Helper()
	layout, err := ocitar.NewLayout(members)
	if err != nil {
		t.Fatal(err)
	}
	file := make([]byte, layout.Size)
	for i, e := range layout.Entries {
		header, err := ocitar.Header(e.Member)
		if err != nil {
			t.Fatal(err)
		}
		copy(file[e.HeaderOffset():], header)
		copy(file[e.Offset:], contents[i])
	}
	return file
}
