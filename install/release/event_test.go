package release

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func event(command string, minute int) Event {
	started := time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)
	return Event{Command: command, Boxlift: "v1", By: "op@laptop", Started: started, Ended: started.Add(time.Minute), Result: "1 change"}
}

// TestEvents: the last events are kept, in their order, beside the releases.
func TestEvents(t *testing.T) {
	r := New("lan-1")
	begin(t, r, serialRun("a", 0))
	var want []Event
	for i := range KeptEvents + 5 {
		e := event(fmt.Sprintf("node remove %d", i), i%60)
		r.Note(e)
		want = append(want, e)
	}
	want = want[5:]
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Decode(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read.Events); diff != "" || read.Format != VerbFormat || len(read.Releases) != 1 {
		t.Errorf("format %d, %d releases, events: %s", read.Format, len(read.Releases), diff)
	}
}

// TestEventText: what a host said is made fit for a terminal, and short.
func TestEventText(t *testing.T) {
	r := New("lan-1")
	e := event("node remove", 1)
	e.Result = "\x1b[2J" + strings.Repeat("x", 2*maxResult)
	r.Note(e)
	if got := r.Events[0].Result; len(got) > maxResult || strings.Contains(got, "\x1b") {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
	if _, err := r.Encode(); err != nil {
		t.Error(err)
	}
}

// TestEventForm: an older boxlift does not take a record with events for one of its own, and no nonsense is read.
func TestEventForm(t *testing.T) {
	r := New("lan-1")
	begin(t, r, serialRun("a", 0))
	r.Note(event("certs rotate", 1))
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"format":4`:                       `"format":1`,
		`"command":"certs rotate"`:         `"command":""`,
		`"started":"2026-01-02T03:01:00Z"`: `"started":"2026-01-02T03:05:00Z"`,
		`"result":"1 change"}]`:            `"result":"\u001b[2J"}]`,
		`"events":[`:                       `"events":[` + strings.Repeat(`{"command":"x","boxlift":"","by":"","started":"2026-01-02T03:01:00Z","ended":"2026-01-02T03:01:00Z"},`, maxEvents),
	} {
		broken := strings.Replace(string(document), from, to, 1)
		if _, err := Decode([]byte(broken)); !errors.Is(err, ErrInvalid) || broken == string(document) {
			t.Errorf("%.80s: %v", to, err)
		}
	}
}
