package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Each is given a file of an archive, by its path below the folder, of which it may read as much as it wants.
type Each func(name string, content io.Reader) error

// Read reads an archive to its end and proves it: every file is in the index, with its size and sha256, and the other
// way round. Each, which may be nil, gets the files in their order, before they are proven: what it has read counts
// only when Read returns no error. It needs little memory, whatever comes.
func Read(from io.Reader, each Each) (*Index, error) {
	limited := &io.LimitedReader{N: MaxTotal + 1}
	zipped, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	limited.R = zipped
	r := &reader{each: each, tar: tar.NewReader(limited), found: make(map[string]file)}
	index, err := r.read()
	if limited.N <= 0 {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, int64(MaxTotal))
	}
	if err != nil {
		return nil, err
	}
	// What follows the end of the tar is padding, and proves the sum of gzip.
	var rest [4096]byte
	for {
		n, err := limited.Read(rest[:])
		if len(bytes.Trim(rest[:n], "\x00")) > 0 {
			return nil, fmt.Errorf("%w: something follows its end", ErrInvalid)
		}
		if errors.Is(err, io.EOF) && limited.N > 0 {
			return index, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
}

// file is what was found.
type file struct {
	size int64
	sum  string
}

type reader struct {
	each   Each
	tar    *tar.Reader
	folder string
	found  map[string]file
}

func (r *reader) read() (*Index, error) {
	for {
		header, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it has no %s", ErrInvalid, IndexName)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		name, err := r.name(header)
		if err != nil {
			return nil, err
		}
		if name == IndexName {
			return r.index(header.Size)
		}
		sum := sha256.New()
		content := io.TeeReader(contentReader{r.tar, name}, sum)
		if r.each != nil {
			if err := r.each(name, content); err != nil {
				return nil, err
			}
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return nil, err
		}
		r.found[name] = file{header.Size, hex.EncodeToString(sum.Sum(nil))}
	}
}

// contentReader reads a file. Its errors say that the archive is invalid, whoever reads.
type contentReader struct {
	from io.Reader
	name string
}

func (c contentReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %s: %w", ErrInvalid, c.name, err)
	}
	return n, err
}

// name is the path of a file below the folder.
func (r *reader) name(header *tar.Header) (string, error) {
	folder, name, _ := strings.Cut(header.Name, "/")
	if err := errors.Join(checkName(folder), checkName(name)); err != nil {
		return "", err
	}
	if r.folder == "" {
		r.folder = folder
	}
	_, isTwice := r.found[name]
	switch {
	case header.Typeflag != tar.TypeReg:
		return "", fmt.Errorf("%w: %s is no regular file", ErrInvalid, header.Name)
	case folder != r.folder:
		return "", fmt.Errorf("%w: it has two folders, %s and %s", ErrInvalid, r.folder, folder)
	case isTwice:
		return "", fmt.Errorf("%w: it has %s twice", ErrInvalid, name)
	case len(r.found) >= MaxItems:
		return "", fmt.Errorf("%w: it has more than %d files", ErrInvalid, MaxItems)
	case header.Size > MaxFile:
		return "", fmt.Errorf("%w: %s has %d bytes, %d is the most", ErrInvalid, name, header.Size, int64(MaxFile))
	}
	return name, nil
}

// index reads the index, which is the last file, and compares it with what was found.
func (r *reader) index(size int64) (*Index, error) {
	if size > maxIndex {
		return nil, fmt.Errorf("%w: %s has %d bytes, %d is the most", ErrInvalid, IndexName, size, maxIndex)
	}
	content, err := io.ReadAll(r.tar)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, IndexName, err)
	}
	index, err := parseIndex(content)
	if err != nil {
		return nil, err
	}
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows %s", ErrInvalid, IndexName)
	}
	for _, item := range index.Items {
		found, isThere := r.found[item.Path]
		delete(r.found, item.Path)
		switch {
		case !isThere && (item.Size != 0 || item.SHA256 != ""):
			return nil, fmt.Errorf("%w: it lacks %s", ErrInvalid, item.Path)
		case isThere && (found.size != item.Size || found.sum != item.SHA256):
			return nil, fmt.Errorf("%w: %s is not what its index says", ErrInvalid, item.Path)
		}
	}
	for name := range r.found {
		return nil, fmt.Errorf("%w: its index does not have %s", ErrInvalid, name)
	}
	return index, nil
}

// parseIndex reads an index strictly.
func parseIndex(content []byte) (*Index, error) {
	var form struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(content, &form) == nil && form.Format > Format {
		return nil, (&Index{Format: form.Format}).check() // a later one may have keys that are not known
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var index Index
	if err := decoder.Decode(&index); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, IndexName, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the document in %s", ErrInvalid, IndexName)
	}
	return &index, index.check()
}
