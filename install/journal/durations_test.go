package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// How long a run takes is known from the last one that was like it, and from no other one.
func TestTookBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	run := func(r Run, hosts int, seconds float64, failed error) (before map[string]time.Duration) {
		t.Helper()
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		before = j.State().TookBefore(r, hosts)
		err = j.Begin(r)
		if failed == nil {
			j.Took(hosts, map[string]float64{"ship": seconds})
		}
		if err := errors.Join(err, j.End(failed), j.Close()); err != nil {
			t.Fatal(err)
		}
		return before
	}
	changed := func(bundle, config string) Run {
		r := demo
		r.Bundle, r.Config = bundle, config
		return r
	}
	other, upgrade := demo, changed("sha256:c", "config")
	other.Cluster, upgrade.Verb = "other", Upgrade
	for _, tt := range []struct {
		name    string
		run     Run
		hosts   int
		seconds float64
		failed  error
		want    time.Duration // 0 for not known
	}{
		{"first", demo, 3, 600, nil, 0},
		{"the same", demo, 3, 6, nil, 0},
		{"the same again", demo, 3, 7, nil, 6 * time.Second},
		{"the same with more hosts", demo, 4, 8, nil, 0},
		{"another configuration", changed("sha256:b", "more"), 4, 60, nil, 0},
		{"yet another one, which fails", changed("sha256:b", "still more"), 4, 1, errors.New("no"), time.Minute},
		{"the same after a failure", changed("sha256:b", "still more"), 4, 61, nil, 0},
		{"an upgrade", upgrade, 4, 100, nil, 0},
		{"another cluster", other, 4, 1000, nil, 0},
		{"the first one, after another cluster", demo, 3, 700, nil, 10 * time.Minute},
	} {
		before := run(tt.run, tt.hosts, tt.seconds, tt.failed)
		if got := before["ship"]; got != tt.want || (before == nil) != (tt.want == 0) {
			t.Errorf("%s: %v, want %v", tt.name, before, tt.want)
		}
	}
}

// Of a run that was broken off and gone on with nobody can tell how long it takes.
func TestTookOfResumed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(j.Begin(demo), j.End(errors.New("interrupted")), j.Resume(nil))
	j.Took(3, map[string]float64{"ship": 5})
	if err := errors.Join(err, j.End(nil), j.Close()); err != nil {
		t.Fatal(err)
	}
	if got := j.State().Took; got != nil {
		t.Errorf("noted is %v", got)
	}
}

// What nobody can have measured says nothing, and the state does not grow.
func TestTookIsBounded(t *testing.T) {
	for _, seconds := range []float64{-1, 1e300} {
		s := State{Version: Version, Took: []Took{{Verb: demo.Verb, Cluster: demo.Cluster, Hosts: 3, Kind: FirstRun,
			Phases: map[string]float64{"ship": seconds}}}}
		if got := s.TookBefore(demo, 3); got != nil {
			t.Errorf("%v seconds: %v", seconds, got)
		}
	}
	j := &Journal{kind: FirstRun}
	for i := range 2 * maxTook {
		j.state.Cluster = fmt.Sprint("cluster ", i)
		j.Took(1, nil)
	}
	if diff := cmp.Diff(maxTook, len(j.state.Took)); diff != "" || j.state.Took[maxTook-1].Cluster != "cluster 39" {
		t.Errorf("kept are %v", j.state.Took)
	}
}
