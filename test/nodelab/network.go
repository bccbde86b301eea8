//go:build linux

package nodelab

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

// Helper is where boxlift-node is on the hosts, without the leading slash.
const Helper = "usr/local/bin/boxlift-node"

// Network is a LAN of hosts that have boxlift-node.
type Network struct {
	*hosts.Lab
	Hosts []*hosts.Host
	// known is the name of a file with their host keys.
	Known string
}

// NewNetwork makes n hosts on a LAN of that name, which no other test has. It leaves the
// test out where that is impossible.
func NewNetwork(ctx context.Context, t *testing.T, name string, n int) *Network {
	t.Helper()
	hosts.Require(t)
	made, err := hosts.New(ctx, hosts.Options{Name: name, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &Network{Lab: made, Known: filepath.Join(t.TempDir(), "known_hosts"), Hosts: make([]*hosts.Host, n)}
	binary := filepath.Join(t.TempDir(), "boxlift-node")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", binary,
		"github.com/liteboxd/boxlift/cmd/boxlift-node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i := range n {
		if l.Hosts[i], err = made.Host(ctx, hosts.HostOptions{Name: fmt.Sprintf("node%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	var keys strings.Builder
	for _, h := range l.Hosts {
		if err := os.WriteFile(filepath.Join(h.Root, Helper), program, 0o755); err != nil {
			t.Fatal(err)
		}
		key, err := h.KnownHosts()
		if err != nil {
			t.Fatal(err)
		}
		keys.WriteString(strings.TrimSpace(key) + "\n")
	}
	if err := os.WriteFile(l.Known, []byte(keys.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}
