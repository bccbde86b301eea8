// Package archive reads image archives, as `docker save`, `ctr images export` and `skopeo copy`
// write them: an OCI layout or docker's own form in a tar, plain or compressed with gzip or
// zstd. [Listing] says what a lock states of one, and the rest is for builds, which take the
// blobs out. Archives are hostile: what is held of one in memory is bounded.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/liteboxd/boxlift/bundle/pieces"
)

// The first bytes of compressed files.
const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
)

const (
	// maxArchiveMembers bounds how many files an image archive may have.
	maxArchiveMembers = 1 << 17
	// maxMemberName bounds their names and what links lead to, in bytes, like Linux does.
	maxMemberName = 4096
	// maxWindow bounds what a zstd archive makes its reader hold in memory. k3s' own
	// archives have 32 MiB (zstd --long=25).
	maxWindow = 128 << 20
)

// Read hands every regular file of a tar, plain or compressed with gzip or zstd,
// to visit, and every symbolic link to link; and then reads what is left of r, so that all
// of r has passed.
func Read(
	r io.Reader, visit func(path string, size int64, content io.Reader) error, link func(path, target string) error,
) error {
	buffered := bufio.NewReaderSize(r, pieces.Size)
	plain, closeReader, err := Decompress(buffered, maxWindow)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer closeReader()
	members := tar.NewReader(plain)
	for count := 0; ; count++ {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if count == maxArchiveMembers {
			return fmt.Errorf("read the archive: more than %d files", maxArchiveMembers)
		}
		if max(len(h.Name), len(h.Linkname)) > maxMemberName {
			return fmt.Errorf("read the archive: a file's name has more than %d bytes", maxMemberName)
		}
		if h.Typeflag == tar.TypeSymlink {
			if err := link(path.Clean(h.Name), h.Linkname); err != nil {
				return err
			}
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := visit(path.Clean(h.Name), h.Size, members); err != nil {
			return err
		}
	}
	// Padding after the end, and what a compressor appends.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return nil
}

// Decompress reads what is plain or compressed with gzip or zstd. It looks at the first bytes: a name or a media type
// may be wrong. What is compressed with zstd makes its reader hold maxWindow bytes in memory at most, or cannot be
// read.
func Decompress(r *bufio.Reader, maxWindow uint64) (plain io.Reader, closeReader func(), err error) {
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte(gzipMagic)):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case string(magic) == zstdMagic:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return r, func() {}, nil
}
