package release

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// serialRun is a run of a bundle that has a serial.
func serialRun(bundle string, serial int64) Release {
	one := run(bundle, "a", "install")
	one.Serial = serial
	return one
}

// TestSerial: the highest serial stays, whatever becomes of the release that had it.
func TestSerial(t *testing.T) {
	r := New("lan-1")
	for i, step := range []struct {
		one       Release
		end       State
		want      int64
		wantState string
	}{
		{serialRun("a", 0), Succeeded, 0, "1:succeeded:1"},
		{serialRun("b", 7), Succeeded, 7, "1:succeeded:1 2:succeeded:1"},
		{serialRun("c", 9), Failed, 9, "1:succeeded:1 2:succeeded:1 3:failed:1"},
		{serialRun("b", 7), Succeeded, 9, "1:succeeded:1 2:succeeded:1 3:failed:1 4:succeeded:1"},
	} {
		one := begin(t, r, step.one)
		r.Set(one.Number, step.end, "", start.Add(time.Hour))
		if r.Serial != step.want || states(r) != step.wantState || r.Newest().Serial != step.one.Serial {
			t.Errorf("step %d: serial %d, %s, %+v", i, r.Serial, states(r), r.Newest())
		}
	}
	r.TakeBack(2, 4)
	for range 3 * Kept {
		r.Set(begin(t, r, serialRun("b", 7)).Number, Succeeded, "", start.Add(time.Hour))
	}
	if r.Find(3) != nil || r.Serial != 9 {
		t.Errorf("with the release, its serial is forgotten: %d, %s", r.Serial, states(r))
	}
	if r.RaiseSerial(8); r.Serial != 9 {
		t.Errorf("the serial got lower: %d", r.Serial)
	}
	if r.RaiseSerial(12); r.Serial != 12 {
		t.Errorf("the serial is %d", r.Serial)
	}
}

func TestIsOlder(t *testing.T) {
	record := func(ends ...State) *Record {
		r := New("lan-1")
		for i, end := range ends {
			one := begin(t, r, serialRun(string(rune('a'+i)), int64(10+i)))
			r.Set(one.Number, end, "", start.Add(time.Hour))
		}
		return r
	}
	without := New("lan-1")
	begin(t, without, run("a", "a", "install"))
	for _, c := range []struct {
		name   string
		record *Record
		bundle string
		serial int64
		want   bool
	}{
		{"no record", nil, "x", 0, false},
		{"an empty record", New("lan-1"), "x", 0, false},
		{"a record without serials", without, "x", 0, false},
		{"a first serial", without, "x", 1, false},
		{"a lower serial", record(Succeeded), "x", 9, true},
		{"the same serial", record(Succeeded), "x", 10, false},
		{"a higher serial", record(Succeeded), "x", 11, false},
		{"none after one", record(Succeeded), "x", 0, true},
		{"what runs", record(Succeeded), "a", 10, false},
		{"the one before", record(Succeeded, Succeeded), "a", 10, true},
		{"the one before one that failed", record(Succeeded, Failed), "a", 10, true},
		{"the one before one that was taken back", record(Succeeded, RolledBack), "a", 10, false},
		{"what was taken back", record(Succeeded, RolledBack), "b", 11, false},
		{"what is under way", record(Succeeded, Running), "b", 5, false},
		{"all were taken back", record(RolledBack), "a", 9, true},
	} {
		if got := c.record.IsOlder(digest.FromString(c.bundle), c.serial); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}

// TestRecordFormats: records of versions before are read, those without verbs with the verbs of their commands. What is
// written has verbs, and says so by its format.
func TestRecordFormats(t *testing.T) {
	read := func(name string) ([]byte, *Record) {
		t.Helper()
		document, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode(document)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return document, r
	}
	if _, r := read("record-format-1.json"); r.Serial != 0 || states(r) != "1:succeeded:1 2:created:1" ||
		r.Releases[0].Verb != journal.Install || r.Releases[1].Verb != journal.Upgrade {
		t.Errorf("serial %d, %s, %+v", r.Serial, states(r), r.Releases)
	}
	want, r := read("record-format-2.json")
	if r.Serial != 7 || r.Newest().Serial != 7 || r.Releases[1].Verb != journal.Upgrade {
		t.Errorf("%+v", r)
	}
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const name = "record-format-4.json"
	if *update {
		if err := os.WriteFile("testdata/"+name, document, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, again := read(name); !bytes.Equal(kept, document) || cmp.Diff(r, again) != "" {
		t.Errorf("%s and what is written differ (-want +got):\n%s", name, cmp.Diff(string(kept), string(document)))
	}
	for _, broken := range []string{
		strings.Replace(string(document), `"verb":"install"`, `"verb":"rollback"`, 1),
		strings.Replace(string(document), `"verb":"install"`, `"verb":"install","rollbackTo":1`, 1),
		strings.Replace(string(document), `"verb":"install"`, `"verb":"\u001b[2J"`, 1),
		strings.Replace(string(document), `"format":4`, `"format":2`, 1),
	} {
		if _, err := Decode([]byte(broken)); broken == string(document) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %.300s", err, broken)
		}
	}
	for _, c := range []struct{ old, new, want string }{
		{`"format":2`, `"format":1`, "its serial is 7, it has 0 adopted nodes and 0 events, and its format is 1"},
		{`"format":2`, `"format":3`, "its serial is 7, it has 0 adopted nodes and 0 events, and its format is 3"},
		{`"cluster":"lan-1","serial":7`, `"cluster":"lan-1"`, "its serial is 0, it has 0 adopted nodes and 0 events, and its format is 2"},
		{`"cluster":"lan-1","serial":7`, `"cluster":"lan-1","serial":-7`, "its serial is -7"},
		{`"cluster":"lan-1","serial":7`, `"cluster":"lan-1","serial":9007199254740992`, "its serial is 9007199254740992"},
		{`"cluster":"lan-1","serial":7`, `"cluster":"lan-1","serial":6`, "release 3: its serial is 7, and the highest 6"},
	} {
		text := strings.Replace(string(want), c.old, c.new, 1)
		_, err := Decode([]byte(text))
		if text == string(want) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
}
