package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// folder is a place in a folder of the host, such as a disk of its own or what NFS has mounted there.
type folder struct {
	ctx context.Context //nolint:containedctx // a place is open for as long as it lasts
	dir string
}

// openFolder opens the server's folder at a target. That has to be there, on another filesystem: without its mount, it
// would be a folder of the very disk that the backups are to outlive.
func (r *round) openFolder(ctx context.Context, name string) (place, error) {
	target := r.Root + name
	there, err := r.Device(target)
	if err != nil {
		return nil, err
	}
	here, err := r.Device(r.folder)
	if err != nil {
		return nil, err
	}
	if there == here {
		return nil, fmt.Errorf("%s is on the same filesystem as %s: nothing is mounted there", name, Folder)
	}
	dir := filepath.Join(target, r.Config.Cluster, r.Config.Node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &folder{ctx: ctx, dir: dir}, nil
}

func (f *folder) list() (map[string]int64, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	files := make(map[string]int64)
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			files[e.Name()] = info.Size()
		}
	}
	return files, nil
}

func (f *folder) put(file, name, digest string) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer hostfile.CloseRead(in)
	part := filepath.Join(f.dir, partPrefix+name+partSuffix)
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	_, err = io.Copy(out, &untilDone{f.ctx, in})
	if err == nil {
		err = out.Sync()
	}
	err = errors.Join(err, out.Close())
	if err != nil {
		return err
	}
	is, err := hostfile.Digest(f.ctx, part)
	if err != nil {
		return err
	}
	if is != digest {
		return errReadBack
	}
	if err := os.Rename(part, filepath.Join(f.dir, name)); err != nil {
		return err
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(hostfile.SyncDir(root, "."), root.Close())
}

func (f *folder) remove(name string) error { return os.Remove(filepath.Join(f.dir, name)) }

func (f *folder) close() error { return nil }

// errReadBack says that a copy is not what was copied.
var errReadBack = errors.New("what was written reads back as something else")

// untilDone reads until a context ends.
type untilDone struct {
	ctx context.Context //nolint:containedctx // as long as one copy lasts
	io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.Reader.Read(p)
}
