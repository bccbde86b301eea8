package manifests

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// Bounds on the bases and on a site's folder: many times what either needs.
const (
	maxFiles    = 1000
	maxFile     = 1 << 20
	maxTotal    = 8 << 20
	maxValues   = 1 << 18 // of a file, and punctuation of its texts
	maxPathSize = 200
)

const block = 512 // of a tar

// bases are the folders that a tar of manifests has, each with a kustomization.yaml.
var bases = []string{"system", "sandbox"}

// Pack returns the files as a tar. The same files give the same bytes.
func Pack(files fs.FS) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := readFiles(files, func(name string, data []byte) error {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)),
			Format: tar.FormatUSTAR, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("pack manifests: %w", err)
	}
	return out.Bytes(), nil
}

// Unpack returns the files of a tar that Pack has made of LiteBoxd's bases. Errors wrap ErrInvalid.
func Unpack(data []byte) (fs.FS, error) {
	files, err := unpack(data, false, bases...)
	if err != nil {
		return nil, fmt.Errorf("unpack manifests: %w: %w: build the bundle again", ErrInvalid, err)
	}
	return files, nil
}

// UnpackFolder returns the files of a tar of a kustomize folder, which Pack has made, or another program: then it may
// name folders too, begin its names with ./, and be padded as GNU tar does. Errors wrap ErrInvalid.
func UnpackFolder(data []byte) (fs.FS, error) {
	files, err := unpack(data, true, ".")
	if err != nil {
		return nil, fmt.Errorf(
			"unpack manifests: %w: %w: correct the tar, or name the folder itself in versions.lock, of "+
				"which boxlift makes one", ErrInvalid, err)
	}
	return files, nil
}

// unpack reads a tar that has a kustomization in each of these folders. It is one of others, or as Pack makes it.
func unpack(data []byte, ofOthers bool, kustomized ...string) (fs.FS, error) {
	files := map[string][]byte{}
	folders := map[string]bool{}
	var order []string
	total, length := 0, 2*block // of content, and of the whole tar: it ends with two empty blocks
	left, end := bytes.NewReader(data), 0
	for r := tar.NewReader(left); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name := header.Name
		if ofOthers {
			if header.Typeflag == tar.TypeDir || header.Typeflag == tar.TypeXGlobalHeader {
				end = len(data) - left.Len()
				continue
			}
			name = strings.TrimPrefix(name, "./")
		}
		switch {
		case header.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("entry %q is not a regular file", name)
		case !fs.ValidPath(name) || name == "." || len(name) > maxPathSize:
			return nil, fmt.Errorf("entry %q is not a clean relative path of at most %d bytes", name, maxPathSize)
		case files[name] != nil:
			return nil, fmt.Errorf("entry %q is there twice", name)
		case header.Size > maxFile || total+int(header.Size) > maxTotal || len(files) == maxFiles:
			return nil, fmt.Errorf("entry %q goes over the bounds of %d files, %d bytes each and %d in all", name,
				maxFiles, maxFile, maxTotal)
		}
		content := make([]byte, header.Size)
		if _, err := io.ReadFull(r, content); err != nil {
			return nil, fmt.Errorf("entry %q: %w", name, err)
		}
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			folders[folder] = true
		}
		total += len(content)
		end = (len(data) - left.Len() + block - 1) / block * block
		length += block + (len(content)+block-1)/block*block
		files[name] = content
		order = append(order, name)
	}
	if ofOthers {
		if rest := data[min(end, len(data)):]; len(rest) < 2*block || len(bytes.Trim(rest, "\x00")) > 0 {
			return nil, fmt.Errorf(
				"%d bytes, of which the files take %d, and behind them is not its end: it is cut short, or "+
					"something was added", len(data), end)
		}
	} else if length != len(data) {
		return nil, fmt.Errorf("%d bytes, of which the files account for %d: it is cut short, or something was added",
			len(data), length)
	}
	for _, name := range order {
		if folders[name] {
			return nil, fmt.Errorf("entry %q is a file and a folder", name)
		}
	}
	for _, folder := range kustomized {
		if files[path.Join(folder, kustomization)] == nil {
			return nil, fmt.Errorf("there is no %s", path.Join(folder, kustomization))
		}
	}
	return inMemory(order, files)
}

// inMemory makes a file system of files. A zip is one that the standard library can read out
// of memory.
func inMemory(order []string, files map[string][]byte) (fs.FS, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range order {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = f.Write(files[name])
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
}

// readFiles gives every file of a tree to use, in the order of their names. Only regular
// files within the bounds pass.
func readFiles(tree fs.FS, use func(name string, data []byte) error) error {
	count, total := 0, 0
	return fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return nil
		}
		if !entry.Type().IsRegular() {
			return &fs.PathError{Op: "read", Path: name, Err: errors.New("neither a regular file nor a folder: links " +
				"are not followed")}
		}
		data, err := readBounded(tree, name)
		if err != nil {
			return err
		}
		count++
		if total += len(data); count > maxFiles || total > maxTotal || len(name) > maxPathSize {
			return &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("more than %d files, %d bytes in all or %d "+
				"bytes of path", maxFiles, maxTotal, maxPathSize)}
		}
		return use(name, data)
	})
}

func readBounded(tree fs.FS, name string) ([]byte, error) {
	f, err := tree.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if len(data) > maxFile {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("larger than %d bytes", maxFile)}
	}
	return data, nil
}
