package node

import (
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// maxManifest is the largest manifest or index that is followed, in bytes.
const maxManifest = 4 << 20

// content is what manifests and indexes have in common as far as other blobs are named.
type content struct {
	Manifests []descriptor `json:"manifests"`
	Config    *descriptor  `json:"config"`
	Layers    []descriptor `json:"layers"`
}

type descriptor struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// readPack opens a pack for the time of a call.
func readPack(root *os.Root, name string, use func(*ocitar.Reader) error) error {
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
