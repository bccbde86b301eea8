//go:build linux

package platform

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/upgrade"
)

const recordPath = "/api/v1/namespaces/kube-system/secrets/boxlift-releases"

// history is what the cluster has on record, the newest release first.
func (p *Platform) history(t *testing.T) []release.Release {
	t.Helper()
	o, _ := p.options(t, nil)
	record, err := install.History(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(record.Releases)
	return record.Releases
}

// recordVersion is that of the Secret with the record, which changes with each time that it is written.
func (p *Platform) recordVersion(t *testing.T) string {
	t.Helper()
	secret := p.API.Object(t, recordPath)
	if secret == nil {
		t.Fatal("there is no record")
	}
	return secret.GetResourceVersion()
}

// plan plans an upgrade, and changes nothing.
func (p *Platform) plan(t *testing.T, b *bundle.Reader, accept gate.Accept) *upgrade.Plan {
	t.Helper()
	before := p.exact(t)
	o, _ := p.options(t, b)
	plan, err := install.PlanUpgrade(t.Context(), install.UpgradeOptions{Options: o, Settings: upgrade.Settings{Accept: accept}})
	if plan == nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, p.exact(t)); diff != "" {
		t.Errorf("the plan has changed something: %s", diff)
	}
	return plan
}

// outcome is what the plan says of a gate, and why.
func outcome(plan *upgrade.Plan, of gate.Gate) (outcome gate.Outcome, reason string) {
	for _, f := range plan.Gates {
		if f.Gate == of {
			return f.Outcome, f.Reason
		}
	}
	return "", ""
}

// The cluster knows what was installed on it, and upgrades are planned from that and from what runs.
func TestRecord(t *testing.T) {
	p, b, next := fresh(t), Bundle(t, older), Bundle(t, patched)
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err, p.Told())
	}
	first := p.history(t)
	if len(first) != 1 || first[0].Number != 1 || first[0].State != release.Succeeded || first[0].Verb != journal.Install ||
		first[0].Bundle != b.Digest() || !strings.Contains(first[0].By, "@") {
		t.Errorf("after the first installation: %+v", first)
	}
	kept := filepath.Join(p.Dir, "releases", "lan-1.json")
	info, err := os.Stat(kept)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy beside the state: %v, %v", info, err)
	}

	// What changes nothing writes nothing.
	before := p.recordVersion(t)
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err)
	}
	if after := p.recordVersion(t); after != before {
		t.Errorf("a run without changes wrote the record: %s, then %s", before, after)
	}

	// The run before has died at its very end: the next one finds that all is done.
	content, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	died := strings.Replace(string(content), `"state":"succeeded"`, `"state":"running"`, 1)
	var secret corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(p.API.Object(t, recordPath).Object, &secret); err != nil {
		t.Fatal(err)
	}
	secret.Data["record.json"] = []byte(died)
	p.API.Put(t, &secret)
	if h := p.history(t); h[0].State != release.Running {
		t.Errorf("after a run that died: %+v", h)
	}
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err)
	}
	if h := p.history(t); len(h) != 1 || h[0].State != release.Succeeded || h[0].Attempts != 2 || h[0].Result != "0 changes" {
		t.Errorf("after the run that followed: %+v", h)
	}

	plan := p.plan(t, next, gate.Accept{})
	for _, f := range plan.Gates {
		if f.Outcome != gate.Passed {
			t.Errorf("gate %s is %s: %s", f.Gate, f.Outcome, f.Reason)
		}
	}
	var order []string
	for _, s := range plan.Order {
		order = append(order, s.What+": "+strings.Join(s.Hosts, ", "))
	}
	want := []string{
		"back up the cluster, and prove the backup: ",
		"ship and import the bundle's contents, while the old versions serve: server-1 (10.0.0.11), agent-1 (10.0.0.12)",
		"start k3s " + patched + " in place, pods go on: server-1 (10.0.0.11)",
		"start k3s " + patched + " in place, pods go on: agent-1 (10.0.0.12)",
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("the order: %s", diff)
	}
	for _, h := range plan.Hosts {
		if h.K3s != older || h.Held == 0 || h.Ship == 0 {
			t.Errorf("%+v", h)
		}
	}
	far := p.plan(t, Bundle(t, "v1.38.1+k3s1"), gate.Accept{})
	if got, why := outcome(far, gate.KubernetesMinor); got != gate.Refused || len(far.Path) != 2 || far.Path[1].K3s != "v1.38.1+k3s1" {
		t.Errorf("too far is %s (%s), by %+v", got, why, far.Path)
	}

	// Hosts join with the cluster's own bundle only.
	o, _ := p.options(t, next)
	o.Only = []string{"agent-1"}
	_, err = install.Install(t.Context(), o)
	if want := fmt.Sprintf("the cluster runs release 1 of bundle %.19s", b.Digest()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("node add with another bundle: %v, want %q", err, want)
	}

	// What others have changed is in the way, unless it is accepted by name.
	const config = "debug: true\n"
	changed := host.PutOptions{Path: "/etc/rancher/k3s/config.yaml", Mode: 0o600,
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(config))), Size: int64(len(config))}
	if _, err := p.Hosts[1].Fake.Put(t.Context(), changed, strings.NewReader(config)); err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[gate.Outcome]bool{gate.Refused: false, gate.Accepted: true} {
		if got, why := outcome(p.plan(t, next, gate.Accept{Drift: want}), gate.Drift); got != accept {
			t.Errorf("drift that is accepted: %v: the gate is %s: %s", want, got, why)
		}
	}
	// The operator's folder is lost: the cluster knows, and the run that mends it is on record.
	if err := os.RemoveAll(p.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err, p.Told())
	}
	if h := p.history(t); len(h) != 2 || h[0].Number != 2 || h[0].State != release.Succeeded {
		t.Errorf("after the folder was lost: %+v", h)
	}
	p.nothingDiffers(t, b)
}
