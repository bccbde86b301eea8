package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgramPages gives back the pages of the program's own file that only its start has
// needed. So much is linked into boxlift that these are some 40 MB, which count as its memory
// although the kernel has them in its cache anyway; what is needed again comes back from
// there, page by page.
//
// Only mappings that cannot be written to are released, and of these only such that nothing
// was ever written to (proc_pid_smaps(5)): where a program is linked to be moved in memory,
// its own addresses would be lost. That it could not be done is no error.
func releaseProgramPages() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // it was only read
	var start, end uintptr
	program := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		var from, to uintptr
		var permissions string
		if n, _ := fmt.Sscanf(line, "%x-%x %4s", &from, &to, &permissions); n == 3 {
			start, end = from, to
			program = permissions[1] == '-' && strings.HasSuffix(line, " "+self)
		} else if program && strings.HasPrefix(line, "Anonymous:") && strings.HasSuffix(line, " 0 kB") {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
		}
	}
}
