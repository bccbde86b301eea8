package pack

import (
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// MaxManifest is the largest manifest or index that is followed, in bytes.
const MaxManifest = 4 << 20

// Content is what manifests and indexes have in common as far as other blobs are named.
type Content struct {
	Manifests []Descriptor `json:"manifests"`
	Config    *Descriptor  `json:"config"`
	Layers    []Descriptor `json:"layers"`
}

// Descriptor names a blob and its size in bytes.
type Descriptor struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// Read opens a pack for the time of a call.
func Read(root *os.Root, name string, use func(*ocitar.Reader) error) error {
	f, err := hostfile.Open(root, name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer hostfile.CloseRead(f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	r, err := ocitar.NewReader(f, info.Size())
	if err != nil {
		return err
	}
	return use(r)
}
