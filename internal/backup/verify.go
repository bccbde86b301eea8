package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/liteboxd/boxlift/internal/database"
)

// Report is what was found when a backup was proven.
type Report struct {
	Path      string   `json:"path"`
	Digest    string   `json:"digest"`
	Encrypted bool     `json:"encrypted"`
	Manifest  Manifest `json:"manifest"`
	// Revisions is how many revisions of objects an etcd snapshot holds.
	Revisions int `json:"revisions,omitempty"`
	// Claims are those whose files it has.
	Claims []Claim `json:"claims,omitempty"`
}

// Verify proves a backup: every entry's digest, that its databases open and are sound, and that the claims' files can
// be brought back.
// They are opened as files in a folder beside the backup, or, where there can be none, in that
// for temporary files; it is its owner's alone and does not stay ([ClearFolder]).
func (r *Reader) Verify(ctx context.Context) (*Report, error) {
	report, err := r.verifyIn(ctx, filepath.Dir(r.path))
	if cannotHold(err) {
		report, err = r.verifyIn(ctx)
	}
	return report, err
}

func (r *Reader) verifyIn(ctx context.Context, parents ...string) (report *Report, err error) {
	dir, remove, err := ClearFolder(parents...)
	if err != nil {
		return nil, fmt.Errorf("make a folder to open the backup in: %w", err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	opened := map[string]bool{r.manifest.Datastore.Entry(): true, LiteBoxdDatabase: true}
	for _, e := range r.manifest.Entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		to := ""
		if opened[e.Name] {
			to = filepath.Join(dir, filepath.Base(e.Name))
		}
		var err error
		if c, ok := claimOf(r.claims, e.Name); ok {
			var in io.Reader
			if in, _, err = r.Open(e.Name); err == nil {
				err = c.checkFiles(ctx, in)
			}
		} else {
			err = r.extract(e.Name, to)
		}
		if err != nil {
			return nil, fmt.Errorf("verify the backup %s: %w", r.path, err)
		}
	}
	report, err = checkFiles(ctx, r.manifest, func(name string) string {
		return filepath.Join(dir,
			filepath.Base(name))
	})
	if err != nil {
		return nil, fmt.Errorf("verify the backup %s: %w", r.path, err)
	}
	report.Path, report.Digest, report.Encrypted, report.Claims = r.path, r.digest, r.encrypted, r.claims
	return report, nil
}

// extract reads an entry to its end, to a file unless that is "".
func (r *Reader) extract(name, to string) error {
	in, _, err := r.Open(name)
	if err != nil {
		return err
	}
	if to == "" {
		_, err = io.Copy(io.Discard, in)
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// checkFiles opens the databases of a backup.
func checkFiles(ctx context.Context, m Manifest, path func(name string) string) (*Report, error) {
	report := &Report{Manifest: m}
	store := path(m.Datastore.Entry())
	switch m.Datastore {
	case Etcd:
		var err error
		if report.Revisions, err = checkSnapshot(store); err != nil {
			return nil, fmt.Errorf("%s: %w", EtcdSnapshot, err)
		}
	case SQLite:
		if _, err := database.Read(ctx, store); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, SQLiteDatabase, err)
		}
	}
	if m.LiteBoxd == nil {
		return report, nil
	}
	if _, err := database.Read(ctx, path(LiteBoxdDatabase)); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, LiteBoxdDatabase, err)
	}
	return report, nil
}

// snapshotPage is the unit in which etcd's database grows: what a snapshot has beyond it
// is its own sha256 (etcd v3.6, etcdutl/snapshot).
const snapshotPage = 512

// checkSnapshot proves an etcd snapshot as etcd itself does before it restores one, and
// counts what is in it.
func checkSnapshot(path string) (revisions int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	content := info.Size() - sha256.Size
	if content <= 0 || content%snapshotPage != 0 {
		return 0, invalid("it has %d bytes, which no snapshot of etcd has", info.Size())
	}
	hash, end := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(hash, io.LimitReader(f, content)); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(f, end); err != nil {
		return 0, err
	}
	if got := hash.Sum(nil); hex.EncodeToString(got) != hex.EncodeToString(end) {
		return 0, invalid("its content has the sha256 %x, its own end says %x", got, end)
	}
	return countRevisions(path)
}

// countRevisions goes through all revisions. The library panics on pages that make no
// sense, and the file is mapped: both end here.
func countRevisions(path string) (revisions int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = invalid("etcd's database in it is damaged: %v", p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return 0, invalid("etcd's database in it cannot be opened: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		keys := tx.Bucket([]byte("key"))
		if keys == nil || tx.Bucket([]byte("meta")) == nil {
			return invalid("it is no database of etcd")
		}
		return keys.ForEach(func(_, _ []byte) error {
			revisions++
			return nil
		})
	})
	return revisions, err
}
