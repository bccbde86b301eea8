package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// recorded is what history says of a release.
type recorded struct {
	Backup   string
	Number   int
	State    string
	Command  string
	Bundle   string
	By       string
	Attempts int
	Result   string
	Current  bool
}

// history are the releases, the newest first.
func history(t *testing.T, site *testbed.Site) []recorded {
	t.Helper()
	var h struct{ Releases []recorded }
	r := mustRun(t, site.Boxlift(t.Context(), passwords, "history", "-o", "json"))
	if err := json.Unmarshal([]byte(r.stdout), &h); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return h.Releases
}

// recordVersion is the type of the Secret with the record, and its version, which changes with
// each time that it is written.
func recordVersion(t *testing.T, server *lab.Host) string {
	t.Helper()
	return kubectl(t, server, "-n", "kube-system", "get", "secret", "boxlift-releases", "-o", "jsonpath={.type} {.metadata.resourceVersion}")
}

// upgradePlan is what upgrade plan says.
type upgradePlan struct {
	Release int
	Gates   []struct{ Gate, Outcome, Subject, Reason, Way string }
	Path    []struct{ K3s, Cilium string }
	Hosts   []struct {
		Host, K3s  string
		Ship, Held int64
	}
	Order []struct {
		What  string
		Hosts []string
	}
}

func (p upgradePlan) outcome(gate string) string {
	i := slices.IndexFunc(p.Gates, func(g struct{ Gate, Outcome, Subject, Reason, Way string }) bool { return g.Gate == gate })
	if i < 0 {
		return ""
	}
	return p.Gates[i].Outcome
}

// planUpgrade runs upgrade plan, which has to end with an exit code.
func planUpgrade(t *testing.T, site *testbed.Site, bundle string, code int, more ...string) upgradePlan {
	t.Helper()
	return planUpgradeWith(t, site, passwords, bundle, code, more...)
}

func planUpgradeWith(t *testing.T, site *testbed.Site, env []string, bundle string, code int, more ...string) upgradePlan {
	t.Helper()
	r := run(t, site.Boxlift(t.Context(), env, append([]string{"upgrade", "plan", "--bundle", bundle, "--key", "boxlift.pub", "-o", "json"}, more...)...))
	if r.code != code {
		t.Errorf("want exit code %d: %v", code, r)
	}
	var p upgradePlan
	if err := json.Unmarshal([]byte(r.stdout), &p); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return p
}

// testReleases makes sure that the cluster, which one install has made, knows what was installed
// on it, and that upgrades are planned from what runs. The last run is release 2.
func testReleases(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	ctx := t.Context()
	server, agent := site.Hosts[0], site.Hosts[1]
	r, err := bundle.Open(site.Bed.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	digest := r.Digest().String()
	_ = r.Close()

	first := history(t, site)
	if len(first) != 1 || first[0].Number != 1 || first[0].State != "succeeded" || first[0].Command != "install" || first[0].Bundle != digest || !first[0].Current || !strings.Contains(first[0].By, "@") {
		t.Errorf("after the first install: %+v", first)
	}
	contains(t, "the lock", mustRun(t, site.Boxlift(ctx, passwords, "history", "--lock", "1")).stdout, "kind: Lock", "version: "+release.K3s)
	kept := filepath.Join(site.Bed.Dir, "releases", "e2e.json")
	info, err := os.Stat(kept)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v", info, err)
	}
	content, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	(&canaries{secrets: []string{rootPassword, adminPassword, testbed.KeyPassword}}).search(t, "the record", string(content))

	// What changes nothing writes nothing, and status has nothing to say.
	before := recordVersion(t, server)
	if !strings.HasPrefix(before, "boxlift.dev/releases.v1 ") {
		t.Errorf("the Secret is %s", before)
	}
	contains(t, "the second run", mustRun(t, install(ctx, site)).stdout, "nothing to do")
	if after := recordVersion(t, server); after != before {
		t.Errorf("a run without changes wrote the record: %s, then %s", before, after)
	}
	status := mustRun(t, site.Boxlift(ctx, passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-o", "json"))
	contains(t, "status", status.stdout, `"number": 1`, `"state": "succeeded"`)

	// The run before has died at its very end: the next one finds that all is done.
	killed := strings.Replace(string(content), `"state":"succeeded"`, `"state":"running"`, 1)
	kubectl(t, server, "-n", "kube-system", "patch", "secret", "boxlift-releases", "-p", fmt.Sprintf(`{"data":{"record.json":%q}}`, base64.StdEncoding.EncodeToString([]byte(killed))))
	if h := history(t, site); h[0].State != "running" {
		t.Errorf("after a run was killed: %+v", h)
	}
	mustRun(t, install(ctx, site))
	if h := history(t, site); len(h) != 1 || h[0].State != "succeeded" || h[0].Attempts != 2 || h[0].Result != "0 changes" {
		t.Errorf("after the run that followed: %+v", h)
	}
	before = recordVersion(t, server)

	far := bundleWithK3s(t, "v1.38.1+k3s1")
	testPlan(t, site, next, far, before == recordVersion(t, server))

	// Hosts join with the cluster's own bundle only.
	other := run(t, site.Boxlift(ctx, passwords, "node", "add", "--hosts", agent.Address.String(), "--bundle", next, "--key", "boxlift.pub"))
	if other.code != 3 {
		t.Errorf("want exit code 3: %v", other)
	}
	contains(t, "the error", other.stderr, "the cluster runs release 1 of bundle "+digest[:19], "add hosts with the cluster's own bundle")

	// What others have changed is in the way, unless it is accepted by name.
	onHost(t, agent, "sh", "-c", "echo 'debug: true' >>/etc/rancher/k3s/config.yaml")
	if p := planUpgrade(t, site, next, 3); p.outcome("drift") != "refused" {
		t.Errorf("drift: %+v", p.Gates)
	}
	if p := planUpgrade(t, site, next, 0, "--accept-drift"); p.outcome("drift") != "accepted" {
		t.Errorf("accepted drift: %+v", p.Gates)
	}

	// A run that fails is on record as that, and the one that goes on with it, too.
	dropIn := "/etc/systemd/system/k3s-agent.service.d"
	onHost(t, agent, "sh", "-c", "mkdir "+dropIn+" && printf '[Service]\\nExecStartPre=/bin/false\\nRestartSec=1\\n' >"+dropIn+"/fail.conf")
	if r := run(t, install(ctx, site)); r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	if h := history(t, site); len(h) != 2 || h[0].State != "failed" || h[0].Current || !h[1].Current || !strings.Contains(h[0].Result, "does not start") {
		t.Errorf("after a failure: %+v", h)
	}
	if p := planUpgrade(t, site, next, 3); p.outcome("record") != "refused" || p.Release != 1 {
		t.Errorf("after a failure: %+v", p)
	}
	onHost(t, agent, "rm", "-r", dropIn)
	// The folder with the state is lost: the cluster knows.
	for _, name := range []string{"releases", "state.json"} {
		if err := os.RemoveAll(filepath.Join(site.Bed.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, install(ctx, site))
	if h := history(t, site); len(h) != 2 || h[0].Number != 2 || h[0].State != "succeeded" || h[0].Attempts != 2 || !h[0].Current {
		t.Errorf("after it was gone on with: %+v", h)
	}
}

// testPlan plans upgrades that are allowed and such that are not, which touch nothing.
func testPlan(t *testing.T, site *testbed.Site, next, far string, untouched bool) {
	t.Helper()
	files := hostFiles(t, site.Hosts)
	state, err := os.ReadFile(filepath.Join(site.Bed.Dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	p := planUpgrade(t, site, next, 0)
	for _, g := range p.Gates {
		if g.Outcome != "passed" {
			t.Errorf("gate %s is %s: %s", g.Gate, g.Outcome, g.Reason)
		}
	}
	p = planUpgrade(t, site, next, 0, "--batch-size", "1")
	var order []string
	for _, s := range p.Order {
		order = append(order, s.What+" "+strings.Join(s.Hosts, ","))
	}
	want := []string{"back up the cluster, and prove the backup ", ""}
	for i, h := range site.Hosts {
		want[1] += map[bool]string{true: "ship and import the bundle's contents, while the old versions serve ", false: ","}[i == 0] + h.Address.String()
		want = append(want, "start k3s "+upstream.Patched.K3s+" in place, pods go on "+h.Address.String())
	}
	want = append(want, "upgrade LiteBoxd from "+release.LiteBoxd+" to "+upstream.Patched.LiteBoxd+" ")
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("the order: %s", diff)
	}
	for _, h := range p.Hosts {
		if h.K3s != release.K3s || h.Held == 0 || h.Ship == 0 {
			t.Errorf("%+v", h)
		}
	}
	if p := planUpgrade(t, site, far, 3); p.outcome("kubernetes-minor") != "refused" || len(p.Path) != 2 || p.Path[1].K3s != "v1.38.1+k3s1" {
		t.Errorf("too far: %+v", p)
	}
	shown := run(t, site.Boxlift(t.Context(), passwords, "upgrade", "plan", "--bundle", far, "--via", next, "--key", "boxlift.pub"))
	contains(t, "the plan", shown.stdout, "go by a bundle with Kubernetes 1.37 first", "the way there, one upgrade after the other:")
	contains(t, "the error", shown.stderr, "kubernetes-minor: k3s: from Kubernetes 1.36 to 1.38")

	if diff := cmp.Diff(files, hostFiles(t, site.Hosts)); diff != "" {
		t.Errorf("the plan changed hosts:\n%s", diff)
	}
	if after, err := os.ReadFile(filepath.Join(site.Bed.Dir, "state.json")); err != nil || string(after) != string(state) || !untouched {
		t.Errorf("the plan changed the state or the record: %v", err)
	}
}

// testAdopt loses the record, and makes another one from what runs.
func testAdopt(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	ctx := t.Context()
	kubectl(t, site.Hosts[0], "-n", "kube-system", "delete", "secret", "boxlift-releases")
	status := run(t, site.Boxlift(ctx, passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub"))
	if status.code != 7 {
		t.Errorf("want exit code 7: %v", status)
	}
	contains(t, "status", status.stdout, "the cluster has no record of releases")
	if p := planUpgrade(t, site, next, 3); p.outcome("record") != "refused" {
		t.Errorf("without a record: %+v", p.Gates)
	}
	adopt := func(bundle string) result {
		return run(t, site.Boxlift(ctx, passwords, "adopt", "--bundle", bundle, "--key", "boxlift.pub"))
	}
	r := adopt(next)
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "runs k3s "+release.K3s+", not "+upstream.Patched.K3s, "adopt it with a bundle of the versions that run")
	if r = adopt("bundle.tar"); r.code != 0 {
		t.Errorf("adopt: %v", r)
	}
	contains(t, "adopt", r.stdout, "Cilium "+release.Cilium, "is recorded as release 1")
	if strings.Contains(r.stdout, "did not set up k3s") {
		t.Errorf("adopt takes boxlift's own hosts for somebody else's: %v", r)
	}
	agent := site.Hosts[1]
	marks := []string{"/etc/rancher/k3s/boxlift-token", "/var/lib/boxlift/k3s-service"}
	onHost(t, agent, append([]string{"mv", "-t", "/root"}, marks...)...)
	kept := "boxlift did not set up k3s on " + agent.Address.String() + ": it is adopted, and stays as it is"
	contains(t, "adopt with a k3s of somebody else's", adopt("bundle.tar").stdout, "is recorded as release 1", kept)
	contains(t, "adopt again", adopt("bundle.tar").stdout, "nothing to do", kept)
	for _, mark := range marks {
		onHost(t, agent, "mv", "/root/"+filepath.Base(mark), mark)
	}
	if h := history(t, site); len(h) != 1 || h[0].Command != "adopt" || h[0].State != "succeeded" || !h[0].Current {
		t.Errorf("after it was adopted: %+v", h)
	}
	statusIsWell(t, site, "bundle.tar")
}

// statusIsWell waits until status finds no difference from a bundle. A kubelet that was started
// again calls its pods unready for a moment, up to Kubernetes 1.34.
func statusIsWell(t *testing.T, site *testbed.Site, bundle string) {
	t.Helper()
	eventually(t, "status", 2*time.Minute, func() (bool, string) {
		r := run(t, site.Boxlift(t.Context(), passwords, "status", "--bundle", bundle, "--key", "boxlift.pub"))
		return r.code == 0, r.String()
	})
}

// statusIsWellElsewhere makes sure that what belongs to a configuration is found beside it. The
// bundle's name is a full one.
func statusIsWellElsewhere(t *testing.T, site *testbed.Site, bundle string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(site.Bed.Dir, name) }
	c := site.Boxlift(t.Context(), passwords, "status", "-f", in("install.yaml"), "--bundle", bundle, "--key", in("boxlift.pub"))
	c.Dir = t.TempDir()
	mustRun(t, c)
}
