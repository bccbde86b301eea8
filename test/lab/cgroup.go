package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupRoot is the name of the control group, in every hierarchy, that holds
// one group per lab with one group per host.
const cgroupRoot = "boxlift-lab"

// cgroupMounts lists where control group hierarchies are mounted, v1 and v2.
func cgroupMounts() ([]string, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var at []string
	for _, m := range mounts {
		if m.fstype == "cgroup" || m.fstype == "cgroup2" {
			at = append(at, m.at)
		}
	}
	return at, nil
}

// makeCgroups makes the group of a lab ("LAB") or of a host in it
// ("LAB", "HOST") in every hierarchy, and returns their paths. What is there
// already is kept.
func makeCgroups(names ...string) ([]string, error) {
	hierarchies, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, hierarchy := range hierarchies {
		group := hierarchy
		for _, name := range append([]string{cgroupRoot}, names...) {
			parent := group
			group = filepath.Join(group, name)
			if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("make control group: %w", err)
			}
			err := inheritCgroup(parent, group, parent != hierarchy)
			if err == nil && name == cgroupRoot {
				err = setCPUWeight(group, labsWeight)
			}
			if err != nil {
				return nil, fmt.Errorf("set up control group %s: %w", group, err)
			}
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// inheritCgroup sets in a new group what processes in it need and the kernel
// does not pass down by itself.
func inheritCgroup(parent, group string, parentIsOurs bool) error {
	// v1: a cpuset without processors and memory takes no process.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, name), value, 0); err != nil {
			return err
		}
	}
	// v1: refused where it is already on or cannot be changed, which is fine.
	if hierarchical := filepath.Join(group, "memory.use_hierarchy"); exists(hierarchical) {
		_ = os.WriteFile(hierarchical, []byte("1"), 0)
	}
	// v2: controllers reach a group when its parent hands them on. What the
	// machine's root group hands on is the machine's choice.
	if control := filepath.Join(parent, "cgroup.subtree_control"); parentIsOurs && exists(control) {
		controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, c := range strings.Fields(string(controllers)) {
			if err := os.WriteFile(control, []byte("+"+c), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// labsWeight makes all hosts together count as so many of the machine's other processes when
// there is too little of the processors: as one, which is what the kernel takes them for, they
// would stand still beside an operator's program that is busy.
const labsWeight = 8

// setCPUWeight makes a group count as so many ordinary ones where processors are shared out.
// Hierarchies without that controller are left alone.
func setCPUWeight(group string, times int) error {
	for name, ordinary := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
		if file := filepath.Join(group, name); exists(file) {
			if err := os.WriteFile(file, []byte(strconv.Itoa(ordinary*times)), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetCPUWeight makes the hosts of this lab count as those of so many labs, 1 to 100, where
// other labs want the processors too.
func (l *Lab) SetCPUWeight(times int) error {
	hierarchies, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if err := setCPUWeight(filepath.Join(hierarchy, cgroupRoot, l.id), times); err != nil {
			return fmt.Errorf("give the lab its share of the processors: %w", err)
		}
	}
	return nil
}

// ProcessorTime is how long the hosts of this lab have had a processor so far; zero where nobody counts.
func (l *Lab) ProcessorTime() time.Duration {
	hierarchies, err := cgroupMounts()
	if err != nil {
		return 0
	}
	for _, hierarchy := range hierarchies {
		group := filepath.Join(hierarchy, cgroupRoot, l.id)
		if text, err := os.ReadFile(filepath.Join(group, "cpuacct.usage")); err == nil { // v1
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return time.Duration(n)
		}
		if text, err := os.ReadFile(filepath.Join(group, "cpu.stat")); err == nil && strings.HasPrefix(string(text), "usage_usec ") {
			n, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
			return time.Duration(n) * time.Microsecond
		}
	}
	return 0
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// removeCgroups kills all processes in the groups of a lab, or of one of its
// hosts ("LAB/HOST"), and removes the groups.
func removeCgroups(name string) error {
	hierarchies, err := cgroupMounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, hierarchy := range hierarchies {
		errs = append(errs, removeCgroup(filepath.Join(hierarchy, cgroupRoot, name)))
		// Fails as long as there is another lab, or a host's lab.
		_ = os.Remove(filepath.Join(hierarchy, cgroupRoot))
	}
	return errors.Join(errs...)
}

func removeCgroup(group string) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := tryRemoveCgroup(group)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // killed processes leave their group a little later
	}
}

// tryRemoveCgroup kills what is in a group and below, and removes the groups
// that are already empty.
func tryRemoveCgroup(group string) error {
	var groups []string
	err := filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(groups) // children first
	var errs []error
	for _, g := range groups {
		pids, _ := os.ReadFile(filepath.Join(g, "cgroup.procs")) // unreadable when just removed
		for _, pid := range strings.Fields(string(pids)) {
			if n, err := strconv.Atoi(pid); err == nil && n > 1 {
				_ = syscall.Kill(n, syscall.SIGKILL) // it may be gone by now
			}
		}
		if err := syscall.Rmdir(g); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", g, err))
		}
	}
	return errors.Join(errs...)
}
