package programpages

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// pagesEnv makes this test's own process the one that is measured.
const pagesEnv = "BOXLIFT_TEST_PROGRAM_PAGES"

// TestRelease gives pages of the program back, in a process in which nothing else
// happens, which goes on afterwards.
func TestRelease(t *testing.T) {
	if os.Getenv(pagesEnv) != "" {
		before := residentProgram(t)
		Release()
		fmt.Println("RESIDENT", before, residentProgram(t))
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe, "-test.run", "^TestRelease$")
	c.Env = append(os.Environ(), pagesEnv+"=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, line, _ := strings.Cut(string(out), "RESIDENT ")
	var before, after int
	if _, err := fmt.Sscan(line, &before, &after); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%d kB before, %d kB after", before, after)
	if after >= before {
		t.Errorf("%d kB of files are in memory, of %d kB before", after, before)
	}
}

// residentProgram returns how much of the files that are mapped is in memory, in kB.
func residentProgram(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssFile:")
	value, _, _ := strings.Cut(rest, "kB")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
