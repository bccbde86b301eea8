package packages

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Limits on what is read of one layer.
const (
	// maxEntries bounds the files of a layer. Each takes 8 bytes of memory.
	maxEntries = 1 << 20
	// maxContent bounds a layer's content in bytes, so that one made to expand without end
	// comes to one.
	maxContent = 64 << 30
	// maxWindow bounds what a zstd layer makes its reader hold in memory: as much as k3s'
	// own archives need (zstd --long=25).
	maxWindow = 32 << 20

	readSize = 64 << 10
)

// Scan reads a layer to its end: a tar, plain or compressed with gzip or zstd. An error is
// one of r, of ctx or of this host's disk; what is wrong with the layer becomes a note.
func Scan(ctx context.Context, r io.Reader) (*Layer, error) {
	s := &scanner{files: make(map[string]*File), layer: &Layer{}}
	from := newSource(ctx, r)
	buffered := takeReader(from)
	defer giveReader(buffered)
	err := s.scan(buffered)
	if errors.As(err, new(*spoolError)) {
		return nil, err
	}
	if err != nil && from.err == nil {
		s.note("it cannot be read to its end: %s", shown(err.Error()))
	}
	// What was left out belongs to the layer's digest all the same.
	if from.err == nil {
		_, _ = io.Copy(io.Discard, buffered) // its error is from's
	}
	if from.err != nil {
		return nil, from.err
	}
	return s.finish(), nil
}

// source keeps an error of the reader apart from those of what is read.
type source struct {
	r io.Reader
	// stopped returns why to stop, or nil.
	stopped func() error
	err     error
}

func newSource(ctx context.Context, r io.Reader) *source {
	return &source{r: r, stopped: func() error { return context.Cause(ctx) }}
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.err = s.stopped(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// scanner collects what is found in one layer.
type scanner struct {
	layer *Layer
	// files are the findings by each path.
	files    map[string]*File
	packages int
	entries  int
}

func (s *scanner) note(format string, args ...any) {
	s.layer.Notes = appendNote(s.layer.Notes, fmt.Sprintf(format, args...))
}

func appendNote(notes []string, note string) []string {
	if len(notes) >= maxNotes || slices.Contains(notes, note) {
		return notes
	}
	return append(notes, note)
}

// shown makes what comes from a layer fit for a note.
func shown(text string) string {
	const most = 200 // bytes
	return printable.Short(text, most)
}

var errTooMuch = fmt.Errorf("it has more than %d bytes when it is unpacked", int64(maxContent))

func (s *scanner) scan(r *bufio.Reader) error {
	plain, closeReader, err := archive.Decompress(r, maxWindow)
	if err != nil {
		return err
	}
	defer closeReader()
	members := tar.NewReader(&limited{r: plain, left: maxContent})
	// Sparse files have more to read than there is in the layer.
	content := &limited{r: members, left: maxContent}
	for {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.entries++; s.entries > maxEntries {
			return fmt.Errorf("it has more than %d files", maxEntries)
		}
		if err := s.entry(h, content); err != nil {
			return err
		}
	}
}

// limited fails after so many bytes.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooMuch
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

func takeReader(r io.Reader) *bufio.Reader {
	b := readers.Get().(*bufio.Reader)
	b.Reset(r)
	return b
}

func giveReader(b *bufio.Reader) {
	b.Reset(nil)
	readers.Put(b)
}

// The names by which layers delete what is in lower ones (OCI image-spec 1.1, layer.md).
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
)

// entry looks at one member of the layer's tar.
func (s *scanner) entry(h *tar.Header, content io.Reader) error {
	// Runtimes take names as if they began at the image's root, wherever they point.
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	folder, base := path.Split(name)
	folder = strings.TrimSuffix(folder, "/")
	switch {
	case base == opaqueName:
		s.layer.Opaque = append(s.layer.Opaque, pathSum(folder))
		return nil
	case strings.HasPrefix(base, whiteoutPrefix):
		if strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix) {
			return nil // AUFS' own files, which are reserved
		}
		s.layer.Covers = append(s.layer.Covers, pathSum(path.Join(folder, strings.TrimPrefix(base, whiteoutPrefix))))
		return nil
	case h.Typeflag == tar.TypeDir:
		return nil
	}
	s.layer.Covers = append(s.layer.Covers, pathSum(name))
	// Of two members with one name, the later one counts.
	s.forget(name)
	switch h.Typeflag {
	case tar.TypeLink:
		target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		if f := s.files[target]; f != nil && len(name) <= maxPath && len(f.Paths) < maxPaths {
			s.files[name] = f
			f.Paths = append(f.Paths, name)
		}
	case tar.TypeReg:
		return s.file(name, h.Size, content)
	}
	return nil
}

func (s *scanner) forget(name string) {
	if f := s.files[name]; f != nil {
		f.Paths = slices.DeleteFunc(f.Paths, func(p string) bool { return p == name })
		delete(s.files, name)
	}
}

// file looks into a regular file, if it is one that tells something.
func (s *scanner) file(name string, size int64, content io.Reader) error {
	if size == 0 {
		return nil
	}
	f := &File{}
	read := readerFor(name)
	if read == nil {
		// Most files are no programs, and not worth a buffer full of them.
		var magic [len(elfMagic)]byte
		if _, err := io.ReadFull(content, magic[:]); err != nil || string(magic[:]) != elfMagic {
			return ignoreShort(err)
		}
		read, content = readProgram, io.MultiReader(bytes.NewReader(magic[:]), content)
	}
	r := takeReader(content)
	defer giveReader(r)
	if err := read(name, r, f); err != nil {
		return err
	}
	f.Packages = slices.DeleteFunc(f.Packages, func(p Package) bool { return !p.plausible() })
	if len(f.Packages) == 0 && f.Distribution == nil && f.LicenseOf == "" && len(f.Notes) == 0 {
		return nil
	}
	if len(name) > maxPath {
		s.note("a file with packages has a path of more than %d bytes", maxPath)
		return nil
	}
	if s.packages += len(f.Packages); s.packages > maxPackages {
		return fmt.Errorf("it has more than %d packages", maxPackages)
	}
	f.Paths = []string{name}
	s.files[name] = f
	return nil
}

// ignoreShort keeps the errors that are not about a file's size.
func ignoreShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// finish brings what was found into its one order.
func (s *scanner) finish() *Layer {
	seen := make(map[*File]bool)
	for _, f := range s.files {
		if seen[f] {
			continue
		}
		seen[f] = true
		slices.Sort(f.Paths)
		slices.SortFunc(f.Packages, Package.compare)
		f.Packages = slices.Compact(f.Packages)
		s.layer.Files = append(s.layer.Files, *f)
	}
	slices.SortFunc(s.layer.Files, func(a, b File) int { return cmp.Compare(a.Paths[0], b.Paths[0]) })
	slices.Sort(s.layer.Notes)
	s.layer.Covers = s.layer.Covers.sorted()
	s.layer.Opaque = s.layer.Opaque.sorted()
	return s.layer
}

// ScanFile looks at a file that is in no layer, and reads it to its end. Only programs
// written in Go tell something. An error is one of r or of ctx.
func ScanFile(ctx context.Context, r io.Reader) ([]Package, error) {
	from := newSource(ctx, r)
	buffered := takeReader(from)
	defer giveReader(buffered)
	var f File
	_ = readProgram("", buffered, &f) // its error is from's
	if from.err == nil {
		_, _ = io.Copy(io.Discard, buffered)
	}
	if from.err != nil {
		return nil, from.err
	}
	f.Packages = slices.DeleteFunc(f.Packages, func(p Package) bool { return !p.plausible() })
	slices.SortFunc(f.Packages, Package.compare)
	return slices.Compact(f.Packages), nil
}
