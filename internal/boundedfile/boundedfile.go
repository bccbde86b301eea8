// Package boundedfile reads whole files of others: small ones that may be larger than they are meant to be, or no files
// at all.
package boundedfile

import (
	"fmt"
	"io"
	"os"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrUnfit says that what bears the name is no regular file, or a larger one than it is meant to be.
var ErrUnfit = fault.NewKind(fault.Input, "unfit file")

// Read reads a file of at most so many bytes. What is no regular file, such as a pipe that nobody writes to, is refused
// and not waited for. The errors name the file: they are those of [os.Open], or wrap [ErrUnfit].
func Read(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrUnfit, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%w: %s has more than %d bytes", ErrUnfit, path, most)
	}
	return content, err
}
