package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestProgramPagesInOrder looks whether the packages that give pages of the program's file back
// have their turns where they are of use: in the middle of the others, which is Go's to say.
func TestProgramPagesInOrder(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe, "-test.run", "^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var order []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "init" {
			order = append(order, f[1])
		}
	}
	const pages = "github.com/liteboxd/boxlift/programpages/"
	want := []string{
		"crypto/tls", pages + "early", "k8s.io/api/core/v1", "k8s.io/api/storage/v1", pages + "middle",
		"k8s.io/client-go/kubernetes/scheme", pages + "late", "github.com/liteboxd/boxlift/install/kube",
	}
	last := -1
	for _, name := range want {
		i := slices.Index(order, name)
		if i <= last {
			t.Errorf("%s is prepared as number %d of %d, want it after number %d", name, i, len(order), last)
		}
		last = i
	}
}
