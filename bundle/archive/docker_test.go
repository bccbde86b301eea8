package archive

import (
	"archive/tar"
	"bytes"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/format"
)

// sumOfLayer is the digest of what a layer becomes.
func sumOfLayer(t *testing.T, plain []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := CompressLayer(&b, bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(b.Bytes()).String()
}

// TestCompressedLayers are the same bytes however they are read; locks state their digests.
func TestCompressedLayers(t *testing.T) {
	content := []byte(strings.Repeat("some layer, ", 30_000))
	var compressor Compressor // what it has made before does not matter
	for name, r := range map[string]io.Reader{
		"at once": bytes.NewReader(content), "in halves": iotest.HalfReader(bytes.NewReader(content)),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(content)),
	} {
		var b bytes.Buffer
		if err := compressor.compress(&b, r); err != nil {
			t.Fatal(err)
		}
		const want = "sha256:5779c66075765a4b35c1bd5b9eeeefc082591eaf5e3e164ea4454f1172f1f242"
		if got := digest.FromBytes(b.Bytes()).String(); got != want {
			t.Errorf("%s: %s, expected %s: locks of archives in docker's form have to be made anew", name, got, want)
		}
	}
}

// TestManySmallMembers has archives of so many files that what one of them takes counts.
func TestManySmallMembers(t *testing.T) {
	const count = 2000
	for _, size := range []int{0, 1} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range count {
			if err := w.WriteHeader(&tar.Header{Name: strconv.Itoa(i), Size: int64(size), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		listing := NewListing()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := listing.Take(&b); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if got := len(listing.docker.members); got != count {
			t.Errorf("%d members were listed, expected %d", got, count)
		}
		if want := sumOfLayer(t, make([]byte, size)); listing.docker.members["1999"].layer.Digest.String() != want {
			t.Errorf("%d bytes become %s, expected %s", size, listing.docker.members["1999"].layer.Digest, want)
		}
		// A compressor takes tens of megabytes; one for each would be tens of gigabytes.
		if got := (after.TotalAlloc - before.TotalAlloc) / count; got > 128<<10 {
			t.Errorf("a member of %d bytes takes %d bytes of memory", size, got)
		}
	}
}

// TestArchiveBounds has archives that name more, or longer, than they may.
func TestArchiveBounds(t *testing.T) {
	archive := func(count int, header tar.Header, content string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		header.Size, header.Mode = int64(len(content)), 0o644
		for range count {
			if err := w.WriteHeader(&header); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	long := strings.Repeat("n", maxMemberName+1)
	for name, test := range map[string]struct {
		archive io.Reader
		want    string
	}{
		"members": {archive(maxArchiveMembers+1, tar.Header{Name: "empty"}, ""), "more than 131072 files"},
		"name":    {archive(1, tar.Header{Name: long}, ""), "a file's name has more than 4096 bytes"},
		"link": {
			archive(1, tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: long}, ""),
			"a file's name has more than 4096 bytes",
		},
		"images": {
			archive(1, tar.Header{Name: DockerIndex}, "["+strings.Repeat("{},", format.MaxIndexValues)+"{}]"),
			"the archive's manifest.json: too much JSON",
		},
		"no images": {archive(1, tar.Header{Name: DockerIndex}, "{}"), "manifest.json: json: cannot unmarshal object"},
		"no JSON":   {archive(1, tar.Header{Name: DockerIndex}, "[{}"), "manifest.json: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			listing := NewListing()
			err := listing.Take(test.archive)
			if err == nil {
				_, err = listing.Contents("linux/amd64")
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, expected an error with %q", err, test.want)
			}
		})
	}
}
