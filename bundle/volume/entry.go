package volume

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

const (
	// entryMagic is the first line of an entry.
	entryMagic = "boxlift.dev/v1 StoredBundle\n"
	// entryEnd begins the last line of an entry, which has the sha256 of all lines before it.
	entryEnd = "end "
	// maxEntry is the most that is read of an entry, in bytes: all members, each a line of at most 158.
	maxEntry = ocitar.MaxMembers * 160
	// maxHeld is the most that a member has that is no blob, in bytes. It is held in memory.
	maxHeld = 16 << 20

	storeHint = "`boxlift store add` mends a store: it replaces what is damaged or missing by what a bundle has"
)

// ErrInUse says that a bundle of a store is being removed.
var ErrInUse = fault.NewKind(fault.Input, "another boxlift is removing it")

// Entry is a bundle in a store: which members its tar has. Their bytes are blobs of the store. The file of an entry is
// text, and there is one form for each entry:
//
//	boxlift.dev/v1 StoredBundle
//	<sha256> <size in bytes> index.json
//	<sha256> <size in bytes> blobs/sha256/<sha256>
//	...
//	end <sha256 of the lines before>
//
// The members are in the order of the tar; oci-layout, which is the same in all bundles, is left out.
type Entry struct{ Members []StoredMember }

// StoredMember is a member of a bundle and the blob of the store that has its bytes.
type StoredMember struct {
	ocitar.Member
	SHA256 digest.Digest
}

// Encode returns the file of the entry.
func (e *Entry) Encode() []byte {
	var b bytes.Buffer
	b.WriteString(entryMagic)
	for _, m := range e.Members {
		fmt.Fprintf(&b, "%s %d %s\n", m.SHA256.Encoded(), m.Size, m.Name)
	}
	sum := sha256.Sum256(b.Bytes())
	fmt.Fprintf(&b, "%s%s\n", entryEnd, hex.EncodeToString(sum[:]))
	return b.Bytes()
}

// ParseEntry reads what [Entry.Encode] writes. Errors wrap [ErrDamaged].
func ParseEntry(content []byte) (*Entry, error) {
	lines, ok := bytes.CutPrefix(content, []byte(entryMagic))
	if !ok || len(content) > maxEntry {
		return nil, fmt.Errorf("%w: it is no entry of a store", ErrDamaged)
	}
	e := &Entry{}
	for number := 2; len(lines) > 0; number++ {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		if bytes.HasPrefix(line, []byte(entryEnd)) {
			break
		}
		m, err := parseStored(string(line))
		if err != nil {
			return nil, fmt.Errorf("%w: line %d of the entry: %w", ErrDamaged, number, err)
		}
		e.Members, lines = append(e.Members, m), rest
	}
	if !bytes.Equal(e.Encode(), content) {
		return nil, fmt.Errorf("%w: the entry is cut off, or was changed", ErrDamaged)
	}
	if _, err := e.Layout(); err != nil {
		return nil, fmt.Errorf("%w: the entry: %w", ErrDamaged, err)
	}
	return e, nil
}

func parseStored(line string) (m StoredMember, err error) {
	fields := strings.Split(line, " ")
	if len(fields) != 3 {
		return m, fmt.Errorf("%.80q has %d fields, expected 3", line, len(fields))
	}
	m.SHA256, m.Name = digest.NewDigestFromEncoded(digest.SHA256, fields[0]), fields[2]
	if err := m.SHA256.Validate(); err != nil {
		return m, err
	}
	if m.Size, err = strconv.ParseInt(fields[1], 10, 64); err != nil {
		return m, err
	}
	switch of := m.Digest(); {
	case of == "" && m.Size > maxHeld:
		return m, fmt.Errorf("%.40q has %d bytes, %d is the most", m.Name, m.Size, maxHeld)
	case of != "" && of != m.SHA256:
		return m, fmt.Errorf("%s has the digest %s", m.Name, m.SHA256)
	}
	return m, nil
}

// Layout lays out the tar of the bundle.
func (e *Entry) Layout() (*ocitar.Layout, error) {
	members := []ocitar.Member{{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))}}
	for _, m := range e.Members {
		members = append(members, m.Member)
	}
	return ocitar.NewLayout(members)
}

// Bundle is the bundle digest.
func (e *Entry) Bundle() digest.Digest { return e.Members[0].SHA256 } // there is no other order

// ReadEntry reads the entry at path.
func ReadEntry(path string) (*Entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is not a regular file", path, ErrDamaged)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	e, err := readEntry(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return e, nil
}

func readEntry(from io.ReaderAt) (*Entry, error) {
	content, err := io.ReadAll(io.NewSectionReader(from, 0, maxEntry+1))
	if err != nil {
		return nil, err
	}
	return ParseEntry(content)
}

// isEntry reports whether a file begins as an entry.
func isEntry(from io.ReaderAt) (bool, error) {
	begin := make([]byte, len(entryMagic))
	n, err := from.ReadAt(begin, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(begin[:n]) == entryMagic, nil
}

// BlobPath is where the blob of a store lies; dir is the store's folder.
func BlobPath(dir string, d digest.Digest) string {
	return filepath.Join(dir, "blobs", "sha256", d.Encoded()[:2], d.Encoded())
}

// lookAtBlob finds out, without reading it, whether a blob is there and has its length.
func lookAtBlob(dir string, m StoredMember) error {
	path := BlobPath(dir, m.SHA256)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Fault{path, missing, storeHint}
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &Fault{path, "is not a regular file", storeHint}
	case info.Size() != m.Size:
		return &Fault{path, fmt.Sprintf("has %d bytes, expected %d", info.Size(), m.Size), storeHint}
	}
	return nil
}

// CheckBlob reads and hashes a blob of the store in the folder dir. The error has a [Fault] when it is missing or
// damaged. read is called with how many bytes were read since the last time.
func CheckBlob(ctx context.Context, dir string, m StoredMember, read func(n int64)) error {
	if err := lookAtBlob(dir, m); err != nil {
		return err
	}
	f, err := os.Open(BlobPath(dir, m.SHA256))
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	got, err := pieces.Hash(ctx, f, 0, m.Size, read)
	switch {
	case errors.Is(err, io.EOF):
		return &Fault{f.Name(), "was cut off meanwhile", storeHint}
	case err != nil:
		return fmt.Errorf("read %s: %w", f.Name(), err)
	case got != m.SHA256:
		return &Fault{f.Name(), fmt.Sprintf("is damaged: it holds bytes with the digest %s", got), storeHint}
	}
	return nil
}

// checkEntry compares all blobs of the entry at path with their digests. It finds nothing where there is no entry.
func checkEntry(ctx context.Context, path string, reporter progress.Reporter) error {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // volumes have other names
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return nil
	}
	f, err := openStored(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if is, err := isEntry(&f.span); err != nil || !is {
		return err
	}
	e, err := readEntry(&f.span)
	if err != nil {
		return err
	}
	dir, err := storeOf(path)
	if err != nil {
		return err
	}
	var total int64
	for _, m := range e.Members {
		total += m.Size
	}
	task := reporter.Task("find damaged blobs", total)
	err = parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(e.Members), func(ctx context.Context, i int) error {
		return CheckBlob(ctx, dir, e.Members[i], task.Add)
	})
	task.Done(err)
	return err
}

// storeOf is the folder of the store that an entry lies in.
func storeOf(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	return filepath.Dir(resolved), err
}
