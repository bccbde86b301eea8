package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	Gates []struct{ Gate, Outcome, Subject, Reason, Way string }
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
