package pack

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// Report is what [Check] found. Everything is in order when OK is true.
type Report struct {
	OK    bool    `json:"ok"`
	Packs []State `json:"packs"`
}

// State is the state of one pack.
type State struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Digest is the sha256 of index.json, with which the name must end.
	Digest digest.Digest `json:"digest,omitempty"`
	Blobs  int           `json:"blobs"`
	// Problems say what is wrong; a blob whose bytes do not match its digest is named.
	Problems []string `json:"problems,omitempty"`
}

// Check reads every pack in a directory to its last byte and compares all digests. It
// also follows index.json to the images' manifests: each must be there with all that it
// names. Of an image index at least one manifest must be there, as packs carry one
// platform. A directory that does not exist holds no packs. The error says only that
// the directory could not be read or that ctx ended.
func Check(ctx context.Context, imagesDir string) (Report, error) {
	report := Report{OK: true, Packs: []State{}}
	root, err := os.OpenRoot(imagesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return report, fmt.Errorf("open the images directory: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	names, err := hostfile.Names(root, ".")
	if err != nil {
		return report, fmt.Errorf("list %s: %w", imagesDir, err)
	}
	for _, name := range names {
		if !IsStored(name) {
			continue
		}
		p := State{Name: name}
		if err := p.check(ctx, root); err != nil {
			p.Problems = append(p.Problems, err.Error())
		}
		if err := ctx.Err(); err != nil {
			return report, fmt.Errorf("check %s: %w", name, context.Cause(ctx))
		}
		report.OK = report.OK && len(p.Problems) == 0
		report.Packs = append(report.Packs, p)
	}
	return report, nil
}

func (c *State) check(ctx context.Context, root *os.Root) error {
	return Read(root, c.Name, func(r *ocitar.Reader) error {
		c.Size = r.Layout().Size
		index, err := r.ReadAll(ocitar.IndexFile, wire.MaxIndex)
		if err != nil {
			return err
		}
		c.Digest = digest.FromBytes(index)
		if !strings.HasSuffix(strings.TrimSuffix(c.Name, AsideSuffix), wire.PackName("", index)[len("boxlift-"):]) {
			c.Problems = append(c.Problems, "its name does not end with the digest of its index.json")
		}
		c.checkBlobs(ctx, r)
		if len(c.Problems) > 0 {
			return nil // what cannot be trusted is not followed
		}
		return followIndex(r, index)
	})
}

// checkBlobs hashes all blobs, one on each core at a time.
func (c *State) checkBlobs(ctx context.Context, r *ocitar.Reader) {
	const maxBuffer = 1 << 20
	var blobs []ocitar.Entry
	for _, e := range r.Layout().Entries {
		if e.Digest() != "" {
			blobs = append(blobs, e)
		}
	}
	c.Blobs = len(blobs)
	problems := make([]string, len(blobs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 16, len(blobs)) {
		workers.Go(func() {
			buffer := make([]byte, maxBuffer)
			for i := range next {
				e := blobs[i]
				h := sha256.New()
				// Only what hides ReadFrom and WriteTo makes CopyBuffer use its buffer.
				_, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{r.Section(e)}, buffer)
				if err != nil {
					problems[i] = fmt.Sprintf("blob %s cannot be read: %v", e.Digest(), err)
				} else if got := digest.NewDigest(digest.SHA256, h); got != e.Digest() {
					problems[i] = fmt.Sprintf("blob %s at offset %d is damaged: its bytes have the digest %s",
						e.Digest(),
						e.Offset, got)
				}
			}
		})
	}
	for i := range blobs {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	c.Problems = append(c.Problems, slices.DeleteFunc(problems, func(p string) bool { return p == "" })...)
}

// followIndex checks that what index.json names is in the pack, and so on down.
func followIndex(r *ocitar.Reader, index []byte) error {
	f := follower{r: r, seen: make(map[digest.Digest]bool)}
	return f.follow(index, ocitar.IndexFile)
}

type follower struct {
	r *ocitar.Reader
	// seen keeps manifests that are named many times from being read many times.
	seen map[digest.Digest]bool
}

func (f *follower) follow(raw []byte, name string) error {
	var c Content
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	blobs := c.Layers
	if c.Config != nil {
		blobs = append(blobs, *c.Config)
	}
	for _, d := range blobs {
		if e, ok := f.r.Blob(d.Digest); !ok || e.Size != d.Size {
			return fmt.Errorf("%s names blob %s of %d bytes, which is not there", name, d.Digest, d.Size)
		}
	}
	there := 0
	for _, d := range c.Manifests {
		e, ok := f.r.Blob(d.Digest)
		if !ok && name != ocitar.IndexFile {
			continue
		}
		if !ok || e.Size != d.Size {
			return fmt.Errorf("%s names manifest %s of %d bytes, which is not there", name, d.Digest, d.Size)
		}
		there++
		if f.seen[d.Digest] {
			continue
		}
		f.seen[d.Digest] = true
		inner, err := f.r.ReadAll(e.Name, MaxManifest)
		if err != nil {
			return err
		}
		if err := f.follow(inner, "manifest "+d.Digest.String()); err != nil {
			return err
		}
	}
	if len(c.Manifests) > 0 && there == 0 {
		return fmt.Errorf("%s names %d manifests, and none of them is there", name, len(c.Manifests))
	}
	return nil
}
