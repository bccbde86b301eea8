package run

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What scripts read of a run: lists are lists also where they are empty, and what a dry run cannot mend is a warning.
func TestSummary(t *testing.T) {
	for _, acts := range []bool{false, true} {
		in := example(t, sitetest.ExampleConfig)
		in.engine.acts = acts
		first, worker := in.site.Hosts[0], in.site.Hosts[1]
		in.site.Warn("the clock\x1b[2J is slow")
		in.site.Warn("the clock\x1b[2J is slow") // once is enough
		in.engine.Cluster.Differences = []string{"Cilium is another one"}
		first.Differences = []string{"boxlift-node is not on the host"}
		first.Changes = []site.Change{{Phase: "servers", ID: "start-k3s", Title: "start k3s", Reason: "it does not run"}}
		first.Sent, first.Pulled, first.Copied, first.Images, first.K3s = 1, 2, 3, 4, "v1.36.4+k3s1"
		worker.Fail(errors.New("it is on fire"))
		_ = in.engine.run(t.Context(), []Phase{{Name: "x", Look: func(context.Context) error { return nil }}})
		s := in.engine.Summary()
		if s.ChangeCount() != 1 || s.DryRun == acts || len(s.Phases) != 1 || s.Phases[0].Phase != "x" {
			t.Errorf("acts: %t: %+v", acts, s)
		}
		s.Phases = []PhaseTime{}
		want := `{"cluster":"example","dryRun":true,"changes":[],"hosts":[` +
			`{"host":"first (10.0.0.11)","role":"server","changes":[{"phase":"servers","id":"start-k3s","title":"start k3s",` +
			`"reason":"it does not run"}],"sent":1,"pulled":2,"copied":3,"images":4,"k3s":"v1.36.4+k3s1"},` +
			`{"host":"10.0.0.12","role":"agent","changes":[],"sent":0,"pulled":0,"copied":0,"images":0,` +
			`"error":"10.0.0.12: it is on fire"}],"phases":[],"warnings":["the clock` + "\ufffd" + `[2J is slow"` +
			`,"first (10.0.0.11): boxlift-node is not on the host","Cilium is another one"]}`
		if acts {
			want = strings.Replace(want, `"dryRun":true,`, "", 1)
			want, _, _ = strings.Cut(want, `,"first (10.0.0.11): boxlift-node`)
			want += "]}"
		}
		got, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("acts: %t: %s", acts, diff)
		}
		if len(in.site.Warnings) != 1 {
			t.Errorf("acts: %t: to summarize has added warnings: %q", acts, in.site.Warnings)
		}
	}
	in := fresh(t, 8)
	if got := in.engine.Summary().Bundle; got != in.site.Bundle.Digest().String() {
		t.Errorf("the bundle is %q", got)
	}
}
