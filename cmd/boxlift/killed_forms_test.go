package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/upstream"
)

// TestKilledForms kills builds in volumes, encrypted ones and those of deltas at random
// moments. Whenever there is a list of checksums, the set is whole and holds the bundle; and
// the run after all kills finishes and leaves nothing else.
func TestKilledForms(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"volumes":   {"--split", "256KiB"},
		"encrypted": {"--split", "256KiB", "--encrypt-to", identity.Recipient().String(), "--identity", "identity"},
		"delta":     {"--split", "256KiB", "--since", "old.tar"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write(t, "identity", []byte(identity.String()))
			cmd, out := s.build(t, "whole.tar")
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			whole := s.read(t, "whole.tar")
			s.buildOld(t)
			s.args = append(s.args, args...)
			path := filepath.Join(s.dir, "b.tar")
			check := func() {
				t.Helper()
				r, err := bundle.Open(path, identity)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				old, err := bundle.Open(filepath.Join(s.dir, "old.tar"))
				if err != nil {
					t.Fatal(err)
				}
				r.Use(old) // if it is a delta
				content, err := io.ReadAll(io.NewSectionReader(r.Whole(), 0, r.Whole().Size()))
				if err != nil || !bytes.Equal(content, whole) {
					t.Fatalf("what is there is not the bundle: %d bytes, %v", len(content), err)
				}
			}
			took := s.kill(t, "b.tar", 1<<62) // not killed
			check()
			for killed := 0; killed < 8; {
				names, err := filepath.Glob(path + ".*")
				if err != nil {
					t.Fatal(err)
				}
				if slices.Contains(names, path+".sha256") { // it was done: once more from the beginning
					check()
					for _, name := range names {
						if err := os.Remove(name); err != nil {
							t.Fatal(err)
						}
					}
				}
				if s.kill(t, "b.tar", rand.N(took)) == 0 {
					killed++
				}
			}
			s.kill(t, "b.tar", 1<<62)
			check()
			if left := s.partials(t, "b.tar"); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// buildOld builds a bundle that has some of what the site's has.
func (s *site) buildOld(t *testing.T) {
	t.Helper()
	content, err := server.PinnedLockYAML(upstream.LockOptions{Components: []string{"cilium"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "old.lock", content)
	old := *s
	old.args = append(slices.Clone(s.args), "-f", "old.lock")
	cmd, out := old.build(t, "old.tar")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// kill builds and kills that after a while. It returns how long the build took, or 0 when
// it was killed.
func (s *site) kill(t *testing.T, output string, after time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	cmd, out := s.build(t, output)
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	switch {
	case err == nil:
		return time.Since(start)
	case cmd.ProcessState.Exited():
		t.Fatalf("it failed: %v\n%s", err, out)
	}
	return 0
}
