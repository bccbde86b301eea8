package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/trusttest"
)

func TestPrintHistory(t *testing.T) {
	start := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	r := release.New("lan-1")
	one := release.Release{
		Number: 3, State: release.Succeeded, Command: "install", Bundle: digest.FromString("a"), By: "op@laptop", Started: start, Ended: start.Add(73 * time.Second),
		Components: []release.Component{{Name: "k3s", Version: "v1.34.4+k3s1"}, {Name: "cilium", Version: "1.18.12"}}, Result: "23 changes",
	}
	two := one
	two.Number, two.State, two.Command, two.Ended = 4, release.Failed, "install --only liteboxd", start.Add(time.Hour)
	two.Result = "1 of 3 hosts failed: " + strings.Repeat("é", 100) + "\nmore"
	three := one
	three.Number, three.State, three.Ended, three.Result = 5, release.Created, time.Time{}, ""
	one.Signers = []approval.Signer{{Name: "Ann", Key: "a"}, {Name: "Dia", Key: trusttest.ID(t, "dia")}}
	two.Signers = []approval.Signer{{Key: "0123456789="}}
	r.Releases = []release.Release{one, two, three}
	show := func(r *release.Record, format string) string {
		var out bytes.Buffer
		if err := printHistory(&out, "lan-1", r, format); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	want := `RELEASE  STATE        STARTED               TOOK   BY         COMMAND                  BUNDLE               SIGNED BY     VERSIONS                          RESULT
5        created      2026-11-20T10:00:00Z  -      op@laptop  install                  sha256:ca978112ca1b  -             k3s v1.34.4+k3s1, cilium 1.18.12  -
4        failed       2026-11-20T10:00:00Z  1h00m  op@laptop  install --only liteboxd  sha256:ca978112ca1b  key 01234567  k3s v1.34.4+k3s1, cilium 1.18.12  1 of 3 hosts failed: ` + strings.Repeat("é", 59) + `…
3        succeeded *  2026-11-20T10:00:00Z  1m13s  op@laptop  install                  sha256:ca978112ca1b  Ann, Dia      k3s v1.34.4+k3s1, cilium 1.18.12  23 changes
`
	if diff := cmp.Diff(want, show(r, "table")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var read historyListing
	if err := json.Unmarshal([]byte(show(r, "json")), &read); err != nil || len(read.Releases) != 3 || !read.Releases[2].Current || read.Releases[1].Current || read.Releases[1].Result != two.Result {
		t.Errorf("%v: %+v", err, read)
	}
	r.Note(release.Event{Command: "node remove", By: "op@laptop", Started: one.Started.Add(time.Hour), Ended: one.Started.Add(time.Hour + time.Minute), Result: "4 changes"})
	r.Note(release.Event{Command: "certs rotate", By: "op@laptop", Started: one.Started.Add(2 * time.Hour), Ended: one.Started.Add(2*time.Hour + time.Second), Failed: true, Result: "no\nmore"})
	want = strings.Replace(want, "5        created", `-        failed       2026-11-20T12:00:00Z  1.0s   op@laptop  certs rotate             -                    -             -                                 no
-        succeeded    2026-11-20T11:00:00Z  1m00s  op@laptop  node remove              -                    -             -                                 4 changes
5        created`, 1)
	if diff := cmp.Diff(want, show(r, "table")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := show(r, "json"); !strings.Contains(got, `"command": "certs rotate"`) {
		t.Error(got)
	}
	r.Serial = 9
	if got := show(r, "table"); got != want+"the highest serial of a bundle that the cluster has had is 9\n" {
		t.Error(got)
	}
	if got := show(r, "json"); !strings.Contains(got, `"serial": 9`) {
		t.Error(got)
	}
	if _, err := r.KeepTrust(trusttest.Next(t, trusttest.First(t), trusttest.Revoke(t, "dia", "gone")), trusttest.Today); err != nil {
		t.Fatal(err)
	}
	if got := show(r, "table"); !strings.Contains(got, "\nthe cluster keeps version 2 of the trust file, sha256:") ||
		!strings.HasSuffix(got, "\nrelease 3: the key "+trusttest.ID(t, "dia")+" of Dia, which signed it, was revoked on 2027-03-01: gone\n") {
		t.Error(got)
	}
	if got := show(r, "json"); !strings.Contains(got, `"trust": 2`) || !strings.Contains(got, `"revoked": [`) {
		t.Error(got)
	}
	if got := show(nil, "table"); got != "cluster lan-1 has no record of releases: boxlift adopt makes one\n" {
		t.Error(got)
	}
	if got := show(nil, "json"); !strings.Contains(got, `"releases": []`) {
		t.Error(got)
	}
}

func TestPrintLock(t *testing.T) {
	const text = "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  k3s:\n    version: v1 # as it was written\n    images:\n      - {ref: docker.io/rancher/mirrored-pause:3.6}\n"
	r := release.New("lan-1")
	if _, err := r.Begin(release.Release{Bundle: digest.FromString("a"), Config: strings.Repeat("0", 64)}, []byte(text)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printLock(&out, r, 1); err != nil || out.String() != text {
		t.Errorf("%v: %q", err, out.String())
	}
	for _, record := range []*release.Record{nil, r} {
		if err := printLock(&out, record, 2); fault.ClassOf(err) != fault.Input || !strings.Contains(err.Error(), "no release 2") {
			t.Errorf("a release that is not there: %v", err)
		}
	}
	clear(r.Locks)
	if err := printLock(&out, r, 1); fault.ClassOf(err) != fault.Input || !strings.Contains(err.Error(), "does not carry the lock") {
		t.Errorf("a lock that is gone: %v", err)
	}
}

func TestPrintUpgradePlan(t *testing.T) {
	p := &upgrade.Plan{
		Cluster: "lan-1", Release: 3, From: digest.FromString("a").String(), To: digest.FromString("b").String(),
		Components: []upgrade.ComponentChange{{Name: "k3s", From: []string{"v1.33.13+k3s1"}, To: "v1.34.4+k3s1"}, {Name: "liteboxd", To: "v0.6.10"}},
		Gates: []gate.Finding{
			{Gate: gate.Record, Outcome: gate.Passed, Reason: "the last release is finished"},
			{Gate: gate.Drift, Outcome: gate.Accepted, Subject: "10.0.0.12", Reason: "one\ntwo", Way: "the upgrade overwrites it"},
		},
		Hosts: []upgrade.Host{
			{Host: "10.0.0.11", Role: config.Server, Node: "s1", K3s: "v1.33.13+k3s1", Ship: 3 << 20, Held: 200 << 20},
			{Host: "10.0.0.12", Role: config.Agent, Error: "no route"},
		},
		Upload:   3 << 20,
		Order:    []upgrade.Step{{What: "ship", Hosts: []string{"10.0.0.11", "10.0.0.12"}}, {What: "upgrade Cilium from 1.18.6 to 1.18.12"}},
		Warnings: []string{"something"},
	}
	show := func() string {
		var out bytes.Buffer
		if err := printUpgradePlan(&out, p, "table"); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const tables = `cluster lan-1: from release 3, bundle sha256:ca978112ca1b to bundle sha256:3e23e8160039

COMPONENT  FROM           TO
k3s        v1.33.13+k3s1  v1.34.4+k3s1
liteboxd   -              v0.6.10

GATE    OUTCOME   WHERE      WHY
record  passed    -          the last release is finished
drift   accepted  10.0.0.12  one; two
                             the upgrade overwrites it

HOST       ROLE    NODE  K3S            TO SHIP  HELD
10.0.0.11  server  s1    v1.33.13+k3s1  3.0 MiB  200.0 MiB
10.0.0.12  agent   -     -              -        -

3.0 MiB would leave this machine; hosts hand on to each other what several of them lack

`
	for _, test := range []struct {
		name   string
		change func()
		want   string
	}{
		{"the order", func() {}, "an upgrade would, in this order:\n  1. ship on 10.0.0.11, 10.0.0.12\n  2. upgrade Cilium from 1.18.6 to 1.18.12\n"},
		{"nothing to do", func() { p.Order = nil }, "nothing would change: the cluster runs these versions and holds all of the bundle\n"},
		{"too far", func() {
			p.Path = []gate.Step{{K3s: "1.34", Cilium: "1.18"}, {Bundle: "far.tar", K3s: "v1.35.1+k3s1", Cilium: "1.19.0"}}
		}, "the way there, one upgrade after the other:\n  1. k3s 1.34, Cilium 1.18\n  2. far.tar: k3s v1.35.1+k3s1, Cilium 1.19.0\n"},
	} {
		test.change()
		if diff := cmp.Diff(tables+test.want+"warning: something\n", show()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
	}
	var out bytes.Buffer
	if err := printUpgradePlan(&out, p, "json"); err != nil {
		t.Fatal(err)
	}
	var read upgrade.Plan
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || !cmp.Equal(*p, read) {
		t.Errorf("%v\n%s", err, cmp.Diff(*p, read))
	}
}

func TestPrintAdoption(t *testing.T) {
	a := &install.Adoption{
		Cluster: "lan-1", New: true, Nodes: map[string]string{"s1": "v1.34.4+k3s1", "a1": "v1.34.4+k3s1"}, Cilium: "1.18.12", LiteBoxd: "v0.6.10",
		Release: release.Release{Number: 1, Bundle: digest.FromString("a")},
	}
	const found = "node a1: k3s v1.34.4+k3s1\nnode s1: k3s v1.34.4+k3s1\nCilium 1.18.12\nLiteBoxd v0.6.10\n"
	for isNew, want := range map[bool]string{
		true:  found + "cluster lan-1 is recorded as release 1, of bundle sha256:ca978112ca1b\n",
		false: found + "nothing to do: cluster lan-1 is on record as release 1, of bundle sha256:ca978112ca1b\n",
	} {
		a.New = isNew
		var out bytes.Buffer
		if err := printAdoption(&out, a, "table"); err != nil || out.String() != want {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
