package registry

import (
	"io"
	"time"

	"github.com/opencontainers/go-digest"
)

// Stored is what a layout in a tar lies in. Reads may come from several goroutines at once.
type Stored interface {
	io.ReaderAt
	io.Closer
	// Size returns the length in bytes.
	Size() int64
	// Modified returns when it was last written.
	Modified() time.Time
}

// File is one bundle or pack that is served.
type File struct {
	layout *layout
	all    *catalogue
}

// NewFile serves what lies in stored, which it takes over unless it fails. Its members are
// found and index.json is read, in milliseconds at any size; contents are not looked at.
// Beside it are layouts that are served with it, such as that of its charts: they may name
// blobs that stored has, and need no closing.
// Errors of the form wrap [github.com/liteboxd/boxlift/bundle/ocitar.ErrMalformed].
func NewFile(stored Stored, beside ...Stored) (*File, error) {
	l, err := newLayout(stored)
	if err != nil {
		return nil, err
	}
	layouts := []*layout{l}
	for _, b := range beside {
		more, err := newLayout(b)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, more)
	}
	all, err := newCatalogue(layouts)
	if err != nil {
		return nil, err
	}
	return &File{layout: l, all: all}, nil
}

// Digest returns the sha256 of index.json, which is a bundle's digest.
func (f *File) Digest() digest.Digest { return f.layout.digest }

// Repositories returns how many there are.
func (f *File) Repositories() int { return len(f.all.names) }

// Close ends the file for new requests; it is closed when those that read it are done.
func (f *File) Close() { f.layout.retire() }

func (f *File) current() *catalogue { return f.all }
