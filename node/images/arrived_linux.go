package images

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Arrived counts what came into containerd after a process was started, of all that the packs' images consist of. The
// embedded registry of k3s (seeding.peerToPeer) offers other nodes what it finds when k3s is started. Of what k3s
// imports later, also at that very start, it misses a part: it is told of content before that has the labels which say
// what it belongs to, asks for them for a second, and gives up.
//
// Packs that cannot be read do not count: [Check] tells of them. Images that were pulled are no concern: while
// it pulls, containerd sets the labels itself.
func Arrived(o Options, pid int) (ArrivedReport, error) {
	started, err := startOf(pid)
	if err != nil {
		return ArrivedReport{}, fmt.Errorf("find out when process %d was started: %w", pid, err)
	}
	c := &imageCheck{Options: o}
	if err := c.readPromises(); err != nil {
		return ArrivedReport{}, err
	}
	var report ArrivedReport
	content, err := os.OpenRoot(cmp.Or(o.ContentDir, DefaultContentDir))
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return report, fmt.Errorf("open containerd's content: %w", err)
	}
	defer content.Close() //nolint:errcheck // it was only read
	for blob := range c.blobs {
		info, err := content.Lstat(blob.Encoded())
		if err != nil {
			continue // it is not there, or goes at this moment
		}
		report.Blobs++
		if info.ModTime().After(started) { // containerd sets it when a blob is complete
			report.After++
		}
	}
	return report, nil
}

// startOf is when a process was started, by the clock that files get their times from.
func startOf(pid int) (time.Time, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, err
	}
	ticks, err := startTicks(string(stat))
	if err != nil {
		return time.Time{}, err
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, err
	}
	const tick = 10 * time.Millisecond // what the kernel counts in for programs, on all platforms that k3s has
	return time.Now().Add(time.Duration(ticks)*tick - time.Duration(boot.Nano())), nil
}

// startTicks reads the 22nd field of /proc/PID/stat. The second is the program's name in parentheses, which may hold
// any character.
func startTicks(stat string) (int64, error) {
	const fields = 22 - 2
	after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(after) < fields {
		return 0, fmt.Errorf("expected %d more fields in %.100q", fields, stat)
	}
	const century = 100 * 366 * 24 * 3600 * 100
	ticks, err := strconv.ParseInt(after[fields-1], 10, 64)
	if err != nil || ticks < 0 || ticks > century {
		return 0, fmt.Errorf("expected a time in %.100q", after[fields-1])
	}
	return ticks, nil
}
