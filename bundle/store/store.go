// Package store keeps several bundles in one folder, each blob once.
//
// Releases of a platform share most of their blobs. A store has
//
//	NAME                        an entry (see [volume.Entry]): one bundle, and which blobs it is made of
//	NAME.signatures, NAME.attestations, NAME.trust
//	                            what lies beside this bundle, as beside any other
//	blobs/sha256/ab/ab01...     the blobs, each under its sha256
//	.boxlift-store              makes the folder a store, and is what writers lock
//
// The path of an entry is that of a bundle: [bundle.Open], and so everything that takes a bundle, reads from the store
// what it reads from a file, byte for byte.
//
// Nothing is taken in that was not proven in the read that copies it, and nothing is given out otherwise than from any
// bundle: who reads proves. The store itself is trusted for nothing.
//
// It may be cut short at any moment. A blob has its name when it is proven and on the disk, and an entry is the last
// thing of a bundle that is written, and the first that is removed. So what is listed is whole, and what a cut left is
// used by the next [Store.Add] or removed by [Store.Prune].
//
// One process writes at a time; a second one is refused with [ErrBusy]. Who reads a bundle locks its entry, so that it
// is not removed meanwhile. Blobs are only ever removed when all entries can be read and none names them.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

const (
	marker    = ".boxlift-store"
	blobsDir  = "blobs"
	draftName = ".entry.part"
	part      = ".part"
	maxName   = 128
)

// besides end the names of what lies beside a bundle.
var besides = []string{bundle.SignaturesSuffix, attestation.Suffix, approval.TrustSuffix}

var (
	// ErrNoStore says that a folder is no store.
	ErrNoStore = fault.NewKind(fault.Input, "it is no store of bundles")
	// ErrBusy says that another process writes to the store, or reads a bundle that is to be removed.
	ErrBusy = fault.NewKind(fault.Input, "it is in use")
	// ErrUnknown says that a store has no such bundle.
	ErrUnknown = fault.NewKind(fault.Input, "no such bundle")
)

// Store is a store in a folder.
type Store struct {
	dir string
	// step is asked before each change of the file system; where it fails, the change is not made. nil permits all.
	step func(change string) error
}

// Open opens the store in a folder. It fails with [ErrNoStore] where there is none.
func Open(dir string) (*Store, error) {
	info, err := os.Lstat(filepath.Join(dir, marker))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !info.Mode().IsRegular():
		return nil, fault.WithHint(fmt.Errorf("open the store %s: %w", dir, ErrNoStore),
			"`boxlift store add BUNDLE --in DIR` makes one")
	case err != nil:
		return nil, fmt.Errorf("open the store %s: %w", dir, err)
	}
	return &Store{dir: dir}, nil
}

// Create opens the store in a folder, and makes it in a new or empty one. Any other folder is refused with
// [ErrNoStore].
func Create(dir string) (*Store, error) { return create(&Store{dir: dir}) }

func create(s *Store) (*Store, error) {
	_, err := os.Stat(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.mkdir(s.dir); err == nil {
			err = s.syncDir(filepath.Dir(s.dir))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make the store %s: %w", s.dir, err)
	}
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("make the store %s: %w", s.dir, err)
	}
	isMarker := func(e fs.DirEntry) bool { return e.Name() == marker && e.Type().IsRegular() }
	if len(names) > 0 && !slices.ContainsFunc(names, isMarker) {
		return nil, fault.WithHint(fmt.Errorf("make the store %s: %w, and there are other files in it", s.dir,
			ErrNoStore), "name a new or an empty folder")
	}
	return s, nil
}

// Path is where a bundle of the store lies: what [bundle.Open] and all commands take.
func (s *Store) Path(name string) string { return filepath.Join(s.dir, name) }

// lock keeps other writers away, until it is closed.
func (s *Store) lock() (*flock.Flock, error) {
	if err := s.change("lock"); err != nil {
		return nil, err
	}
	l, locked, err := ownfile.Lock(filepath.Join(s.dir, marker), 0o644)
	if err == nil && !locked {
		err = errors.Join(fault.WithHint(fmt.Errorf("the store %s: %w: another boxlift writes to it", s.dir, ErrBusy),
			"wait until that one has ended"), l.Close())
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Names are those of the bundles, in order. What is in the folder and is no entry is among them, unless it begins with
// a dot: it may be one that was damaged.
func (s *Store) Names() ([]string, error) {
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	var names []string
	for _, e := range list {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !isBeside(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func isBeside(name string) bool {
	return slices.ContainsFunc(besides, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// Find returns the name of the bundle that has a name or a bundle digest. It fails with [ErrUnknown].
func (s *Store) Find(wanted string) (string, error) {
	names, err := s.Names()
	if err != nil {
		return "", err
	}
	if slices.Contains(names, wanted) {
		return wanted, nil
	}
	var found []string
	for _, name := range names {
		if e, err := volume.ReadEntry(s.Path(name)); err == nil && e.Bundle().String() == wanted {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return "", fault.WithHint(fmt.Errorf("%.80q in the store %s: %w", wanted, s.dir, ErrUnknown),
			"`boxlift store list` shows names and digests")
	case 1:
		return found[0], nil
	}
	return "", fault.Input.Errorf("%s in the store %s has several names: %s", wanted, s.dir, strings.Join(found, ", "))
}

// checkName refuses names that bundles of a store cannot have.
func checkName(name string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+"
	err := volume.CheckName(name, false)
	switch {
	case name == "" || len(name) > maxName:
		err = fmt.Errorf("it has %d characters, expected 1 to %d", len(name), maxName)
	case strings.Trim(name, allowed) != "":
		err = errors.New("it has other characters than letters, digits and . - _ +")
	case strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-"):
		err = fmt.Errorf("it begins with %q", name[:1])
	case name == blobsDir:
		err = errors.New("the blobs lie there")
	case isBeside(name):
		err = errors.New("it ends as only files beside a bundle do")
	}
	if err != nil {
		return fault.WithHint(fault.Input.Errorf("the name %.60q for a bundle in a store: %w", name, err),
			"give it another one with --name")
	}
	return nil
}

// The changes of the file system. Each is one step.

func (s *Store) change(format string, args ...any) error {
	if s.step == nil {
		return nil
	}
	return s.step(fmt.Sprintf(format, args...))
}

// mkdir makes a folder unless it is there.
func (s *Store) mkdir(dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	if err := s.change("mkdir %s", dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (s *Store) syncDir(dir string) error {
	if err := s.change("sync %s", dir); err != nil {
		return err
	}
	return volume.SyncDirectory(dir)
}

// write puts at path what a stream has, which is on the disk before it has that name; whether the name is, syncDir
// says. Where the stream fails, nothing changes. written is told of the bytes.
func (s *Store) write(ctx context.Context, draft, path string, content io.Reader, written func(n int64)) (err error) {
	if err := s.change("make %s", draft); err != nil {
		return err
	}
	f, err := ownfile.Open(draft, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, s.remove(draft))
		}
	}()
	if err := f.Truncate(0); err != nil { // of a draft that was left behind
		return err
	}
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	content = pieces.Until(ctx, content)
	for {
		n, readErr := pieces.Fill(content, *buffer)
		if readErr != nil {
			return readErr
		}
		if n == 0 {
			break
		}
		if err := s.change("write %s", draft); err != nil {
			return err
		}
		if _, err := f.Write((*buffer)[:n]); err != nil {
			return err
		}
		written(int64(n))
	}
	if err := s.change("flush %s", draft); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := s.change("rename %s", path); err != nil {
		return err
	}
	return ownfile.Rename(f, path)
}

// remove removes a file that may be gone.
func (s *Store) remove(path string) error {
	if err := s.change("remove %s", path); err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// needed are the members that bundles of the store have, with the names of these bundles.
func (s *Store) needed() (map[digest.Digest]*blob, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	blobs := make(map[digest.Digest]*blob)
	var errs []error
	for _, name := range names {
		e, err := volume.ReadEntry(s.Path(name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, m := range e.Members {
			b := blobs[m.SHA256]
			if b == nil {
				b = &blob{StoredMember: m}
				blobs[m.SHA256] = b
			}
			if !slices.Contains(b.bundles, name) {
				b.bundles = append(b.bundles, name)
			}
		}
	}
	return blobs, errors.Join(errs...)
}

// blob is a blob and the bundles that have it.
type blob struct {
	volume.StoredMember
	bundles []string
}
