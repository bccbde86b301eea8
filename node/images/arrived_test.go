//go:build linux

package images_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestArrived(t *testing.T) {
	l := nodelab.New(t)
	a := imagePack(t, l.Store, "a", "docker.io/rancher/one:1", nodelab.Random(250, 1000), nodelab.Random(251, 1000))
	l.MustSend(t, l.Want(a))
	o := images.Options{ImagesDir: l.Images, ContentDir: filepath.Join(t.TempDir(), "content")}
	arrived := func(pid int) images.ArrivedReport {
		t.Helper()
		r, err := images.Arrived(o, pid)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// The test itself is the process that was started before, or after, the content came.
	if r := arrived(os.Getpid()); r != (images.ArrivedReport{}) {
		t.Errorf("without content: %+v", r)
	}
	if err := os.Mkdir(o.ContentDir, 0o755); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-240 * time.Hour)
	for i, b := range a.Blobs {
		name := filepath.Join(o.ContentDir, b.Digest.Encoded())
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			continue
		}
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
	}
	// What no pack has does not count: a node has pulled it.
	if err := os.WriteFile(filepath.Join(o.ContentDir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, want := arrived(os.Getpid()), (images.ArrivedReport{Blobs: len(a.Blobs), After: 2}); r != want {
		t.Errorf("%+v, expected %+v", r, want)
	}
	// As after a new start. The kernel counts in hundredths of a second, so one may seem to have been before the
	// content.
	again := images.ArrivedReport{}
	for range 1000 {
		if again = arrived(start(t)); again.After == 0 {
			break
		}
	}
	if want := (images.ArrivedReport{Blobs: len(a.Blobs)}); again != want {
		t.Errorf("after a new start: %+v, expected %+v", again, want)
	}
	if _, err := images.Arrived(o, 1<<30); err == nil {
		t.Error("a process that is not there was started")
	}
}

// start returns a process that waits for the end of the test.
func start(t *testing.T) (pid int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sleep", "infinity")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
	})
	return command.Process.Pid
}

func TestStartTicks(t *testing.T) {
	for stat, want := range map[string]int64{
		"7 (k3s-server) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 4711 1 2": 4711,
		"7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 12 1 2":        12,
		"7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 -12 1 2":           -1,
		"7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 9999999999999 1":   -1,
		"7 (a) S 1 7 7": -1,
		"":              -1,
	} {
		got, err := images.StartTicks(stat)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %d (%v), expected %d", stat, got, err, want)
		}
	}
}
