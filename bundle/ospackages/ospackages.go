// Package ospackages finds out which packages of an operating system's archives a lock's entry stands for: it fetches
// the archives' signed indexes, proves them, and leaves the rest to package debian.
//
// The keyring and the state of a system are read from this host. From there the chain is: a key of the ring has signed
// InRelease, which has the sha256 of each index, which has the sha256 of each package. No package is fetched.
package ospackages

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Finder asks archives. Source is required. It may be used by several goroutines at once, of which one is served at a
// time: an index takes a hundred megabytes of memory and more.
type Finder struct {
	Source *source.Client
	// Reporter is told of the downloads; nil discards it.
	Reporter progress.Reporter
	// Now is the time by which signatures and archives are judged; nil for the clock's.
	Now func() time.Time

	one sync.Mutex
}

// Find resolves what an entry asks for, as the archives have it now. Errors of the archives wrap those of package
// debian, and name the address.
func (f *Finder) Find(ctx context.Context, s lock.OSPackages) ([]lock.OSPackage, error) {
	f.one.Lock()
	defer f.one.Unlock()
	keyring, err := f.keyring(ctx, s.Keyring)
	if err != nil {
		return nil, err
	}
	index := debian.NewIndex(s.Architecture())
	for i, a := range s.Archives {
		if err := f.addArchive(ctx, index, i, a, keyring, s.Architecture()); err != nil {
			return nil, err
		}
	}
	base, err := f.base(ctx, index, s)
	if err != nil {
		return nil, err
	}
	all, err := index.Resolve(debian.Wish{Names: s.Names, Base: base, Removes: s.Removes})
	if err != nil {
		return nil, err
	}
	contents := make([]lock.OSPackage, 0, len(all))
	for _, p := range all {
		contents = append(contents, lock.OSPackage{
			Name: p.Name, Version: p.Version, Architecture: p.Architecture,
			URL: address(s.Archives[p.Archive].URL, p.Path), SHA256: p.SHA256, Size: p.Size,
		})
	}
	if len(contents) == 0 {
		return nil, fault.Input.Errorf("the base %s has newer versions of all that is asked for", s.Base)
	}
	return contents, nil
}

func (f *Finder) keyring(ctx context.Context, address string) (*debian.Keyring, error) {
	data, err := f.Source.File(ctx, address, debian.MaxKeyring)
	if err != nil {
		return nil, fmt.Errorf("read the keyring: %w", err)
	}
	keyring, err := debian.ReadKeyring(data)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%s: %w", address, err),
			"it is a file of OpenPGP keys as the package debian-archive-keyring or ubuntu-keyring has it")
	}
	return keyring, nil
}

// addArchive adds the indexes of a suite of an archive.
func (f *Finder) addArchive(
	ctx context.Context, index *debian.Index, number int, a lock.PackageArchive, keyring *debian.Keyring,
	architecture string,
) error {
	suite := address(a.URL, "dists/"+a.Suite)
	signed, err := f.Source.File(ctx, suite+"/InRelease", debian.MaxInRelease)
	if err != nil {
		return err
	}
	release, err := debian.OpenRelease(keyring, signed, f.now())
	if err == nil {
		err = release.Is(a.Suite)
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("%s: %w", suite, err), "name the distribution's own keyring for this archive, "+
			"and look whether what answers is the archive or a mirror that is up to date")
	}
	for _, component := range a.Components {
		files, err := release.Indexes(component, architecture)
		if err != nil {
			return fmt.Errorf("%s: %w", suite, err)
		}
		for _, file := range files {
			data, err := f.fetch(ctx, suite+"/"+file.Path, a.Suite+"/"+component, file)
			if err == nil {
				err = index.Add(number, file, data)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", suite, err)
			}
		}
	}
	return nil
}

// fetch fetches an index, which has to be the one that is signed.
func (f *Finder) fetch(ctx context.Context, url, label string, file debian.IndexFile) ([]byte, error) {
	if file.Size > debian.MaxIndex {
		return nil, fmt.Errorf("%w: the index %s has %d bytes, %d is the most", debian.ErrArchive, file.Path, file.Size,
			int64(debian.MaxIndex))
	}
	want := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, file.SHA256), Size: file.Size}
	var content []byte
	label = "index of " + label
	err := download.Again(ctx, f.reporter(), label, func() error {
		var err error
		content, err = f.fetchOnce(ctx, url, label, want)
		return err
	})
	return content, err
}

func (f *Finder) fetchOnce(
	ctx context.Context, url, label string, want ocispec.Descriptor,
) (content []byte, err error) {
	stream, err := f.Source.OpenPinned(ctx, url, 0)
	if err != nil {
		return nil, err
	}
	defer stream.Close() //nolint:errcheck // it was read to its end, or is not wanted
	task := f.reporter().Task(label, want.Size)
	defer func() { task.Done(err) }()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(download.Metered(stream, download.NewMeter(task)), want.Size+1)); err != nil {
		return nil, err
	}
	if got := digest.FromBytes(b.Bytes()); got != want.Digest {
		return nil, fault.WithHint(fmt.Errorf("%w: the index %s is not the one that is signed: it has %s, signed is %s",
			debian.ErrArchive, url, got, want.Digest),
			"an archive that is being updated right now is like that for a moment: run it again")
	}
	return b.Bytes(), nil
}

// base is what hosts have.
func (f *Finder) base(ctx context.Context, index *debian.Index, s lock.OSPackages) ([]*debian.Package, error) {
	switch s.Base {
	case lock.BaseRequired:
		return index.Base("required")
	case lock.BaseImportant:
		return index.Base("required", "important")
	}
	data, err := f.Source.File(ctx, s.Base, debian.MaxState)
	if err != nil {
		return nil, fmt.Errorf("read the base: %w", err)
	}
	base, err := debian.ReadState(s.Architecture(), data)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%s: %w", s.Base, err),
			"it is /var/lib/dpkg/status of a host, or of the image that hosts are made of")
	}
	return base, nil
}

func (f *Finder) reporter() progress.Reporter {
	if f.Reporter == nil {
		return progress.Discard
	}
	return f.Reporter
}

func (f *Finder) now() time.Time {
	if f.Now == nil {
		return time.Now()
	}
	return f.Now()
}

// address is that of a path in an archive, in the form that a lock has: only what means the same to every server
// stays as it is.
func address(archive, path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = strings.ReplaceAll((&url.URL{Path: part}).EscapedPath(), "+", "%2B")
	}
	return strings.TrimSuffix(archive, "/") + "/" + strings.Join(parts, "/")
}

// Changed lists what became of an entry that is pinned, as [lock.Diff] does; nothing where the archives still have what
// is pinned.
func (f *Finder) Changed(ctx context.Context, component string, s lock.OSPackages) ([]lock.Change, error) {
	now := s
	var err error
	if now.Contents, err = f.Find(ctx, s); err != nil {
		return nil, err
	}
	return lock.DiffPackages(component, s, now), nil
}
