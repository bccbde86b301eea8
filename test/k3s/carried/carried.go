// Package carried unpacks the programs that k3s carries: they are in a zip file at its end, and go
// where k3s has what it carries.
package carried

import (
	"archive/zip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Bin is the folder for the programs, in k3s' data folder.
func Bin(dataDir string) string { return filepath.Join(dataDir, "data", "current", "bin") }

// Unpack writes the programs of these names, which k3s carries, into a folder. One that is there as it
// is carried stays; others make room, also while they run.
func Unpack(k3s, folder string, names ...string) (err error) {
	archive, err := zip.OpenReader(k3s)
	if err != nil {
		return fmt.Errorf("open what %s carries: %w", k3s, err)
	}
	defer func() { _ = archive.Close() }() // only read
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := unpack(archive.File, folder, name); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return nil
}

func unpack(files []*zip.File, folder, name string) error {
	for _, file := range files {
		if file.Name != name {
			continue
		}
		path := filepath.Join(folder, name)
		same, err := is(path, file)
		if err != nil || same {
			return err
		}
		return write(path, file)
	}
	return fs.ErrNotExist
}

// is reports whether a file is what is carried.
func is(path string, carried *zip.File) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // only read
	sum := crc32.NewIEEE()
	size, err := io.Copy(sum, file)
	return uint64(size) == carried.UncompressedSize64 && sum.Sum32() == carried.CRC32, err
}

func write(path string, carried *zip.File) (err error) {
	from, err := carried.Open()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // only read
	to, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(to.Name()))
		}
	}()
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o755), to.Sync(), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), path)
}
