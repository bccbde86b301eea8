package main

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/liteboxd/boxlift/bundle/signature"
)

// nodePlatforms are those that hosts may have. Every bundle carries boxlift's programs for the
// platforms in its lock, so they come with every boxlift.
var nodePlatforms = []string{"linux-amd64", "linux-arm64"}

// keysProgram reaches keys in tokens and key services. It loads libraries, and so needs those of the system, which an
// image has none of.
const keysProgram = "boxlift-keys"

var documents = []string{"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "versions.lock"}

// release says what to make of what.
type release struct {
	version   string
	commit    string // of Git, that the programs were built from; "": no provenance
	time      time.Time
	programs  string
	documents string
	manual    string // the folder that boxlift man has written
	out       string
	operators []string          // GOOS-GOARCH
	signer    *signature.Signer // nil: unsigned
}

// entry is a file or a link of an archive.
type entry struct {
	name   string // with slashes, relative
	mode   fs.FileMode
	link   string // for a link: where to
	source string // for a file: where it lies
}

// write makes everything and returns the names of the files, in the order in which they were made.
func (r *release) write(ctx context.Context) ([]string, error) {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the release: %w", err)
	}
	var names []string
	file := func(name string, to func(io.Writer) error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(r.out, name), to); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		names = append(names, name)
		return nil
	}
	folder, err := os.MkdirTemp(r.out, ".manual-*")
	if err != nil {
		return names, err
	}
	defer func() { _ = os.RemoveAll(folder) }() // it has nothing that is needed
	pages, err := r.manualPages(folder)
	if err != nil {
		return names, err
	}
	for _, platform := range r.operators {
		entries, err := r.tree(platform, keysProgram)
		if err != nil {
			return names, err
		}
		name := "boxlift_" + r.version + "_" + platform
		err = file(name+".tar.gz", func(w io.Writer) error { return writeArchive(w, name, entries, r.time) })
		if err != nil {
			return names, err
		}
		architecture, ok := strings.CutPrefix(platform, "linux-")
		if !ok {
			continue // packages are for Linux
		}
		installed := slices.Concat(entries, pages)
		for _, format := range []string{"deb", "rpm"} {
			err := file(name+"."+format, func(w io.Writer) error { return r.writePackage(w, format, architecture, installed) })
			if err != nil {
				return names, err
			}
		}
	}
	if err := file("boxlift_"+r.version+"_image.tar", r.writeImage); err != nil {
		return names, err
	}
	if err := file("boxlift_"+r.version+".cdx.json", r.writeModules); err != nil {
		return names, err
	}
	if r.commit != "" {
		of := slices.Clone(names)
		err := file("boxlift_"+r.version+".provenance.json", func(w io.Writer) error { return r.writeProvenance(w, of) })
		if err != nil {
			return names, err
		}
	}
	sums, err := r.sums(names)
	if err != nil {
		return names, err
	}
	const sumsName = "SHA256SUMS"
	if err := file(sumsName, writes(sums)); err != nil {
		return names, err
	}
	if r.signer == nil {
		return names, nil
	}
	signed, err := r.signer.Sign(sums)
	if err != nil {
		return names, fmt.Errorf("sign %s: %w", sumsName, err)
	}
	if err := file(sumsName+".sigstore.json", writes(signed.Bundle)); err != nil {
		return names, err
	}
	return names, file(sumsName+".sig", writes(signed.Base64))
}

// tree is what is installed for a platform of operators: boxlift leads to the program for it,
// beside which boxlift looks for those for nodes. more are further programs for it.
func (r *release) tree(platform string, more ...string) ([]entry, error) {
	entries := []entry{{name: "boxlift", mode: 0o777, link: platform + "/boxlift"}}
	add := func(name string, mode fs.FileMode, source string) error {
		info, err := os.Stat(source)
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("it is no file")
		}
		if err != nil {
			return fmt.Errorf("what %s is released with: %w", platform, err)
		}
		entries = append(entries, entry{name: name, mode: mode, source: source})
		return nil
	}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(nodePlatforms), platform)))) {
		programs := []string{"boxlift"}
		if slices.Contains(nodePlatforms, p) {
			programs = append(programs, "boxlift-node")
		}
		if p == platform {
			programs = append(programs, more...)
		}
		for _, program := range programs {
			if err := add(p+"/"+program, 0o755, filepath.Join(r.programs, p, program)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range documents {
		if err := add(name, 0o644, filepath.Join(r.documents, name)); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, nil
}

// manualPages are the pages of the manual, packed into a folder as man(1) reads them.
func (r *release) manualPages(folder string) ([]entry, error) {
	names, err := filepath.Glob(filepath.Join(r.manual, "*.1"))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has none: boxlift man writes them", r.manual)
	}
	if err != nil {
		return nil, fmt.Errorf("find the pages of the manual: %w", err)
	}
	var pages []entry
	for _, name := range names { // sorted by their names
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read a page of the manual: %w", err)
		}
		packed := filepath.Base(name) + ".gz"
		if err := writeFile(filepath.Join(folder, packed), func(w io.Writer) error { return pack(w, content) }); err != nil {
			return nil, fmt.Errorf("pack a page of the manual: %w", err)
		}
		pages = append(pages, entry{name: path.Join(manualSection, packed), mode: 0o644, source: filepath.Join(folder, packed)})
	}
	return pages, nil
}

// pack writes content as gzip does, whose header has neither name nor time.
func pack(w io.Writer, content []byte) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(content); err != nil {
		return err
	}
	return z.Close()
}

// sums are lines as sha256sum prints them.
func (r *release) sums(names []string) ([]byte, error) {
	var lines strings.Builder
	for _, name := range slices.Sorted(slices.Values(names)) {
		sum, err := sumOf(filepath.Join(r.out, name))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, path.Base(name))
	}
	return []byte(lines.String()), nil
}

// sumOf is the sha256 of a file, in hexadecimal digits.
func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("add up checksums: %w", err)
	}
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("add up checksums: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func writes(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// writeFile gives a file its name when it is whole and on the disk.
func writeFile(name string, to func(io.Writer) error) error {
	f, err := renameio.NewPendingFile(name, renameio.WithPermissions(0o644))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }() // nothing is left of it when it was replaced
	if err := to(f); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}
