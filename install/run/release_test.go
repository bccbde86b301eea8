package run

import (
	"testing"

	"github.com/liteboxd/boxlift/install/release"
)

func TestLastStanding(t *testing.T) {
	r := release.New("c")
	if LastStanding(nil) != nil || LastStanding(r) != nil {
		t.Error("a record without releases has one that stands")
	}
	r.Releases = []release.Release{{Number: 1, State: release.Succeeded}, {Number: 2, State: release.Failed}, {Number: 3, State: release.RolledBack}}
	if got := LastStanding(r); got.Number != 2 {
		t.Errorf("it is %d", got.Number)
	}
}
