package ownfile

import (
	"io/fs"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Replace puts content at path, which is the old file or the whole new one at any time, and lets it have exactly mode:
// neither the old file's nor the umask counts. The new file is on the disk when it returns.
func Replace(path string, content []byte, mode fs.FileMode) error {
	f, err := renameio.NewPendingFile(path, renameio.WithStaticPermissions(mode), renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return err
	}
	defer f.Cleanup() //nolint:errcheck // once it has its name, there is nothing to clean up
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}
