// Package pieces reads, writes and hashes blobs in pieces of the length that a core and the
// kernel handle best.
package pieces

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
)

// The lengths in bytes of the pieces in which blobs are read from the disk and written to it. A
// core's cache holds them between reading, hashing and writing. For longer pieces than
// these the kernel looks for long runs of free memory, which a machine that has been up for
// a while does not have: pieces of 64 KiB took two to three times its time, of 256 KiB five.
const (
	Size      = 256 << 10
	WriteSize = 32 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, Size); return &b }}

// Take returns a buffer of [Size] bytes, with anything in it.
func Take() *[]byte { return buffers.Get().(*[]byte) }

// Give takes a buffer back, which is not to be used any more.
func Give(b *[]byte) { buffers.Put(b) }

// Next cuts from a buffer the piece in which what is at an offset of a file is read or
// written next, when so many bytes are left of it. Pieces end at multiples of the buffer's
// length in the file: the kernel then keeps the file in memory in units of many pages,
// which makes writing it, and reading it later, cheaper.
func Next(buffer []byte, offset, left int64) []byte {
	whole := int64(len(buffer))
	return buffer[:min(whole-offset%whole, left)]
}

// Fill reads until p is full or the stream ends, which is not an error.
func Fill(stream io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = stream.Read(p[n:])
		n += more
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// Hash returns the sha256 of size bytes at an offset of a file. read is called with how many
// bytes were hashed since the last time. The file need not be read where it has a method
// UseMapped, as volumes have, and the system can show its bytes as they are in memory.
func Hash(ctx context.Context, file io.ReaderAt, offset, size int64, read func(n int64)) (digest.Digest, error) {
	h := sha256.New()
	use := func(piece []byte) error {
		for len(piece) > 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := min(len(piece), Size)
			_, _ = h.Write(piece[:n]) // never fails
			read(int64(n))
			piece = piece[n:]
		}
		return nil
	}
	err := errors.ErrUnsupported
	if m, ok := file.(mappable); ok {
		err = m.UseMapped(offset, size, use)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = readCopied(file, offset, size, use)
	}
	if err != nil {
		return "", err
	}
	return digest.NewDigest(digest.SHA256, h), nil
}

// mappable is what finished and unfinished volumes have in common: where they are not
// encrypted and the system can, their bytes need not be copied.
type mappable interface {
	UseMapped(offset, size int64, use func([]byte) error) error
}

// readCopied does what UseMapped does by reading into a buffer.
func readCopied(file io.ReaderAt, offset, size int64, use func([]byte) error) error {
	buffer := Take()
	defer Give(buffer)
	for end := offset + size; offset < end; {
		piece := Next(*buffer, offset, end-offset)
		if _, err := file.ReadAt(piece, offset); err != nil {
			return err
		}
		if err := use(piece); err != nil {
			return err
		}
		offset += int64(len(piece))
	}
	return nil
}

// Until returns a reader that ends a copy when its context does.
func Until(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx    context.Context
	reader io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.reader.Read(p)
}
