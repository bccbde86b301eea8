//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
)

// A node that takes from a peer and serves another one must leave a small node its memory,
// too.
func TestSwarmMemoryIsBounded(t *testing.T) {
	const (
		maxPeak = 40 << 20
		nodes   = 3
		size    = 96 << 20
	)
	binary := build(t, "")
	layer := make([]byte, size)
	d := digest.FromBytes(layer)
	index := []byte(`{"schemaVersion":2,"manifests":[]}`)
	var hosts []ship.Host
	var processes []*exec.Cmd
	for i := range nodes {
		receive, in, out := startReceive(t, binary)
		processes = append(processes, receive)
		hosts = append(hosts, ship.Host{
			Name: fmt.Sprint(i), Address: "127.0.0.1:0", In: in, Out: out,
			Start: func(total int64) progress.Task { return progress.Discard.Task("ship", total) },
			Want: wire.Want{Version: wire.Version, ImagesDir: filepath.Join(t.TempDir(), "images"), Packs: []wire.PackWant{{
				Name: wire.PackName("k3s", index), Index: index, Blobs: []wire.Blob{{Digest: d, Size: size}},
			}}},
		})
	}
	peaks := make([]int64, nodes)
	results := ship.ToAll(t.Context(), hosts, len(hosts), func(_ digest.Digest, offset int64) (io.ReadCloser, error) {
		r := bytes.NewReader(layer[offset:])
		// When the last byte is to go, most of the rest has gone through all of them.
		return io.NopCloser(io.MultiReader(io.LimitReader(r, int64(r.Len()-1)), readerFunc(func(p []byte) (int, error) {
			for i, c := range processes {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
				if err != nil {
					return 0, err
				}
				_, after, _ := strings.Cut(string(status), "VmHWM:")
				if _, err := fmt.Sscan(after, &peaks[i]); err != nil {
					return 0, err
				}
			}
			return r.Read(p)
		}))), nil
	})
	for i, c := range processes {
		if err := c.Wait(); err != nil || results[i].Err != nil {
			t.Fatalf("node %d: %v, %v", i, err, results[i].Err)
		}
		t.Logf("node %d: %d KiB, %d bytes from peers", i, peaks[i], results[i].Report.Pulled)
		if peaks[i] == 0 || peaks[i]<<10 > maxPeak {
			t.Errorf("node %d took %d KiB of memory", i, peaks[i])
		}
	}
}
