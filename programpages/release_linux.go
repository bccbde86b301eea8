package programpages

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Release gives back the pages of the program's own file that are in memory. What is needed
// again comes back from the kernel's cache, in small pieces: not as huge pages, which it makes
// of files that were just written.
//
// Only mappings that cannot be written to are released, and of these only such that nothing
// was ever written to (proc_pid_smaps(5)): where a program is linked to be moved in memory,
// its own addresses would be lost. That it could not be done is no error.
func Release() {
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
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_NOHUGEPAGE)
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
		}
	}
}
