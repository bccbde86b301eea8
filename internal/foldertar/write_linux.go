package foldertar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// Write writes the files of a folder to w. Those that go while it is at work are left out.
func Write(ctx context.Context, folder string, w io.Writer) (Report, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Report{}, err
	}
	defer root.Close() //nolint:errcheck // a folder
	out := &writer{tar: tar.NewWriter(w), root: root}
	if err := out.folder(ctx, ".", 0); err != nil {
		return out.report, fmt.Errorf("copy the files of %s: %w", folder, err)
	}
	return out.report, out.tar.Close()
}

// writer writes one tar.
type writer struct {
	tar    *tar.Writer
	root   *os.Root
	report Report
}

// folder writes a folder and what is in it.
func (w *writer) folder(ctx context.Context, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: folders are more than %d deep", name, maxDepth)
	}
	f, err := w.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if gone(err) && depth > 0 {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a folder
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.header(name+"/", tar.TypeDir, 0, "", info); err != nil {
		return err
	}
	const atOnce = 512 // names in memory
	for {
		names, err := f.ReadDir(atOnce)
		for _, n := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if depth == 0 && isReserved(n.Name()) {
				continue
			}
			if err := w.entry(ctx, path.Join(name, n.Name()), n.Type(), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// gone reports whether something was removed, or became something else, since it was listed.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

func (w *writer) entry(ctx context.Context, name string, kind fs.FileMode, depth int) error {
	switch kind {
	case fs.ModeDir:
		return w.folder(ctx, name, depth+1)
	case fs.ModeSymlink:
		info, err := w.root.Lstat(name)
		var to string
		if err == nil {
			to, err = w.root.Readlink(name)
		}
		if gone(err) || errors.Is(err, unix.EINVAL) || err == nil && info.Mode().Type() != fs.ModeSymlink {
			return nil
		}
		if err != nil {
			return err
		}
		return w.header(name, tar.TypeSymlink, 0, to, info)
	case 0:
		return w.file(ctx, name)
	}
	return nil
}

func (w *writer) file(ctx context.Context, name string) error {
	f, err := w.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := w.header(name, tar.TypeReg, info.Size(), "", info); err != nil {
		return err
	}
	// A file that grows is as long as it was.
	n, err := io.Copy(w.tar, &interruptible{ctx, io.LimitReader(f, info.Size())})
	if err == nil && n < info.Size() {
		err = fmt.Errorf("%s: %w", name, ErrChanged)
	}
	return err
}

func (w *writer) header(name string, kind byte, size int64, link string, info fs.FileInfo) error {
	if w.report.Entries++; w.report.Entries > maxEntries {
		return fmt.Errorf("it has more than %d files", maxEntries)
	}
	w.report.Bytes += size
	of, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: whose it is cannot be told", name)
	}
	return w.tar.WriteHeader(&tar.Header{
		Typeflag: kind, Name: name, Linkname: link, Size: size, Mode: int64(of.Mode & modeBits), Uid: int(of.Uid),
		Gid: int(of.Gid), ModTime: info.ModTime(), Format: tar.FormatPAX,
	})
}
