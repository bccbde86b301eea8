package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// recordName is the file in FilesDir in which a host remembers what its releases need.
const recordName = "releases.json"

const (
	recordVersion = 1
	maxRecord     = 1 << 20
)

// releaseRecord is the content of that file.
type releaseRecord struct {
	Version int   `json:"version"`
	Current Needs `json:"current"`
	// Previous is nil as long as there was only one release.
	Previous *Needs `json:"previous,omitempty"`
}

// readRecord reads what is recorded. It is nil when nothing is.
func readRecord(filesDir string) (*releaseRecord, error) {
	root, err := os.OpenRoot(filesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // it was only read
	f, err := hostfile.Open(root, recordName, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer hostfile.CloseRead(f)
	raw, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, err
	}
	return parseRecord(raw)
}

func parseRecord(raw []byte) (*releaseRecord, error) {
	r := &releaseRecord{}
	if err := wire.DecodeStrictly(raw, maxRecord, r); err != nil {
		return nil, err
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("its version is %d, expected %d", r.Version, recordVersion)
	}
	if r.Current.ID == "" {
		return nil, errors.New("it does not say which release is the current one")
	}
	if err := r.Current.validate(); err != nil {
		return nil, fmt.Errorf("the current release: %w", err)
	}
	if r.Previous == nil {
		return r, nil
	}
	if err := r.Previous.validate(); err != nil {
		return nil, fmt.Errorf("the previous release: %w", err)
	}
	return r, nil
}

// write writes the record, unless the file has it already.
func (r *releaseRecord) write(filesDir string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	if len(raw) > maxRecord {
		return fmt.Errorf("it would have %d bytes, more than %d", len(raw), maxRecord)
	}
	name := path.Join(filesDir, recordName)
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, raw) {
		return nil
	}
	return hostfile.Replace(name, raw)
}

// succeed is the record once release is the current one, on a host that has these packs and
// files.
//
// What was there before anything was recorded counts as the previous release: nobody can
// tell it from what that needs. What a release does not need any more, because its
// configuration has changed, counts as the previous one's as well.
func (r *releaseRecord) succeed(release Needs, packs, files []string) *releaseRecord {
	next := &releaseRecord{Version: recordVersion, Current: release}
	switch {
	case r == nil:
		next.Previous = Needs{Packs: packs, Files: files}.without(release)
	case r.Current.ID != release.ID:
		next.Previous = &r.Current
	default:
		previous := Needs{ID: release.ID}
		if r.Previous != nil {
			previous = *r.Previous
		}
		dropped := r.Current.without(release)
		if dropped != nil {
			previous.Packs = union(previous.Packs, present(dropped.Packs, packs))
			previous.Files = union(previous.Files, present(dropped.Files, files))
		}
		if r.Previous != nil || len(previous.Packs)+len(previous.Files) > 0 {
			next.Previous = &previous
		}
	}
	return next
}

// without is what r needs and the other does not, or nil when that is nothing.
func (r Needs) without(other Needs) *Needs {
	lacks := func(names, others []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
	}
	r.Packs, r.Files = lacks(r.Packs, other.Packs), lacks(r.Files, other.Files)
	if len(r.Packs)+len(r.Files) == 0 {
		return nil
	}
	return &r
}

// present are those of the names that are on the disk.
func present(names, disk []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(disk, name) })
}

func union(a, b []string) []string {
	for _, name := range b {
		if !slices.Contains(a, name) {
			a = append(slices.Clip(a), name)
		}
	}
	return a
}
