package backup

import (
	"archive/tar"
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

	"filippo.io/age"
	"github.com/google/renameio/v2"
)

// timeFormat is that of the time in a backup's name. Sorted by name, backups of a cluster
// are sorted by time.
const timeFormat = "20060102T150405Z"

// The ends of backups' names.
const (
	plainSuffix     = ".tar"
	encryptedSuffix = ".tar.age"
)

// FileName is what a backup is called.
func (m Manifest) FileName(encrypted bool) string {
	suffix := plainSuffix
	if encrypted {
		suffix = encryptedSuffix
	}
	return m.Cluster + "-" + m.Time.UTC().Format(timeFormat) + suffix
}

// Write makes a backup at path of the files below dir, whose paths there are the names of
// the entries; m.Entries and m.Format are filled in. With recipients it is encrypted to
// them. What was written is read back before it gets its name, and the databases and the
// claims' files among the files are opened before anything is written.
func Write(ctx context.Context, path string, m Manifest, dir string, recipients ...age.Recipient) (*Report, error) {
	var err error
	if m.Entries, err = entriesOf(dir); err != nil {
		return nil, fmt.Errorf("gather what belongs into the backup: %w", err)
	}
	m.Format = m.formatOf()
	if err := m.check(); err != nil {
		return nil, err
	}
	place := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	report, err := checkFiles(ctx, m, place)
	if err != nil {
		return nil, err
	}
	if report.Claims, err = m.checkGathered(ctx, place); err != nil {
		return nil, err
	}
	if report.Digest, err = write(ctx, path, m, dir, recipients); err != nil {
		return nil, fmt.Errorf("write the backup %s: %w", path, err)
	}
	report.Path, report.Encrypted = path, len(recipients) > 0
	return report, nil
}

// entriesOf lists the files below a folder, sorted, with their digests.
func entriesOf(dir string) (entries []Entry, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := Entry{Name: filepath.ToSlash(name)}
		e.Size, e.SHA256, err = digestOf(path)
		entries = append(entries, e)
		return err
	})
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, err
}

func digestOf(path string) (size int64, digest string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	hash := sha256.New()
	size, err = io.Copy(hash, f)
	return size, hex.EncodeToString(hash.Sum(nil)), err
}

func write(ctx context.Context, path string, m Manifest, dir string,
	recipients []age.Recipient) (digest string, err error) {
	manifest, digest, err := m.encode()
	if err != nil {
		return "", err
	}
	if len(manifest) > maxManifest {
		return "", fmt.Errorf("its manifest has %d bytes, %d is the most", len(manifest), maxManifest)
	}
	out, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o600), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return "", err
	}
	defer out.Cleanup() //nolint:errcheck // it only removes what has not got its name
	written := sha256.New()
	to := io.WriteCloser(nopCloser{io.MultiWriter(out, written)})
	if len(recipients) > 0 {
		if to, err = age.Encrypt(to, recipients...); err != nil {
			return "", fmt.Errorf("encrypt: %w", err)
		}
	}
	if err := writeTar(ctx, to, manifest, m.Entries, dir); err != nil {
		return "", err
	}
	if err := to.Close(); err != nil {
		return "", err
	}
	if err := out.Sync(); err != nil {
		return "", err
	}
	// A disk that is full or dying must show now, not when the backup is needed.
	if _, there, err := digestOf(out.Name()); err != nil {
		return "", err
	} else if there != hex.EncodeToString(written.Sum(nil)) {
		return "", errors.New("what was written reads back as something else: the disk may be failing")
	}
	return digest, out.CloseAtomicallyReplace()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func writeTar(ctx context.Context, to io.Writer, manifest []byte, entries []Entry, dir string) error {
	w := tar.NewWriter(to)
	header := func(name string, size int64) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600})
	}
	if err := header(manifestName, int64(len(manifest))); err != nil {
		return err
	}
	if _, err := w.Write(manifest); err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := header(e.Name, e.Size); err != nil {
			return err
		}
		if err := copyEntry(w, e, filepath.Join(dir, filepath.FromSlash(e.Name))); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return w.Close()
}

// copyEntry copies a file that must still be what it was when the manifest was made.
func copyEntry(to io.Writer, e Entry, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(to, hash), f); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != e.SHA256 {
		return errors.New("it changed while it was written")
	}
	return nil
}
