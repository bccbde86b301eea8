package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// BenchmarkFiles compares files that go by SFTP with files that go by cat, over the same connection but for a round
// trip that takes longer. Both take turns. x-cat is how many times as fast SFTP is; below 1 it is slower.
//
//	go test -run '^$' -bench Files -benchtime 5x ./install/remote
func BenchmarkFiles(b *testing.B) {
	const small, mega = 4 << 10, 1 << 20
	put := func(h *Host, dir string, content []byte, n int) error {
		for i := range n {
			o := host.PutOptions{Path: filepath.Join(dir, strconv.Itoa(i)), Mode: 0o600}
			if _, err := host.PutBytes(b.Context(), h, o, content); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(h *Host, dir string, _ []byte, n int) error {
		for i := range n {
			if err := h.Get(b.Context(), host.GetOptions{Path: filepath.Join(dir, strconv.Itoa(i))}, io.Discard); err != nil {
				return err
			}
		}
		return nil
	}
	for _, trip := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		for _, test := range []struct {
			name string
			n    int
			size int
			do   func(*Host, string, []byte, int) error
		}{
			{"put/100x4KiB", 100, small, put}, {"put/1MiB", 1, mega, put}, {"put/4MiB", 1, 4 * mega, put},
			{"put/16MiB", 1, 16 * mega, put}, {"put/64MiB", 1, 64 * mega, put}, {"put/256MiB", 1, 256 * mega, put},
			{"get/100x4KiB", 100, small, get}, {"get/1MiB", 1, mega, get}, {"get/4MiB", 1, 4 * mega, get},
			{"get/64MiB", 1, 64 * mega, get}, {"get/256MiB", 1, 256 * mega, get},
		} {
			b.Run(fmt.Sprintf("%s/%v", test.name, trip), func(b *testing.B) {
				s := startServer(b, serverOptions{})
				delay := func(target *Target) { target.Dial = delayed(trip / 2) }
				bySFTP, byCat := s.dial(b, delay), s.dial(b, delay)
				bySFTP.subsystem.always, byCat.subsystem.err = true, errors.New("cat is to be measured")
				content := random(8, test.size)
				kept := b.TempDir()
				// The first use finds out what there is.
				for _, h := range []*Host{bySFTP, byCat} {
					if err := errors.Join(put(h, kept, content, test.n), get(h, kept, nil, 1)); err != nil {
						b.Fatal(err)
					}
				}
				var spent [2]time.Duration
				for turn := 0; b.Loop(); turn++ {
					for i := range spent {
						who := (turn + i) % 2
						dir := kept
						if test.name[:3] == "put" {
							dir = b.TempDir()
						}
						start := time.Now()
						if err := test.do([]*Host{bySFTP, byCat}[who], dir, content, test.n); err != nil {
							b.Fatal(err)
						}
						spent[who] += time.Since(start)
					}
				}
				moved := float64(b.N*test.n*test.size) / 1e6
				b.ReportMetric(moved/spent[0].Seconds(), "MB/s-sftp")
				b.ReportMetric(moved/spent[1].Seconds(), "MB/s-cat")
				b.ReportMetric(spent[1].Seconds()/spent[0].Seconds(), "x-cat")
			})
		}
	}
}

// delayed dials connections on which everything takes that much longer, in each direction. It does not make them
// narrower.
func delayed(by time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil || by == 0 {
			return conn, err
		}
		near, far := net.Pipe()
		go pass(near, conn, by)
		go pass(conn, near, by)
		return delayedConn{far, conn.RemoteAddr()}, nil
	}
}

// delayedConn has the address that the host's key is looked up by.
type delayedConn struct {
	net.Conn
	remote net.Addr
}

func (c delayedConn) RemoteAddr() net.Addr { return c.remote }

// pass copies what comes from one side to the other, later.
func pass(to, from net.Conn, by time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	const most = 4096 // pieces on the way
	way := make(chan piece, most)
	go func() {
		defer close(way)
		for {
			data := make([]byte, chunk)
			n, err := from.Read(data)
			if n > 0 {
				way <- piece{data[:n], time.Now().Add(by)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range way {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_ = to.Close() // either side may have been closed before
	_ = from.Close()
	for range way { // what is still on the way is lost
	}
}
