package images

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/liteboxd/boxlift/node/wire"
)

// DiskVersion is the version of the form of [DiskUse].
const DiskVersion = 1

// MaxDiskUse is the largest document that [ParseDiskUse] takes, in bytes.
const MaxDiskUse = 16 << 10

// DiskUse is how much room boxlift's and containerd's files take on a host, in bytes.
type DiskUse struct {
	// Version is DiskVersion.
	Version int `json:"version"`
	// Packs is the room of all packs in the images directory, of whichever bundle.
	Packs int64 `json:"packs"`
	// Files is the room of what boxlift keeps of bundles besides.
	Files int64 `json:"files"`
	// Content is the room of containerd's content, which is images as they are carried,
	// Snapshots that of its snapshots, which is images unpacked and what containers have
	// written. Snapshots is nil when containerd did not say it in time.
	Content   int64  `json:"content"`
	Snapshots *int64 `json:"snapshots,omitempty"`
	// Free is what an ordinary user may still write on the filesystem of the content, Total
	// the size of that.
	Free  int64 `json:"free"`
	Total int64 `json:"total"`
	// Problems say what could not be found out, and why.
	Problems []string `json:"problems,omitempty"`
}

// ParseDiskUse reads what boxlift-node disk has printed. The document may come from a host
// that means harm: anything unknown in it, anything too long and any number that cannot be
// is an error. What cannot be printed becomes U+FFFD.
func ParseDiskUse(document []byte) (DiskUse, error) {
	var u DiskUse
	err := wire.DecodeStrictly(document, MaxDiskUse, &u)
	if err == nil {
		err = u.check()
	}
	if err != nil {
		return DiskUse{}, fmt.Errorf("read the use of the disk: %w", err)
	}
	return u, nil
}

func (u *DiskUse) check() error {
	if u.Version != DiskVersion {
		return fmt.Errorf("its version is %d, expected %d: boxlift-node is of another version than boxlift", u.Version,
			DiskVersion)
	}
	if u.Snapshots != nil && (*u.Snapshots < 0 || *u.Snapshots > wire.MaxNumber) {
		return fmt.Errorf("the snapshots have %d bytes", *u.Snapshots)
	}
	if u.Free > u.Total {
		return errors.New("more is free than there is")
	}
	return wire.Clean(reflect.ValueOf(u).Elem(), "")
}
