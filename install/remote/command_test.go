package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
)

// random returns the same n bytes for the same seed.
func random(seed byte, n int) []byte {
	data := make([]byte, n)
	source := rand.NewChaCha8([32]byte{seed})
	_, _ = source.Read(data) // never fails
	return data
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// eventually waits for what happens on its own soon.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(25 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen: %s", what)
}

func TestRun(t *testing.T) {
	h := startServer(t, serverOptions{}).dial(t)
	big := random(1, 10<<20)
	for _, test := range []struct {
		name   string
		cmd    host.Command
		want   host.Result
		failed *host.ExitError
	}{
		{name: "args", cmd: host.Command{Args: []string{"printf", "%s|", "a b", "$HOME", "it's", ""}}, want: host.Result{Stdout: []byte("a b|$HOME|it's||")}},
		{name: "script", cmd: host.Command{Script: "echo one\necho two >&2"}, want: host.Result{Stdout: []byte("one\n"), Stderr: []byte("two\n")}},
		{name: "root already", cmd: host.Command{Args: []string{"id", "-u"}, Root: true}, want: host.Result{Stdout: []byte("0\n")}},
		{name: "no stdin", cmd: host.Command{Args: []string{"cat"}}, want: host.Result{}},
		{name: "stdin", cmd: host.Command{Script: "sha256sum | cut -c1-64", Stdin: bytes.NewReader(big)}, want: host.Result{Stdout: []byte(hexSum(big) + "\n")}},
		{name: "stdin and root", cmd: host.Command{Script: "sha256sum | cut -c1-64", Stdin: bytes.NewReader(big), Root: true}, want: host.Result{Stdout: []byte(hexSum(big) + "\n")}},
		{name: "stdin not read", cmd: host.Command{Args: []string{"true"}, Stdin: zeros{}}, want: host.Result{}},
		{name: "binary out", cmd: host.Command{Args: []string{"printf", `\000\377\r\n`}}, want: host.Result{Stdout: []byte("\x00\xff\r\n")}},
		{name: "long out", cmd: host.Command{Script: "head -c 3000000 /dev/zero; printf end; head -c 5000000 /dev/zero >&2"},
			want: host.Result{Stdout: append(make([]byte, host.MaxKept-3), "end"...), Stderr: make([]byte, host.MaxKept), Truncated: true}},
		{name: "fails", cmd: host.Command{Title: "try it", Script: "echo out; printf 'x\n\n\033[1my\n' >&2; exit 3"},
			want:   host.Result{Stdout: []byte("out\n"), Stderr: []byte("x\n\n\x1b[1my\n"), ExitCode: 3},
			failed: &host.ExitError{Command: "try it", Code: 3, Lines: []string{"x", "\ufffd[1my"}}},
		{name: "fails on stdout", cmd: host.Command{Script: "echo reason\nexit 255"},
			want:   host.Result{Stdout: []byte("reason\n"), ExitCode: 255},
			failed: &host.ExitError{Command: "echo reason", Code: 255, Lines: []string{"reason"}}},
		{name: "signal", cmd: host.Command{Args: []string{"sh", "-c", "kill -9 $$"}},
			want: host.Result{ExitCode: 137}, failed: &host.ExitError{Command: "sh -c kill -9 $$", Code: 137}},
		{name: "no such program", cmd: host.Command{Args: []string{"/no/such"}},
			want:   host.Result{ExitCode: 127},
			failed: &host.ExitError{Command: "/no/such", Code: 127}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := h.Run(t.Context(), test.cmd)
			var failed *host.ExitError
			if errors.As(err, &failed) == (test.failed == nil) || (err == nil) != (test.failed == nil) {
				t.Fatalf("error %v, want %v", err, test.failed)
			}
			if test.want.ExitCode == 127 { // the shell's words are its own
				failed.Lines, got.Stderr = nil, nil
			}
			if diff := cmp.Diff(test.failed, failed); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if !bytes.Equal(got.Stdout, test.want.Stdout) || !bytes.Equal(got.Stderr, test.want.Stderr) ||
				got.Truncated != test.want.Truncated || got.ExitCode != test.want.ExitCode {
				t.Errorf("got %d and %d bytes, %.80q %.80q truncated %v exit %d; want %d and %d", len(got.Stdout), len(got.Stderr),
					got.Stdout, got.Stderr, got.Truncated, got.ExitCode, len(test.want.Stdout), len(test.want.Stderr))
			}
		})
	}
	t.Run("message", func(t *testing.T) {
		_, err := h.Run(t.Context(), host.Command{Title: "start k3s", Script: "echo a >&2; echo b >&2; exit 1"})
		if want := "node-1: start k3s: exit code 1: a; b"; err == nil || err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	})
	t.Run("too long", func(t *testing.T) {
		_, err := h.Run(t.Context(), host.Command{Args: []string{"echo", strings.Repeat("x", 1<<20)}})
		if err == nil || !strings.Contains(err.Error(), "Stdin") {
			t.Error(err)
		}
	})
	t.Run("stdin breaks", func(t *testing.T) {
		broken := errors.New("disk on fire")
		_, err := h.Run(t.Context(), host.Command{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("x"), failingReader{broken})})
		if !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// running counts the processes below sshd that have the mark in their arguments.
func (s *server) running(mark string) int {
	n := 0
	for _, pid := range descendants(s.pid) {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(args), mark) {
			n++
		}
	}
	return n
}

func TestRunIsCancelled(t *testing.T) {
	s := startServer(t, serverOptions{})
	h := s.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for s.running("601.5") == 0 {
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
	}()
	_, err := h.Run(ctx, host.Command{Title: "long sleep", Script: "sleep 601.5; true"})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node-1: long sleep") {
		t.Errorf("got %v, want the context's error", err)
	}
	eventually(t, "the command ends on the host", func() bool { return s.running("601.5") == 0 })
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"true"}}); err != nil {
		t.Errorf("the connection does not survive a cancelled command: %v", err)
	}
	if _, err := h.Run(ctx, host.Command{Args: []string{"true"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestRunTimesOut(t *testing.T) {
	h := startServer(t, serverOptions{}).dial(t, func(target *Target) { target.CommandTimeout = 300 * time.Millisecond })
	_, err := h.Run(t.Context(), host.Command{Args: []string{"sleep", "600"}})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no end after 300ms") {
		t.Errorf("got %v, want the end of the time", err)
	}
}

// A command that will not end must not hold up whoever has given up on it.
func TestRunStubbornCommand(t *testing.T) {
	s := startServer(t, serverOptions{})
	h := s.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for s.running("602.5") == 0 {
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
	}()
	_, err := h.Run(ctx, host.Command{Script: "trap '' TERM HUP; sleep 602.5; sleep 602.5", Stdin: zeros{}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// A shell can lose a signal. What it has to put away it gets to nevertheless.
func TestRunTellsAgain(t *testing.T) {
	s := startServer(t, serverOptions{})
	h := s.dial(t)
	left := writeFile(t, t.TempDir(), "left", "")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for s.running("605.5") == 0 {
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
	}()
	_, err := h.Run(ctx, host.Command{Args: []string{"/bin/sh", "-c", `trap 'trap "rm \"$1\"; exit" TERM' TERM; sleep 605.5; while :; do sleep 1; done`, "sh", left}, Stdin: zeros{}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	eventually(t, "the file is put away", func() bool { return len(names(t, filepath.Dir(left))) == 0 })
}

// The connection is for others as well: it outlives a command that cannot be ended.
func TestConnectionOutlivesCommandWithoutEnd(t *testing.T) {
	for name, test := range map[string]struct {
		opts serverOptions
		cmd  host.Command
	}{
		"its shell never begins with it":      {serverOptions{config: "ForceCommand sleep 604.5\n"}, host.Command{Args: []string{"true"}}},
		"part of it has a session of its own": {cmd: host.Command{Script: "setsid sleep 604.5 & sleep 604.5"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, test.opts)
			h := s.dial(t)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for s.running("604.5") == 0 {
					time.Sleep(20 * time.Millisecond)
				}
				cancel()
			}()
			p, err := h.Start(ctx, test.cmd)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
			if _, err := io.ReadAll(p.Stdout); err != nil && !errors.Is(err, errAbandoned) {
				t.Errorf("its output: %v", err)
			}
			if _, _, err := h.client.SendRequest("keepalive@openssh.com", true, nil); err != nil {
				t.Errorf("the connection is gone: %v", err)
			}
		})
	}
}

func TestConnectionIsCut(t *testing.T) {
	for name, cut := range map[string]func(*testing.T, *server, *Host){
		"sshd is killed": func(t *testing.T, s *server, _ *Host) {
			for _, pid := range descendants(s.pid) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Error(err)
				}
			}
		},
		"host hangs": func(t *testing.T, s *server, _ *Host) {
			for _, pid := range descendants(s.pid) {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Error(err)
				}
			}
		},
		"closed here": func(t *testing.T, _ *server, h *Host) {
			if err := errors.Join(h.Close(), h.Close()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, serverOptions{})
			h := s.dial(t, func(target *Target) { target.KeepAlive = 100 * time.Millisecond })
			go func() {
				for s.running("603.5") == 0 {
					time.Sleep(20 * time.Millisecond)
				}
				cut(t, s, h)
			}()
			_, err := h.Run(t.Context(), host.Command{Args: []string{"sleep", "603.5"}, Stdin: zeros{}})
			wantError(t, err, ErrConnectionLost, "", "node-1")
			<-h.Done()
			_, err = h.Run(t.Context(), host.Command{Args: []string{"true"}})
			wantError(t, err, ErrConnectionLost, "", "node-1")
		})
	}
}

// An idle connection to a host that answers stays.
func TestKeepAliveKeeps(t *testing.T) {
	h := startServer(t, serverOptions{}).dial(t, func(target *Target) { target.KeepAlive = 50 * time.Millisecond })
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"sleep", "1"}}); err != nil {
		t.Error(err)
	}
}

func TestStart(t *testing.T) {
	h := startServer(t, serverOptions{}).dial(t)
	t.Run("dialogue", func(t *testing.T) {
		p, err := h.Start(t.Context(), host.Command{Script: `while read -r line; do echo "got $line"; done; echo bye >&2`})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		for _, word := range []string{"one", "two"} {
			if _, err := io.WriteString(p.Stdin, word+"\n"); err != nil {
				t.Fatal(err)
			}
			n, err := p.Stdout.Read(buf)
			if got := string(buf[:n]); err != nil || got != "got "+word+"\n" {
				t.Errorf("got %q, %v", got, err)
			}
		}
		if err := p.Stdin.Close(); err != nil {
			t.Error(err)
		}
		if rest, err := io.ReadAll(p.Stdout); err != nil || len(rest) != 0 {
			t.Errorf("rest %q, %v", rest, err)
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		if got := string(p.Stderr()); got != "bye\n" {
			t.Errorf("stderr %q", got)
		}
	})
	t.Run("there and back", func(t *testing.T) {
		data := random(2, 20<<20)
		p, err := h.Start(t.Context(), host.Command{Args: []string{"cat"}})
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			_, err := copyChunks(p.Stdin, bytes.NewReader(data), nil)
			written <- errors.Join(err, p.Stdin.Close())
		}()
		got, err := io.ReadAll(p.Stdout)
		if err := errors.Join(err, <-written, p.Wait()); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back and they differ", len(got))
		}
	})
	t.Run("fails early", func(t *testing.T) {
		p, err := h.Start(t.Context(), host.Command{Title: "receive", Script: "echo no space left >&2; exit 7"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := copyChunks(p.Stdin, zeros{}, nil); !errors.Is(err, errWrite) {
			t.Errorf("got %v, want an error of writing", err)
		}
		var exit *host.ExitError
		if err := p.Wait(); !errors.As(err, &exit) || exit.Code != 7 || err.Error() != "node-1: receive: exit code 7: no space left" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("stdin in the command", func(t *testing.T) {
		if _, err := h.Start(t.Context(), host.Command{Args: []string{"cat"}, Stdin: zeros{}}); err == nil {
			t.Error("accepted")
		}
	})
}

func TestDialContext(t *testing.T) {
	h := startServer(t, serverOptions{}).dial(t)
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "socket")
			}
			listener, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			go func() {
				conn, err := listener.Accept()
				if err == nil {
					_, _ = io.Copy(conn, conn)
					_ = conn.Close()
				}
			}()
			conn, err := h.DialContext(t.Context(), network, listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 5)
			_, werr := io.WriteString(conn, "hello")
			_, rerr := io.ReadFull(conn, buf)
			if err := errors.Join(werr, rerr, conn.Close()); err != nil || string(buf) != "hello" {
				t.Errorf("%q, %v", buf, err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		_, err := h.DialContext(t.Context(), "unix", "/no/such/socket")
		if err == nil || !strings.Contains(err.Error(), "node-1") || !strings.Contains(err.Error(), "/no/such/socket") {
			t.Error(err)
		}
	})
	t.Run("through another host", func(t *testing.T) {
		second := startServer(t, serverOptions{})
		inner := second.dial(t, func(target *Target) { target.Dial = h.DialContext })
		if _, err := inner.Run(t.Context(), host.Command{Args: []string{"true"}}); err != nil {
			t.Error(err)
		}
	})
}

// zeros is a reader that never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
