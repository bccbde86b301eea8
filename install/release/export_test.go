package release

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/history"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestHistory exports what a cluster has had, and nothing of the site's own.
func TestHistory(t *testing.T) {
	r := New("lan-1")
	failed := serialRun("b", 7)
	failed.Flags, failed.By = []string{"--batch-size=canary"}, "canary@laptop"
	r.Set(begin(t, r, serialRun("a", 5)).Number, Succeeded, "canary", start.Add(time.Minute))
	r.Set(begin(t, r, failed).Number, Failed, "canary said no", start.Add(time.Hour))
	begin(t, r, serialRun("c", 0))
	if _, err := r.KeepTrust(trusttest.First(t), start); err != nil {
		t.Fatal(err)
	}
	h, err := r.History(start.Add(90 * time.Minute).In(time.FixedZone("x", 3600)))
	if err != nil {
		t.Fatal(err)
	}
	content, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), "canary") || strings.Contains(string(content), "laptop") {
		t.Errorf("it has what is the site's own:\n%s", content)
	}
	read, err := history.Parse(content)
	if err != nil || cmp.Diff(h, read) != "" {
		t.Fatalf("%v: %s", err, cmp.Diff(h, read))
	}
	components := []history.Component{{Name: "k3s", Version: "v1.36.4+k3s1"}}
	began := start.UTC().Truncate(time.Second)
	want := &history.History{APIVersion: "boxlift.dev/v1", Kind: "History", Cluster: "lan-1",
		Written: began.Add(90 * time.Minute), Serial: 7, Trust: 1, Releases: []history.Release{
			{Number: 1, State: "succeeded", Bundle: digest.FromString("a"), Serial: 5, Components: components, Started: began, Ended: began.Add(time.Minute)},
			{Number: 2, State: "failed", Bundle: digest.FromString("b"), Serial: 7, Components: components, Started: began, Ended: began.Add(time.Hour)},
			{Number: 3, State: "created", Bundle: digest.FromString("c"), Components: components, Started: began},
		}}
	if diff := cmp.Diff(want, read); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(have.Record{Release: 3, Bundle: digest.FromString("a"), Serial: 7}, r.Reached()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	r.Trust = []byte("none")
	if _, err := r.History(start); !errors.Is(err, ErrInvalid) {
		t.Errorf("with a trust file that is none: %v", err)
	}
	r.TakeBack(0, 3)
	if diff := cmp.Diff(have.Record{Release: 3, Serial: 7}, r.Reached()); diff != "" {
		t.Errorf("when nothing runs: -want +got:\n%s", diff)
	}
}
