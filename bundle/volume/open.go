package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ageMagic is the first line of an encrypted file (age-encryption.org/v1, "Header").
const ageMagic = "age-encryption.org/v1\n"

// ErrNoIdentity is wrapped by errors that say that a file is encrypted and that none of
// the identities opens it.
var ErrNoIdentity = fault.NewKind(fault.Input, "it is encrypted, and no identity that was given opens it")

// File is a bundle that is open for reading, whatever it lies in. It may be used by several
// goroutines at once.
type File struct {
	span     span
	set      set // "" for one file
	clear    io.ReaderAt
	stored   *stored // nil unless span is an entry of a store
	size     int64
	modified time.Time
}

// Open opens the bundle that path stands for: a file; or a set of volumes, by the name of
// the first or any other volume, of the list, or of the whole when no file is called so; or an
// entry of a store, which stays there until it is closed. The identities are used when it is
// encrypted.
//
// That all volumes are there and have the lengths of one set is found out here, and that all
// blobs of an entry are; contents are not read. Errors wrap [ErrDamaged], [ErrNoIdentity],
// [ErrInUse], or those of package os.
func Open(path string, identities ...age.Identity) (*File, error) {
	f, err := openStored(path)
	if err != nil {
		return nil, err
	}
	is, err := isEntry(&f.span)
	switch {
	case err != nil:
	case is && f.set == "":
		err = f.openEntry(path)
	default:
		err = f.decrypt(identities)
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return f, nil
}

// openStored opens what is on the disk, encrypted or not.
func openStored(path string) (*File, error) {
	f := &File{set: setOf(path)}
	paths := []string{path}
	if f.set != "" {
		sums, err := f.set.readList()
		if err != nil {
			return nil, err
		}
		paths = f.set.volumes(len(sums))
	}
	infos, err := f.look(paths)
	if err != nil {
		return nil, err
	}
	for i, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		f.span.add(file, infos[i].Size())
		if infos[i].ModTime().After(f.modified) {
			f.modified = infos[i].ModTime()
		}
	}
	f.size = f.span.size
	return f, nil
}

// Extent returns the file on the disk that has the byte at offset, where it is in that file,
// and how many bytes from there on are in the same file: 0 where no file has them as they are,
// because they are encrypted, in a store, or the end was reached.
func (f *File) Extent(offset int64) (file *os.File, at, length int64) {
	if f.clear != nil || f.stored != nil {
		return nil, 0, 0
	}
	return f.span.Extent(offset)
}

func (s set) volumes(n int) []string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = s.volume(i)
	}
	return paths
}

// look finds all files that are not there or not what they have to be, before any is
// opened: opening a pipe would wait for somebody who writes to it.
func (f *File) look(paths []string) ([]os.FileInfo, error) {
	infos := make([]os.FileInfo, len(paths))
	var faults []error
	for i, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil && (f.set == "" || !errors.Is(err, fs.ErrNotExist)):
			return nil, err
		case err != nil:
			faults = append(faults, f.set.fault(path, missing))
		case !info.Mode().IsRegular() && f.set == "":
			return nil, fmt.Errorf("%w: it is not a regular file", ErrDamaged)
		case !info.Mode().IsRegular():
			faults = append(faults, f.set.fault(path, "is not a regular file"))
		}
		infos[i] = info
	}
	if len(faults) == 0 && f.set != "" {
		faults = f.set.checkSizes(infos)
	}
	return infos, errors.Join(faults...)
}

// checkSizes finds volumes whose length is not that of a set: all but the last have the
// same, and the last has at most that. What that length is, nothing says; of two volumes
// that differ the shorter one is taken for the damaged one.
func (s set) checkSizes(infos []os.FileInfo) []error {
	last := len(infos) - 1
	count := map[int64]int{}
	var size int64
	for _, info := range infos[:last] {
		n := info.Size()
		if count[n]++; count[n] > count[size] || count[n] == count[size] && n > size {
			size = n
		}
	}
	if last == 0 || last == 1 && infos[1].Size() > size {
		size = infos[last].Size()
	}
	var faults []error
	for i, info := range infos {
		switch n := info.Size(); {
		case n == 0:
			faults = append(faults, s.fault(s.volume(i), "is empty"))
		case n < size && i < last:
			faults = append(faults, s.fault(s.volume(i), fmt.Sprintf("has %d bytes, the volumes of this set have at "+
				"least %d: it is cut off", n, size)))
		case n > size:
			faults = append(faults, s.fault(s.volume(i), fmt.Sprintf("has %d bytes, the volumes of this set have %d: "+
				"something was appended", n, size)))
		}
	}
	return faults
}

// decrypt puts what decrypts before the files when these begin as age's do.
func (f *File) decrypt(identities []age.Identity) error {
	isAge, err := f.beginsAsAge()
	if err != nil || !isAge {
		return err
	}
	if len(identities) == 0 {
		return ErrNoIdentity
	}
	content, size, err := age.DecryptReaderAt(&f.span, f.size, identities...)
	var none *age.NoIdentityMatchError
	switch {
	case err == nil:
		f.clear, f.size = content, size
		return nil
	case errors.As(err, &none):
		return fmt.Errorf("%w (it is for recipients of the type %s)", ErrNoIdentity,
			strings.Join(none.StanzaTypes, ", "))
	}
	return decryptError(err)
}

func (f *File) beginsAsAge() (bool, error) {
	begin := make([]byte, len(ageMagic))
	n, err := f.span.ReadAt(begin, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return bytes.Equal(begin[:n], []byte(ageMagic)), nil
}

// decryptError tells a disk that cannot be read, and secrets that could not be had, from
// bytes that are not those that were encrypted.
func decryptError(err error) error {
	var secret *SecretError
	if errors.As(err, new(*fs.PathError)) || errors.As(err, &secret) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// SecretError is what an identity of one's own returns when the secret that it needs cannot
// be had; [Open] passes it on.
type SecretError struct{ Err error }

func (e *SecretError) Error() string { return e.Err.Error() }
func (e *SecretError) Unwrap() error { return e.Err }

// ReadAt is that of [io.ReaderAt]. Of encrypted files, what it returns is proven to be what
// was encrypted; an error that says that it is not wraps [ErrDamaged].
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	if f.stored != nil {
		return f.stored.ReadAt(p, offset)
	}
	if f.clear == nil {
		return f.span.ReadAt(p, offset)
	}
	if offset >= f.size && len(p) > 0 {
		return 0, io.EOF
	}
	n, err := f.clear.ReadAt(p, offset)
	switch {
	case n == len(p):
		return n, nil
	case errors.Is(err, io.EOF):
		return n, io.EOF
	}
	return n, decryptError(err)
}

// UseMapped passes a part of the file to use, piece by piece, without copying it: the
// pieces are the kernel's own memory and must be neither kept nor changed. It fails with
// [errors.ErrUnsupported], before it has passed anything, where that cannot be: of encrypted
// files and of stores never.
func (f *File) UseMapped(offset, size int64, use func([]byte) error) error {
	if f.clear != nil || f.stored != nil {
		return errors.ErrUnsupported
	}
	return f.span.mapped(offset, size, use)
}

// Size returns the length of the bundle in bytes: without what encryption adds.
func (f *File) Size() int64 { return f.size }

// Stored returns how many bytes lie on the disk; of a bundle in a store, how many it would be alone.
func (f *File) Stored() int64 {
	if f.stored != nil {
		return f.size
	}
	return f.span.size
}

// Volumes returns how many volumes there are: 0 when it is one file.
func (f *File) Volumes() int {
	if f.set == "" {
		return 0
	}
	return len(f.span.parts)
}

// VolumeSize returns the length of the first volume in bytes, or 0 when it is one file.
func (f *File) VolumeSize() int64 {
	if f.set == "" {
		return 0
	}
	return f.span.parts[0].size
}

// Encrypted reports whether it is.
func (f *File) Encrypted() bool { return f.clear != nil }

// Modified returns when the file, or the youngest volume, was last written.
func (f *File) Modified() time.Time { return f.modified }

// Close closes all files.
func (f *File) Close() error {
	if f.stored != nil {
		return errors.Join(f.span.Close(), f.stored.Close())
	}
	return f.span.Close()
}

// sums are those of the list, which is read again.
func (f *File) sums() ([]digest.Digest, error) {
	sums, err := f.set.readList()
	if err == nil && len(sums) != len(f.span.parts) {
		err = fmt.Errorf("%s was replaced meanwhile", f.set.list())
	}
	return sums, err
}
