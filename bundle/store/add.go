package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// AddOptions say how a bundle is taken in.
type AddOptions struct {
	// Name is what the bundle is called in the store: letters, digits and . - _ +, 128 at most. "" is the name of its
	// file.
	Name string
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// Added is what came of adding a bundle.
type Added struct {
	Name, Path string
	Digest     digest.Digest
	// Size is that of the whole bundle in bytes.
	Size int64
	// New are the blobs that the store did not have, Kept those that it had, which were read and hashed there, and
	// Mended those that were damaged in the store.
	New, Kept, Mended bundle.Amount
	// Unchanged says that the store had this bundle under this name. Its blobs were proven all the same.
	Unchanged bool
	// Beside are the files that were written beside it.
	Beside []string
}

// Add takes in the bundle that a reader reads: as the tar that it is when it is neither encrypted nor in
// volumes, and of a delta the whole bundle. What a delta leaves out is taken from the bundles of the store,
// and of those that the reader was given. Who has signed the bundle is for the reader's verifier to say.
//
// Every blob is read once and hashed in this read: in the store where that has it, else in the bundle, from which it is
// copied. What is damaged in the store is replaced. What lies beside the bundle comes along; in a store that has the
// bundle already, only what is not there. An Add that was cut short goes on where it was.
func (s *Store) Add(ctx context.Context, r *bundle.Reader, o AddOptions) (*Added, error) {
	a, err := s.add(ctx, r, o)
	if err != nil {
		return nil, fmt.Errorf("add %s to the store %s: %w", r.Path(), s.dir, err)
	}
	return a, nil
}

func (s *Store) add(ctx context.Context, r *bundle.Reader, o AddOptions) (*Added, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	if o.Name == "" {
		o.Name = filepath.Base(volume.Name(r.Path()))
	}
	if err := checkName(o.Name); err != nil {
		return nil, err
	}
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written to it
	if r.Delta() != nil {
		if err := s.supply(r); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(r.RequireAll(), r.CheckStructure()); err != nil {
		return nil, err
	}
	in := &adding{Store: s, bundle: r, held: heldOf(r),
		result: &Added{Name: o.Name, Path: s.Path(o.Name), Digest: r.Digest(), Size: r.Tar().Layout().Size}}
	entry := in.entry()
	if in.result.Unchanged, err = s.has(o.Name, entry); err != nil {
		return nil, err
	}
	if err := in.copyBlobs(ctx, entry, o.Reporter); err != nil {
		return nil, err
	}
	return in.result, in.list(ctx, entry)
}

// supply gives the reader of a delta the bundles of the store. One that cannot be read supplies nothing.
func (s *Store) supply(r *bundle.Reader) error {
	names, err := s.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if base, err := bundle.Open(s.Path(name)); err == nil {
			r.Use(base)
		}
	}
	return nil
}

// has reports whether the store has the entry under a name. It fails when it has another one.
func (s *Store) has(name string, entry *volume.Entry) (bool, error) {
	if _, err := os.Lstat(s.Path(name)); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	there, err := volume.ReadEntry(s.Path(name))
	switch {
	case err != nil:
		return false, fault.WithHint(fmt.Errorf("what has the name %s there: %w", name, err),
			"`boxlift store remove` removes it, or give the bundle another name with --name")
	case bytes.Equal(there.Encode(), entry.Encode()):
		return true, nil
	case there.Bundle() == entry.Bundle():
		err = fault.Input.Errorf("%s is there, the same bundle with another signature or trust file in it", name)
	default:
		err = fault.Input.Errorf("%s is there, and is the bundle %s", name, there.Bundle())
	}
	return false, fault.WithHint(err, "give this one another name with --name")
}

// adding is a bundle on its way into the store.
type adding struct {
	*Store
	bundle *bundle.Reader
	held   map[string][]byte // its members that are no blobs

	mutex  sync.Mutex
	result *Added
}

// heldOf are the members of the whole bundle that are no blobs, as they were when it was opened and its signature was
// looked at.
func heldOf(r *bundle.Reader) map[string][]byte {
	held := map[string][]byte{ocitar.IndexFile: r.Index()}
	if signed := r.Signature(); signed != nil {
		held[ocitar.SigstoreBundleFile], held[ocitar.SignatureFile] = signed.Bundle, signed.Base64
	}
	if content, ok := r.Fixed()[ocitar.TrustFile]; ok {
		held[ocitar.TrustFile] = content
	}
	return held
}

func (in *adding) entry() *volume.Entry {
	e := &volume.Entry{}
	for _, m := range in.bundle.Tar().Layout().Entries {
		switch content, ok := in.held[m.Name]; {
		case ok:
			e.Members = append(e.Members, volume.StoredMember{Member: m.Member, SHA256: digest.FromBytes(content)})
		case m.Digest() != "":
			e.Members = append(e.Members, volume.StoredMember{Member: m.Member, SHA256: m.Digest()})
		}
	}
	return e
}

// copyBlobs has all blobs in the store, proven and on the disk.
func (in *adding) copyBlobs(ctx context.Context, entry *volume.Entry, reporter progress.Reporter) error {
	top := filepath.Join(in.dir, blobsDir)
	folders := []string{top, filepath.Join(top, "sha256")}
	var total int64
	var members []volume.StoredMember // each blob once
	of := make(map[digest.Digest]bool)
	seen := make(map[string]bool)
	for _, m := range entry.Members {
		if of[m.SHA256] {
			continue
		}
		of[m.SHA256] = true
		members = append(members, m)
		total += m.Size
		if folder := filepath.Dir(volume.BlobPath(in.dir, m.SHA256)); !seen[folder] {
			seen[folder] = true
			folders = append(folders, folder)
		}
	}
	for _, folder := range folders {
		if err := in.mkdir(folder); err != nil {
			return err
		}
	}
	task := reporter.Task("add", total)
	err := parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(members), func(ctx context.Context, i int) error {
		if err := in.copyBlob(ctx, members[i], task); err != nil {
			return &stop{err}
		}
		return nil
	})
	task.Done(err)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := in.syncDir(folder); err != nil {
			return err
		}
	}
	return nil
}

// stop is an error after which no other blob is of use.
type stop struct{ error }

func (s *stop) Unwrap() []error { return []error{s.error, parallel.ErrStop} }

func (in *adding) copyBlob(ctx context.Context, m volume.StoredMember, task progress.Task) error {
	err := volume.CheckBlob(ctx, in.dir, m, func(int64) {}) // what is damaged is written instead, and counts once
	var damaged *volume.Fault
	path := volume.BlobPath(in.dir, m.SHA256)
	amount := &in.result.Kept
	switch {
	case err == nil:
		task.Add(m.Size)
	case !errors.As(err, &damaged):
		return err
	default:
		if amount = &in.result.New; damaged.IsThere() {
			amount = &in.result.Mended
		}
		var content io.Reader
		if held, ok := in.held[m.Name]; ok {
			content = bytes.NewReader(held)
		} else if content, err = in.bundle.Content(m.SHA256, m.Size); err != nil {
			return err
		}
		if err := in.write(ctx, path+part, path, content, task.Add); err != nil {
			return err
		}
	}
	in.mutex.Lock()
	defer in.mutex.Unlock()
	amount.Add(m.Size)
	return nil
}

// list writes what lies beside the bundle, and then the entry: from then on the store has it.
func (in *adding) list(ctx context.Context, entry *volume.Entry) error {
	if !in.result.Unchanged {
		if err := in.removeBesides(in.result.Name); err != nil { // of an Add or a Remove that was cut short
			return err
		}
	}
	if err := in.copyBesides(); err != nil {
		return err
	}
	if err := in.syncDir(in.dir); err != nil || in.result.Unchanged {
		return err
	}
	err := in.write(ctx, filepath.Join(in.dir, draftName), in.result.Path, bytes.NewReader(entry.Encode()),
		func(int64) {})
	if err != nil {
		return err
	}
	return in.syncDir(in.dir)
}

// copyBesides copies what is not there.
func (in *adding) copyBesides() error {
	from, to := volume.Name(in.bundle.Path()), in.result.Path
	for suffix, write := range map[string]func() (string, error){
		bundle.SignaturesSuffix: func() (string, error) { return in.bundle.Signatures().CopyTo(to) },
		attestation.Suffix:      func() (string, error) { return attestation.Copy(from, to) },
		approval.TrustSuffix: func() (string, error) {
			carried, err := approval.ReadCarried(from)
			if err != nil || carried == nil {
				return "", err
			}
			return approval.Carry(to, carried)
		},
	} {
		if _, err := os.Lstat(to + suffix); err == nil {
			continue
		}
		if err := in.change("write %s", to+suffix); err != nil {
			return err
		}
		written, err := write()
		if err != nil {
			return err
		}
		if written != "" {
			in.result.Beside = append(in.result.Beside, written)
		}
	}
	return nil
}

// removeBesides removes what lies beside the bundle of that name.
func (s *Store) removeBesides(name string) error {
	for _, suffix := range besides {
		if _, err := os.Lstat(s.Path(name) + suffix); err != nil {
			continue
		}
		if err := s.remove(s.Path(name) + suffix); err != nil {
			return err
		}
	}
	return nil
}
