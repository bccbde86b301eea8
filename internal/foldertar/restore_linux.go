package foldertar

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Restore makes a folder what the tar in r says, whose sha256 is given in hex: what was in it before goes. The folder
// is made if need be, and so is the one above it, for root alone, as k3s' own storage has it. Nobody may use it
// meanwhile.
//
// What is there stays until the whole tar was written and proven; there has to be room for both. Broken off at any
// point, it can be done again. Where it returns nil, all of it is on the disk.
func Restore(ctx context.Context, r io.Reader, digest, folder string) (report Report, err error) {
	above := filepath.Dir(folder)
	if err := os.MkdirAll(filepath.Dir(above), 0o755); err != nil {
		return report, err
	}
	for _, dir := range []string{above, folder} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return report, err
		}
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return report, err
	}
	defer root.Close() //nolint:errcheck // a folder
	if err := root.RemoveAll(Staging); err != nil {
		return report, err
	}
	if err := root.Mkdir(Staging, 0o700); err != nil {
		return report, err
	}
	staging, err := root.OpenRoot(Staging)
	if err != nil {
		return report, err
	}
	defer staging.Close() //nolint:errcheck // a folder
	hash := sha256.New()
	in := &restorer{root: staging}
	report, err = read(io.TeeReader(&interruptible{ctx, r}, hash), in.put)
	if err == nil && hex.EncodeToString(hash.Sum(nil)) != digest {
		err = invalid("its sha256 is %x, expected %.64s", hash.Sum(nil), digest)
	}
	if err == nil {
		err = in.finish()
	}
	if err == nil {
		err = syncFolder(root)
	}
	if err != nil { // what was there before is as it was
		return report, errors.Join(fmt.Errorf("bring back the files of %s: %w", folder, err), root.RemoveAll(Staging))
	}
	if err := replace(root, staging, in.top); err != nil {
		return report, fmt.Errorf("put the files of %s in place: %w", folder, err)
	}
	return report, nil
}

// replace puts what is in staging in place of what there was.
func replace(root, staging *os.Root, top *tar.Header) error {
	if err := eachIn(root, root.RemoveAll); err != nil {
		return err
	}
	if err := eachIn(staging, func(name string) error { return root.Rename(filepath.Join(Staging, name), name) }); err != nil {
		return err
	}
	if err := root.RemoveAll(Staging); err != nil {
		return err
	}
	if err := own(root, ".", top); err != nil {
		return err
	}
	return syncFolder(root)
}

// eachIn does something with everything at the top of a folder, but for what is reserved.
func eachIn(root *os.Root, do func(name string) error) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a folder
	// All at once: names that go while a folder is read may hide others.
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isReserved(name) {
			continue
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder has all of a folder's file system on the disk.
func syncFolder(root *os.Root) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a folder
	return unix.Syncfs(int(f.Fd()))
}

// restorer makes the entries of a tar.
type restorer struct {
	root *os.Root
	top  *tar.Header
	open []entry // folders that more may come into
}

// put makes an entry.
func (r *restorer) put(e entry) error {
	if e.name == "." {
		r.top = e.Header
		return nil
	}
	for len(r.open) > 0 && !isIn(e.name, r.open[len(r.open)-1].name) {
		if err := r.shut(); err != nil {
			return err
		}
	}
	switch e.Typeflag {
	case tar.TypeDir:
		r.open = append(r.open, e)
		return r.root.Mkdir(e.name, 0o700)
	case tar.TypeSymlink:
		if err := r.root.Symlink(e.Linkname, e.name); err != nil {
			return err
		}
		return r.root.Lchown(e.name, e.Uid, e.Gid)
	}
	f, err := r.root.OpenFile(e.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, e.content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return own(r.root, e.name, e.Header)
}

func isIn(name, folder string) bool {
	return len(name) > len(folder) && name[:len(folder)] == folder && name[len(folder)] == '/'
}

// shut gives the last folder what is its own, now that nothing comes into it any more.
func (r *restorer) shut() error {
	last := r.open[len(r.open)-1]
	r.open = r.open[:len(r.open)-1]
	return own(r.root, last.name, last.Header)
}

// finish is for the end of the tar.
func (r *restorer) finish() error {
	for len(r.open) > 0 {
		if err := r.shut(); err != nil {
			return err
		}
	}
	return nil
}

// own gives a file or folder its owner, mode and time. The owner comes first: to change it takes setuid away.
func own(root *os.Root, name string, h *tar.Header) error {
	if err := root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := root.Chmod(name, h.FileInfo().Mode()); err != nil {
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}
