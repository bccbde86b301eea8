// Package steptest proves, on hosts of package hosttest, what every step of the engine promises.
package steptest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Case is a host, and a step that meets it.
type Case struct {
	// Fresh makes the host as the step meets it, and the step, anew each time that it is called.
	Fresh func(t *testing.T) (*hosttest.Fake, run.Step)
	// Why is a part of the reason why the step is needed, "" when it is not.
	Why string
	// Varies are files that get other contents each time that they are made, such as keys.
	Varies []string
	// Commands is after how many commands the step is broken off at most, 0 for all: a step that waits at its end
	// waits for a host that has gone, too.
	Commands int
}

// Prove goes through what a step promises: it says why it is needed, or that it is not, and changes nothing by looking;
// done, it is not needed any more; and broken off after any of its commands and done again, it comes to the same end.
func Prove(t *testing.T, c Case) {
	t.Helper()
	f, step := c.Fresh(t)
	before := f.Snapshot(t)
	reason, err := step.Needed(t.Context())
	if err != nil || (reason == "") != (c.Why == "") || !strings.Contains(reason, c.Why) {
		t.Fatalf("it is needed because %q, want %q: %v", reason, c.Why, err)
	}
	if diff := gocmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Errorf("looking has changed the host: %s", diff)
	}
	if step.ID == "" || step.Title == "" {
		t.Errorf("the step has the id %q and the title %q", step.ID, step.Title)
	}
	if c.Why == "" {
		return
	}
	do(t, step, "at once")
	end := c.after(t, f)
	const most = 100
	for n := range cmp.Or(c.Commands, most) {
		f, step := c.Fresh(t)
		f.BreakAfter(n)
		err := step.Run(t.Context())
		f.BreakAfter(-1)
		if err == nil { // it has no more commands than that
			if diff := gocmp.Diff(end, c.after(t, f)); diff != "" {
				t.Errorf("it says that it is done when it is broken off after %d commands: %s", n, diff)
			}
			return
		}
		if !errors.Is(err, hosttest.ErrLost) {
			t.Fatalf("broken off after %d commands: %v", n, err)
		}
		if reason, err := step.Needed(t.Context()); err != nil {
			t.Fatalf("looked at after it was broken off after %d commands: %v", n, err)
		} else if reason != "" {
			do(t, step, "again")
		}
		if diff := gocmp.Diff(end, c.after(t, f)); diff != "" {
			t.Errorf("broken off after %d commands and done again, it comes to another end: %s", n, diff)
		}
	}
	if c.Commands == 0 {
		t.Errorf("it has more than %d commands", most)
	}
}

// after is the host as a step leaves it. How often services were started does not count: who was broken off right after
// a start cannot know of it, and starts them again.
func (c *Case) after(t *testing.T, f *hosttest.Fake) string {
	t.Helper()
	text := starts.ReplaceAllString(f.Snapshot(t), "")
	for _, name := range c.Varies {
		line := regexp.MustCompile(`(?m)( ` + regexp.QuoteMeta(name) + `( of the group \S+)?) [0-9a-f]{64}$`)
		text = line.ReplaceAllString(text, "$1")
	}
	return text
}

var starts = regexp.MustCompile(` starts:\d+`)

// do carries a step out, after which it must not be needed.
func do(t *testing.T, step run.Step, how string) {
	t.Helper()
	if err := step.Run(t.Context()); err != nil {
		t.Fatalf("done %s: %v", how, err)
	}
	if reason, err := step.Needed(context.WithoutCancel(t.Context())); reason != "" || err != nil {
		t.Errorf("done %s, it is still needed: %q, %v", how, reason, err)
	}
}

// answers are what a host may say to anything that it is asked, beside those in the test.
var answers = map[string]string{
	"nothing":      "",
	"an end":       "\n\n",
	"half a line":  "active",
	"a number":     "-1 99999999999999999999999 0x7f\n",
	"an object":    `{"version":-1,"ok":"yes","items":[{}]}`,
	"a terminal's": "\x1b]0;title\a\x1b[2J\u009b1A\r\u202e",
	"no text":      "\x00\xff\xfe\xc3\x28",
	"long lines":   strings.Repeat(strings.Repeat("x", 1<<16)+"\n", 8),
	"many lines":   strings.Repeat("a=b c  d/e\n", 1<<16),
}

// Hostile looks at hosts that answer whatever they are asked with something else, all with the same. What the step says
// of them is fit to be shown: without control characters, and not long.
func Hostile(t *testing.T, step func(t *testing.T, h host.Host) run.Step, more ...string) {
	t.Helper()
	all := maps.Clone(answers)
	for _, text := range more {
		all[printable.Short(text, 50)] = text
	}
	for name, text := range all {
		const mostReason, mostError = 2 << 10, 4 << 10
		reason, err := step(t, hosttest.Liar{Output: []byte(text)}).Needed(t.Context())
		if len(reason) > mostReason || printable.Text(reason) != reason {
			t.Errorf("a host that answers %s: it is needed because %d bytes, %.200q", name, len(reason), reason)
		}
		if err != nil && len(err.Error()) > mostError {
			t.Errorf("a host that answers %s: an error of %d bytes: %.200q", name, len(err.Error()), err)
		}
	}
}
