//go:build !linux

package build

import (
	"errors"
	"os"
)

// cloneBlocks cannot.
func cloneBlocks(*os.File, int64, *os.File, int64, int64) (start, end int64, err error) {
	return 0, 0, errors.ErrUnsupported
}
