package helm

import (
	"testing"
	"time"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
)

func TestDiffers(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 5, 0, 0, time.FixedZone("", 3600))
	r := Release{Chart: []byte("chart"), Values: map[string]any{"port": 6444, "a": map[string]any{"b": []string{"x"}}}}
	// As Helm's records have them.
	same := map[string]any{"port": 6444.0, "a": map[string]any{"b": []any{"x"}}}
	revision := func(version int, status common.Status, label string, values map[string]any) *release.Release {
		return &release.Release{
			Version: version, Config: values, Labels: map[string]string{chartLabel: label},
			Chart: &chart.Chart{Metadata: &chart.Metadata{Version: "1.18.6"}},
			Info:  &release.Info{Status: status, LastDeployed: at, Description: "because\nof this"},
		}
	}
	back := revision(3, common.StatusDeployed, r.digest(), nil)
	back.Info.RollbackRevision = 1
	for name, c := range map[string]struct {
		revisions []*release.Release
		version   string
		want      string
	}{
		"none":         {nil, "1.18.6", "not installed"},
		"same":         {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), same)}, "1.18.6", ""},
		"pending":      {[]*release.Release{revision(2, common.StatusPendingUpgrade, r.digest(), same)}, "1.18.6", "revision 2 is pending-upgrade since 2026-11-21 08:05 UTC: it was broken off"},
		"failed":       {[]*release.Release{revision(2, common.StatusFailed, r.digest(), same)}, "1.18.6", "revision 2 failed at 2026-11-21 08:05 UTC: because of this"},
		"uninstalled":  {[]*release.Release{revision(2, common.StatusUninstalled, r.digest(), same)}, "1.18.6", "revision 2 is uninstalled since 2026-11-21 08:05 UTC"},
		"newer":        {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), same)}, "1.18.12", "chart 1.18.6 -> 1.18.12"},
		"contents":     {[]*release.Release{revision(1, common.StatusDeployed, "other", same)}, "1.18.6", "chart 1.18.6 has other contents"},
		"of others":    {[]*release.Release{revision(1, common.StatusDeployed, "", same)}, "1.18.6", "was not installed by boxlift"},
		"values":       {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), map[string]any{"port": 6444.0, "c": 1})}, "1.18.6", "values changed: a, c"},
		"rolled back":  {[]*release.Release{revision(1, common.StatusSuperseded, r.digest(), nil), revision(2, common.StatusFailed, "", nil), back}, "1.18.12", "chart 1.18.6 -> 1.18.12, values changed: a, port (rolled back at 2026-11-21 08:05 UTC; before that: because of this)"},
		"last of many": {[]*release.Release{revision(1, common.StatusFailed, "", nil), revision(2, common.StatusDeployed, r.digest(), same)}, "1.18.6", ""},
	} {
		if got := differs(c.revisions, r, &chart.Chart{Metadata: &chart.Metadata{Version: c.version}}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
