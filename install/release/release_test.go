package release

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/journal"
)

var start = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// lockText is the text of a lock that differs by its version.
func lockText(version string) []byte {
	return []byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  k3s:\n    version: " + version +
		"\n    images:\n      - {ref: docker.io/rancher/mirrored-pause:3.6}\n")
}

// run is a run of a bundle and a configuration.
func run(bundle, config, command string) Release {
	verb, rollbackTo := journal.OfCommand(command)
	return Release{
		State: Created, Verb: verb, RollbackTo: rollbackTo, Command: command, Bundle: digest.FromString(bundle), Config: strings.Repeat(config, 64)[:64], Boxlift: "v1.0.0", By: "op@laptop",
		Components: []Component{{"k3s", "v1.36.4+k3s1"}}, Started: start,
	}
}

func begin(t *testing.T, r *Record, one Release) *Release {
	t.Helper()
	got, err := r.Begin(one, lockText("v1.36.4+k3s1"))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// states are the releases of a record in short.
func states(r *Record) string {
	var parts []string
	for _, one := range r.Releases {
		parts = append(parts, fmt.Sprintf("%d:%s:%d", one.Number, one.State, one.Attempts))
	}
	return strings.Join(parts, " ")
}

func TestBegin(t *testing.T) {
	r := New("lan-1")
	if r.Newest() != nil || r.Current() != nil || (*Record)(nil).Newest() != nil || (*Record)(nil).Current() != nil {
		t.Error("a record without releases has one")
	}
	steps := []struct {
		what string
		one  Release
		end  State
		want string
	}{
		{"the first", run("a", "a", "install"), Succeeded, "1:succeeded:1"},
		{"what has succeeded is not gone on with", run("a", "a", "install"), Failed, "1:succeeded:1 2:failed:1"},
		{"what has failed is gone on with", run("a", "a", "install"), Running, "1:succeeded:1 2:running:2"},
		{"what was broken off is gone on with", run("a", "a", "install"), Created, "1:succeeded:1 2:created:3"},
		{"another configuration is another release", run("a", "b", "install"), Running, "1:succeeded:1 2:failed:3 3:running:1"},
		{"another bundle too", run("b", "b", "install"), Running, "1:succeeded:1 2:failed:3 3:failed:1 4:running:1"},
		{"another command too", run("b", "b", "node add"), RolledBack, "1:succeeded:1 2:failed:3 3:failed:1 4:failed:1 5:rolled_back:1"},
		{"what was taken back is not gone on with", run("b", "b", "node add"), Succeeded, "1:succeeded:1 2:failed:3 3:failed:1 4:failed:1 5:rolled_back:1 6:succeeded:1"},
	}
	for _, step := range steps {
		one := begin(t, r, step.one)
		if one.State != Created {
			t.Errorf("%s: it is %s", step.what, one.State)
		}
		r.Set(one.Number, step.end, "", start.Add(time.Hour))
		if got := states(r); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
	if got := r.Find(3); got.Result != "broken off; release 4 followed" || !got.Ended.Equal(start) {
		t.Errorf("what was broken off: %+v", got)
	}
	if got := r.Current().Number; got != 6 {
		t.Errorf("the current release is %d", got)
	}
	r.Set(99, Failed, "", start) // nobody knows it
	if len(r.Locks) != 1 {
		t.Errorf("one lock is kept %d times", len(r.Locks))
	}
}

// The last ten are kept, and the last one that succeeded however long ago that was.
// Whoever mends install.yaml in the middle of an upgrade still has the cluster from before it.
func TestBeginKeepsTheBackup(t *testing.T) {
	for what, test := range map[string]struct {
		end  State
		next Release
		want string
	}{
		"the same again":        {Failed, run("a", "a", "upgrade"), "before.tar"},
		"another configuration": {Failed, run("a", "b", "upgrade"), "before.tar"},
		"another bundle":        {Failed, run("b", "a", "upgrade"), ""},
		"another command":       {Failed, run("a", "b", "rollback --to 1"), ""},
		"after it succeeded":    {Succeeded, run("a", "b", "upgrade"), ""},
	} {
		r := New("lan-1")
		one := begin(t, r, run("a", "a", "upgrade"))
		one.Backup = "before.tar"
		r.Set(one.Number, test.end, "", start)
		if got := begin(t, r, test.next).Backup; got != test.want {
			t.Errorf("%s: the backup is %q, want %q", what, got, test.want)
		}
	}
}

func TestForget(t *testing.T) {
	r := New("lan-1")
	for i := range 3 {
		one, err := r.Begin(run("good", "a", fmt.Sprint(i)), lockText(fmt.Sprintf("v1.%d.0", i)))
		if err != nil {
			t.Fatal(err)
		}
		r.Set(one.Number, Succeeded, "", start)
	}
	for i := range 15 {
		one := begin(t, r, run(fmt.Sprint(i), "a", "install"))
		r.Set(one.Number, Failed, "it does not start", start)
	}
	var numbers []int
	for _, one := range r.Releases {
		numbers = append(numbers, one.Number)
	}
	if diff := cmp.Diff([]int{3, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}, numbers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if l, _, err := r.Lock(r.Current()); err != nil || l.Components[0].Version != "v1.2.0" || len(r.Locks) != 2 {
		t.Errorf("%d locks, the current one: %v, %v", len(r.Locks), l, err)
	}
	r.Set(18, Succeeded, "", start)
	begin(t, r, run("next", "a", "install"))
	if len(r.Releases) != Kept || r.Releases[0].Number != 10 || r.Current().Number != 18 {
		t.Errorf("once another one has succeeded: %s", states(r))
	}
}

func TestDocument(t *testing.T) {
	r := New("lan-1")
	one := begin(t, r, run("a", "a", "install"))
	r.Set(one.Number, Failed, "k3s said:\n\x1b[31mno\x1b[0m "+strings.Repeat("é", maxResult), start.Add(90*time.Second+time.Millisecond))
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	if n := got.Newest(); len(n.Result) > maxResult || strings.Contains(n.Result, "\x1b") || !n.Ended.Equal(start.Add(90*time.Second)) {
		t.Errorf("ended %v, result %q", n.Ended, n.Result[:40])
	}

	path := filepath.Join(t.TempDir(), "record.json")
	if none, err := ReadFile(path); none != nil || err != nil {
		t.Errorf("no file: %v, %v", none, err)
	}
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if got, err = ReadFile(path); err != nil || !cmp.Equal(r, got) {
		t.Errorf("%v: %s", err, cmp.Diff(r, got))
	}
	if err := os.WriteFile(path, document[:len(document)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = ReadFile(path); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged copy: %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	r := New("lan-1")
	begin(t, r, run("a", "a", "install"))
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	good := string(document)
	for _, test := range []struct{ old, new, want string }{
		{good, "", "unexpected end"},
		{good, good + "{}", "after top-level value"},
		{good, strings.Repeat(" ", MaxSize) + good, "more than"},
		{`"format":4`, `"format":7`, "it has format 7, and this boxlift knows the formats 1 to 6"},
		{`"cluster":`, `"colour":"red","cluster":`, "unknown field"},
		{`"cluster":"lan-1"`, `"cluster":"lan\u001b1"`, "not fit for a terminal"},
		{`"number":1`, `"number":0`, "release 0 comes after release 0"},
		{`"state":"created"`, `"state":"well"`, `its state is "well"`},
		{`"bundle":"sha256:`, `"bundle":"sha256:0`, "invalid checksum digest"},
		{`"attempts":1`, `"attempts":0`, "it was begun 0 times"},
		{`"config":"a`, `"config":"z`, "the fingerprint of its configuration"},
		{`"by":"op@laptop"`, `"by":"` + strings.Repeat("o", maxText+1) + `"`, "longer than 512 bytes"},
		{`"locks":{"sha256:`, `"locks":{"md5:`, "unsupported digest algorithm"},
		{`"bundle":`, `"flags":["--canary=1\u001b"],"bundle":`, "not fit for a terminal"},
		{`"bundle":`, `"flags":["a","` + strings.Repeat("b", maxFlags-2) + `"],"bundle":`, "its flags have more than 16384 bytes"},
		{`"components":[`, `"components":[` + strings.Repeat(`{"name":"a","version":"b"},`, maxComponents), "257 components"},
		{`"releases":[`, `"releases":[` + strings.Repeat(`{},`, maxReleases), "it has 21 releases"},
	} {
		text := strings.Replace(good, test.old, test.new, 1)
		if text == good {
			t.Fatalf("%q is not in the document", test.old)
		}
		if _, err := Decode([]byte(text)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.new[:min(len(test.new), 60)], err)
		}
	}
	r.Newest().Config = "none"
	if _, err := r.Encode(); !errors.Is(err, ErrInvalid) {
		t.Errorf("what could not be read is written: %v", err)
	}
}

// Flags are kept as a whole or not at all: some of them would be another run.
func TestFlags(t *testing.T) {
	flags := []string{"--batch-size=1", "--encrypt-backup-to=age1" + strings.Repeat("q", 2000)}
	for _, test := range []struct {
		name        string
		flags, want []string
	}{
		{"none", nil, nil},
		{"a long one", flags, flags},
		{"not fit for a terminal", []string{"--batch-size=1", "--encrypt-backup-to=\x1b"}, nil},
		{"too long", append([]string{"--encrypt-backup-to=" + strings.Repeat("q", maxFlags)}, flags...), nil},
	} {
		r := New("lan-1")
		one := run("a", "a", "upgrade")
		one.Flags = test.flags
		begin(t, r, one)
		document, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(document)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, again.Newest().Flags); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
	}
}

func TestLock(t *testing.T) {
	r := New("lan-1")
	one := begin(t, r, run("a", "a", "install"))
	l, text, err := r.Lock(one)
	if err != nil || !bytes.Equal(text, lockText("v1.36.4+k3s1")) || l.Components[0].Version != "v1.36.4+k3s1" {
		t.Errorf("%v, %q, %v", l, text, err)
	}
	other := New("lan-1")
	if err := other.addLock(digest.FromString("x"), lockText("v2")); err != nil {
		t.Fatal(err)
	}
	for what, packed := range map[string][]byte{
		"another lock": other.Locks[digest.FromString("x")], "no gzip": []byte("plain"), "cut": r.Locks[one.Lock][:20],
	} {
		r.Locks[one.Lock] = packed
		if _, _, err := r.Lock(one); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// What unpacks to more than any lock has.
	if err := r.addLock(one.Lock, make([]byte, lock.MaxSize)); err != nil {
		t.Fatal(err)
	}
	r.Locks[one.Lock] = append(r.Locks[one.Lock], r.Locks[one.Lock]...) // gzip streams follow each other
	if _, _, err := r.Lock(one); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a lock that is too large: %v", err)
	}
	if _, err := r.Begin(run("b", "a", "install"), make([]byte, lock.MaxSize+1)); err == nil {
		t.Error("a lock that is too large is recorded")
	}
}

// When the locks are more than a Secret may hold, the current release's is the last to go.
func TestLocksThatAreTooMuch(t *testing.T) {
	r := New("lan-1")
	noise := func(size int) []byte {
		b := make([]byte, size)
		_, _ = rand.Read(b)
		return b
	}
	add := func(name string, size int, state State) digest.Digest {
		one, err := r.Begin(run(name, "a", name), noise(size))
		if err != nil {
			t.Fatal(err)
		}
		r.Set(one.Number, state, "", start)
		return one.Lock
	}
	current := add("good", 300<<10, Succeeded)
	for i := range 4 {
		add(fmt.Sprint(i), 200<<10, Failed)
	}
	last := r.Newest().Lock
	document, err := r.Encode()
	if err != nil || len(document) > MaxSize {
		t.Fatalf("%d bytes, %v", len(document), err)
	}
	for name, d := range map[string]digest.Digest{"the current": current, "the newest": last} {
		if _, ok := r.Locks[d]; !ok {
			t.Errorf("%s lock is gone", name)
		}
	}
	if len(r.Locks) == 5 {
		t.Error("no lock is gone")
	}
	if _, _, err := r.Lock(&r.Releases[1]); !errors.Is(err, ErrNoLock) {
		t.Errorf("a lock that is gone: %v", err)
	}
	add("huge", 1<<20, Succeeded)
	if document, err = r.Encode(); err != nil || len(document) > MaxSize || len(r.Locks) != 0 {
		t.Errorf("a lock larger than a Secret: %d bytes, %d locks, %v", len(document), len(r.Locks), err)
	}
	if _, err := Decode(document); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	r := New("lan-1")
	if _, err := r.Begin(run("a", "a", "install"), lockText("v1")); err != nil {
		f.Fatal(err)
	}
	document, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	f.Fuzz(func(t *testing.T, document []byte) {
		r, err := Decode(document)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("another error: %v", err)
			}
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		read, err := Decode(again)
		if err != nil || states(r) != states(read) {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		for i := range r.Releases {
			_, _, _ = r.Lock(&r.Releases[i])
		}
		if newest := r.Newest(); newest != nil && r.Find(newest.Number) != newest {
			t.Error("the newest release is not in the record")
		}
	})
}

func TestTakeBack(t *testing.T) {
	r := New("lan-1")
	for n := range 4 {
		r.Releases = append(r.Releases, Release{Number: n + 1, State: Succeeded})
	}
	r.Releases[2].State = Failed
	r.TakeBack(1, 4)
	var states []State
	for _, one := range r.Releases {
		states = append(states, one.State)
	}
	if diff := cmp.Diff([]State{Succeeded, RolledBack, RolledBack, Succeeded}, states); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if r.Current().Number != 4 {
		t.Errorf("the current release is %d", r.Current().Number)
	}
}

// A backup is made when an upgrade has begun; with it, the record of that comes back.
func TestTakeBackUnfinished(t *testing.T) {
	r := New("lan-1")
	r.Set(begin(t, r, run("a", "a", "install")).Number, Succeeded, "", start)
	r.Set(begin(t, r, run("b", "a", "upgrade")).Number, Failed, "", start)
	begin(t, r, run("c", "a", "upgrade"))
	restore := run("a", "a", "backup restore")
	for attempt, want := range []string{
		"1:succeeded:1 2:failed:1 3:rolled_back:1 4:created:1",
		"1:succeeded:1 2:failed:1 3:rolled_back:1 4:created:2", // it was broken off, and goes on
	} {
		r.TakeBackUnfinished(restore)
		begin(t, r, restore)
		if diff := cmp.Diff(want, states(r)); diff != "" {
			t.Errorf("attempt %d: -want +got:\n%s", attempt+1, diff)
		}
	}
}
