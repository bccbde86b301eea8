// Package containerd runs a containerd for one test, with Debian's packages.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// Daemon is a running containerd.
type Daemon struct {
	// Ctr is the command to ask it with.
	Ctr []string
	// Content is the folder of its content: files called by their sha256 in hex.
	Content string
}

// Start runs a containerd, without its CRI plugin, until the test ends. It needs root.
func Start(t *testing.T) Daemon {
	t.Helper()
	need.Root(t, "running containerd")
	need.Programs(t, debian.Program{Name: "containerd", Package: "containerd"}, debian.Program{Name: "ctr", Package: "containerd"})
	dir := t.TempDir()
	socket := filepath.Join(dir, "sock")
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n"+
		"disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\n  address = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("containerd", "--config", filepath.Join(dir, "config.toml"))
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait(), log.Close()); err != nil {
			t.Error(err)
		}
	})
	d := Daemon{Ctr: []string{"ctr", "--address", socket}, Content: filepath.Join(dir, "root", "io.containerd.content.v1.content", "blobs", "sha256")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for exec.CommandContext(ctx, d.Ctr[0], append(d.Ctr[1:], "version")...).Run() != nil {
		if ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd does not answer:\n%s", text)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return d
}
