package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Errors about encrypted backups.
var (
	// ErrEncrypted says that a backup cannot be read without a key or passphrase.
	ErrEncrypted = fault.NewKind(fault.Input, "the backup is encrypted")
	// ErrWrongKey says that it cannot be read with the one that was given.
	ErrWrongKey = fault.NewKind(fault.Input, "the backup is encrypted to another key or passphrase")
)

// The first bytes of what age writes (https://age-encryption.org/v1).
var (
	ageMagic        = []byte("age-encryption.org/v1\n")
	ageArmoredMagic = []byte("-----BEGIN AGE ENCRYPTED FILE-----")
)

// Reader is an open backup. Its methods may be called by several goroutines.
type Reader struct {
	path      string
	encrypted bool
	manifest  Manifest
	claims    []Claim
	digest    string
	source    io.ReaderAt
	offsets   map[string]int64
	file      *os.File
}

// Open opens the backup at path, with identities where it is encrypted. The form of the
// whole file has been checked then, and no entry's content: [Reader.Verify] does that.
func Open(path string, identities ...age.Identity) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the backup: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = invalid("it is no regular file")
	}
	var r *Reader
	if err == nil {
		r, err = newReader(f, info.Size(), identities)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the backup %s: %w", path, err), f.Close())
	}
	r.path, r.file = path, f
	return r, nil
}

// newReader reads a backup from its bytes.
func newReader(source io.ReaderAt, size int64, identities []age.Identity) (*Reader, error) {
	r := &Reader{source: source}
	begin := make([]byte, len(ageArmoredMagic))
	n, err := source.ReadAt(begin, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch begin = begin[:n]; {
	case bytes.HasPrefix(begin, ageArmoredMagic):
		return nil, invalid("it is in age's form for texts: age --decrypt brings it back to a file that can be opened")
	case !bytes.HasPrefix(begin, ageMagic):
	case len(identities) == 0:
		return nil, ErrEncrypted
	default:
		r.encrypted = true
		if r.source, size, err = decrypted(source, size, identities); err != nil {
			return nil, err
		}
	}
	return r, r.index(size)
}

func decrypted(source io.ReaderAt, size int64, identities []age.Identity) (io.ReaderAt, int64, error) {
	plain, size, err := age.DecryptReaderAt(source, size, identities...)
	var nobody *age.NoIdentityMatchError
	switch {
	case errors.As(err, &nobody):
		return nil, 0, ErrWrongKey
	case err != nil:
		return nil, 0, invalid("it cannot be decrypted: %w", err)
	}
	return plain, size, nil
}

// index goes from header to header.
func (r *Reader) index(size int64) error {
	section := io.NewSectionReader(r.source, 0, size)
	t := tar.NewReader(section)
	content, err := readManifest(t)
	if err != nil {
		return err
	}
	if r.manifest, err = parseManifest(content); err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	r.digest = hex.EncodeToString(sum[:])
	r.offsets = make(map[string]int64, len(r.manifest.Entries))
	for _, e := range r.manifest.Entries {
		if err := next(t, e.Name, e.Size); err != nil {
			return err
		}
		// The reader has read the header and no more.
		offset, err := section.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if e.Size > size-offset {
			return invalid("it ends within %s", e.Name)
		}
		r.offsets[e.Name] = offset
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return invalid("something follows the last entry that its manifest names")
	}
	last := r.manifest.Entries[len(r.manifest.Entries)-1]
	if end := (r.offsets[last.Name]+last.Size+tarBlock-1)/tarBlock*tarBlock + 2*tarBlock; size != end {
		return invalid("it has %d bytes, expected %d", size, end)
	}
	return r.readClaims()
}

// readClaims reads which claims there are.
func (r *Reader) readClaims() error {
	if r.manifest.Format != FormatWithClaims {
		return nil
	}
	content, err := r.ReadSmall(ClaimsRecord, maxManifest)
	if err == nil {
		r.claims, err = r.manifest.parseClaims(content)
	}
	return err
}

// tarBlock is the unit of a tar, in bytes; two blocks of zeros end it.
const tarBlock = 512

// next goes to the next entry, which must be a plain file of that name and size.
func next(t *tar.Reader, name string, size int64) error {
	h, err := t.Next()
	switch {
	case err != nil:
		return invalid("read up to %s: %w", name, err)
	case h.Name != name:
		return invalid("found %.100q, expected %s", h.Name, name)
	case h.Typeflag != tar.TypeReg || h.Linkname != "":
		return invalid("%s is no regular file", name)
	case h.Size != size && size >= 0:
		return invalid("%s has %d bytes, expected %d", name, h.Size, size)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse") {
			return invalid("%s is stored with holes", name)
		}
	}
	return nil
}

func readManifest(t *tar.Reader) ([]byte, error) {
	const anySize = -1
	if err := next(t, manifestName, anySize); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(t, maxManifest+1))
	if err != nil {
		return nil, invalid("read its manifest: %w", err)
	}
	if len(content) > maxManifest {
		return nil, invalid("its manifest has more than %d bytes", maxManifest)
	}
	return content, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// Path is where the backup lies.
func (r *Reader) Path() string { return r.path }

// Digest is the sha256 of the manifest in hex, and through that of every entry.
func (r *Reader) Digest() string { return r.digest }

// Manifest says what the backup is of.
func (r *Reader) Manifest() Manifest { return r.manifest }

// Encrypted reports whether the file is encrypted.
func (r *Reader) Encrypted() bool { return r.encrypted }

// Has reports whether there is an entry of that name.
func (r *Reader) Has(name string) bool {
	_, ok := r.manifest.Entry(name)
	return ok
}

// Open reads an entry. At its end the digest is compared: an entry that is not what the
// manifest says ends with an error instead of io.EOF.
func (r *Reader) Open(name string) (io.Reader, Entry, error) {
	e, ok := r.manifest.Entry(name)
	if !ok {
		return nil, e, fmt.Errorf("the backup has no %s", name)
	}
	return &checked{Reader: io.NewSectionReader(r.source, r.offsets[name], e.Size), entry: e, hash: sha256.New()}, e,
		nil
}

// checked compares what it has passed on at its end.
type checked struct {
	io.Reader
	entry Entry
	hash  hash.Hash
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	_, _ = c.hash.Write(p[:n]) // a hash takes everything
	if errors.Is(err, io.EOF) && hex.EncodeToString(c.hash.Sum(nil)) != c.entry.SHA256 {
		return n, invalid("%s has another sha256 than the manifest says", c.entry.Name)
	}
	return n, err
}

// ReadSmall returns an entry that has to have no more than most bytes.
func (r *Reader) ReadSmall(name string, most int64) ([]byte, error) {
	in, e, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	if e.Size > most {
		return nil, invalid("%s has %d bytes, %d is the most", name, e.Size, most)
	}
	return io.ReadAll(in)
}

// Listed is a backup that lies in a folder.
type Listed struct {
	Path  string    `json:"path"`
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"`
	// Encrypted says that what is inside is not known without its key.
	Encrypted bool      `json:"encrypted,omitempty"`
	Manifest  *Manifest `json:"manifest,omitempty"`
	// Problem is why the file cannot be used; its contents are not read for this.
	Problem string `json:"problem,omitempty"`
}

// List lists the backups in a folder, the newest last. A folder that is not there has
// none.
func List(dir string) ([]Listed, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	list := []Listed{}
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || !strings.HasSuffix(name, plainSuffix) && !strings.HasSuffix(name, encryptedSuffix) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it has gone meanwhile
		}
		one := Listed{Path: filepath.Join(dir, name), Bytes: info.Size(), Time: info.ModTime().UTC()}
		r, err := Open(one.Path)
		switch {
		case errors.Is(err, ErrEncrypted):
			one.Encrypted = true
		case err != nil:
			one.Problem = err.Error()
		default:
			m := r.Manifest()
			one.Manifest, one.Time = &m, m.Time
			_ = r.Close() // it was only read
		}
		list = append(list, one)
	}
	slices.SortStableFunc(list, func(a, b Listed) int { return a.Time.Compare(b.Time) })
	return list, nil
}
