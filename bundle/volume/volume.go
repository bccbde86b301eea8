// Package volume is how a bundle lies on a disk: in one file, in a set of volumes, or in a
// store, as it is or encrypted. What is above it sees one thing of a known length that is read
// at any offset; nothing is joined, and nothing is decrypted to a disk.
//
// A set of volumes that is called NAME has the files
//
//	NAME.000, NAME.001, ...   the bytes, cut; all but the last have the same length
//	NAME.sha256               the list: the sha256 of each volume, as sha256sum writes it
//
// The list finds copies that are damaged, missing or in the wrong place, so that they
// alone are copied again ([Check]). It says nothing about who made the bundle, and nothing
// is trusted because of it.
//
// An encrypted bundle is a file in age's format (age-encryption.org/v1); it is encrypted
// first and cut into volumes then. Its payload has chunks of 64 KiB that are decrypted
// alone, which is what makes reading at any offset possible. Decrypting proves that nobody
// without the file's key changed a chunk. Everybody who knows a recipient can make such a
// file, so that it proves nothing else: the signature is inside.
//
// A store (package store) is a folder with several bundles, of which each is an [Entry]: a small
// file that names blobs, which the bundles of the store share. Its path is that of the bundle.
//
//   - [Open] reads;
//   - [NewDraft] writes, under temporary names until all is there;
//   - [Check] and [Join] work on sets of volumes.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
)

const (
	// MaxVolumes is how many volumes a set may have: as many as three digits name.
	MaxVolumes = 1000
	// MinSize is the least length in bytes that volumes are cut to.
	MinSize = 64 << 10

	missing     = "is missing"
	listSuffix  = ".sha256"
	firstSuffix = ".000"
)

// ErrDamaged is wrapped by errors that say that a file does not hold what was written to
// it: a volume is missing, cut off or changed, or encrypted bytes are.
var ErrDamaged = fault.NewKind(fault.Bundle, "damaged bundle file")

// Fault is what is wrong with one file of a set, or one blob of a store.
type Fault struct {
	// Path is the file's.
	Path string
	// Problem says what is wrong, such as "is missing".
	Problem string
	hint    string
}

// IsThere reports whether there is a file, which is not what it has to be.
func (f *Fault) IsThere() bool { return f.Problem != missing }

func (f *Fault) Error() string { return fmt.Sprintf("%s %s", f.Path, f.Problem) }

// Unwrap makes every fault an [ErrDamaged].
func (f *Fault) Unwrap() error { return ErrDamaged }

// Hint says how the fault is mended.
func (f *Fault) Hint() string { return f.hint }

// set is the name of a set of volumes, without the endings.
type set string

func (s set) volume(i int) string { return fmt.Sprintf("%s.%03d", string(s), i) }
func (s set) list() string        { return string(s) + listSuffix }

func (s set) fault(path, problem string) *Fault {
	return &Fault{path, problem, fmt.Sprintf("copy the files that are named, and no others, again from where the bundle "+
		"was built; `sha256sum -c %s` checks them by hand", filepath.Base(s.list()))}
}

// setOf returns the set that a path stands for: that of a volume or a list, or the name of
// the whole when there is no file of that name. It is "" when path is one file.
func setOf(path string) set {
	if name, ok := strings.CutSuffix(path, listSuffix); ok {
		return set(name)
	}
	if name, ok := strings.CutSuffix(path, firstSuffix); ok {
		return set(name)
	}
	if name := set(strings.TrimSuffix(path, filepath.Ext(path))); hasVolumeName(path) && exists(name.list()) {
		return name
	}
	if s := set(path); !exists(path) && (exists(s.list()) || exists(s.volume(0))) {
		return s
	}
	return ""
}

// Name is what a bundle is called that a path stands for: the name of the set of volumes, without the
// endings, or the path.
func Name(path string) string {
	if s := setOf(path); s != "" {
		return string(s)
	}
	return path
}

// hasVolumeName reports whether a path ends as those of volumes do.
func hasVolumeName(path string) bool {
	ending := filepath.Ext(path)
	return len(ending) == 4 && strings.Trim(ending[1:], "0123456789") == ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// IsSet reports whether a path stands for a set of volumes that is there, at least in part.
func IsSet(path string) bool { return setOf(path) != "" }

// InSet reports whether a path stands for the set of volumes of that name, in whatever way it
// is written.
func InSet(path, name string) bool {
	s := string(setOf(path))
	if s == "" || filepath.Base(s) != filepath.Base(name) {
		return false
	}
	one, err := os.Stat(filepath.Dir(s))
	if err != nil {
		return false
	}
	other, err := os.Stat(filepath.Dir(name))
	return err == nil && os.SameFile(one, other)
}

// CheckName refuses names that could not be read again: those of a volume or a list, and,
// for a set, those that sha256sum does not write as they are.
func CheckName(path string, isSet bool) error {
	if strings.HasSuffix(path, listSuffix) || strings.HasSuffix(path, firstSuffix) {
		return fmt.Errorf("%s ends as only the first volume of a set and its list do", filepath.Base(path))
	}
	if isSet && strings.ContainsAny(filepath.Base(path), "\\\r\n\x00") {
		return fmt.Errorf("%q has characters that the list of checksums cannot have", filepath.Base(path))
	}
	return nil
}
