package lab

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// PutSlowArchive writes an archive of images that takes k3s long to import, at a path below the host's root: before
// what the archive at another path has comes a member that is nothing to containerd, 3 GiB of zeros that take no room
// on the disk.
func (h *Host) PutSlowArchive(path, like string) error {
	const size = 3 << 30
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(&tar.Header{Name: "nothing", Mode: 0o644, Size: size}); err != nil {
		return err
	}
	rest, err := os.ReadFile(filepath.Join(h.Root, like))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(h.Root, path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(header.Bytes())
	if err == nil {
		_, err = file.WriteAt(rest, int64(header.Len())+size)
	}
	return errors.Join(err, file.Close())
}
