package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/fault"
)

// TestLockRefuses has command lines that are mistakes: nobody is asked anything, and
// nothing is written.
func TestLockRefuses(t *testing.T) {
	dir := t.TempDir()
	there, none := filepath.Join(dir, "there.lock"), filepath.Join(dir, "none.lock")
	const text = "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  k3s: {version: " +
		"v1.36.4+k3s1}\n"
	if err := os.WriteFile(there, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		class fault.Class
		want  string
	}{
		{"--k3s v1.36.4", fault.Usage, `--k3s: version "v1.36.4" of k3s: expected one such as v1.36.4+k3s1`},
		{"--cilium v1.20.0", fault.Usage, "expected one such as 1.20.0, without a v"},
		{"--update longhorn=1.0.0", fault.Usage,
			"component longhorn: its releases are not known, only those of k3s, cilium, liteboxd"},
		{"--update cilium", fault.Usage, `--update "cilium": expected COMPONENT=VERSION`},
		{"--update cilium=1.20.0 --update cilium=1.20.1", fault.Usage, "--update names cilium twice"},
		{"--update cilium=1.20.0 --k3s v1.36.4+k3s1", fault.Usage, "--update excludes versions and platforms"},
		{"--check --update cilium=1.20.0", fault.Usage, "--check takes no versions, platforms or serial"},
		{"--check --output yaml", fault.Usage, `--output "yaml": expected table or json`},
		{"--platform linux/amd64", fault.Usage, "--platform needs the versions of a new lock"},
		{"--k3s v1.36.4+k3s1 --platform windows/amd64", fault.Usage, `"windows/amd64" is not a platform`},
		{"--k3s v1.36.4+k3s1 --platform cilium=linux/amd64", fault.Usage, "no version of cilium is asked for"},
		{"--k3s v1.36.4+k3s1 --platform addon=linux/amd64", fault.Usage, "no version of addon is asked for"},
		{"--k3s v1.36.4+k3s1 --platform k3s=linux/arm64", fault.Usage,
			"--platform narrows k3s to linux/arm64, which the lock is not for: it is for linux/amd64"},
		{"--k3s v1.36.4+k3s1 --platform linux/amd64 --platform linux/amd64", fault.Usage,
			"--platform names linux/amd64 twice"},
		{"-f " + there + " --k3s v1.36.4+k3s1 --platform linux/arm64", fault.Input,
			"its platforms are changed in the file"},
		{"-f " + there + " --k3s v1.36.5+k3s1", fault.Input, "has k3s v1.36.4+k3s1 already, not v1.36.5+k3s1"},
		{"-f " + there + " --update cilium=1.20.0", fault.Input, "has no component cilium"},
		{"-f " + none, fault.Input, "read the lock: open " + none},
		{"-f " + none + " --check", fault.Input, "read the lock: open " + none},
		{"-f " + none + " --update k3s=v1.36.4+k3s1", fault.Input, "read the lock: open " + none},
	} {
		root := newRootCommand()
		root.SetArgs(append([]string{"bundle", "lock", "-f", none}, strings.Fields(c.args)...))
		err := root.ExecuteContext(t.Context())
		if err == nil || fault.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q and class %d", c.args, err, c.want, c.class)
		}
	}
	if got, err := os.ReadFile(there); err != nil || string(got) != text {
		t.Errorf("the lock is %q, %v", got, err)
	}
	if _, err := os.Lstat(none); err == nil {
		t.Error("a lock was written")
	}
}

// TestLockIsSparing counts what upstream is asked: nothing twice in one run, nothing of
// other components in an update, and nothing large in a check or for a lock that has every
// pin.
func TestLockIsSparing(t *testing.T) {
	s := newSite(t)
	lock := func(args ...string) {
		t.Helper()
		args = append([]string{"bundle", "lock"}, args...)
		for _, m := range server.Mirrors() {
			args = append(args, "--mirror", m)
		}
		cmd := exec.CommandContext(t.Context(), "boxlift", args...)
		cmd.Dir, cmd.Env = s.dir, s.env
		server.ResetRequests()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		seen := make(map[string]bool)
		for _, q := range server.Requests() {
			key := q.Method + " " + q.Path
			if seen[key] && q.Path != "/v2/" { // there it is asked once for each repository
				t.Errorf("%s: more than once", key)
			}
			seen[key] = true
		}
	}
	asked := func() (hosts []string, largest int64) {
		for _, q := range server.Requests() {
			host := strings.Split(strings.TrimPrefix(q.Path, "/v2"), "/")[1]
			if host != "" && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
			if q.Method == http.MethodGet {
				largest = max(largest, q.Bytes)
			}
		}
		slices.Sort(hosts)
		return hosts, largest
	}

	lock("-f", "new.lock", "--k3s", "v1.36.4+k3s1", "--cilium", "1.20.0", "--liteboxd", "v0.6.10", "--platform",
		"linux/amd64", "--platform", "linux/arm64", "--platform", "liteboxd=linux/amd64")
	made := string(s.read(t, "new.lock"))

	lock("-f", "new.lock")
	for _, q := range server.Requests() {
		if q.Method != http.MethodGet || q.Bytes > 4096 {
			t.Errorf("with every pin there, %s %s brought %d bytes", q.Method, q.Path, q.Bytes)
		}
	}

	lock("-f", "new.lock", "--check")
	if _, largest := asked(); largest > 4096 {
		t.Errorf("a check fetched %d bytes at once", largest)
	}

	// The same release under another name: the archives' bytes are known already.
	s.write(t, "old.lock", []byte(strings.ReplaceAll(made, "v1.36.4", "v1.36.3")))
	lock("-f", "old.lock", "--update", "k3s=v1.36.4+k3s1")
	want := strings.Replace(made, "\nserial: 1\n", "\nserial: 2\n", 1)
	if got := string(s.read(t, "old.lock")); got != want || want == made {
		t.Errorf("moved back it is not what it was, but for its serial:\n%s", got)
	}
	hosts, largest := asked()
	if diff := cmp.Diff([]string{"github.com", "raw.githubusercontent.com", "release-assets.githubusercontent.com"},
		hosts); diff != "" || largest > 4096 {
		t.Errorf("up to %d bytes were fetched, from these hosts (-want +got):\n%s", largest, diff)
	}
}
