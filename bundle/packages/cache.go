package packages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/ownfile"
)

// Cache keeps what was found, by the digest of what was read, in a folder of the user's.
// Its files may be deleted at any time. Several programs may use it at once.
//
// Whoever can write to the folder decides what is found: it is made for its user alone.
type Cache struct {
	// Folder is made when it is needed; "" keeps nothing.
	Folder string
}

// revision counts the changes to what is found and how it is kept; results of other
// revisions are not looked at.
const revision = "4"

// maxCached bounds a file of the cache, in bytes.
const maxCached = 256 << 20

// Load returns what was found in a layer, or false.
func (c Cache) Load(d digest.Digest) (*Layer, bool) {
	layer := new(Layer)
	ok := c.load("layers", d, layer)
	return layer, ok
}

// Store keeps what was found in a layer.
func (c Cache) Store(d digest.Digest, layer *Layer) error { return c.store("layers", d, layer) }

// LoadFile returns what was found in a file, or false.
func (c Cache) LoadFile(d digest.Digest) ([]Package, bool) {
	var packages []Package
	ok := c.load("files", d, &packages)
	return packages, ok
}

// StoreFile keeps what was found in a file.
func (c Cache) StoreFile(d digest.Digest, packages []Package) error {
	return c.store("files", d, packages)
}

func (c Cache) path(kind string, d digest.Digest) string {
	return filepath.Join(c.Folder, "v"+revision, kind, d.Encoded()+".json")
}

// load takes a file that cannot be read, or does not hold what was written, for one that
// is not there: it is written anew.
func (c Cache) load(kind string, d digest.Digest, v any) bool {
	if c.Folder == "" {
		return false
	}
	path := c.path(kind, d)
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxCached {
		return false
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	return decoder.Decode(v) == nil && !decoder.More()
}

func (c Cache) store(kind string, d digest.Digest, v any) error {
	if c.Folder == "" {
		return nil
	}
	content, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keep what was found in %s: %w", d, err)
	}
	path := c.path(kind, d)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep what was found in %s: %w", d, err)
	}
	if err := ownfile.Replace(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep what was found in %s: %w", d, err)
	}
	return nil
}
