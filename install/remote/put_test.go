package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// names lists a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// eachWay runs a test for each way that files go.
func eachWay(t *testing.T, test func(t *testing.T, s *server, h *Host), change ...func(*Target)) {
	for way, options := range ways {
		t.Run(way, func(t *testing.T) {
			s := startServer(t, options)
			test(t, s, s.dialWay(t, way, change...))
		})
	}
}

func TestPut(t *testing.T) {
	eachWay(t, func(t *testing.T, _ *server, h *Host) { testPut(t, h) })
}

// The small tools of busybox will do too.
func TestPutWithBusybox(t *testing.T) {
	program := debian.Program{Name: "busybox", Package: "busybox"}
	need.Programs(t, program)
	busybox := program.Find()
	bin := t.TempDir()
	for _, tool := range []string{"cat", "chmod", "cut", "dd", "dirname", "find", "id", "mktemp", "mv", "rm", "sha256sum", "stat", "sync"} {
		if err := os.Symlink(busybox, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for way, options := range ways {
		options.config = "SetEnv HOME=" + bin + " PATH=" + bin
		t.Run(way, func(t *testing.T) { testPutWithBusybox(t, startServer(t, options).dialWay(t, way), bin) })
	}
}

func testPutWithBusybox(t *testing.T, h *Host, bin string) {
	which, err := h.Run(t.Context(), host.Command{Script: "command -v sha256sum"})
	if err != nil || strings.TrimSpace(string(which.Stdout)) != filepath.Join(bin, "sha256sum") {
		t.Fatalf("sha256sum is %q, %v", which.Stdout, err)
	}
	testPut(t, h)
}

func testPut(t *testing.T, h *Host) {
	dir := t.TempDir()
	for _, name := range []string{"plain", "with space and 'quote'", "-dash", "$HOME", "größe"} {
		file := filepath.Join(dir, name)
		for _, step := range []struct {
			what    string
			content []byte
			mode    fs.FileMode
			changed bool
		}{
			{"new", random(3, 3<<20+1), 0o644, true},
			{"same", random(3, 3<<20+1), 0o644, false},
			{"other mode", random(3, 3<<20+1), 0o755, true},
			{"other content", []byte("x"), 0o755, true},
			{"secret", []byte("y"), 0o600, true},
			{"empty", nil, 0o600, true},
			{"empty again", nil, 0o600, false},
			{"setuid", []byte("z"), 0o755 | fs.ModeSetuid | fs.ModeSticky, true},
			{"setuid again", []byte("z"), 0o755 | fs.ModeSetuid | fs.ModeSticky, false},
		} {
			var told int64
			changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: step.mode, Root: true,
				Progress: func(n int64) { told += n }}, step.content)
			if err != nil || changed != step.changed {
				t.Fatalf("%s %s: changed %v, %v", name, step.what, changed, err)
			}
			got, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(got, step.content) {
				t.Errorf("%s %s: content differs, %v", name, step.what, err)
			}
			info, err := os.Stat(file)
			if err != nil || info.Mode() != step.mode {
				t.Errorf("%s %s: %v, %v", name, step.what, info.Mode(), err)
			}
			if want := int64(len(step.content)); step.changed && told != want || !step.changed && told != 0 {
				t.Errorf("%s %s: progress told of %d bytes", name, step.what, told)
			}
		}
	}
	if diff := cmp.Diff([]string{"$HOME", "-dash", "größe", "plain", "with space and 'quote'"}, names(t, dir)); diff != "" {
		t.Errorf("what is in the folder (-want +got):\n%s", diff)
	}
}

// A put that was killed leaves a file; one that goes on beside this one has a file too.
func TestPutSweeps(t *testing.T) {
	eachWay(t, testPutSweeps)
}

func testPutSweeps(t *testing.T, _ *server, h *Host) {
	dir := t.TempDir()
	old := writeFile(t, dir, ".boxlift-put-a1b2c3", "half")
	writeFile(t, dir, ".boxlift-put-d4e5f6", "half")
	before := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: filepath.Join(dir, "x"), Mode: 0o600}, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".boxlift-put-d4e5f6", "x"}, names(t, dir)); diff != "" {
		t.Errorf("what is in the folder (-want +got):\n%s", diff)
	}
}

func TestPutReplaces(t *testing.T) {
	eachWay(t, testPutReplaces)
}

func testPutReplaces(t *testing.T, _ *server, h *Host) {
	t.Run("a link, not its target", func(t *testing.T) {
		dir := t.TempDir()
		target := writeFile(t, dir, "target", "same")
		link := filepath.Join(dir, "link")
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: link, Mode: 0o600}, []byte("same")); err != nil || !changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%v, %v", info, err)
		}
	})
	t.Run("a file of another owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			need.LeaveOut(t, "changing a file's owner needs root")
		}
		file := writeFile(t, t.TempDir(), "file", "same")
		if err := os.Chown(file, 4711, 4711); err != nil {
			t.Fatal(err)
		}
		if changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: 0o600}, []byte("same")); err != nil || !changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		var stat syscall.Stat_t
		if err := syscall.Stat(file, &stat); err != nil || stat.Uid != 0 {
			t.Errorf("owner %d, %v", stat.Uid, err)
		}
	})
}

func TestPutRefuses(t *testing.T) {
	eachWay(t, testPutRefuses)
}

func testPutRefuses(t *testing.T, _ *server, h *Host) {
	dir := t.TempDir()
	t.Cleanup(func() {
		if left := names(t, dir); left != nil {
			t.Errorf("left behind: %v", left)
		}
	})
	sum := hexSum([]byte("abc"))
	for _, test := range []struct {
		name string
		opts host.PutOptions
		want string
	}{
		{"no sum", host.PutOptions{Path: "/x", Size: 3}, "64 hex digits"},
		{"short sum", host.PutOptions{Path: "/x", Size: 3, SHA256: "abcd"}, "64 hex digits"},
		{"relative", host.PutOptions{Path: "x", Size: 3, SHA256: sum}, "absolute path"},
		{"dots", host.PutOptions{Path: "/x/../y", Size: 3, SHA256: sum}, "absolute path"},
		{"slash", host.PutOptions{Path: "/x/", Size: 3, SHA256: sum}, "absolute path"},
		{"root", host.PutOptions{Path: "/", Size: 3, SHA256: sum}, "absolute path"},
		{"line break", host.PutOptions{Path: "/x\ny", Size: 3, SHA256: sum}, "absolute path"},
		{"size", host.PutOptions{Path: "/x", Size: -1, SHA256: sum}, "number of bytes"},
		{"mode", host.PutOptions{Path: "/x", Size: 3, SHA256: sum, Mode: fs.ModeDir}, "permission bits"},
		{"folder", host.PutOptions{Path: dir, Size: 3, SHA256: sum, Mode: 0o600}, "is a directory"},
		{"no folder", host.PutOptions{Path: dir + "/no/such", Size: 3, SHA256: sum, Mode: 0o600}, "No such file or directory"},
		{"too short", host.PutOptions{Path: dir + "/x", Size: 4, SHA256: sum, Mode: 0o600}, "4 bytes wanted, 3 read"},
		{"too long", host.PutOptions{Path: dir + "/x", Size: 2, SHA256: sum, Mode: 0o600}, "2 bytes wanted, 3 read"},
		{"wrong sum", host.PutOptions{Path: dir + "/x", Size: 3, SHA256: hexSum(nil), Mode: 0o600}, "node-1: write file: exit code 1: content arrived damaged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed, err := h.Put(t.Context(), test.opts, strings.NewReader("abc"))
			if changed || err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "put "+test.opts.Path+": ") {
				t.Errorf("changed %v, %v, want %q", changed, err, test.want)
			}
			eventually(t, "the folder is empty", func() bool { return len(names(t, dir)) == 0 })
		})
	}
}

// What breaks off leaves the old file and nothing beside it.
func TestPutBreaksOff(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, test := range []struct {
		name string
		// cut is called in the middle; its error is what the content's reader says.
		cut  func(s *server, h *Host, cancel func()) error
		want error
	}{
		{"reader fails", func(*server, *Host, func()) error { return broken }, broken},
		{"cancelled", func(_ *server, _ *Host, cancel func()) error { cancel(); return nil }, context.Canceled},
		{"connection closed", func(_ *server, h *Host, _ func()) error { return h.Close() }, ErrConnectionLost},
		{"sshd killed", func(s *server, _ *Host, _ func()) error {
			for _, pid := range descendants(s.pid) {
				args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err == nil && strings.HasPrefix(string(args), "sshd:") {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
						return err
					}
				}
			}
			return nil
		}, ErrConnectionLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, s *server, h *Host) {
				dir := t.TempDir()
				file := writeFile(t, dir, "file", "old")
				data := random(4, 8<<20)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				content := io.MultiReader(bytes.NewReader(data[:4<<20]),
					&hook{func() error { return test.cut(s, h, cancel) }}, bytes.NewReader(data[4<<20:]), zeros{})
				changed, err := h.Put(ctx, host.PutOptions{Path: file, Mode: 0o600, Size: 1 << 40, SHA256: hexSum(data)}, content)
				if changed || !errors.Is(err, test.want) {
					t.Errorf("changed %v, %v, want %v", changed, err, test.want)
				}
				eventually(t, "only the old file is there", func() bool { return cmp.Equal(names(t, dir), []string{"file"}) })
				if got, err := os.ReadFile(file); err != nil || string(got) != "old" {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

// hook is an empty reader that does something when it is reached.
type hook struct{ do func() error }

func (h *hook) Read([]byte) (int, error) {
	if err := h.do(); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

func TestPutDiskTrouble(t *testing.T) {
	eachWay(t, testPutDiskTrouble)
}

func testPutDiskTrouble(t *testing.T, _ *server, h *Host) {
	if os.Geteuid() != 0 {
		need.LeaveOut(t, "mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		need.LeaveOut(t, "no file system can be mounted here: "+err.Error())
	}
	// The server may have the file of a transfer that has failed open for a moment longer.
	whenFree := func(do func() error) error {
		err := do()
		for deadline := time.Now().Add(10 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
			err = do()
		}
		return err
	}
	t.Cleanup(func() {
		if err := whenFree(func() error { return syscall.Unmount(dir, 0) }); err != nil {
			t.Error(err)
		}
	})
	put := func() error {
		_, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: filepath.Join(dir, "file"), Mode: 0o600}, random(5, 6<<20))
		return err
	}
	err := put()
	if err == nil || !strings.Contains(err.Error(), "No space left on device") || !strings.Contains(err.Error(), "node-1") {
		t.Error(err)
	}
	if left := names(t, dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
	err = whenFree(func() error { return syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "") })
	if err != nil {
		t.Fatal(err)
	}
	if err := put(); err == nil || !strings.Contains(err.Error(), "Read-only file system") {
		t.Error(err)
	}
}

// While a secret is on its way, no argument, no environment and no file that others can
// read has it.
func TestPutKeepsSecrets(t *testing.T) {
	eachWay(t, testPutKeepsSecrets)
}

func testPutKeepsSecrets(t *testing.T, s *server, h *Host) {
	const canary = "canary-51c7e0"
	dir := t.TempDir()
	old := syscall.Umask(0) // sshd's children are already born; this is for the check below alone
	defer syscall.Umask(old)
	looked := false
	look := &hook{func() error {
		looked = true
		for _, pid := range descendants(s.pid) {
			for _, what := range []string{"cmdline", "environ"} {
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, what))
				if err == nil && bytes.Contains(text, []byte(canary)) {
					t.Errorf("%s of %d has the secret: %q", what, pid, text)
				}
			}
		}
		var sizes []int64
		eventually(t, "the temporary file has the first half", func() bool {
			sizes = nil
			for _, name := range names(t, dir) {
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode() != 0o600 {
					t.Errorf("%s is %v", name, info.Mode())
				}
				sizes = append(sizes, info.Size())
			}
			return cmp.Equal(sizes, []int64{chunk})
		})
		return nil
	}}
	first := bytes.Repeat([]byte(canary), chunk/len(canary)+1)[:chunk]
	content := io.MultiReader(bytes.NewReader(first), look, strings.NewReader(canary))
	all := string(first) + canary
	if _, err := h.Put(t.Context(), host.PutOptions{Path: filepath.Join(dir, "token"), Mode: 0o644, Size: int64(len(all)),
		SHA256: hexSum([]byte(all))}, content); err != nil {
		t.Fatal(err)
	}
	if !looked {
		t.Error("nobody looked")
	}
}

// Whoever gives up on a host that hangs does not wait for keepalives to notice it.
func TestPutToHangingHostIsCancelled(t *testing.T) {
	eachWay(t, testPutToHangingHostIsCancelled, func(target *Target) { target.KeepAlive = time.Hour })
}

func testPutToHangingHostIsCancelled(t *testing.T, s *server, h *Host) {
	t.Parallel() // most of it is waiting
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := &hook{func() error {
		defer cancel()
		for _, pid := range descendants(s.pid) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		return nil
	}}
	_, err := h.Put(ctx, host.PutOptions{Path: filepath.Join(t.TempDir(), "file"), Mode: 0o600, Size: 1 << 40, SHA256: hexSum(nil)},
		io.MultiReader(stop, zeros{}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestAnswerError(t *testing.T) {
	for _, test := range []struct {
		answer string
		err    error
		want   string
	}{
		{"0\n", nil, `want the answer same or send, got "0\n"`},
		{"sen", io.EOF, `want the answer same or send, got "sen": EOF`},
		{"", io.EOF, `want the answer same or send, got "": EOF`},
	} {
		err := answerError(test.answer, test.err)
		if err.Error() != test.want || test.err != nil && !errors.Is(err, test.err) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}
