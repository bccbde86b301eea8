package clean

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// minAge is how old what is deleted must be, at least. Between the last byte and the
// rename nobody has the file open.
const minAge = time.Minute

// Options say what [Run] deletes.
type Options struct {
	// ImagesDir has the packs. FilesDir is the constant of that name when it is "".
	ImagesDir string
	FilesDir  string
	// Dirs are other directories in which boxlift makes files; what is below them is left
	// alone.
	Dirs []string
	// Unfinished deletes unfinished packs and files as well, from which [receive.Run] could go
	// on.
	Unfinished bool
	// Age is how long nobody may have written to what is deleted; 0 means a minute.
	Age time.Duration
}

// Report is what [Run] deleted: paths, and how many bytes they had.
type Report struct {
	Removed []string `json:"removed"`
	Bytes   int64    `json:"bytes"`
}

var unfinishedFile = lazyregexp.New(`^.+\.[0-9a-f]{12}` + regexp.QuoteMeta(wire.PartSuffix) + `$`)

// Run deletes what runs of boxlift that were cut short have left: files that never got
// their names, in the images directory, in Dirs and in FilesDir with all that is below.
// It goes by names that nobody else gives, leaves alone what somebody has open, and never
// touches finished packs and files. While another boxlift-node is receiving it leaves
// unfinished packs and files alone.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.FilesDir == "" {
		o.FilesDir = wire.FilesDir
	}
	if o.Age == 0 {
		o.Age = minAge
	}
	c := &cleaner{options: o, report: Report{Removed: []string{}}, before: time.Now().Add(-o.Age)}
	dirs := append([]string{o.ImagesDir}, o.Dirs...)
	err := filepath.WalkDir(o.FilesDir, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, name)
		}
		return err
	})
	if err != nil {
		return c.report, fmt.Errorf("look for what was left behind: %w", err)
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if ctx.Err() != nil {
			return c.report, context.Cause(ctx)
		}
		if err := c.clean(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c.report, fmt.Errorf("clean %s: %w", dir, err)
		}
	}
	return c.report, nil
}

type cleaner struct {
	options Options
	before  time.Time
	report  Report
}

func (c *cleaner) clean(dir string) error {
	if !path.IsAbs(dir) {
		return errors.New("expected an absolute path")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory
	unfinished := false
	if c.options.Unfinished {
		free, unlock, err := hostfile.Lock(c.lockOf(dir))
		if err != nil {
			return err
		}
		defer unlock()
		unfinished = free
	}
	names, err := hostfile.Names(root, ".")
	if err != nil {
		return err
	}
	for _, name := range names {
		pack, part := strings.CutSuffix(name, wire.PartSuffix)
		switch {
		case strings.HasPrefix(name, hostfile.PutPrefix), strings.HasSuffix(name, hostfile.NewSuffix):
		case unfinished && part && dir == c.options.ImagesDir && wire.IsPackName(pack):
		case unfinished && c.below(dir) && unfinishedFile.MatchString(name):
		default:
			continue
		}
		if err := c.remove(root, dir, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *cleaner) below(dir string) bool {
	return dir == c.options.FilesDir || strings.HasPrefix(dir, c.options.FilesDir+"/")
}

// lockOf is the directory that a receiver locks while it works in dir.
func (c *cleaner) lockOf(dir string) string {
	if c.below(dir) {
		return c.options.FilesDir
	}
	return dir
}

// remove deletes a regular file that is old enough and that nobody has open.
func (c *cleaner) remove(root *os.Root, dir, name string) error {
	f, err := hostfile.Open(root, name, os.O_RDWR)
	if err != nil {
		return nil //nolint:nilerr // it is gone meanwhile, or something of that name that boxlift does not make
	}
	info, err := f.Stat()
	if err != nil || info.ModTime().After(c.before) {
		hostfile.CloseRead(f)
		return err
	}
	used := false
	err = hostfile.Control(f, func(fd int) error {
		// A lease for writing is granted when nobody else has the file open. Filesystems that
		// know no leases have to do without.
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		used = errors.Is(err, unix.EAGAIN)
		return nil
	})
	hostfile.CloseRead(f)
	if err != nil || used {
		return err
	}
	if err := root.Remove(name); err != nil {
		return err
	}
	c.report.Removed = append(c.report.Removed, path.Join(dir, name))
	c.report.Bytes += info.Size()
	return nil
}
