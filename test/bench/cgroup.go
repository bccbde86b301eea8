//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// memoryGroup is a control group whose processes get no more memory than a limit, pages of files
// that only they have read included: the kernel ends them when they need more at a time.
type memoryGroup struct {
	dir string
	// peak names the file that tells the most that was used.
	peak string
}

// limitMemory makes a group with a limit in bytes, in whichever version of control groups has
// the memory here.
func limitMemory(limit int64) (*memoryGroup, error) {
	name := fmt.Sprintf("boxlift-bench-%d", os.Getpid())
	for _, version := range []struct {
		root, limit string
		group       memoryGroup
	}{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", memoryGroup{peak: "memory.max_usage_in_bytes"}},
		{"/sys/fs/cgroup", "memory.max", memoryGroup{peak: "memory.peak"}},
	} {
		g := version.group
		g.dir = filepath.Join(version.root, name)
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(g.dir, version.limit), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			return nil, errors.Join(err, os.Remove(g.dir))
		}
		return &g, nil
	}
	return nil, errors.New("limit the memory of a control group: none can be made in /sys/fs/cgroup")
}

// command starts a program in the group. Its file is forgotten first, so that its pages count.
func (g *memoryGroup) command(ctx context.Context, c *exec.Cmd) (*exec.Cmd, error) {
	program, err := os.Open(c.Path)
	if err != nil {
		return nil, err
	}
	defer program.Close() //nolint:errcheck // it was not written
	if err := unix.Fadvise(int(program.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return nil, err
	}
	join := exec.CommandContext(ctx, "sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), c.Path}, c.Args[1:]...)...)
	join.Dir, join.Env, join.Stdout, join.Stderr = c.Dir, c.Env, c.Stdout, c.Stderr
	return join, nil
}

// used is the most that the group has used, in bytes.
func (g *memoryGroup) used() (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, g.peak))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text[:max(0, len(text)-1)]), 10, 64)
}

func (g *memoryGroup) remove() error { return os.Remove(g.dir) }
