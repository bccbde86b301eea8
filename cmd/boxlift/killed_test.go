package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/upstream"
)

// killsEnv says how often builds of each form are killed; without it, so often that builds,
// deltas and volumes are a hundred times together.
const killsEnv = "BOXLIFT_BUILD_KILLS"

// never is later than any build ends.
const never = time.Duration(1<<63 - 1)

func killsOf(t *testing.T) int {
	t.Helper()
	text := os.Getenv(killsEnv)
	if text == "" {
		return 20
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: expected a number from 1 on", killsEnv, text)
	}
	return n
}

// TestKilled kills builds of every form with SIGKILL at random moments. Whenever something has
// the final name, it is all there and holds the bundle; the run after all kills finishes, with
// the bytes of a build that nobody disturbed, and leaves nothing else.
func TestKilled(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	kills := killsOf(t)
	volumes := []string{"--split", "256KiB"}
	delta := []string{"--since", "old.tar"}
	forms := make(map[string]*form)
	for name, args := range map[string][]string{
		"one file":          nil,
		"volumes":           volumes,
		"encrypted volumes": slices.Concat(volumes, []string{"--encrypt-to", identity.Recipient().String(), "--identity", "identity"}),
		"delta":             delta,
		"delta in volumes":  slices.Concat(delta, volumes),
		"with its SBOM":     {"--sbom"},
		"reuse":             {"--reuse", "old.tar"},
	} {
		s := newSite(t)
		s.env = append(s.env, "XDG_CACHE_HOME="+filepath.Join(s.dir, "cache"))
		s.write(t, "identity", []byte(identity.String()))
		s.buildOld(t)
		form := &form{packerSite: s, isSet: slices.Contains(args, "--split"), identity: identity}
		if slices.Contains(args, "--sbom") {
			s.args = append(s.args, "--sbom")
		}
		s.kill(t, "whole.tar", never)
		form.whole = s.read(t, "whole.tar")
		s.args = append(s.args, args...)
		forms[name] = form
	}
	slowly()
	server.ResetRequests()
	// Most of it is waiting for a server that is slow. What the server is asked for, it is by all forms.
	t.Run("forms", func(t *testing.T) {
		for name, form := range forms {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				form.killOften(t, kills)
			})
		}
	})
	t.Logf("%d times the rest of something was asked for", ranges())
}

// killOften kills so many builds, and has one come to its end.
func (f *form) killOften(t *testing.T, kills int) {
	t.Helper()
	took := f.kill(t, killedOutput, never)
	f.check(t)
	isEncrypted := slices.Contains(f.args, "--encrypt-to")
	undisturbed := f.take(t)

	killed, begun, finished := 0, 0, 0
	for killed < kills {
		if len(f.left(t)) > 0 {
			begun++
		}
		ended := f.kill(t, killedOutput, rand.N(took)) > 0
		if !ended {
			killed++
		}
		// A killed build may have finished all the same.
		if f.isThere() {
			f.check(t)
			f.take(t)
			finished++
		} else if ended {
			t.Fatal("it ended well, and nothing is there")
		}
	}
	t.Logf("killed %d times within %v: %d runs began with what another had left, %d finished",
		killed, took, begun, finished)
	f.kill(t, killedOutput, never)
	f.check(t)
	if left := f.left(t); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	// Encryption itself is different each time.
	if got := f.take(t); !isEncrypted && !maps.EqualFunc(undisturbed, got, bytes.Equal) {
		t.Error("the files are not those of a build that nobody killed")
	}
}

const killedOutput = "b.tar"

// form is how the killed build lies on the disk.
type form struct {
	*packerSite
	isSet    bool
	identity age.Identity
	whole    []byte // of the bundle
}

// isThere reports whether a finished bundle goes by the final name: of a set, the list.
func (f *form) isThere() bool {
	path := filepath.Join(f.dir, killedOutput)
	if f.isSet {
		path += ".sha256"
	}
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// check reads what is there, which has to be the bundle.
func (f *form) check(t *testing.T) {
	t.Helper()
	r, err := bundle.Open(filepath.Join(f.dir, killedOutput), f.identity)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Delta() != nil {
		old, err := bundle.Open(filepath.Join(f.dir, "old.tar"))
		if err != nil {
			t.Fatal(err)
		}
		r.Use(old)
	}
	content, err := io.ReadAll(io.NewSectionReader(r.Whole(), 0, r.Whole().Size()))
	if err != nil || !bytes.Equal(content, f.whole) {
		t.Fatalf("what is there is not the bundle: %d bytes, %v", len(content), err)
	}
}

// take removes what there is of the bundle, and returns it by the names of the files.
func (f *form) take(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(f.dir, killedOutput+"*"))
	if err != nil {
		t.Fatal(err)
	}
	taken := make(map[string][]byte)
	for _, name := range names {
		name = filepath.Base(name)
		taken[name] = f.read(t, name)
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return taken
}

// left are the files of an unfinished build.
func (s *packerSite) left(t *testing.T) []string { return s.partials(t, killedOutput) }

// slowly makes most builds be killed inside a blob.
func slowly() {
	for _, f := range server.Files() {
		if strings.HasSuffix(f.URL, "/k3s") {
			server.Inject(upstream.Rule{Path: upstream.FilePath(f.URL), Fault: upstream.Slow{BytesPerSecond: int(6 * f.Size)}})
		}
	}
}

// ranges is how often the rest of something was asked for.
func ranges() int {
	n := 0
	for _, r := range server.Requests() {
		if r.Range != "" {
			n++
		}
	}
	return n
}

// buildOld builds a bundle that has some of what the site's has.
func (s *packerSite) buildOld(t *testing.T) {
	t.Helper()
	content, err := server.PinnedLockYAML(upstream.LockOptions{Components: []string{"cilium"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "old.lock", content)
	old := *s
	old.args = append(slices.Clone(s.args), "-f", "old.lock")
	old.kill(t, "old.tar", never)
}

// kill builds and kills that after a while. It returns how long the build took, or 0 when
// it was killed.
func (s *packerSite) kill(t *testing.T, output string, after time.Duration) time.Duration {
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
