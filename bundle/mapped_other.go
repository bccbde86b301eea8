//go:build !linux

package bundle

import (
	"errors"
	"io"
)

// readMapped is not there on this system.
func readMapped(io.ReaderAt, int64, int64, func([]byte) error) error { return errors.ErrUnsupported }
