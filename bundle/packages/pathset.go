package packages

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
)

// pathSet is a sorted set of paths, of which it keeps only the first 8 bytes of their
// sha256: layers have many thousands, and only those that something was found at matter.
// An attacker who makes two paths collide hides a package of an image of their own.
type pathSet []uint64

func pathSum(path string) uint64 {
	sum := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(sum[:])
}

// sorted makes a set of what was collected in any order.
func (s pathSet) sorted() pathSet {
	slices.Sort(s)
	return slices.Clip(slices.Compact(s))
}

func (s pathSet) has(path string) bool {
	if len(s) == 0 {
		return false
	}
	_, ok := slices.BinarySearch(s, pathSum(path))
	return ok
}

// MarshalJSON writes the sums as one string.
func (s pathSet) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*len(s))
	for _, sum := range s {
		b = binary.BigEndian.AppendUint64(b, sum)
	}
	return json.Marshal(b)
}

// UnmarshalJSON reads what MarshalJSON wrote, and nothing else.
func (s *pathSet) UnmarshalJSON(text []byte) error {
	var encoded string
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return err
	}
	if len(b)%8 != 0 {
		return errors.New("not a whole number of sums")
	}
	set := make(pathSet, 0, len(b)/8)
	for ; len(b) > 0; b = b[8:] {
		set = append(set, binary.BigEndian.Uint64(b))
	}
	if !slices.IsSorted(set) {
		return errors.New("the sums are not sorted")
	}
	*s = set
	return nil
}
