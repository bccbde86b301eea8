//go:build linux

package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	hosts "github.com/liteboxd/boxlift/test/lab"
)

const helper = "usr/local/bin/boxlift-node"

// network is a LAN of hosts that have boxlift-node.
type network struct {
	*hosts.Lab
	hosts []*hosts.Host
	// known is the name of a file with their host keys.
	known string
}

// newNetwork makes n hosts. It leaves the test out where that is impossible.
func newNetwork(ctx context.Context, t *testing.T, n int) *network {
	t.Helper()
	hosts.Require(t)
	made, err := hosts.New(ctx, hosts.Options{Name: "swarm", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &network{Lab: made, known: filepath.Join(t.TempDir(), "known_hosts"), hosts: make([]*hosts.Host, n)}
	binary := filepath.Join(t.TempDir(), "boxlift-node")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", binary, "github.com/liteboxd/boxlift/cmd/boxlift-node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i := range n {
		if l.hosts[i], err = made.Host(ctx, hosts.HostOptions{Name: fmt.Sprintf("node%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	var keys strings.Builder
	for _, h := range l.hosts {
		if err := os.WriteFile(filepath.Join(h.Root, helper), program, 0o755); err != nil {
			t.Fatal(err)
		}
		key, err := h.KnownHosts()
		if err != nil {
			t.Fatal(err)
		}
		keys.WriteString(strings.TrimSpace(key) + "\n")
	}
	if err := os.WriteFile(l.known, []byte(keys.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}
