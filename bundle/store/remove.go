package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// Remove removes a bundle, what lies beside it, and the blobs that no other bundle of the store has, which it returns.
// It fails with [ErrBusy] while somebody reads the bundle, and with [ErrUnknown] where there is none of that name. An
// entry that is damaged can be removed. Where another one is, all blobs stay, as nobody knows which it needs. The same
// again finishes a Remove that was cut short.
func (s *Store) Remove(ctx context.Context, name string) (bundle.Amount, error) {
	freed, err := s.removeBundle(ctx, name)
	if err != nil {
		return freed, fmt.Errorf("remove %s from the store %s: %w", name, s.dir, err)
	}
	return freed, nil
}

func (s *Store) removeBundle(ctx context.Context, name string) (freed bundle.Amount, err error) {
	if err := checkName(name); err != nil {
		return freed, err
	}
	lock, err := s.lock()
	if err != nil {
		return freed, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written to it
	if err := s.removeEntry(name); err != nil {
		return freed, err
	}
	if err := s.removeBesides(name); err != nil {
		return freed, err
	}
	if freed, err = s.free(ctx); err != nil {
		return freed, fmt.Errorf("its entry is removed; then: %w", err)
	}
	return freed, nil
}

// removeEntry removes an entry that nobody reads. It may be gone where something is left of its bundle.
func (s *Store) removeEntry(name string) error {
	info, err := os.Lstat(s.Path(name))
	isLeft := func(suffix string) bool { return isFile(s.Path(name) + suffix) }
	switch {
	case errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(besides, isLeft):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return ErrUnknown
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: what has this name is no file of the store", ErrUnknown)
	}
	// Whoever reads a bundle has a lock on its entry.
	entry, locked, err := ownfile.Lock(s.Path(name), 0o644)
	if err != nil {
		return err
	}
	defer entry.Close() //nolint:errcheck // nothing was written to it
	if !locked {
		return fault.WithHint(fmt.Errorf("%w: somebody reads it", ErrBusy),
			"end what serves or reads the bundle, such as `boxlift registry serve`")
	}
	if err := s.remove(s.Path(name)); err != nil {
		return err
	}
	// Without this a power cut could bring the entry back, and not its blobs.
	return s.syncDir(s.dir)
}

// Prune removes the blobs that no bundle of the store has, such as those of an Add that was cut short, and returns
// them.
func (s *Store) Prune(ctx context.Context) (bundle.Amount, error) {
	lock, err := s.lock()
	if err != nil {
		return bundle.Amount{}, fmt.Errorf("prune the store %s: %w", s.dir, err)
	}
	defer lock.Close() //nolint:errcheck // nothing was written to it
	freed, err := s.free(ctx)
	if err != nil {
		return freed, fmt.Errorf("prune the store %s: %w", s.dir, err)
	}
	return freed, nil
}

// free removes blobs that nobody needs, and drafts.
func (s *Store) free(ctx context.Context) (freed bundle.Amount, err error) {
	needed, err := s.needed()
	if err != nil {
		return freed, fault.WithHint(fmt.Errorf("no blob is removed, as one that cannot be read may need it: %w", err),
			"`boxlift store remove` removes such an entry; move away what is none")
	}
	unneeded, drafts, err := s.unneeded(needed)
	if err != nil {
		return freed, err
	}
	for _, b := range unneeded {
		if ctx.Err() != nil {
			return freed, context.Cause(ctx)
		}
		if err := s.remove(volume.BlobPath(s.dir, b.SHA256)); err != nil {
			return freed, err
		}
		freed.Add(b.Size)
	}
	for _, path := range drafts {
		if err := s.remove(path); err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// unneeded finds blobs that are not among those needed, and the drafts that a cut has left.
func (s *Store) unneeded(needed map[digest.Digest]*blob) (blobs []volume.StoredMember, drafts []string, err error) {
	if draft := filepath.Join(s.dir, draftName); isFile(draft) {
		drafts = append(drafts, draft)
	}
	top := filepath.Join(s.dir, blobsDir, "sha256")
	folders, err := os.ReadDir(top)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, folder := range folders {
		if !folder.IsDir() {
			continue
		}
		files, err := os.ReadDir(filepath.Join(top, folder.Name()))
		if err != nil {
			return nil, nil, err
		}
		for _, f := range files {
			path := filepath.Join(top, folder.Name(), f.Name())
			hex, isDraft := strings.CutSuffix(f.Name(), part)
			d := digest.NewDigestFromEncoded(digest.SHA256, hex)
			if d.Validate() != nil || !strings.HasPrefix(hex, folder.Name()) || !f.Type().IsRegular() {
				continue // it is not the store's
			}
			if isDraft {
				drafts = append(drafts, path)
				continue
			}
			info, err := f.Info()
			if err != nil {
				return nil, nil, err
			}
			if needed[d] == nil {
				m := volume.StoredMember{SHA256: d}
				m.Size = info.Size()
				blobs = append(blobs, m)
			}
		}
	}
	return blobs, drafts, nil
}

func isFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}
