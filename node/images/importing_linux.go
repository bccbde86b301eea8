package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// importing names the archive in the images directory that is being imported, or is "": somebody has it open who is
// not boxlift. K3s, and ctr too, keep an archive open until the last of its images has its labels. Processes that
// cannot be looked at, because they have just ended, count as nobody.
func importing(proc, imagesDir string) string {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return ""
	}
	var found []string
	for _, name := range files {
		target, err := os.Readlink(name)
		if err != nil || filepath.Dir(target) != filepath.Clean(imagesDir) || !isArchive(target) {
			continue
		}
		program, err := os.Readlink(filepath.Join(filepath.Dir(filepath.Dir(name)), "exe"))
		if err == nil && !strings.HasPrefix(filepath.Base(program), "boxlift-") {
			found = append(found, filepath.Base(target))
		}
	}
	if found == nil {
		return ""
	}
	return slices.Min(found)
}

// notYet reports whether an error of ctr says that containerd does not take connections.
func notYet(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"dial unix", "failed to dial", "error while dialing"}, func(part string) bool {
		return strings.Contains(text, part)
	})
}
