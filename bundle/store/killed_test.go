package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/store"
	"github.com/liteboxd/boxlift/test/bundletest"
)

// killedEnv has the program of the tests work on a store and kill itself before its change of that number.
const killedEnv = "BOXLIFT_TEST_STORE_KILLED"

// killedMain is given the number, and "add" or "remove", the store and the bundle.
func killedMain() int {
	words := strings.Split(os.Getenv(killedEnv), "\n")
	left, err := strconv.Atoi(words[0])
	if err != nil {
		panic(err)
	}
	var mutex sync.Mutex
	s, err := store.Watched(words[2], func(string) error {
		mutex.Lock()
		defer mutex.Unlock()
		if left--; left < 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	if err == nil && words[1] == "remove" {
		_, err = s.Remove(context.Background(), filepath.Base(words[3]))
	} else if err == nil {
		var r *bundle.Reader
		if r, err = bundle.Open(words[3]); err == nil {
			_, err = s.Add(context.Background(), r, store.AddOptions{})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killed reports whether it was killed before it had ended.
func killed(t *testing.T, before int, verb, dir, path string) bool {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program)
	c.Env = append(os.Environ(), killedEnv+"="+strings.Join([]string{strconv.Itoa(before), verb, dir, path}, "\n"))
	out, err := c.CombinedOutput()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

// TestKilled kills adding and removing with SIGKILL before each of their changes of the file system. Every bundle that
// is listed then is whole and, byte for byte, what came in; the same again finishes; and nothing is left in the
// end that is not in a store that nobody disturbed.
func TestKilled(t *testing.T) {
	m := bundletest.NewMaker(t)
	kept, _ := m.Build("kept.tar", release("old"), nil)
	other, _ := m.Build("other.tar", release("new"), nil)
	r := mustOpen(t, other)
	if _, err := r.Signatures().Add(bundletest.NewSigner(t)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	one, both := filepath.Join(m.Dir, "one"), filepath.Join(m.Dir, "both")
	mustAdd(t, one, kept)
	mustAdd(t, both, kept)
	mustAdd(t, both, other)
	for _, test := range []struct{ verb, from, to string }{{"add", one, both}, {"remove", both, one}} {
		t.Run(test.verb, func(t *testing.T) {
			want := filesOf(t, test.to)
			for n := 0; ; n++ {
				dir := filepath.Join(t.TempDir(), "store")
				if err := os.CopyFS(dir, os.DirFS(test.from)); err != nil {
					t.Fatal(err)
				}
				again := killed(t, n, test.verb, dir, other)
				s, err := store.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				contents, err := s.List()
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, b := range contents.Bundles {
					names = append(names, b.Name)
					mustRead(t, s.Path(b.Name), filepath.Join(m.Dir, b.Name))
				}
				if !slices.Contains(names, "kept.tar") {
					t.Fatalf("killed before change %d, it lists %v", n, names)
				}
				if test.verb == "add" {
					mustAdd(t, dir, other)
				} else if _, err := s.Remove(t.Context(), "other.tar"); err != nil && !errors.Is(err, store.ErrUnknown) {
					t.Fatal(err)
				}
				if _, err := s.Prune(t.Context()); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(filesOf(t, dir)))); diff != "" {
					t.Fatalf("killed before change %d, there is in the end (-expected +got):\n%s", n, diff)
				}
				if !maps.Equal(want, filesOf(t, dir)) {
					t.Fatalf("killed before change %d, files differ in the end", n)
				}
				if !again {
					t.Logf("killed before each of %d changes", n)
					if n < 5 {
						t.Errorf("it made only %d changes", n)
					}
					break
				}
			}
		})
	}
}

// recorder notes the changes.
func recorder(changes *[]string) func(string) error {
	var mutex sync.Mutex
	return func(change string) error {
		mutex.Lock()
		defer mutex.Unlock()
		*changes = append(*changes, change)
		return nil
	}
}
