// Package extract takes images and files out of a bundle, for other programs. Everything is
// proven while it is written, has its name only when all of it is on the disk, and replaces
// nothing.
package extract

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrThere says that something has the name of what is to be written.
var ErrThere = fault.NewKind(fault.Input, "something is there already")

// ImagesFile is the name that [Component] gives to the images of a component.
const ImagesFile = "images.tar"

// Archive writes images, with the platforms that they have, to an OCI layout in a tar
// (the oci-archive of skopeo; ctr and k3s import it). Every blob is proven while it
// is written; path gets its name when all of it is on the disk, and must not be there before.
func Archive(ctx context.Context, r *bundle.Reader, path string, images []bundle.Image) error {
	if err := archive(ctx, r, path, images); err != nil {
		return fmt.Errorf("extract images to %s: %w", path, err)
	}
	return nil
}

func archive(ctx context.Context, r *bundle.Reader, path string, images []bundle.Image) error {
	placed, index, err := layoutOf(r, images)
	if err != nil {
		return err
	}
	return writeNew(path, func(w io.Writer) (bool, error) {
		return false, writeLayout(ctx, r, w, placed, index)
	})
}

// layoutOf is the layout of images, each member at its place, and its index.json. The file has all that belongs to it.
func layoutOf(r *bundle.Reader, images []bundle.Image) (placed *ocitar.Layout, index []byte, err error) {
	layout, err := r.ImageLayout(images, "")
	if err != nil {
		return nil, nil, err
	}
	if placed, err = layout.Place(); err != nil {
		return nil, nil, err
	}
	return placed, layout.Index, requireMembers(r, layout.Blobs)
}

// writeLayout writes the tar of a layout.
func writeLayout(ctx context.Context, r *bundle.Reader, w io.Writer, layout *ocitar.Layout, index []byte) error {
	for _, e := range layout.Entries {
		header, err := ocitar.Header(e.Member)
		if err != nil {
			return err
		}
		if _, err := w.Write(header); err != nil {
			return err
		}
		if err := copyMember(ctx, r, w, e.Member, index); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, e.End()-e.Offset-e.Size)); err != nil {
			return err
		}
	}
	_, err := w.Write(make([]byte, ocitar.TrailerSize))
	return err
}

// requireMembers is [bundle.Reader.Require] for members.
func requireMembers(r *bundle.Reader, members []ocitar.Member) error {
	blobs := make([]digest.Digest, 0, len(members))
	for _, m := range members {
		blobs = append(blobs, m.Digest())
	}
	return r.Require(blobs...)
}

// copyMember writes the content of one member of a layout.
func copyMember(ctx context.Context, r *bundle.Reader, w io.Writer, m ocitar.Member, index []byte) error {
	switch m.Name {
	case ocitar.LayoutFile:
		_, err := io.WriteString(w, ocitar.LayoutContent)
		return err
	case ocitar.IndexFile:
		_, err := w.Write(index)
		return err
	}
	return copyBlob(ctx, r, w, m.Digest(), m.Size)
}

func copyBlob(ctx context.Context, r *bundle.Reader, w io.Writer, d digest.Digest, size int64) error {
	content, err := r.Content(d, size)
	if err != nil {
		return err
	}
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := content.Read(*buffer)
		if _, err := w.Write((*buffer)[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Layout writes images to an OCI layout in a folder (skopeo's oci), which must not be
// there before. Otherwise it is as [Archive].
func Layout(ctx context.Context, r *bundle.Reader, path string, images []bundle.Image) error {
	err := newFolder(path, func(folder string) error {
		placed, index, err := layoutOf(r, images)
		if err != nil {
			return err
		}
		for _, e := range placed.Entries {
			name := filepath.Join(folder, filepath.FromSlash(e.Name))
			if err := makeFolders(folder, filepath.Dir(name)); err != nil {
				return err
			}
			err := writeNew(name, func(w io.Writer) (bool, error) {
				return false, copyMember(ctx, r, w, e.Member, index)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("extract images to %s: %w", path, err)
	}
	return nil
}

// File writes a file, which must not be there before. Programs and scripts get the
// permission to be run, which bundles do not record.
func File(ctx context.Context, r *bundle.Reader, path string, f bundle.File) error {
	if err := file(ctx, r, path, f); err != nil {
		return fmt.Errorf("extract %s to %s: %w", f.Name, path, err)
	}
	return nil
}

func file(ctx context.Context, r *bundle.Reader, path string, f bundle.File) error {
	if err := r.Require(f.Digest); err != nil {
		return err
	}
	return writeNew(path, func(w io.Writer) (bool, error) {
		var first start
		err := copyBlob(ctx, r, io.MultiWriter(w, &first), f.Digest, f.Size)
		return first.isProgram(), err
	})
}

// start keeps the first bytes of what is written.
type start []byte

func (s *start) Write(p []byte) (int, error) {
	*s = append(*s, p[:min(len(p), 4-len(*s))]...)
	return len(p), nil
}

// isProgram reports whether they are those of a program or a script.
func (s start) isProgram() bool {
	return bytes.HasPrefix(s, []byte("\x7fELF")) || bytes.HasPrefix(s, []byte("#!"))
}

// Component writes the files of a component to a folder, which must not be there
// before, and its images to ImagesFile in it. Files for one platform are in a folder of that
// platform's name, such as linux-amd64, and OS packages below that in one of the release's, such as
// debian-bookworm. The empty platform takes all of them.
func Component(ctx context.Context, r *bundle.Reader, path, component string, platform lock.Platform) error {
	contents, err := r.Contents()
	if err != nil {
		return err
	}
	if err := requireComponent(r, contents, component, platform); err != nil {
		return fmt.Errorf("extract component %s to %s: %w", component, path, err)
	}
	err = newFolder(path, func(folder string) error {
		count := 0
		for _, f := range contents.Files {
			if f.Component != component || !platform.Match(f.Platform) {
				continue
			}
			count++
			name := filepath.Join(folder, folderOf(f), f.Name)
			if err := makeFolders(folder, filepath.Dir(name)); err != nil {
				return err
			}
			if err := file(ctx, r, name, f); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		images := contents.ImagesOf(component, platform)
		if len(images) > 0 {
			return archive(ctx, r, filepath.Join(folder, ImagesFile), images)
		}
		if count == 0 {
			return fmt.Errorf("it has no component %s for this platform", component)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("extract component %s to %s: %w", component, path, err)
	}
	return nil
}

// folderOf is the folder of a component that a file goes to; "" for that of the component itself.
func folderOf(f bundle.File) string {
	folder := strings.ReplaceAll(string(f.Platform), "/", "-")
	if f.IsOSPackage() {
		return filepath.Join(folder, f.Package.Family+"-"+f.Package.Suite)
	}
	return folder
}

// requireComponent names all at once that a delta leaves out of a component.
func requireComponent(r *bundle.Reader, contents *bundle.Contents, component string, platform lock.Platform) error {
	var blobs []digest.Digest
	for _, f := range contents.Files {
		if f.Component == component && platform.Match(f.Platform) {
			blobs = append(blobs, f.Digest)
		}
	}
	for _, image := range contents.ImagesOf(component, platform) {
		for _, p := range image.Platforms {
			for _, d := range p.Blobs() {
				blobs = append(blobs, d.Digest)
			}
		}
	}
	return r.Require(blobs...)
}

// notThere makes sure that nothing has a name.
func notThere(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = ErrThere
		}
		return err
	}
	return nil
}

// writeNew writes a file under a temporary name beside it, and gives it its own when its
// content is on the disk. Who writes it reports whether it is a program.
func writeNew(path string, write func(io.Writer) (isProgram bool, err error)) (err error) {
	if err := notThere(path); err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(0o644))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	w := bufio.NewWriterSize(f, 64<<10)
	isProgram, err := write(w)
	if err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if isProgram {
		if err := makeExecutable(f.File); err != nil {
			return err
		}
	}
	if err := notThere(path); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return volume.SyncDirectory(filepath.Dir(path))
}

// makeExecutable lets those run a file who may read it.
func makeExecutable(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return f.Chmod(info.Mode().Perm() | info.Mode().Perm()&0o444>>2)
}

// newFolder has a folder filled under a temporary name beside it, and gives it its own when
// that is done.
func newFolder(path string, fill func(folder string) error) (err error) {
	path = filepath.Clean(path)
	if err := notThere(path); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.partial")
	if err != nil {
		return err
	}
	folder = filepath.Clean(folder) // beside a relative path it begins with a dot
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	if err := fill(folder); err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	// Linux gives the name of an empty folder to another one.
	if err := notThere(path); err != nil {
		return err
	}
	if err := volume.SyncDirectory(folder); err != nil {
		return err
	}
	if err := os.Rename(folder, path); err != nil {
		return err
	}
	return volume.SyncDirectory(filepath.Dir(path))
}

// makeFolders makes the folders on the way from root down to folder, and has each of them on
// the disk.
func makeFolders(root, folder string) error {
	way, err := filepath.Rel(root, folder)
	if err != nil || way == "." {
		return err
	}
	for f, part := root, ""; way != ""; {
		part, way, _ = strings.Cut(way, string(filepath.Separator))
		f = filepath.Join(f, part)
		err := os.Mkdir(f, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := volume.SyncDirectory(filepath.Dir(f)); err != nil {
			return err
		}
	}
	return nil
}
