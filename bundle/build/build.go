// Package build writes bundles. [Write] fetches what a plan names, in parallel, and writes each
// blob once, at its place, proven; [Join] copies the whole bundle from a delta and its base.
// Both can be interrupted at any moment, and go on where they were.
package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
)

// Options say where a bundle goes.
type Options struct {
	// Path is the bundle's final name. The file gets it only when every blob has been
	// verified at its place; a file of that name is replaced then.
	Path string
	// Signer signs index.json; nil leaves the bundle unsigned.
	Signer *signature.Signer
	// Trust is the trust file that travels in the bundle, as [trust.File.Encode] writes it; nil for none. The bundle
	// digest does not depend on it.
	Trust []byte
	Output
}

// Result says what a build did. Sizes are in bytes.
type Result struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Blobs  int           `json:"blobs"`
	// Reused is the part of Size that an interrupted build had left as whole blobs.
	Reused int64 `json:"reused"`
	// Copied is the part of Size that older bundles held.
	Copied int64 `json:"copied"`
	// Shared is the part of Copied whose place on the disk is that of the older bundle.
	Shared int64 `json:"shared"`
	// LeftOut are the blobs that a delta leaves out.
	LeftOut bundle.Amount `json:"leftOut"`
	// Unchanged says that the bundle was there already, complete.
	Unchanged bool `json:"unchanged"`
	// Stored is how much of the disk the bundle takes, and Volumes is how many volumes it
	// has: 0 when it is one file.
	Stored  int64 `json:"stored"`
	Volumes int   `json:"volumes"`
}

// Write fetches what the plan lacks and writes the bundle. While it works, the file is
// called <name>.<digest>.partial and holds each finished blob at its final place, header
// included; the header is written last, so that a build that was ended at any moment
// can tell what it has. Building the same plan again goes on from there, also inside a
// blob of which it finds the beginning.
func Write(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	defer p.Check.Stop()
	result, err := write(ctx, p, o)
	if err != nil {
		return nil, err
	}
	return result, o.forgetSignature()
}

func write(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	if p.SBOM != nil {
		return buildWithSBOM(ctx, p, o)
	}
	b, result, err := newBuilder(p, o.sign, o.Trust)
	if err != nil {
		return nil, err
	}
	return b.build(ctx, o, result)
}

// newBuilder lays out the bundle, or the delta of it, as sign has signed it: with nil, where nobody signs. The trust
// file is that of [Options].
func newBuilder(
	p *plan.Plan, sign func(p *plan.Plan) (*signature.Signature, error), trustFile []byte,
) (*builder, *Result, error) {
	b := &builder{plan: p, check: p.Check}
	result := &Result{Digest: p.Digest()}
	signed, err := sign(p)
	if err == nil && p.Since != nil {
		if b.plan, result.LeftOut, err = p.Delta(signed); err != nil {
			return nil, nil, fmt.Errorf("plan the delta: %w", err)
		}
		signed, err = sign(b.plan)
	}
	if err == nil {
		err = b.layOut(signed, trustFile)
	}
	if err != nil {
		return nil, nil, err
	}
	return b, result, nil
}

// unsigned signs nothing.
func unsigned(*plan.Plan) (*signature.Signature, error) { return nil, nil }

// Partials returns the names of unfinished bundles that lie beside path, and in the folder
// workDir, if there is one, of those that were to be encrypted.
func Partials(path, workDir string) ([]string, error) {
	dirs := []string{filepath.Dir(path)}
	if workDir != "" && !sameFolder(workDir, dirs[0]) {
		dirs = append(dirs, workDir)
	}
	var names []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), ".partial") {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	return names, nil
}

// sameFolder reports whether two names are there and stand for one folder.
func sameFolder(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
