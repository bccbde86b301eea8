// Package images holds k3s' rules about the image folder that need no
// containerd: which files count and in which order, how they are packed, which
// further names an image gets, and which files are skipped.
package images

import (
	"compress/bzip2"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/klauspost/compress/zstd"
)

// Labels that an imported image gets. The kubelet's garbage collection spares
// pinned images; k3s clears the pins that carry its own label when it starts.
const (
	LabelPinned    = "io.cri-containerd.pinned"
	LabelK3sPinned = "io.cattle.k3s.pinned"
	LabelValue     = "pinned"
)

// maxWindow is how far back a zstd archive may refer.
const maxWindow = 32 << 20

var openers = []struct {
	suffix string
	open   func(io.Reader) (io.ReadCloser, error)
}{
	{".tar", func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(r), nil }},
	{".tar.gz", openGzip}, {".tgz", openGzip},
	{".tar.zst", openZstd}, {".tzst", openZstd},
	{".tar.bz2", openBzip2}, {".tbz", openBzip2},
	{".tar.lz4", func(io.Reader) (io.ReadCloser, error) {
		return nil, errors.New("this distribution does not read lz4")
	}},
}

func openGzip(r io.Reader) (io.ReadCloser, error)  { return gzip.NewReader(r) }
func openBzip2(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(bzip2.NewReader(r)), nil }
func openZstd(r io.Reader) (io.ReadCloser, error) {
	decoder, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return decoder.IOReadCloser(), nil
}

// IsArchive says whether a file of that name holds images.
func IsArchive(name string) bool {
	for _, o := range openers {
		if strings.HasSuffix(name, o.suffix) {
			return true
		}
	}
	return false
}

// IsList says whether a file of that name lists images to pull.
func IsList(name string) bool { return strings.HasSuffix(name, ".txt") }

// Open gives the tar in an archive, by the archive's name.
func Open(name string, r io.Reader) (io.ReadCloser, error) {
	for _, o := range openers {
		if strings.HasSuffix(name, o.suffix) {
			return o.open(r)
		}
	}
	return nil, fmt.Errorf("%s has no suffix of an image archive", name)
}

// Find lists the files below a folder that count, in the order of their paths.
// A folder that is not there holds none.
func Find(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if path == dir && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if !IsArchive(path) && !IsList(path) {
			return nil
		}
		// Symbolic links to files count.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// Names gives the further names of an image: the one with its digest, and
// copies of both for each extra registry. A name without a tag is an error.
func Names(name, digest string, registries []string) ([]string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w", name, err)
	}
	tagged, ok := named.(reference.Tagged)
	if !ok {
		return nil, fmt.Errorf("image name %q has no tag", name)
	}
	names := []string{named.Name() + "@" + digest}
	for _, registry := range registries {
		copied := registry + "/" + reference.Path(named)
		names = append(names, copied+":"+tagged.Tag(), copied+"@"+digest)
	}
	return names, nil
}

// Cache remembers imported files, so that they are skipped when k3s starts
// again. It is on when its file is there.
//
// It shows k3s' behaviour before the summer of 2026, two traps included: pins are
// cleared at each start, and set only by an import, so a skipped file's images
// are left without; and a file is imported again only if its size differs and
// its time is later.
type Cache struct {
	path  string
	files map[string]cached
}

type cached struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
}

// CacheName is the cache's file in the image folder.
const CacheName = ".cache.json"

// ReadCache reads the cache of a folder; nil means that it is off.
func ReadCache(dir string) (*Cache, error) {
	c := &Cache{path: filepath.Join(dir, CacheName), files: map[string]cached{}}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &c.files); err != nil {
			return nil, fmt.Errorf("read %s: %w", c.path, err)
		}
	}
	return c, nil
}

// Has says whether a file needs no import. A nil cache has none.
func (c *Cache) Has(path string, info fs.FileInfo) bool {
	if c == nil {
		return false
	}
	known, ok := c.files[path]
	return ok && (known.Size == info.Size() || !info.ModTime().After(known.ModTime))
}

// Add remembers an imported file.
func (c *Cache) Add(path string, info fs.FileInfo) error {
	if c == nil {
		return nil
	}
	c.files[path] = cached{Size: info.Size(), ModTime: info.ModTime()}
	text, err := json.Marshal(c.files)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path, append(text, '\n'), 0o600)
}
