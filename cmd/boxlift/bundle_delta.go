package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// sinceOptions say what a delta is to be built on.
type sinceOptions struct {
	since []string
	// inventories are the files of `boxlift have` that were read.
	inventories []inventory
}

// inventory is a file that `boxlift have` wrote.
type inventory struct {
	*siteDocument
	held *have.Have
}

// print says of each inventory when it was written, and who signed it.
func (o *sinceOptions) print(w *errorWriter) {
	for _, i := range o.inventories {
		if i.held.Record == nil && i.by == nil {
			continue
		}
		i.printHave(w, i.held)
	}
}

// openSince opens what a delta is to be built on: older bundles, which are returned too, and
// files that `boxlift have` wrote, which have to be signed by a site if there is a policy. The base is nil when
// there are none.
func (o *sinceOptions) openSince(
	ctx context.Context, read *readOptions, policy *trust.Policy,
) (base *plan.Base, bundles []*bundle.Reader, closeAll func(), err error) {
	var names []string
	for _, path := range o.since {
		if base == nil {
			base = &plan.Base{}
		}
		isHave, err := beginsAsJSON(path)
		if err != nil {
			return nil, nil, nil, fault.Input.Wrap(err)
		}
		if !isHave {
			names = append(names, path)
			continue
		}
		d, err := readSiteDocument(path, have.MaxSize, policy)
		if err != nil {
			return nil, nil, nil, err
		}
		h, err := d.have()
		if err != nil {
			return nil, nil, nil, err
		}
		o.inventories = append(o.inventories, inventory{d, h})
		base.AddHosts(h)
	}
	if bundles, closeAll, err = read.openOlder(ctx, names); err != nil {
		return nil, nil, nil, err
	}
	for _, r := range bundles {
		base.AddBundle(r)
	}
	return base, bundles, closeAll, nil
}

// beginsAsJSON tells what `boxlift have` writes from bundles. What is no file may be the name of a
// set of volumes.
func beginsAsJSON(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	first := make([]byte, 64)
	n, err := io.ReadFull(f, first)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.HasPrefix(strings.TrimLeft(string(first[:n]), " \t\r\n"), "{"), err
}

// checkOutput refuses to write one file, or volumes, over what is still needed to read what is
// written.
func checkOutput(output string, isSplit bool, needed []string) error {
	written, statErr := os.Stat(output)
	for _, path := range needed {
		isSame := filepath.Clean(path) == filepath.Clean(output) || isSplit && volume.InSet(path, output)
		if info, err := os.Stat(path); err == nil && statErr == nil {
			isSame = isSame || os.SameFile(info, written)
		}
		if isSame {
			return fault.WithHint(
				fault.Usage.Errorf("--output %s is one of the bundles that are read: it would be gone", output),
				"name another output")
		}
	}
	return nil
}

// leftOut says how much of something is not in a delta, for a column of its own. It is
// nil for a whole bundle, whose tables have no such column.
type leftOut map[digest.Digest]int64

func newLeftOut(d *bundle.Delta) leftOut {
	if d == nil {
		return nil
	}
	l := make(leftOut, len(d.Missing))
	for _, blob := range d.Missing {
		l[blob.Digest] = blob.Size
	}
	return l
}

func (l leftOut) heading() string {
	if l == nil {
		return ""
	}
	return "\tLEFT OUT"
}

// size is how many bytes of these blobs are left out.
func (l leftOut) size(blobs ...digest.Digest) int64 {
	var n int64
	for _, d := range blobs {
		n += l[d]
	}
	return n
}

func (l leftOut) cell(blobs ...digest.Digest) string {
	switch n := l.size(blobs...); {
	case l == nil:
		return ""
	case n == 0:
		return "\t-"
	default:
		return "\t" + progress.Bytes(n)
	}
}

// blobsOf are the blobs of an image on one platform.
func blobsOf(p format.PlatformImage) []digest.Digest {
	var list []digest.Digest
	for _, d := range append([]ocispec.Descriptor{p.Manifest, p.Config}, p.Layers...) {
		list = append(list, d.Digest)
	}
	return list
}
