package hosttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Conform tests what every host does. folder is an empty folder on the host that the user may write to.
func Conform(t *testing.T, h host.Host, folder string) {
	t.Run("run", func(t *testing.T) { conformRun(t, h) })
	t.Run("run ends with its context", func(t *testing.T) { conformEnd(t, h) })
	t.Run("start", func(t *testing.T) { conformStart(t, h) })
	t.Run("put", func(t *testing.T) { conformPut(t, h, folder) })
	t.Run("put is refused", func(t *testing.T) { conformRefused(t, h, folder) })
	t.Run("get", func(t *testing.T) { conformGet(t, h, folder) })
	t.Run("files", func(t *testing.T) { conformFiles(t, h, folder) })
	t.Run("dial", func(t *testing.T) { conformDial(t, h) })
}

func conformRun(t *testing.T, h host.Host) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	for _, test := range []struct {
		name   string
		cmd    host.Command
		want   host.Result
		failed *host.ExitError
		wrong  string
	}{
		{name: "args", cmd: host.Command{Args: []string{"/bin/sh", "-c", `printf '%s|' "$@"`, "sh", "a b", "$HOME",
			"it's", ""}},
			want: host.Result{Stdout: []byte("a b|$HOME|it's||")}},
		{name: "script", cmd: host.Command{Script: "echo one\necho two >&2"},
			want: host.Result{Stdout: []byte("one\n"), Stderr: []byte("two\n")}},
		{name: "no stdin", cmd: host.Command{Args: []string{"cat"}}, want: host.Result{}},
		{name: "stdin", cmd: host.Command{Script: "wc -c | tr -d ' '", Stdin: bytes.NewReader(big)},
			want: host.Result{Stdout: []byte("2097152\n")}},
		{name: "stdin not read", cmd: host.Command{Script: ":", Stdin: bytes.NewReader(big)}, want: host.Result{}},
		{name: "only the tail is kept", cmd: host.Command{Args: []string{"cat"},
			Stdin: io.MultiReader(bytes.NewReader(big), strings.NewReader("end"))},
			want: host.Result{Stdout: append(append([]byte(nil), big[len(big)-host.MaxKept+3:]...), "end"...),
				Truncated: true}},
		{name: "fails", cmd: host.Command{Title: "try it",
			Script: "echo out; printf 'x\\n\\n\\033[1my\\n' >&2; exit 3"},
			want:   host.Result{Stdout: []byte("out\n"), Stderr: []byte("x\n\n\x1b[1my\n"), ExitCode: 3},
			failed: &host.ExitError{Command: "try it", Code: 3, Lines: []string{"x", "\ufffd[1my"}}},
		{name: "fails with its reason on stdout", cmd: host.Command{Script: "echo reason; exit 4"},
			want:   host.Result{Stdout: []byte("reason\n"), ExitCode: 4},
			failed: &host.ExitError{Command: "echo reason; exit 4", Code: 4, Lines: []string{"reason"}}},
		{name: "fails and hides", cmd: host.Command{Title: "secret", Script: "echo token; exit 4", HideOutput: true},
			want:   host.Result{Stdout: []byte("token\n"), ExitCode: 4},
			failed: &host.ExitError{Command: "secret", Code: 4}},
		{name: "neither args nor script", want: host.Result{ExitCode: -1}, wrong: "either Args or Script"},
		{name: "NUL", cmd: host.Command{Args: []string{"a\x00b"}}, want: host.Result{ExitCode: -1}, wrong: "NUL"},
		{name: "input that cannot be read", cmd: host.Command{Args: []string{"cat"},
			Stdin: io.MultiReader(strings.NewReader("x"), failingReader{})},
			want: host.Result{Stdout: []byte("x"), ExitCode: -1}, wrong: "read its input: no more of it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := h.Run(t.Context(), test.cmd)
			if test.wrong != "" {
				// How much came before is not said.
				got.Stdout, got.Stderr, test.want.Stdout = nil, nil, nil
			}
			if diff := cmp.Diff(test.want, got, cmp.Comparer(bytes.Equal)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var failed *host.ExitError
			switch {
			case test.wrong != "":
				if err == nil || !strings.Contains(err.Error(), test.wrong) ||
					!strings.HasPrefix(err.Error(), h.Name()+": ") {
					t.Errorf("error %v, want one of %s with %q", err, h.Name(), test.wrong)
				}
			case test.failed == nil:
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &failed):
				t.Errorf("error %v, want an ExitError", err)
			default:
				if diff := cmp.Diff(test.failed, failed); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
				if name := fault.HostOf(err); name != h.Name() {
					t.Errorf("the error is one of %q, want %s", name, h.Name())
				}
			}
		})
	}
	if result, err := h.Run(t.Context(), host.Command{Args: []string{"/no/such/program"}}); result.ExitCode != 127 ||
		!isExit(err) {
		t.Errorf("a program that is not there: code %d, %v", result.ExitCode, err)
	}
}

func isExit(err error) bool {
	var exit *host.ExitError
	return errors.As(err, &exit)
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("no more of it") }

func conformEnd(t *testing.T, h host.Host) {
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(reason) })
	begin := time.Now()
	_, err := h.Run(ctx, host.Command{Title: "wait", Args: []string{"sleep", "600"}})
	if !errors.Is(err, reason) || time.Since(begin) > time.Minute {
		t.Errorf("after %v: %v, want %v", time.Since(begin), err, reason)
	}
	if _, err := h.Run(ctx, host.Command{Args: []string{"true"}}); !errors.Is(err, reason) {
		t.Errorf("with a context that has ended: %v, want %v", err, reason)
	}
}

func conformStart(t *testing.T, h host.Host) {
	p, err := h.Start(t.Context(), host.Command{Title: "echo", Script: "cat; echo done >&2; exit 5"})
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("streamed "), 1<<17)
	wrote := make(chan error, 1)
	go func() {
		_, err := p.Stdin.Write(text)
		wrote <- errors.Join(err, p.Stdin.Close())
	}()
	got, err := io.ReadAll(p.Stdout)
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(text), err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("write: %v", err)
	}
	var exit *host.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Code != 5 || string(p.Stderr()) != "done\n" {
		t.Errorf("wait: %v, stderr %q", err, p.Stderr())
	}
	if p, err = h.Start(t.Context(), host.Command{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(p.Stdout); err != nil {
		t.Errorf("read of what true prints: %v", err)
	}
	if err := errors.Join(p.Wait(), p.Stdin.Close()); err != nil {
		t.Errorf("stdin is closed after the command's end: %v", err)
	}
	if _, err := h.Start(t.Context(), host.Command{Args: []string{"cat"}, Stdin: strings.NewReader("")}); err == nil {
		t.Error("Start took a Stdin")
	}
	ctx, cancel := context.WithCancel(t.Context())
	if p, err = h.Start(ctx, host.Command{Args: []string{"cat"}}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(p.Stdout); err == nil {
		// The end of the stream is as good as an error: Wait tells.
		t.Log("the stream ended without an error")
	}
	if err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("wait after the context's end: %v", err)
	}
}

func conformPut(t *testing.T, h host.Host, folder string) {
	for _, name := range []string{"plain", "with space and 'quote'", "-dash", "$HOME", "größe"} {
		file := folder + "/" + name
		for _, step := range []struct {
			what    string
			content string
			mode    fs.FileMode
			changed bool
		}{
			{"new", "first", 0o644, true},
			{"same", "first", 0o644, false},
			{"other mode", "first", 0o755, true},
			{"other content", "second", 0o755, true},
			{"secret", "third", 0o600, true},
			{"empty", "", 0o600, true},
			{"empty again", "", 0o600, false},
		} {
			changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: step.mode},
				[]byte(step.content))
			if err != nil || changed != step.changed {
				t.Fatalf("%s, %s: changed %v, %v", name, step.what, changed, err)
			}
			result, err := h.Run(t.Context(), host.Command{Args: []string{"/bin/sh", "-c",
				`stat -c %a "$1" && cat "$1"`, "sh", file}})
			if want := fmt.Sprintf("%o\n%s", step.mode, step.content); err != nil || string(result.Stdout) != want {
				t.Errorf("%s, %s: %q, %v; want %q", name, step.what, result.Stdout, err, want)
			}
		}
	}
	// A link is replaced, not followed.
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"ln", "-s", folder + "/plain", folder +
		"/link"}}); err != nil {
		t.Fatal(err)
	}
	if changed, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: folder + "/link", Mode: 0o600},
		nil); err != nil || !changed {
		t.Errorf("over a link: changed %v, %v", changed, err)
	}
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"/bin/sh", "-c", `[ ! -L "$1" ]`, "sh", folder +
		"/link"}}); err != nil {
		t.Errorf("the link is still there: %v", err)
	}
	var told int64
	content := bytes.Repeat([]byte("x"), 3<<20)
	o := host.PutOptions{Path: folder + "/big", Mode: 0o600, Progress: func(n int64) { told += n }}
	if _, err := host.PutBytes(t.Context(), h, o, content); err != nil || told != int64(len(content)) {
		t.Errorf("told of %d bytes of %d, %v", told, len(content), err)
	}
}

func conformRefused(t *testing.T, h host.Host, folder string) {
	content := "abc"
	sum := sha256.Sum256([]byte(content))
	whole := hex.EncodeToString(sum[:])
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"mkdir", folder + "/folder"}}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o     host.PutOptions
		wrong string
	}{
		"no sum":   {host.PutOptions{Path: folder + "/x", Size: 3}, "64 hex digits"},
		"relative": {host.PutOptions{Path: "x", Size: 3, SHA256: whole}, "absolute path"},
		"dots":     {host.PutOptions{Path: "/x/../y", Size: 3, SHA256: whole}, "absolute path"},
		"size":     {host.PutOptions{Path: folder + "/x", Size: -1, SHA256: whole}, "number of bytes"},
		"mode": {host.PutOptions{Path: folder + "/x", Size: 3, SHA256: whole, Mode: fs.ModeDir},
			"permission bits"},
		"a folder": {host.PutOptions{Path: folder + "/folder", Size: 3, SHA256: whole, Mode: 0o600}, "is a directory"},
		"no folder": {host.PutOptions{Path: folder + "/no/such", Size: 3, SHA256: whole, Mode: 0o600},
			"o such file or directory"},
		"too short": {host.PutOptions{Path: folder + "/x", Size: 4, SHA256: whole, Mode: 0o600},
			"4 bytes wanted, 3 read"},
		"too long": {host.PutOptions{Path: folder + "/x", Size: 2, SHA256: whole, Mode: 0o600},
			"2 bytes wanted, 3 read"},
		"other sum": {host.PutOptions{Path: folder + "/x", Size: 3, SHA256: strings.Repeat("0", 64), Mode: 0o600},
			"damaged or not whole"},
	} {
		if _, err := h.Put(t.Context(), test.o, strings.NewReader(content)); err == nil ||
			!strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: %v, want %q", name, err, test.wrong)
		}
	}
	result, err := h.Run(t.Context(), host.Command{Args: []string{"/bin/sh", "-c", `cd "$1" && ls -A`, "sh", folder}})
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(result.Stdout)) {
		if strings.HasPrefix(name, ".boxlift-put-") || name == "x\n" {
			t.Errorf("%q was left in the folder", name)
		}
	}
}

func conformGet(t *testing.T, h host.Host, folder string) {
	noise := rand.NewChaCha8([32]byte{'g', 'e', 't'})
	for name, size := range map[string]int{"empty": 0, "small": 100, "get 'big'": 5<<20 + 1} {
		content := make([]byte, size)
		_, _ = noise.Read(content) // never fails
		o := host.GetOptions{Path: folder + "/" + name}
		if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: o.Path, Mode: 0o600}, content); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		for _, o.SHA256 = range []string{"", hex.EncodeToString(sum[:])} {
			var got bytes.Buffer
			if err := h.Get(t.Context(), o, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
				t.Errorf("%s: got %d bytes of %d, %v", name, got.Len(), size, err)
			}
		}
		o.SHA256 = strings.Repeat("0", 64)
		if err := h.Get(t.Context(), o, io.Discard); err == nil ||
			!strings.Contains(err.Error(), "arrived with the sha256") {
			t.Errorf("%s, with another sum: %v", name, err)
		}
	}
	big := folder + "/get 'big'"
	if _, err := h.Run(t.Context(), host.Command{Args: []string{"ln", "-s", big, folder + "/linked"}}); err != nil {
		t.Fatal(err)
	}
	var linked bytes.Buffer
	if err := h.Get(t.Context(), host.GetOptions{Path: folder + "/linked"}, &linked); err != nil ||
		linked.Len() != 5<<20+1 {
		t.Errorf("through a link: %d bytes, %v", linked.Len(), err)
	}
	full := errors.New("disk is full")
	if err := h.Get(t.Context(), host.GetOptions{Path: big}, failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("what came cannot be written: %v", err)
	}
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	if err := h.Get(ctx, host.GetOptions{Path: big}, io.Discard); !errors.Is(err, reason) {
		t.Errorf("with a context that has ended: %v, want %v", err, reason)
	}
	for name, test := range map[string]struct {
		o     host.GetOptions
		wrong string
	}{
		"relative":  {host.GetOptions{Path: "x"}, "absolute path"},
		"short sum": {host.GetOptions{Path: big, SHA256: "ab"}, "64 hex digits"},
		"a folder":  {host.GetOptions{Path: folder}, "s a directory"},
		"not there": {host.GetOptions{Path: folder + "/no-such"}, "o such file or directory"},
	} {
		err := h.Get(t.Context(), test.o, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.wrong) ||
			!strings.HasPrefix(err.Error(), "get "+test.o.Path+": ") {
			t.Errorf("%s: %v, want %q", name, err, test.wrong)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func conformFiles(t *testing.T, h host.Host, folder string) {
	file, missing := folder+"/file", folder+"/missing"
	if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: file, Mode: 0o600},
		[]byte(" text\n\n")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{file: "text", missing: "", folder: ""} {
		if got, err := host.Read(t.Context(), h, name); got != want || err != nil {
			t.Errorf("read %s: %q, %v; want %q", name, got, err, want)
		}
	}
	sum := sha256.Sum256([]byte(" text\n\n"))
	digests, err := host.Digests(t.Context(), h, file, missing, folder)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{file: hex.EncodeToString(sum[:])}, digests); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
	one, err := host.Fingerprint(t.Context(), h, file, missing)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: missing, Mode: 0o600}, nil); err != nil {
		t.Fatal(err)
	}
	other, err := host.Fingerprint(t.Context(), h, file, missing)
	if err != nil || one == other || len(one) != len(other) {
		t.Errorf("fingerprints %q and %q, %v: a file came", one, other, err)
	}
}

func conformDial(t *testing.T, h host.Host) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // closed below, where it counts
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = io.WriteString(conn, "hello") // the test sees what arrives
			_ = conn.Close()
		}
	}()
	conn, err := h.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it was only read
	if text, err := io.ReadAll(conn); string(text) != "hello" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.DialContext(t.Context(), "tcp", listener.Addr().String()); err == nil ||
		!strings.HasPrefix(err.Error(), h.Name()+": ") {
		t.Errorf("where nobody listens: %v", err)
	}
}
