package relocation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/database"
)

// Source is a proven backup with LiteBoxd's database.
type Source struct {
	// Path is the file or folder of the backup, Time when it was made.
	Path string
	Time time.Time
	// SHA256 is that of the database, Rows are the templates and the like in it, Sandboxes were there then.
	SHA256    string
	Rows      database.Keys
	Sandboxes []liteboxd.Sandbox
	// Location says where the database was; nil where the backup does not say it.
	Location *backup.Location
	// Key is the key of the stored tokens.
	Key []byte

	extract func(to string) error
}

func (s *Source) when() string { return s.Time.UTC().Format(time.RFC3339) }

// keyEntry is the key in a backup of a cluster.
const keyEntry = backup.LiteBoxdFolder + "/sandbox-token-encryption-key"

// OfCluster is the source that a backup of a cluster is, which the caller has verified and keeps open.
func OfCluster(r *backup.Reader, cluster string) (*Source, error) {
	if is := r.Manifest().Cluster; is != cluster {
		return nil, fmt.Errorf("%w: the backup is of the cluster %q, install.yaml describes %q", site.ErrRefused, is,
			cluster)
	}
	b, err := liteboxd.RecordIn(r)
	if err != nil {
		return nil, err
	}
	e, has := r.Manifest().Entry(backup.LiteBoxdDatabase)
	if b == nil || !has {
		return nil, fmt.Errorf("%w: the backup %s has no database of LiteBoxd's", site.ErrRefused, r.Path())
	}
	const most = 4 << 10
	key, err := r.ReadSmall(keyEntry, most)
	if err != nil {
		return nil, err
	}
	return &Source{
		Path: r.Path(), Time: b.Time, SHA256: e.SHA256, Rows: b.Rows, Sandboxes: b.Sandboxes,
		Location: r.Manifest().LiteBoxd, Key: key,
		extract: func(to string) error {
			content, _, err := r.Open(backup.LiteBoxdDatabase)
			if err != nil {
				return err
			}
			return extract(to, content, e.SHA256)
		},
	}, nil
}

// OfFolder is the source that the folder of a backup of LiteBoxd is.
func OfFolder(ctx context.Context, dir, cluster string) (*Source, error) {
	b, err := liteboxd.ReadBackup(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	if b.Cluster != cluster {
		return nil, fmt.Errorf("%w: the backup is of the cluster %q, install.yaml describes %q", site.ErrRefused,
			b.Cluster, cluster)
	}
	if b.SHA256 == "" {
		return nil, fmt.Errorf("%w: the backup %s has no database", site.ErrRefused, dir)
	}
	s := &Source{Path: dir, Time: b.Time, SHA256: b.SHA256, Rows: b.Rows, Sandboxes: b.Sandboxes}
	if s.Key, err = liteboxd.KeyIn(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	s.extract = func(to string) error {
		f, err := os.Open(filepath.Join(dir, liteboxd.BackupDatabase))
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // it was only read
		return extract(to, f, b.SHA256)
	}
	return s, s.prove(ctx)
}

// prove opens the database.
func (s *Source) prove(ctx context.Context) (err error) {
	dir, remove, err := backup.ClearFolder(filepath.Dir(s.Path))
	if err != nil {
		return fmt.Errorf("make a folder for the database: %w", err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	to := filepath.Join(dir, liteboxd.BackupDatabase)
	if err := s.extract(to); err != nil {
		return fmt.Errorf("%w: read the backup %s: %w", site.ErrRefused, s.Path, err)
	}
	if _, err := database.Counts(ctx, to); err != nil {
		return fmt.Errorf("%w: read the backup %s: %w", site.ErrRefused, s.Path, err)
	}
	return nil
}

// extract makes a file of a database, if it is the one with the sha256.
func extract(to string, content io.Reader, want string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if is := hex.EncodeToString(sum.Sum(nil)); is != want {
		return fmt.Errorf("%w: the database has the sha256 %s, expected %s", backup.ErrInvalid, is, want)
	}
	return nil
}

// Newest is the newest proven backup beside a state that has LiteBoxd's database: one of the cluster, or one of
// LiteBoxd. Identities open backups that are encrypted; without any, or where none of them
// fits, such a one is passed over. The caller closes what it returns besides.
//
// Warn is told of every newer one that cannot be used.
func Newest(ctx context.Context, s *site.Site, identities []age.Identity, warn func(string)) (*Source, func() error,
	error) {
	all, err := candidates(s, warn)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range slices.Backward(all) {
		source, closing, err := c.open(ctx, s.Config.Cluster.Name, identities)
		if err == nil {
			return source, closing, nil
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		warn(fmt.Sprintf("the backup %s of %s is passed over: %v", c.path, c.time.UTC().Format(time.RFC3339), err))
	}
	return nil, nil, fmt.Errorf("%w: beside the state there is no proven backup with LiteBoxd's database: name one",
		site.ErrRefused)
}

// candidate is what may be a backup.
type candidate struct {
	path     string
	time     time.Time
	isFolder bool
}

// candidates are the backups beside a state, the newest last.
func candidates(s *site.Site, warn func(string)) ([]candidate, error) {
	listed, err := backup.List(recovery.BackupsDir(s.StatePath, s.Config.Cluster.Name))
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, l := range listed {
		if l.Manifest == nil || l.Manifest.LiteBoxd != nil {
			all = append(all, candidate{path: l.Path, time: l.Time})
		}
	}
	folders, err := liteboxd.BackupFolders(s)
	if err != nil {
		return nil, err
	}
	for _, dir := range folders {
		b, err := liteboxd.ReadBackup(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is none
		case err != nil:
			warn(fmt.Sprintf("the backup %s is passed over: %v", dir, err))
		case !strings.HasPrefix(b.To, beforeRestore): // that is what a restore was to take the place of
			all = append(all, candidate{path: dir, time: b.Time, isFolder: true})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.time.Compare(b.time) })
	return all, nil
}

func (c candidate) open(ctx context.Context, cluster string, identities []age.Identity) (*Source, func() error, error) {
	if c.isFolder {
		s, err := OfFolder(ctx, c.path, cluster)
		return s, func() error { return nil }, err
	}
	r, err := backup.Open(c.path, identities...)
	if err != nil {
		return nil, nil, err
	}
	var s *Source
	if _, err = r.Verify(ctx); err == nil {
		s, err = OfCluster(r, cluster)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return s, r.Close, nil
}
