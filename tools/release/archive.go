package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"path"
	"time"
)

// writeArchive writes a tar.gz with everything below one folder. gzip's own header has neither
// name nor time.
func writeArchive(w io.Writer, folder string, entries []entry, modified time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, folder, entries, modified); err != nil {
		return err
	}
	return z.Close()
}

// writeTar writes entries in their order, all of them root's and of one time.
func writeTar(w io.Writer, folder string, entries []entry, modified time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(folder, e.name), Mode: int64(e.mode.Perm()), ModTime: modified,
			Format: tar.FormatPAX,
		}
		if e.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
			if err := t.WriteHeader(header); err != nil {
				return err
			}
			continue
		}
		if err := addFile(t, header, e.source); err != nil {
			return err
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, header *tar.Header, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
