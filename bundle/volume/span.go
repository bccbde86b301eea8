package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
)

// span is files one after another. The files' lengths are those that they are to have.
type span struct {
	parts []part
	size  int64
}

type part struct {
	file  *os.File
	start int64 // in the span
	size  int64
}

func (s *span) add(f *os.File, size int64) {
	s.parts = append(s.parts, part{f, s.size, size})
	s.size += size
}

// Extent returns the file that the byte at offset is in, where it is in that file, and how
// many bytes from there on are in the same file: 0 where the span has ended.
func (s *span) Extent(offset int64) (f *os.File, at, length int64) {
	i := sort.Search(len(s.parts), func(i int) bool { return s.parts[i].start+s.parts[i].size > offset })
	if i == len(s.parts) || offset < 0 {
		return nil, 0, 0
	}
	p := s.parts[i]
	return p.file, offset - p.start, p.start + p.size - offset
}

// each passes the parts of a range, in order.
func (s *span) each(offset, length int64, use func(f *os.File, at, length int64) error) error {
	for length > 0 {
		f, at, there := s.Extent(offset)
		if there == 0 {
			return io.EOF
		}
		n := min(there, length)
		if err := use(f, at, n); err != nil {
			return err
		}
		offset, length = offset+n, length-n
	}
	return nil
}

// ReadAt is that of [io.ReaderAt].
func (s *span) ReadAt(p []byte, offset int64) (n int, err error) {
	err = s.each(offset, int64(len(p)), func(f *os.File, at, length int64) error {
		more, err := f.ReadAt(p[n:n+int(length)], at)
		n += more
		if int64(more) == length {
			return nil
		}
		return err
	})
	return n, err
}

// WriteAt is that of [io.WriterAt]. Nothing is written beyond the end.
func (s *span) WriteAt(p []byte, offset int64) (n int, err error) {
	err = s.each(offset, int64(len(p)), func(f *os.File, at, length int64) error {
		more, err := f.WriteAt(p[n:n+int(length)], at)
		n += more
		return err
	})
	if errors.Is(err, io.EOF) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Close closes the files.
func (s *span) Close() error {
	var errs []error
	for _, p := range s.parts {
		errs = append(errs, p.file.Close())
	}
	return errors.Join(errs...)
}

// mapped passes a range to use without copying it. It fails with [errors.ErrUnsupported],
// before it has passed anything, where files cannot be mapped.
func (s *span) mapped(offset, size int64, use func([]byte) error) error {
	begun := false
	return s.each(offset, size, func(f *os.File, at, length int64) error {
		err := mapFile(f, at, length, use)
		if begun && errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("map %s: not supported, although the file before it could be mapped", f.Name())
		}
		begun = true
		return err
	})
}
