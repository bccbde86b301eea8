package ocitar

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Assembled is a file that is nowhere: its members lie elsewhere, each on its own, and
// everything between them follows from the layout. What is read from it are the bytes
// that the file would have.
type Assembled struct {
	layout  *Layout
	content func(Member) (io.ReaderAt, error)
}

// Assemble makes a file of a layout. content finds the bytes of a member; where it fails,
// reading these bytes fails with its error, and reading all others does not.
func Assemble(layout *Layout, content func(Member) (io.ReaderAt, error)) *Assembled {
	return &Assembled{layout, content}
}

// Size returns the length of the file in bytes.
func (a *Assembled) Size() int64 { return a.layout.Size }

// ReadAt is that of [io.ReaderAt].
func (a *Assembled) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read at offset %d: it is negative", offset)
	}
	done := 0
	for done < len(p) {
		if offset >= a.layout.Size {
			return done, io.EOF
		}
		n, err := a.readSome(p[done:], offset)
		done += n
		offset += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// readSome reads to the end of the header, content or padding that the offset is in, or as
// far as there is room.
func (a *Assembled) readSome(p []byte, offset int64) (int, error) {
	i, _ := slices.BinarySearchFunc(a.layout.Entries, offset, func(e Entry, offset int64) int {
		if e.End() <= offset {
			return -1
		}
		return 1
	})
	if i == len(a.layout.Entries) {
		return zero(p, a.layout.Size-offset), nil
	}
	e := a.layout.Entries[i]
	switch {
	case offset < e.Offset:
		header, err := Header(e.Member)
		if err != nil {
			return 0, err
		}
		return copy(p, header[offset-e.HeaderOffset():]), nil
	case offset >= e.Offset+e.Size:
		return zero(p, e.End()-offset), nil
	}
	content, err := a.content(e.Member)
	if err != nil {
		return 0, err
	}
	p = p[:min(int64(len(p)), e.Offset+e.Size-offset)]
	n, err := content.ReadAt(p, offset-e.Offset)
	switch {
	case n == len(p):
		err = nil // at the very end, io.EOF is allowed
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%s: %w", e.Name, io.ErrUnexpectedEOF)
	}
	return n, err
}

// zero makes zeros of at most n bytes of p.
func zero(p []byte, n int64) int {
	p = p[:min(int64(len(p)), n)]
	clear(p)
	return len(p)
}
