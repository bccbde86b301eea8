package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// DefaultDataDir is where k3s unpacks its programs, each version into a folder that is called by a digest. The links
// current and previous lead to the folders of the version that runs and of the one before; k3s removes none.
const DefaultDataDir = "/var/lib/rancher/k3s/data"

var dataFolder = regexp.MustCompile(`^[0-9a-f]{64}$`)

// programFolders lists what k3s has unpacked, and what becomes of it. What a link leads to stays, and what a process
// was started from: the shims of pods go on with the programs of the k3s that started the pods, until these end.
func programFolders(proc, dir string) ([]PruneItem, error) {
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
	users, err := programUsers(proc, dir)
	if err != nil {
		return nil, err
	}
	var items []PruneItem
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || !dataFolder.MatchString(name) {
			continue
		}
		item := PruneItem{Kind: PruneData, Name: name}
		if item.Size, err = roomBelow(path.Join(dir, name), func(string) bool { return true }); err != nil {
			return nil, err
		}
		switch {
		case links[name] != "":
			item.Reason = "k3s' link " + links[name] + " leads there"
		case users[name] != "":
			item.Reason = users[name] + " was started from there and runs"
		case len(links) == 0:
			item.Reason = "no link says which version of k3s runs"
		default:
			item.Remove, item.Reason = true, "k3s neither runs from there nor did before, and no process does"
		}
		items = append(items, item)
	}
	return items, nil
}

// programUsers names a process for each folder of dir that one was started from. A process that cannot be looked at,
// because it has just ended, uses nothing.
func programUsers(proc, dir string) (map[string]string, error) {
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
