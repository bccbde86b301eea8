//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cost is what a process took.
type cost struct {
	wall time.Duration
	// cpu is what it used itself and what the kernel used for it; system is the latter.
	cpu, system time.Duration
	// written is what it made the kernel write to disks, in bytes: pages of files that
	// it dirtied, and dirtied again after they had been written back.
	written int64
	// read is what it asked the kernel to read, in bytes, from wherever that was.
	read int64
	// peak is the largest part of it that was in memory, in bytes. A process begins as a
	// copy of the one that starts it, so this is never less than what that one has; bench
	// itself is kept small.
	peak int64
}

// measure runs a command to its end. It returns what was measured when the command
// failed, too.
func measure(c *exec.Cmd) (cost, error) {
	var output bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &output
	}
	if c.Stderr == nil {
		c.Stderr = &output
	}
	start := time.Now()
	if err := c.Start(); err != nil {
		return cost{}, err
	}
	// The kernel forgets its accounts with the process, so look before it is reaped.
	err := waitForEnd(c.Process.Pid)
	result := cost{wall: time.Since(start)}
	if err == nil {
		result.written, err = accountOf(c.Process.Pid, "write_bytes")
	}
	if err == nil {
		result.read, err = accountOf(c.Process.Pid, "rchar")
	}
	if waitErr := c.Wait(); waitErr != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), waitErr, output.Bytes())
	}
	if usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok {
		result.system = c.ProcessState.SystemTime()
		result.cpu = c.ProcessState.UserTime() + result.system
		result.peak = usage.Maxrss << 10
	}
	return result, err
}

func waitForEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// accountOf returns one of the kernel's accounts of a process (proc_pid_io(5)).
func accountOf(pid int, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, name+": "); ok {
			return strconv.ParseInt(strings.TrimSpace(count), 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/io has no %s", pid, name)
}

// settle waits until what earlier runs have written is on the disks, so that no run pays
// for another, and until memory that they have freed is back where all runs get theirs
// from: on virtual machines, the host takes it back after two seconds.
func settle() {
	unix.Sync()
	time.Sleep(3 * time.Second)
}

// median returns the middle one of some values, each taken from a run.
func median[R any, T cmp.Ordered](runs []R, value func(R) T) T {
	values := make([]T, 0, len(runs))
	for _, r := range runs {
		values = append(values, value(r))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func wall(c cost) time.Duration { return c.wall }
func cpu(c cost) time.Duration  { return c.cpu }
func written(c cost) int64      { return c.written }
func peak(c cost) int64         { return c.peak }
func readBytes(c cost) int64    { return c.read }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
func megabytes(n int64) string       { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
func times(ratio float64) string     { return fmt.Sprintf("%.3fx", ratio) }

// rate is in bytes per second.
func rate(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() }
func perSecond(r float64) string            { return fmt.Sprintf("%.0f MB/s", r/1e6) }
