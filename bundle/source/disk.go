package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/fault"
)

// DiskError says that something on this host could not be read.
type DiskError struct {
	Path string
	Err  error
}

func (e *DiskError) Error() string { return fmt.Sprintf("read %s: %v", e.Path, e.Err) }
func (e *DiskError) Unwrap() error { return e.Err }

// Class makes it the fault of a source.
func (e *DiskError) Class() fault.Class { return fault.Source }

// Hint says what a user may do about the error.
func (e *DiskError) Hint() string {
	return "the path in a file: address begins at the lock's folder unless it is absolute; it leads to a file, to the " +
		"folder of an OCI image layout, or, for a file manifests.tar, to a folder with a kustomization.yaml"
}

// openDisk opens what a file: address leads to.
func (c *Client) openDisk(address string, from int64) (*Stream, error) {
	path, err := diskPath(c.options.Folder, address)
	if err != nil {
		return nil, &DiskError{address, err}
	}
	if c.options.PackFolder != nil && isKustomize(path) {
		return c.openFolder(path, from)
	}
	return OpenDisk(path, from)
}

// IsFolder reports whether an address is the file: address of a folder.
func (c *Client) IsFolder(address string) bool {
	path, ok := strings.CutPrefix(address, "file:")
	if !ok {
		return false
	}
	path, err := diskPath(c.options.Folder, path)
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// isKustomize reports whether a path leads to a kustomize folder that is no OCI image layout.
func isKustomize(path string) bool {
	_, err := os.Stat(filepath.Join(path, "kustomization.yaml"))
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(path, ocitar.LayoutFile))
	return errors.Is(err, fs.ErrNotExist)
}

// openFolder reads a kustomize folder as a tar. What lies outside it stays there, whatever its files become meanwhile.
func (c *Client) openFolder(path string, from int64) (*Stream, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, &DiskError{path, cause(err)}
	}
	content, err := c.options.PackFolder(root.FS())
	if err = errors.Join(err, root.Close()); err != nil {
		return nil, &DiskError{path, err}
	}
	body := bytes.NewReader(content)
	if _, err := body.Seek(from, io.SeekStart); err != nil {
		return nil, &DiskError{path, err}
	}
	return &Stream{Size: int64(len(content)), disk: path, body: io.NopCloser(body), next: from, answers: 1}, nil
}

// diskPath returns the path that a file: address, without that prefix, has in a folder.
func diskPath(folder, address string) (string, error) {
	path, err := url.PathUnescape(address)
	if err != nil {
		return "", err
	}
	if path = filepath.FromSlash(path); !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	return path, nil
}

// Outside returns those of some addresses that are file: addresses and lead out of a folder, by
// their paths or over symbolic links. Whoever wrote them may read any file by them that the user may.
func Outside(folder string, addresses []string) []string {
	inside := realPath(folder)
	var outside []string
	for _, address := range addresses {
		path, ok := strings.CutPrefix(address, "file:")
		if !ok {
			continue
		}
		if path, err := diskPath(folder, path); err == nil {
			relative, err := filepath.Rel(inside, realPath(path))
			if err == nil && filepath.IsLocal(relative) {
				continue
			}
		}
		outside = append(outside, address)
	}
	return outside
}

// realPath follows symbolic links as far as the path leads to anything.
func realPath(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	if followed, err := filepath.EvalSymlinks(path); err == nil {
		return followed
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// OpenDisk opens a file of this host at an offset, or an OCI image layout in a folder: as
// the one tar that holds its files in a fixed form and order, so that the same layout has
// the same bytes everywhere. Errors are of the type [*DiskError].
func OpenDisk(path string, from int64) (*Stream, error) {
	// Opening a pipe would wait for somebody who writes to it.
	info, err := os.Stat(path)
	if err != nil {
		return nil, &DiskError{path, cause(err)}
	}
	var body io.ReadSeekCloser
	var size int64
	switch {
	case info.Mode().IsRegular():
		size = info.Size()
		body, err = os.Open(path)
	case info.IsDir():
		body, size, err = openLayout(path)
	default:
		err = errors.New("it is neither a file nor a folder")
	}
	if err != nil {
		return nil, &DiskError{path, cause(err)}
	}
	if _, err := body.Seek(from, io.SeekStart); err != nil {
		_ = body.Close()
		return nil, &DiskError{path, cause(err)}
	}
	return &Stream{Size: size, disk: path, body: body, next: from, answers: 1}, nil
}

// cause leaves out the path, which the error says already.
func cause(err error) error {
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// openLayout reads the folder of an OCI image layout as a tar.
func openLayout(folder string) (io.ReadSeekCloser, int64, error) {
	if _, err := os.Stat(filepath.Join(folder, ocitar.LayoutFile)); err != nil {
		return nil, 0, fmt.Errorf("it is not the folder of an OCI image layout: %s: %w", ocitar.LayoutFile, cause(err))
	}
	index, err := os.Stat(filepath.Join(folder, ocitar.IndexFile))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", ocitar.IndexFile, cause(err))
	}
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: index.Size()},
	}
	// In the order of their names.
	blobs, err := os.ReadDir(filepath.Join(folder, "blobs", digest.SHA256.String()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	for _, b := range blobs {
		d := digest.NewDigestFromEncoded(digest.SHA256, b.Name())
		if d.Validate() != nil {
			continue // what a program that was killed has left
		}
		info, err := os.Stat(filepath.Join(folder, filepath.FromSlash(ocitar.BlobName(d))))
		if err != nil {
			return nil, 0, err
		}
		if info.Mode().IsRegular() {
			members = append(members, ocitar.Blob(d, info.Size()))
		}
	}
	layout, err := ocitar.NewLayout(members)
	if err != nil {
		return nil, 0, err
	}
	return &layoutReader{folder: folder, layout: layout}, layout.Size, nil
}

// layoutReader makes the tar while it is read, one file after another.
type layoutReader struct {
	folder string
	layout *ocitar.Layout
	offset int64
	entry  int // that offset lies in or before
	file   *os.File
}

func (r *layoutReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.entry < len(r.layout.Entries) && r.offset >= r.layout.Entries[r.entry].End() {
		if err := r.Close(); err != nil {
			return 0, err
		}
		r.entry++
	}
	if r.entry == len(r.layout.Entries) {
		return r.zeros(p, r.layout.Size)
	}
	e := r.layout.Entries[r.entry]
	switch content := r.offset - e.Offset; {
	case content < 0:
		header, err := ocitar.Header(e.Member)
		if err != nil {
			return 0, err
		}
		return r.pass(copy(p, header[r.offset-e.HeaderOffset():]))
	case content >= e.Size:
		return r.zeros(p, e.End())
	case e.Name == ocitar.LayoutFile:
		return r.pass(copy(p, ocitar.LayoutContent[content:]))
	default:
		n, err := r.readFile(p[:min(int64(len(p)), e.Size-content)], e, content)
		if n > 0 {
			return r.pass(n)
		}
		return 0, err
	}
}

func (r *layoutReader) readFile(p []byte, e ocitar.Entry, at int64) (int, error) {
	if r.file == nil {
		var err error
		if r.file, err = os.Open(filepath.Join(r.folder, filepath.FromSlash(e.Name))); err != nil {
			return 0, err
		}
	}
	n, err := r.file.ReadAt(p, at)
	if n == 0 && errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s has become shorter: %w", e.Name, io.ErrUnexpectedEOF)
	}
	return n, err
}

func (r *layoutReader) pass(n int) (int, error) {
	r.offset += int64(n)
	return n, nil
}

func (r *layoutReader) zeros(p []byte, end int64) (int, error) {
	if r.offset == end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), end-r.offset)]
	clear(p)
	return r.pass(len(p))
}

// Seek goes to an offset from the start, before anything was read.
func (r *layoutReader) Seek(offset int64, _ int) (int64, error) {
	r.offset = offset
	return offset, nil
}

func (r *layoutReader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
