package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// RoomBelow adds up the blocks of the files below a directory whose names count. More than most of them are an error.
func RoomBelow(dir string, most int, counts func(name string) bool) (int64, error) {
	var sum int64
	files := 0
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // files come and go
		}
		if err != nil || !entry.Type().IsRegular() || !counts(entry.Name()) {
			return err
		}
		if files++; files > most {
			return fmt.Errorf("it has more than %d files", most)
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += st.Blocks * 512 // st_blocks counts these, whatever the filesystem's are
		}
		return nil
	})
	if err != nil {
		return sum, fmt.Errorf("measure %s: %w", dir, err)
	}
	return sum, nil
}
