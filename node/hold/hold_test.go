//go:build linux

package hold_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/wire"
)

// holding is a boxlift-node that was asked to hold a node.
type holding struct {
	in    *os.File
	ended chan error
}

// ask lets who hold the node below dir.
func ask(t *testing.T, dir string, who hold.Holder, o hold.Options) (*holding, error) {
	t.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout := io.Pipe()
	h := &holding{in: in, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		_ = in.Close()
	})
	o.Dir = dir
	go func() {
		err := hold.Run(ctx, stdin, stdout, o)
		_ = errors.Join(stdin.Close(), stdout.CloseWithError(err))
		h.ended <- err
	}()
	return h, hold.Ask(in, out, who)
}

func TestHold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "boxlift")
	first := hold.Holder{Run: "1", Name: "root@ops, process 7"}
	h, err := ask(t, dir, first, hold.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	second := hold.Holder{Run: "2", Name: "admin@laptop\n\x1b[2J" + strings.Repeat("x", 300)}
	_, err = ask(t, dir, second, hold.Options{})
	var other *hold.HeldError
	if !errors.As(err, &other) {
		t.Fatalf("a node was held twice: %v", err)
	}
	if age := time.Since(other.By.Since); age < 0 || age > time.Minute {
		t.Errorf("it is held since %v", other.By.Since)
	}
	since := other.By.Since
	other.By.Since = time.Time{}
	if diff := cmp.Diff(first, other.By); diff != "" {
		t.Error(diff)
	}
	other.By.Since = since
	want := "another boxlift is working on this host: root@ops, process 7, since " + since.Format(time.RFC3339)
	if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %q, want %q", err, want)
	}

	if err := h.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-h.ended; err != nil {
		t.Errorf("after the end of its input: %v", err)
	}
	h, err = ask(t, dir, second, hold.Options{})
	if err != nil {
		t.Fatalf("a node that was let go: %v", err)
	}
	_, err = ask(t, dir, first, hold.Options{})
	if !errors.As(err, &other) || other.By.Run != "2" || strings.ContainsAny(other.By.Name, "\n\x1b") ||
		len(other.By.Name) > 200 {
		t.Errorf("got %q", err)
	}

	// All that is boxlift's may be deleted meanwhile.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, dir, first, hold.Options{}); err != nil {
		t.Errorf("a node whose lock was deleted: %v", err)
	}
	if err := h.in.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestHoldEndsWithoutSignOfLife(t *testing.T) {
	dir := t.TempDir()
	h, err := ask(t, dir, hold.Holder{Run: "1"}, hold.Options{IdleTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-h.ended; err == nil || !strings.Contains(err.Error(), "nothing came") {
		t.Errorf("got %v", err)
	}
	if _, err := ask(t, dir, hold.Holder{Run: "2"}, hold.Options{}); err != nil {
		t.Error(err)
	}
}

func TestHoldRefusesWhatItCannotRead(t *testing.T) {
	for _, input := range []string{"", "{}", "null x\n", `{"run":"1","else":2}` + "\n",
		strings.Repeat("x", wire.MaxLine+1)} {
		dir := t.TempDir()
		if err := hold.Run(t.Context(), strings.NewReader(input), io.Discard, hold.Options{Dir: dir}); err == nil {
			t.Errorf("%.20q: no error", input)
		}
		if _, err := os.Stat(filepath.Join(dir, hold.File)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%.20q: the node was locked (%v)", input, err)
		}
	}
}

func FuzzAskHold(f *testing.F) {
	f.Add([]byte(`{"held":true}` + "\n"))
	f.Add([]byte(`{"held":false,"by":{"run":"1","name":"root@ops","since":"2026-01-02T03:04:05Z"}}` + "\n"))
	f.Add([]byte(`{"by":{"name":"\u001b[2J"}}` + "\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		err := hold.Ask(io.Discard, strings.NewReader(string(answer)), hold.Holder{})
		var other *hold.HeldError
		if errors.As(err, &other) && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("%q steers a terminal", err)
		}
	})
}
