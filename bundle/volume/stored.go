package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// maxOpenBlobs is how many blobs of a stored bundle are open at a time.
const maxOpenBlobs = 64

// stored is an open bundle of a store. It reads as the tar that came in.
type stored struct {
	*ocitar.Assembled
	dir  string
	lock *flock.Flock      // keeps the bundle in the store
	held map[string][]byte // the members that are no blobs, proven

	mutex sync.Mutex
	open  []openBlob // the one that was opened last is the last
}

type openBlob struct {
	digest digest.Digest
	file   *os.File
}

// openEntry makes of a file that is an entry the bundle that it stands for. That all blobs are there and have their
// lengths is found out here, and members that are no blobs are read and proven.
func (f *File) openEntry(path string) error {
	s := &stored{held: map[string][]byte{ocitar.LayoutFile: []byte(ocitar.LayoutContent)}}
	if err := s.lockEntry(path, f.span.parts[0].file); err != nil {
		return err
	}
	f.stored = s // closed with the file
	e, err := readEntry(&f.span)
	if err != nil {
		return err
	}
	if s.dir, err = storeOf(path); err != nil {
		return err
	}
	var faults []error
	for _, m := range e.Members {
		if err := lookAtBlob(s.dir, m); err != nil {
			faults = append(faults, err)
		} else if m.Digest() == "" {
			faults = append(faults, s.hold(m))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	layout, err := e.Layout()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	s.Assembled = ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		if m.Digest() == "" {
			return bytes.NewReader(s.held[m.Name]), nil
		}
		return storedBlob{s, m}, nil
	})
	f.size = layout.Size
	return nil
}

// lockEntry has the entry stay, and with it all of its blobs, as long as it is open.
func (s *stored) lockEntry(path string, opened *os.File) error {
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	locked, err := lock.TryRLock()
	if err != nil {
		return fmt.Errorf("lock the entry: %w", err)
	}
	if !locked {
		return ErrInUse
	}
	s.lock = lock
	there, err := os.Stat(path)
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	is, err := opened.Stat()
	if err == nil && !os.SameFile(there, is) {
		err = fmt.Errorf("it was replaced meanwhile: %w", fs.ErrNotExist)
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	return nil
}

// hold reads and proves a member that is no blob.
func (s *stored) hold(m StoredMember) error {
	f, err := os.Open(BlobPath(s.dir, m.SHA256))
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, m.Size+1))
	if err != nil {
		return err
	}
	if got := digest.FromBytes(content); got != m.SHA256 {
		return &Fault{f.Name(), fmt.Sprintf("is damaged: it holds bytes with the digest %s", got), storeHint}
	}
	s.held[m.Name] = content
	return nil
}

// storedBlob are the bytes of a blob, which nobody has proven.
type storedBlob struct {
	stored *stored
	member ocitar.Member
}

// ReadAt is that of [io.ReaderAt]. What is missing is a [Fault].
func (b storedBlob) ReadAt(p []byte, offset int64) (int, error) {
	f, err := b.stored.blob(b.member.Digest())
	if err == nil {
		var n int
		n, err = f.ReadAt(p, offset)
		if errors.Is(err, os.ErrClosed) { // by another read, which had too many open
			n, err = b.readAlone(p, offset)
		}
		if n == len(p) {
			return n, nil
		}
	}
	path := BlobPath(b.stored.dir, b.member.Digest())
	switch {
	case errors.Is(err, io.EOF):
		return 0, &Fault{path, fmt.Sprintf("is cut off: it has to have %d bytes", b.member.Size), storeHint}
	case errors.Is(err, fs.ErrNotExist):
		return 0, &Fault{path, missing, storeHint}
	}
	return 0, err
}

func (b storedBlob) readAlone(p []byte, offset int64) (int, error) {
	f, err := os.Open(BlobPath(b.stored.dir, b.member.Digest()))
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return f.ReadAt(p, offset)
}

// blob opens a blob, unless it is. It may be closed when others are opened.
func (s *stored) blob(d digest.Digest) (*os.File, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if i := slices.IndexFunc(s.open, func(o openBlob) bool { return o.digest == d }); i >= 0 {
		return s.open[i].file, nil
	}
	f, err := os.Open(BlobPath(s.dir, d))
	if err != nil {
		return nil, err
	}
	if len(s.open) == maxOpenBlobs {
		_ = s.open[0].file.Close() // it was only read
		s.open = slices.Delete(s.open, 0, 1)
	}
	s.open = append(s.open, openBlob{d, f})
	return f, nil
}

// Close gives up the blobs and the lock.
func (s *stored) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var errs []error
	for _, o := range s.open {
		errs = append(errs, o.file.Close())
	}
	s.open = nil
	return errors.Join(append(errs, s.lock.Close())...)
}
