//go:build !linux

package volume

import (
	"errors"
	"math"
	"os"
)

// allocate gives an empty or foreign file the wanted length, all zeros.
func allocate(f *os.File, size int64) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	return f.Truncate(size)
}

// startWriting does nothing: the system decides when it writes.
func startWriting(*os.File, int64, int64) {}

// dataEnd does not know.
func dataEnd(*os.File, int64) int64 { return math.MaxInt64 }

// zeroRange cannot.
func zeroRange(*os.File, int64, int64) error { return errors.ErrUnsupported }
