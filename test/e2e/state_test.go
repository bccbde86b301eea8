package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/testbed"
)

// state is what the tests read of state.json.
type state struct {
	Result  string
	Resumed int
	Started time.Time
	Steps   []struct {
		Phase, Host, Title, Result string
		Attempts                   int
		Started, Ended             time.Time
	}
}

func readState(t *testing.T, site *testbed.Site) state {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(site.Bed.Dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		t.Fatalf("state.json: %v\n%s", err, content)
	}
	return s
}

// titles are those of a phase's steps that were done.
func (s state) titles(phase string) []string {
	var titles []string
	for _, step := range s.Steps {
		if step.Phase == phase && step.Result == "done" {
			titles = append(titles, step.Title)
		}
	}
	return titles
}
