//go:build linux

package images_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/images"
)

// TestPrunePrograms removes what older versions of k3s have unpacked, once the last pod that they started is gone.
func TestPrunePrograms(t *testing.T) {
	l := withoutContainerd(t)
	l.options.DataDir = t.TempDir()
	folder := func(digit string) string { return strings.Repeat(digit, 64) }
	in := func(names ...string) string { return filepath.Join(append([]string{l.options.DataDir}, names...)...) }
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	shimOf := func(folder string) string { return in(folder, "bin", "containerd-shim-runc-v2") }
	for _, name := range []string{folder("1"), folder("2"), folder("3"), folder("4"), "cni", folder("5") + "-tmp"} {
		if err := errors.Join(os.MkdirAll(in(name, "bin"), 0o755), copyTo(shimOf(name), sleep)); err != nil {
			t.Fatal(err)
		}
	}
	request := images.PruneRequest{Release: release("1", nil), Remove: true}
	reasons := func(r images.PruneReport) map[string]string {
		texts := make(map[string]string)
		for _, item := range r.Items {
			if item.Kind != images.PruneData || item.Size < 1<<10 {
				t.Errorf("%+v", item)
			}
			texts[item.Name[:1]] = item.Reason
		}
		return texts
	}
	r := l.prune(t, request)
	if len(gone(r)) > 0 || !strings.Contains(reasons(r)["1"], "no link") {
		t.Errorf("without links: %+v", r)
	}
	if err := errors.Join(os.Symlink(in(folder("4")), in("current")),
		os.Symlink(folder("3"), in("previous"))); err != nil {
		t.Fatal(err)
	}
	shim := exec.CommandContext(t.Context(), shimOf(folder("1")), "infinity")
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	r = l.prune(t, request)
	wantGone(t, r, folder("2"))
	want := map[string]string{
		"1": "containerd-shim-runc-v2 was started from there and runs",
		"2": "k3s neither runs from there nor did before, and no process does",
		"3": "k3s' link previous leads there", "4": "k3s' link current leads there",
	}
	if diff := cmp.Diff(want, reasons(r)); diff != "" {
		t.Error(diff)
	}
	_ = errors.Join(shim.Process.Kill(), shim.Wait()) // killed
	wantGone(t, l.prune(t, request), folder("1"))
	entries, err := os.ReadDir(l.options.DataDir)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name()[:min(len(e.Name()), 8)])
	}
	if diff := cmp.Diff([]string{"33333333", "44444444", "55555555", "cni", "current", "previous"}, left); err != nil ||
		diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// copyTo copies a program.
func copyTo(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
