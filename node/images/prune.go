package images

import (
	"errors"
	"fmt"
	"path"
	"reflect"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/wire"
)

// PruneVersion is the version of the forms of [PruneRequest] and [PruneReport].
const PruneVersion = 1

// Bounds of what both ends of a prune accept.
const (
	// MaxPruneRequest is the largest [PruneRequest], in bytes of JSON.
	MaxPruneRequest = 1 << 20
	// MaxPruneReport is the largest [PruneReport], in bytes of JSON.
	MaxPruneReport = 4 << 20

	maxReleaseNames = 1024
	maxPruneItems   = 2 * wire.MaxEntries
)

// Needs are what one release needs on a host.
type Needs struct {
	// ID is the digest of the release's bundle. It is empty for what a host held before
	// releases were recorded there.
	ID digest.Digest `json:"id,omitempty"`
	// Packs are names of packs, Files names of files in FilesDir/files.
	Packs []string `json:"packs,omitempty"`
	Files []string `json:"files,omitempty"`
}

// PruneRequest says what [Prune] is to do.
type PruneRequest struct {
	// Version is PruneVersion.
	Version int `json:"version"`
	// Release is what a bundle brings to the host, all of which stays. Without it only what
	// is recorded on the host counts.
	Release *Needs `json:"release,omitempty"`
	// Current says that Release is now the current one. It is recorded, and what was the
	// current one until then becomes the previous one.
	Current bool `json:"current,omitempty"`
	// DropPrevious keeps nothing for the previous release.
	DropPrevious bool `json:"dropPrevious,omitempty"`
	// Remove removes what is not needed. Without it nothing is removed, and the report says
	// what would be.
	Remove bool `json:"remove,omitempty"`
}

// PruneReport is what [Prune] found.
type PruneReport struct {
	// Version is PruneVersion.
	Version int `json:"version"`
	// Current and Previous are the bundles of the releases that are recorded on the host.
	Current  digest.Digest `json:"current,omitempty"`
	Previous digest.Digest `json:"previous,omitempty"`
	// Items are all packs, all files, the images of those packs that go, and all folders with programs of k3s, in this
	// order and by their names.
	Items []PruneItem `json:"items"`
	// Removed says that what is to go has gone.
	Removed bool `json:"removed,omitempty"`
	// Note is empty, or says why less is known than should be.
	Note string `json:"note,omitempty"`
}

// Bytes is the room of all that goes.
func (r *PruneReport) Bytes() int64 {
	var sum int64
	for _, i := range r.Items {
		if i.Remove {
			sum += i.Size
		}
	}
	return sum
}

// Count is how many items of a kind go.
func (r *PruneReport) Count(kind PruneKind) int {
	n := 0
	for _, i := range r.Items {
		if i.Kind == kind && i.Remove {
			n++
		}
	}
	return n
}

// PruneKind says what a [PruneItem] is.
type PruneKind string

// The kinds of items.
const (
	PrunePack  PruneKind = "pack"
	PruneFile  PruneKind = "file"
	PruneImage PruneKind = "image"
	// PruneData is a folder into which k3s has unpacked the programs of one of its versions.
	PruneData PruneKind = "data"
)

// PruneItem is one thing that goes or stays.
type PruneItem struct {
	Kind PruneKind `json:"kind"`
	// Name is that of a pack, of a file in FilesDir/files, of an image in containerd, or of a folder of k3s' data.
	Name string `json:"name"`
	// Size is in bytes. That of an image is what it alone has in containerd's content.
	Size   int64 `json:"size"`
	Remove bool  `json:"remove,omitempty"`
	// Reason is why it goes or stays.
	Reason string `json:"reason"`
}

// storedFileName is what files in FilesDir/files are called: a name and the beginning of
// their digest.
var storedFileName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}-[0-9a-f]{12}$`)

// NeedsOf is what a want needs of a host.
func NeedsOf(id digest.Digest, w wire.Want) Needs {
	r := Needs{ID: id}
	for _, p := range w.Packs {
		r.Packs = append(r.Packs, p.Name)
	}
	for _, f := range w.Files {
		if path.Dir(f.Path) == wire.FilesDir+"/"+storedFiles {
			r.Files = append(r.Files, path.Base(f.Path))
		}
	}
	return r
}

// storedFiles is the directory in FilesDir that has the files of bundles.
const storedFiles = "files"

func (r *Needs) validate() error {
	if err := wire.ValidateDigest(r.ID); r.ID != "" && err != nil {
		return err
	}
	if len(r.Packs) > maxReleaseNames || len(r.Files) > maxReleaseNames {
		return fmt.Errorf("it names %d packs and %d files, more than %d", len(r.Packs), len(r.Files), maxReleaseNames)
	}
	for _, name := range r.Packs {
		if !wire.IsPackName(name) {
			return fmt.Errorf("%.200q is not the name of a pack", name)
		}
	}
	for _, name := range r.Files {
		if !storedFileName.MatchString(name) {
			return fmt.Errorf("%.200q is not the name of a file in %s", name, storedFiles)
		}
	}
	return nil
}

// ParsePruneRequest reads what an operator asks for. Anything unknown in it is an error.
func ParsePruneRequest(document []byte) (PruneRequest, error) {
	var r PruneRequest
	if err := wire.DecodeStrictly(document, MaxPruneRequest, &r); err != nil {
		return PruneRequest{}, fmt.Errorf("read what is to be pruned: %w", err)
	}
	if err := r.validate(); err != nil {
		return PruneRequest{}, fmt.Errorf("read what is to be pruned: %w", err)
	}
	return r, nil
}

func (r *PruneRequest) validate() error {
	switch {
	case r.Version != PruneVersion:
		return fmt.Errorf("its version is %d, but this boxlift-node speaks version %d", r.Version, PruneVersion)
	case r.Release == nil && r.Current:
		return errors.New("there is no release to record as the current one")
	case r.Release == nil:
		return nil
	case r.Release.ID == "":
		return errors.New("the release does not say which bundle it is of")
	}
	if err := r.Release.validate(); err != nil {
		return fmt.Errorf("release %s: %w", r.Release.ID, err)
	}
	return nil
}

// ParsePruneReport reads what boxlift-node prune has printed. The document may come from a
// host that means harm: anything unknown in it, anything too long and any number that
// cannot be is an error. What cannot be printed becomes U+FFFD.
func ParsePruneReport(document []byte) (PruneReport, error) {
	var r PruneReport
	err := wire.DecodeStrictly(document, MaxPruneReport, &r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return PruneReport{}, fmt.Errorf("read what is to be removed: %w", err)
	}
	return r, nil
}

func (r *PruneReport) check() error {
	if r.Version != PruneVersion {
		return fmt.Errorf("its version is %d, expected %d: boxlift-node is of another version than boxlift", r.Version,
			PruneVersion)
	}
	if len(r.Items) > maxPruneItems {
		return fmt.Errorf("it has %d items, more than %d", len(r.Items), maxPruneItems)
	}
	for _, d := range []digest.Digest{r.Current, r.Previous} {
		if err := wire.ValidateDigest(d); d != "" && err != nil {
			return err
		}
	}
	if err := wire.Clean(reflect.ValueOf(r).Elem(), ""); err != nil {
		return err
	}
	left := int64(wire.MaxNumber)
	for _, i := range r.Items {
		if left -= i.Size; left < 0 {
			return fmt.Errorf("its items have more than %d bytes together", int64(wire.MaxNumber))
		}
		switch i.Kind {
		case PrunePack, PruneFile, PruneImage, PruneData:
		default:
			return fmt.Errorf("an item is a %.100q", string(i.Kind))
		}
		if i.Name == "" || i.Reason == "" {
			return fmt.Errorf("a %s has no name or no reason", i.Kind)
		}
	}
	return nil
}
