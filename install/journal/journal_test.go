package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// demo is what the tests' runs work on.
var demo = Run{Command: "install", Verb: Install, Cluster: "demo", Bundle: "sha256:b", Config: "config", BundleFile: "/b.tar", ConfigFile: "/install.yaml"}

// open opens the state in dir with a clock that stands still.
func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(filepath.Join(dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	j.now = func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }
	return j
}

// step is a step, whose id follows from its title.
func step(phase, host, title, reason string) Step {
	return Step{Phase: phase, Host: host, ID: strings.ReplaceAll(title, " ", "-"), Title: title, Reason: reason}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStateOutlivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Begin(demo))
	end, err := j.Start(step("ship", "10.0.0.11", "ship the packs", "2 are missing"))
	must(t, err)
	must(t, end(nil))
	end, err = j.Start(step("servers", "10.0.0.11", "start k3s", "it is inactive"))
	must(t, err)
	must(t, end(errors.New("it did not start")))
	_, err = j.Start(step("servers", "10.0.0.12", "start k3s", "it is inactive"))
	must(t, err)
	// Here boxlift dies: nothing is closed but what the system closes.
	must(t, j.lock.Close())

	info, err := os.Stat(filepath.Join(dir, "state.json"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("state.json has mode %v, want 0600", info.Mode())
	}
	again := open(t, dir)
	now := j.now()
	want := State{
		Version: Version, Run: demo, Result: Running, Started: now,
		Steps: []Step{
			{Phase: "ship", Host: "10.0.0.11", ID: "ship-the-packs", Title: "ship the packs", Reason: "2 are missing", Result: Done, Attempts: 1, Started: now, Ended: now},
			{Phase: "servers", Host: "10.0.0.11", ID: "start-k3s", Title: "start k3s", Reason: "it is inactive", Result: Failed, Error: "it did not start", Attempts: 1, Started: now, Ended: now},
			{Phase: "servers", Host: "10.0.0.12", ID: "start-k3s", Title: "start k3s", Reason: "it is inactive", Result: Running, Attempts: 1, Started: now},
		},
	}
	if diff := cmp.Diff(want, again.State()); diff != "" {
		t.Error(diff)
	}
	if !again.State().Unfinished() {
		t.Error("a run that was broken off counts as finished")
	}

	// It is gone on with: what was done stays, what is tried again is counted.
	must(t, again.Resume([]string{"--kubeconfig=/k"}))
	again.Unchanged(step("ship", "10.0.0.11", "ship the packs", ""))
	again.Unchanged(step("ship", "10.0.0.12", "ship the packs", ""))
	end, err = again.Start(step("servers", "10.0.0.11", "start k3s", "it is inactive"))
	must(t, err)
	must(t, end(nil))
	must(t, again.End(nil))
	want.Result, want.Resumed, want.Ended = Done, 1, now
	want.Flags = []string{"--kubeconfig=/k"}
	want.Steps[1] = Step{Phase: "servers", Host: "10.0.0.11", ID: "start-k3s", Title: "start k3s", Reason: "it is inactive", Result: Done, Attempts: 2, Started: now, Ended: now}
	want.Steps = append(want.Steps, Step{Phase: "ship", Host: "10.0.0.12", ID: "ship-the-packs", Title: "ship the packs", Result: Unchanged})
	if diff := cmp.Diff(want, again.State()); diff != "" {
		t.Error(diff)
	}

	must(t, again.Begin(demo))
	must(t, again.End(nil))
	want = State{Version: Version, Run: demo, Result: Done, Started: now, Ended: now, Steps: []Step{}}
	if diff := cmp.Diff(want, again.State()); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyOneAtATime(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	if _, err := Open(filepath.Join(dir, "state.json")); !errors.Is(err, ErrLocked) {
		t.Errorf("the second Open: got %v, want ErrLocked", err)
	}
	must(t, first.Close())
	must(t, open(t, dir).Close())
}

// TestForeignLock has somebody else's file behind the name of the lock.
func TestForeignLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.Symlink(victim, path+".lock"); err != nil {
		t.Fatal(err)
	}
	if j, err := Open(path); !errors.Is(err, ownfile.ErrForeign) {
		if err == nil {
			_ = j.Close()
		}
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(victim); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made behind the link: %v", err)
	}
}

func TestUnreadableStates(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"damaged", `{"version": 1, "clus`, "is damaged"},
		{"of a later version", `{"version": 3}`, "has version 3, this boxlift knows version 2"},
		{"of no version", `{"version": 0}`, "has version 0, this boxlift knows the versions 1 to 2"},
		{"huge", strings.Repeat(" ", maxSize+1), "is larger than"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			must(t, os.WriteFile(path, []byte(test.content), 0o600))
			_, err := Open(path)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			// The lock is free again.
			must(t, os.Remove(path))
			j, err := Open(path)
			must(t, err)
			must(t, j.Close())
		})
	}
}

// However much hosts have to say, the next run can read the state.
func TestErrorsAreBounded(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Begin(demo))
	for range 5 {
		end, err := j.Start(step("ship", "10.0.0.11", "ship the packs", "2 are missing"))
		must(t, err)
		must(t, end(errors.New(strings.Repeat("é", maxSize/4))))
	}
	must(t, j.Close())
	j = open(t, dir)
	if got := len(j.State().Steps[0].Error); got > 2*maxError {
		t.Errorf("%d bytes of an error are kept", got)
	}
	must(t, j.Close())
}

// A later boxlift may write anything beside its version.
func TestStateOfALaterBoxlift(t *testing.T) {
	for _, content := range []string{
		`{"version":3}`, `{"version":999,"steps":{"ship":[]},"result":1}`,
	} {
		path := filepath.Join(t.TempDir(), "state.json")
		must(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := Read(path)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(strings.Join(fault.Hints(err), ""), "later boxlift") {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// What the version before wrote is read: a run that was broken off is gone on with, and what it left behind is known.
func TestVersion1(t *testing.T) {
	got, err := Read(filepath.Join("testdata", "state-version-1.json"))
	must(t, err)
	if got.Version != Version || got.Verb != Remove || !got.Unfinished() || got.Steps[1].Attempts != 2 {
		t.Errorf("%+v", got)
	}
	wantLeft := []Left{{Host: "late (10.0.0.14)", Address: "10.0.0.14", Node: "late"}, {Host: "10.0.0.15", Address: "10.0.0.15", Node: "other"}}
	if diff := cmp.Diff(wantLeft, got.Left); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&Left{Host: "worker (10.0.0.12)", Address: "10.0.0.12", Node: "worker"}, got.Steps[1].Leaves); diff != "" || !got.Steps[2].Takes || got.Steps[0].Leaves != nil {
		t.Errorf("%s, %+v", diff, got.Steps)
	}
	for command, want := range map[string]Verb{
		"install": Install, "install --only liteboxd": InstallLiteBoxd, "node add": AddNodes, "upgrade": Upgrade, "rollback --to 12": Rollback,
		"rollback liteboxd": RollbackLiteBoxd, "backup restore": Restore, "certs rotate": RotateCertificates, "something else": "",
	} {
		s := State{Run: Run{Command: command}}
		s.fromVersion1()
		if s.Verb != want || (s.RollbackTo == 12) != (want == Rollback) {
			t.Errorf("%s: %q, %d", command, s.Verb, s.RollbackTo)
		}
	}
}
