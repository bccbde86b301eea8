package helm

import (
	"errors"
	"testing"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
)

func TestRollbackTarget(t *testing.T) {
	revision := func(version int, status common.Status, manifest string) *release.Release {
		return &release.Release{Version: version, Manifest: manifest, Info: &release.Info{Status: status}}
	}
	broken := func(version int, status common.Status, manifest string, to int) *release.Release {
		r := revision(version, status, manifest)
		r.Info.RollbackRevision = to
		return r
	}
	const deployed, superseded, failed, pending = common.StatusDeployed, common.StatusSuperseded, common.StatusFailed, common.StatusPendingUpgrade
	for name, c := range map[string]struct {
		revisions []*release.Release
		revision  int
		want      int // 0: none
	}{
		"not installed":             {nil, 0, 0},
		"only one":                  {[]*release.Release{revision(1, deployed, "a")}, 0, 0},
		"the one before":            {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), revision(3, deployed, "c")}, 0, 2},
		"one has failed":            {[]*release.Release{revision(1, superseded, "a"), revision(2, failed, "b"), revision(3, deployed, "c")}, 0, 1},
		"rolled back already":       {[]*release.Release{revision(1, superseded, "z"), revision(2, superseded, "a"), revision(3, failed, "b"), revision(4, deployed, "a")}, 0, 1},
		"nothing else":              {[]*release.Release{revision(2, superseded, "a"), revision(3, failed, "b"), revision(4, deployed, "a")}, 0, 0},
		"the current has failed":    {[]*release.Release{revision(1, superseded, "z"), revision(2, deployed, "a"), revision(3, failed, "a")}, 0, 2},
		"broken off":                {[]*release.Release{revision(2, deployed, "a"), revision(3, pending, "b")}, 0, 2},
		"a rollback broken off":     {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b"), broken(3, common.StatusPendingRollback, "a", 1)}, 0, 1},
		"a rollback failed":         {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), broken(3, failed, "a", 1)}, 0, 1},
		"after a rollback":          {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), broken(3, deployed, "a", 1)}, 0, 2},
		"its target is no more":     {[]*release.Release{revision(2, superseded, "b"), broken(3, failed, "a", 1)}, 0, 2},
		"never rolled out":          {[]*release.Release{revision(1, failed, "a"), revision(2, failed, "b")}, 0, 0},
		"a named one":               {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), revision(3, deployed, "c")}, 1, 1},
		"the current":               {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b")}, 2, 2},
		"a named one that is not":   {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b")}, 7, 0},
		"a named one that failed":   {[]*release.Release{revision(1, failed, "a"), revision(2, deployed, "b")}, 1, 0},
		"less than the first there": {[]*release.Release{revision(4, superseded, "a"), revision(5, deployed, "b")}, -1, 0},
	} {
		got, err := rollbackTarget(c.revisions, c.revision)
		switch {
		case c.want == 0 && !errors.Is(err, ErrNoRevision):
			t.Errorf("%s: %v, %v; want none", name, got, err)
		case c.want != 0 && (err != nil || got.Version != c.want):
			t.Errorf("%s: %v, %v; want %d", name, got, err, c.want)
		}
	}
}

// However often a run is broken off, ten revisions stay that can be gone back to.
func TestHistoryLimit(t *testing.T) {
	for _, c := range []struct{ good, failed, want int }{{1, 0, 10}, {10, 0, 10}, {3, 9, 19}, {10, 20, 30}, {10, 50, 30}} {
		var revisions []*release.Release
		for n := range c.good + c.failed {
			status := common.StatusSuperseded
			if n >= c.good {
				status = common.StatusFailed
			}
			revisions = append(revisions, &release.Release{Version: n + 1, Info: &release.Info{Status: status}})
		}
		if got := historyLimit(revisions); got != c.want {
			t.Errorf("%d good and %d failed revisions: %d stay, want %d", c.good, c.failed, got, c.want)
		}
	}
}
