// Package download has what building and locking have in common when something comes over the
// line: a meter, when to begin anew, and the error for what is not what was locked.
package download

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/progress"
)

// tries bounds how often a download that cannot be gone on with is begun again.
const tries = 5

// Again does something until it succeeds, fails for another reason than a download that
// may be begun anew, or has been tried often enough.
func Again(ctx context.Context, reporter progress.Reporter, label string, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		if err == nil || ctx.Err() != nil || try == tries || !errors.Is(err, source.ErrAnew) {
			return err
		}
		reporter.Message(fmt.Sprintf("%s: %v; trying again", label, err))
	}
}

// LineError is an error of the line, not of what came over it.
type LineError struct{ err error }

func (e *LineError) Error() string { return e.err.Error() }

func (e *LineError) Unwrap() error { return e.err }

// DiffersError says that what came is not what the lock pins.
type DiffersError struct {
	Want ocispec.Descriptor
	Got  digest.Digest
	Size int64
}

func (e *DiffersError) Error() string {
	if e.Got == "" || e.Size != e.Want.Size {
		return fmt.Sprintf("what upstream has now is not what was locked: %d bytes came, the lock says %d", e.Size,
			e.Want.Size)
	}
	return fmt.Sprintf("what upstream has now is not what was locked: the bytes that came have %s, the lock says %s",
		e.Got, e.Want.Digest)
}

// Unwrap makes it an error of upstream.
func (e *DiffersError) Unwrap() error { return format.ErrUpstream }

// Hint says how to go on.
func (e *DiffersError) Hint() string {
	return "run the command again in case it was a fault on the way; if it persists, find out why upstream changed " +
		"before you lock it anew"
}

// Metered meters a download and marks its errors as those of the line.
func Metered(r io.Reader, m *Meter) io.Reader { return &streamReader{reader: r, meter: m} }

type streamReader struct {
	reader io.Reader
	meter  *Meter
}

func (r *streamReader) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.meter.Add(int64(n))
	if err != nil && err != io.EOF {
		err = &LineError{err}
	}
	return n, err
}
