package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
)

// logged makes a host tell what it does.
func logged(log io.Writer) func(*Target) {
	return func(target *Target) {
		target.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

// A put whose connection broke is gone on with, but for what is not as it should be.
func TestPutResumes(t *testing.T) {
	content := random(11, 24<<20)
	for _, test := range []struct {
		name   string
		change func(t *testing.T, kept string)
		there  string // how many bytes of it are right, as a regular expression
	}{
		{"whole", func(*testing.T, string) {}, "1[26][0-9]{6}"},
		{"with a hole", func(t *testing.T, kept string) { writeAt(t, kept, 6<<20, make([]byte, 1<<20)) }, "4194304"},
		{"damaged from the start", func(t *testing.T, kept string) { writeAt(t, kept, 0, []byte("damage")) }, "0"},
		{"with more than there is", func(t *testing.T, kept string) { writeAt(t, kept, 24<<20, []byte("x")) }, "0"},
		{"readable by others", func(t *testing.T, kept string) {
			if err := os.Chmod(kept, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "0"},
		{"a link", func(t *testing.T, kept string) {
			target := writeFile(t, t.TempDir(), "target", "precious")
			if err := errors.Join(os.Remove(kept), os.Symlink(target, kept)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if got, err := os.ReadFile(target); err != nil || string(got) != "precious" {
					t.Errorf("what the link points to is %.20q, %v", got, err)
				}
			})
		}, "0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startServer(t, serverOptions{})
			dir := t.TempDir()
			o := host.PutOptions{Path: filepath.Join(dir, "file"), Mode: 0o755, Size: int64(len(content)), SHA256: hexSum(content)}
			h := s.dial(t)
			h.subsystem.always = true
			cut := &hook{func() error {
				eventually(t, "most of it is there", func() bool { return size(t, dir) >= 15<<20 })
				return h.Close()
			}}
			_, err := h.Put(t.Context(), o, io.MultiReader(bytes.NewReader(content[:16<<20]), cut, bytes.NewReader(content[16<<20:])))
			if !errors.Is(err, ErrConnectionLost) {
				t.Fatal(err)
			}
			kept := filepath.Join(dir, ".boxlift-put-"+o.SHA256)
			eventually(t, "it is kept", func() bool { return cmp.Equal(names(t, dir), []string{filepath.Base(kept)}) })
			test.change(t, kept)

			var log lockedBuffer
			h = s.dial(t, logged(&log))
			h.subsystem.always = true
			var told int64
			o.Progress = func(n int64) { told += n }
			if changed, err := h.Put(t.Context(), o, bytes.NewReader(content)); err != nil || !changed {
				t.Fatalf("changed %v, %v", changed, err)
			}
			if got, err := os.ReadFile(o.Path); err != nil || !bytes.Equal(got, content) || told != o.Size {
				t.Errorf("the content differs, or %d bytes were told of; %v", told, err)
			}
			if info, err := os.Stat(o.Path); err != nil || info.Mode() != o.Mode {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			there := ""
			for line := range strings.Lines(log.String()) {
				if _, after, ok := strings.Cut(line, " there="); ok && strings.Contains(line, " way=sftp ") {
					there = strings.TrimSpace(after)
				}
			}
			if !regexp.MustCompile("^" + test.there + "$").MatchString(there) {
				t.Errorf("%s bytes were there, want %s", there, test.there)
			}
		})
	}
}

func writeAt(t *testing.T, name string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, at); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// size is that of the only file of a folder.
func size(t *testing.T, dir string) int64 {
	t.Helper()
	var all int64
	for _, name := range names(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all += info.Size()
	}
	return all
}

// Where SFTP cannot be used, files go by cat, and SFTP is not tried again.
func TestWithoutSFTP(t *testing.T) {
	for _, test := range []struct {
		name    string
		options serverOptions
		put     string // why a put goes by cat
		get     string // why a get does; "" when it does not
	}{
		{"no subsystem", serverOptions{noSFTP: true}, "subsystem request failed", "subsystem request failed"},
		// Its end is found out before or after the first packet is sent.
		{"no such program", serverOptions{noSFTP: true, config: "Subsystem sftp /no/such/sftp-server"}, "open SFTP: error", "open SFTP: error"},
		// As a login shell's greeting before the server, which goes on reading.
		{"says something else", serverOptions{noSFTP: true, config: "Subsystem sftp /bin/echo Welcome to this host!; exec /bin/cat >/dev/null"},
			"packet too long", "packet too long"},
		{"says nothing", serverOptions{noSFTP: true, config: "Subsystem sftp /bin/sleep 60"}, "no answer within", "no answer within"},
		{"reads only", serverOptions{noSFTP: true, config: "Subsystem sftp internal-sftp -R"}, "fsync@openssh.com", ""},
		{"may not open", serverOptions{noSFTP: true, config: "Subsystem sftp internal-sftp -P open"}, "permission", "permission"},
		{"has no fsync", serverOptions{noSFTP: true, config: "Subsystem sftp internal-sftp -P fsync"}, "fsync@openssh.com", ""},
		{"has no rename", serverOptions{noSFTP: true, config: "Subsystem sftp internal-sftp -P posix-rename"}, "posix-rename@openssh.com", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log lockedBuffer
			h := startServer(t, test.options).dial(t, logged(&log), func(target *Target) { target.ConnectTimeout = 10 * time.Second })
			h.subsystem.always = true
			content := random(12, 3<<20)
			for i := range 2 {
				file := filepath.Join(t.TempDir(), "file")
				if changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: 0o600, Root: true}, content); err != nil || !changed {
					t.Fatalf("put %d: changed %v, %v", i, changed, err)
				}
				var got bytes.Buffer
				if err := h.Get(t.Context(), host.GetOptions{Path: file, Root: true, SHA256: hexSum(content)}, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
					t.Fatalf("get %d: %v", i, err)
				}
			}
			for line := range strings.Lines(log.String()) {
				for what, because := range map[string]string{" msg=put ": test.put, " msg=get ": test.get} {
					if !strings.Contains(line, what) {
						continue
					}
					if want := map[bool]string{true: " way=sftp ", false: " way=cat because="}[because == ""]; !strings.Contains(line, want) || !strings.Contains(line, because) {
						t.Errorf("want%s%q: %s", want, because, line)
					}
				}
			}
		})
	}
}

// Small files go by cat: to a host that is near those below 1 MiB, to one that is far more of them.
func TestSFTPSize(t *testing.T) {
	for trip, want := range map[time.Duration]int64{
		time.Nanosecond: 1 << 20, 500 * time.Microsecond: 3 << 20, time.Millisecond: 5 << 20, 10 * time.Millisecond: 41 << 20,
		20 * time.Millisecond: 64 << 20, time.Hour: 64 << 20,
	} {
		h := &Host{}
		h.subsystem.trip = trip
		if got := h.sftpSize(t.Context(), sftpFrom); got/(1<<20) != want/(1<<20) {
			t.Errorf("round trips of %v: from %d bytes on, want %d", trip, got, want)
		}
	}
	var log lockedBuffer
	h := startServer(t, serverOptions{}).dial(t, logged(&log))
	if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: filepath.Join(t.TempDir(), "x"), Mode: 0o600}, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), `way=cat because="`+tooSmall) {
		t.Errorf("the log: %s", log.String())
	}
	if h.subsystem.trip <= 0 || h.subsystem.opened != nil {
		t.Errorf("a round trip takes %v; SFTP was opened for nothing: %v", h.subsystem.trip, h.subsystem.opened != nil)
	}
}

// What is got ends with its context, also when the host does not answer any more.
func TestGetIsCancelled(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs %v", hangs), func(t *testing.T) {
			eachWay(t, func(t *testing.T, s *server, h *Host) {
				t.Parallel() // most of it is waiting
				file := filepath.Join(t.TempDir(), "file")
				if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: 0o600}, random(13, 32<<20)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				first := &hookWriter{do: func() {
					if hangs {
						for _, pid := range descendants(s.pid) {
							_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
						}
					}
					cancel()
				}}
				if err := h.Get(ctx, host.GetOptions{Path: file}, first); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want the context's error", err)
				}
			}, func(target *Target) { target.KeepAlive = time.Hour })
		})
	}
}

// hookWriter does something when it is first written to.
type hookWriter struct{ do func() }

func (h *hookWriter) Write(p []byte) (int, error) {
	if h.do != nil {
		h.do()
		h.do = nil
	}
	return len(p), nil
}

// An SFTP server that ends is no end of the connection.
func TestSFTPServerEnds(t *testing.T) {
	s := startServer(t, serverOptions{noSFTP: true, config: "Subsystem sftp internal-sftp"})
	h := s.dial(t)
	h.subsystem.always = true
	dir := t.TempDir()
	file := writeFile(t, dir, "file", "old")
	kill := &hook{func() error {
		h.subsystem.mu.Lock()
		defer h.subsystem.mu.Unlock()
		_ = h.subsystem.client.Close() // says EOF when the server was faster, which is no end of the content
		return nil
	}}
	data := random(14, 8<<20)
	_, err := h.Put(t.Context(), host.PutOptions{Path: file, Mode: 0o600, Size: int64(len(data)), SHA256: hexSum(data)},
		io.MultiReader(bytes.NewReader(data[:4<<20]), kill, bytes.NewReader(data[4<<20:])))
	var exit *host.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "could not be written") || !strings.Contains(err.Error(), "SFTP: ") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"file"}, names(t, dir)); diff != "" {
		t.Errorf("what is in the folder (-want +got):\n%s", diff)
	}
	if changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: 0o600}, data); err != nil || !changed {
		t.Errorf("the next put: changed %v, %v", changed, err)
	}
}
