package programs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// DefaultDir is where k3s unpacks its programs, each version into a folder that is called by a digest. The links
// current and previous lead to the folders of the version that runs and of the one before; k3s removes none.
const DefaultDir = "/var/lib/rancher/k3s/data"

// maxFiles bounds the files of a folder; a version has some hundred.
const maxFiles = 200_000

// Folder is what k3s has unpacked of one version of itself.
type Folder struct {
	Name string
	Size int64 // bytes on the disk
	// Old says that nothing needs it any more, Reason why that is so, or not.
	Old    bool
	Reason string
}

var folderName = lazyregexp.New(`^[0-9a-f]{64}$`)

// Folders lists what k3s has unpacked in dir. What a link leads to is needed, and what a process was started from: the
// shims of pods go on with the programs of the k3s that started the pods, until these end. proc is where /proc is.
func Folders(proc, dir string) ([]Folder, error) {
	entries, err := os.ReadDir(dir) // sorted by names
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	links := make(map[string]string)
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		target, err := os.Readlink(path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
		links[path.Base(target)] = e.Name()
	}
	users, err := usersOf(proc, dir)
	if err != nil {
		return nil, err
	}
	var folders []Folder
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || !folderName.MatchString(name) {
			continue
		}
		folder := Folder{Name: name}
		folder.Size, err = hostfile.RoomBelow(path.Join(dir, name), maxFiles, func(string) bool { return true })
		if err != nil {
			return nil, err
		}
		switch {
		case links[name] != "":
			folder.Reason = "k3s' link " + links[name] + " leads there"
		case users[name] != "":
			folder.Reason = users[name] + " was started from there and runs"
		case len(links) == 0:
			folder.Reason = "no link says which version of k3s runs"
		default:
			folder.Old, folder.Reason = true, "k3s neither runs from there nor did before, and no process does"
		}
		folders = append(folders, folder)
	}
	return folders, nil
}

// OldSize adds up the room of the folders that nothing needs. root is "/", but in tests.
func OldSize(root string) (int64, error) {
	folders, err := Folders(filepath.Join(root, "proc"), filepath.Join(root, DefaultDir))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, folder := range folders {
		if folder.Old {
			sum += folder.Size
		}
	}
	return sum, nil
}

// usersOf names a process for each folder of dir that one was started from. A process that cannot be looked at,
// because it has just ended, uses nothing.
func usersOf(proc, dir string) (map[string]string, error) {
	place, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("find the place of %s: %w", dir, err)
	}
	programs, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "exe"))
	if err != nil {
		return nil, err
	}
	users := make(map[string]string)
	for _, name := range programs {
		program, err := os.Readlink(name)
		below, ok := strings.CutPrefix(program, place+"/")
		if err != nil || !ok {
			continue
		}
		folder, _, _ := strings.Cut(below, "/")
		users[folder] = filepath.Base(program)
	}
	return users, nil
}
