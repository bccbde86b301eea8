package remote

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/host"
)

// BenchmarkStream compares what goes through a Process's stdin with what OpenSSH's own
// client manages on the same bytes, server, cipher and disk. Both take turns, so that
// what else the machine does hits both.
//
//	go test -run '^$' -bench Stream -benchtime 5x ./install/remote
func BenchmarkStream(b *testing.B) {
	const size = 1 << 30
	s := startServer(b, serverOptions{})
	source := filepath.Join(b.TempDir(), "in")
	if err := os.WriteFile(source, bytes.Repeat(random(7, 1<<20), size>>20), 0o600); err != nil {
		b.Fatal(err)
	}
	h := s.dial(b)
	ours := func(in *os.File, script string) error {
		p, err := h.Start(b.Context(), host.Command{Script: script})
		if err != nil {
			return err
		}
		if _, err := copyChunks(p.Stdin, in, nil); err != nil {
			return err
		}
		if err := p.Stdin.Close(); err != nil {
			return err
		}
		return p.Wait()
	}
	openSSH := func(in *os.File, script string) error {
		cmd := exec.Command("ssh", "-F", "none", "-i", s.identity, "-p", strconv.Itoa(s.port), "-l", s.user,
			"-o", "UserKnownHostsFile="+s.knownHosts, "-o", "IdentitiesOnly=yes", "-o", "Ciphers=aes128-gcm@openssh.com",
			"127.0.0.1", script)
		cmd.Stdin = in
		return cmd.Run()
	}
	for name, to := range map[string]string{"file": filepath.Join(b.TempDir(), "out"), "null": "/dev/null"} {
		b.Run(name, func(b *testing.B) {
			var spent [2]time.Duration
			for turn := 0; b.Loop(); turn++ {
				for i := range spent {
					who := (turn + i) % 2
					in, err := os.Open(source)
					if err != nil {
						b.Fatal(err)
					}
					start := time.Now()
					if err := []func(*os.File, string) error{ours, openSSH}[who](in, "cat >"+quote(to)); err != nil {
						b.Fatal(err)
					}
					spent[who] += time.Since(start)
					if err := in.Close(); err != nil {
						b.Fatal(err)
					}
				}
			}
			moved := float64(b.N) * size / 1e6
			b.ReportMetric(moved/spent[0].Seconds(), "MB/s-ours")
			b.ReportMetric(moved/spent[1].Seconds(), "MB/s-openssh")
			b.ReportMetric(spent[1].Seconds()/spent[0].Seconds(), "x-openssh")
		})
	}
}
