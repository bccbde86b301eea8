package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// privilegedSandbox has the shape that LiteBoxd gives to a persistent sandbox, as far as Pod Security looks at it: a
// privileged helper that shares the processes of the sandbox.
const privilegedSandbox = `apiVersion: apps/v1
kind: Deployment
metadata: {name: sandbox-9c, namespace: liteboxd-sandbox}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: sandbox-9c}}
  template:
    metadata: {labels: {app: sandbox-9c}}
    spec:
      shareProcessNamespace: true
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: ` + netcheckImage + `, args: [serve]}
        - {name: rootfs-helper, image: ` + netcheckImage + `, args: [serve, ":8081"], securityContext: {privileged: true}}
`

// hardenedHosts is twoHosts, hardened.
var hardenedHosts = strings.Replace(twoHosts, "cluster:\n", "cluster:\n  hardening: cis\n", 1)

// testHardening makes a cluster that runs a hardened one. What only a cluster shows: that the API server and kubelets
// start with all of it, that what is configured is in force, and that sandboxes go on and new ones start.
func testHardening(t *testing.T, site *testbed.Site, b *box) {
	t.Helper()
	server, agent := site.Hosts[0], site.Hosts[1]
	before := sandboxPods(t, server)
	if code, failed := hardeningOf(t, site); code != 7 || !strings.Contains(failed, "1.2.17") || !strings.Contains(failed, "5.2.1") {
		t.Errorf("health --hardening before: exit code %d, failed: %s", code, failed)
	}
	writeConfig(t, site.Bed, hardenedHosts+withLiteBoxd, server.Address, agent.Address)
	mustRun(t, install(t.Context(), site))
	again := mustRun(t, install(t.Context(), site))
	contains(t, "the install after that", again.stdout, "nothing to do")
	eventually(t, "all items of hardening", time.Minute, func() (bool, string) {
		code, failed := hardeningOf(t, site)
		return code == 0, failed
	})
	for uid, state := range before {
		if now := sandboxPods(t, server)[uid]; now != state {
			t.Errorf("a sandbox was %q, and is %q", state, now)
		}
	}
	if s := b.newSandbox(); s.Status != "running" {
		t.Errorf("a new sandbox is %s", s.Status)
	} else {
		defer b.call("DELETE", "sandboxes/"+s.ID, nil, nil)
	}
	applyYAML(t, server, privilegedSandbox)
	kubectl(t, server, "-n", "liteboxd-sandbox", "rollout", "status", "deployment/sandbox-9c", "--timeout=120s")
	kubectl(t, server, "-n", "liteboxd-sandbox", "delete", "deployment/sandbox-9c")
	out, err := tryKubectl(t, server, "run", "refused", "--image="+netcheckImage, "--privileged")
	if err == nil || !strings.Contains(err.Error()+out, "violates PodSecurity") {
		t.Errorf("a privileged pod in a namespace without a label: %v\n%s", err, out)
	}
	for _, h := range []*lab.Host{server, agent} {
		if got := onHost(t, h, "cat", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic"); got != "1\n10\n" {
			t.Errorf("%s: the kernel's values are %q", h.Name, got)
		}
	}
	log := onHost(t, server, "sh", "-c", "stat -c '%a' /var/lib/rancher/k3s/server/logs; cat /var/lib/rancher/k3s/server/logs/audit.log")
	contains(t, "the audit log", log, "700\n", `"level":"Metadata"`, `"verb":"create"`, "pods")
	if strings.Contains(log, `"requestObject"`) {
		t.Error("the audit log has what was in requests")
	}
	checkSecretsAtRest(t, server)
	testMended(t, site)
}

// testMended opens a key to all, which is found and closed again.
func testMended(t *testing.T, site *testbed.Site) {
	t.Helper()
	const key = "/var/lib/rancher/k3s/server/tls/server-ca.key"
	onHost(t, site.Hosts[0], "chmod", "0644", key)
	if code, failed := hardeningOf(t, site); code != 7 || !strings.Contains(failed, "1.1.21 "+key) {
		t.Errorf("with a key for all: exit code %d, failed: %s", code, failed)
	}
	mustRun(t, install(t.Context(), site))
	if got := onHost(t, site.Hosts[0], "stat", "-c", "%a", key); got != "600\n" {
		t.Errorf("the key has the mode %s", got)
	}
}

// hardeningOf is what health says of hardening: the exit code, and the items that failed.
func hardeningOf(t *testing.T, site *testbed.Site) (code int, failed string) {
	t.Helper()
	r := run(t, site.Boxlift(t.Context(), passwords, "health", "-f", "install.yaml", "--hardening", "-o", "json"))
	var report struct {
		Items []struct{ Item, Subject, State, What, Found, Remedy string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Items) < 40 {
		t.Fatalf("health --hardening: %d items, %v\n%v", len(report.Items), err, r)
	}
	for _, i := range report.Items {
		if i.State == "failed" {
			failed += i.Item + " " + i.What + ": " + i.Found + "; "
			if i.Remedy == "" {
				t.Errorf("%s %s has no remedy", i.Item, i.What)
			}
		}
	}
	return r.code, failed
}
