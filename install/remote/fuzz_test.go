package remote

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host"
)

// FuzzStderr expects that what a command says is kept whatever it is, however it is cut, and that
// only the first line that announces a process is taken out of it.
func FuzzStderr(f *testing.F) {
	f.Add([]byte("motd\nboxlift-pid 123\nout of memory\n"), uint8(3))
	f.Add([]byte("boxlift-pid 99999999999\nboxlift-pid 1\nboxlift-pid 2\n"), uint8(1))
	f.Add([]byte(strings.Repeat("x", 70_000)+"\nboxlift-pid 7\n"), uint8(255))
	f.Fuzz(func(t *testing.T, said []byte, size uint8) {
		s := newStderr()
		for rest := said; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if written, err := s.Write(rest[:n]); written != n || err != nil {
				t.Fatalf("wrote %d of %d bytes: %v", written, n, err)
			}
			rest = rest[n:]
		}
		s.flush()
		kept, lost := s.kept.Bytes()
		select {
		case <-s.announced:
			if s.pid < 0 || len(kept) >= len(said) {
				t.Errorf("announced %d, and kept %d of %d bytes", s.pid, len(kept), len(said))
			}
		default:
			if !lost && string(kept) != string(said) {
				t.Errorf("kept %q of %q", kept, said)
			}
		}
		if len(kept) > host.MaxKept {
			t.Errorf("kept %d bytes, expected %d at most", len(kept), host.MaxKept)
		}
	})
}

// FuzzSudoRefusal expects of whatever sudo says a refusal that has a reason.
func FuzzSudoRefusal(f *testing.F) {
	f.Add(1, "sudo: a password is required\n")
	f.Add(127, "")
	f.Add(1, "sudo: sorry, you must have a tty to run sudo\n\x1b[31m")
	f.Add(-1, "Sorry, try again.\nmay not run")
	h := &Host{target: Target{Host: "10.0.0.11", User: "admin"}}
	f.Fuzz(func(t *testing.T, code int, stderr string) {
		err := h.sudoRefusal(code, stderr)
		if err == nil || !errors.Is(err, ErrSudo) && !errors.Is(err, ErrSudoPassword) && !errors.Is(err, ErrNotRoot) {
			t.Errorf("sudo exited with %d and said %q: %v", code, stderr, err)
		}
		if err != nil && strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("the error %q has an escape character", err)
		}
	})
}
