package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/testbed"
)

// A k3s that does not start, and a node that is not Ready, end a run with what they and the cluster say; a node that is
// late is waited for and not forgotten; one that is gone, and a program and a unit that others have changed, are found
// by status and mended by the next run.
func TestNodes(t *testing.T) {
	parallel(t, 5*time.Minute)
	site := newTwoHosts(t)
	parts := []struct {
		name string
		run  func(*testing.T, *testbed.Site)
	}{
		{"k3s does not start", testK3sDoesNotStart},
		{"not ready", testNodeNotReady},
		{"late to be ready", testNodeLate},
		{"late to register", testNodeUnregistered},
		{"changed", testChangedProgram},
	}
	for _, part := range parts {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, site) }) {
			t.FailNow()
		}
	}
	contains(t, "the last run", mustRun(t, install(t.Context(), site)).stdout, "nothing to do")
	checkRunning(t, site)
	checkNothingLeaked(t, site)
}

// writeTimeout writes install.yaml with a time after which waiting ends.
func writeTimeout(t *testing.T, site *testbed.Site, seconds int) {
	t.Helper()
	writeConfig(t, site.Bed, twoHosts+"runtime: {commandTimeoutSeconds: %d}\n", site.Hosts[0].Address, site.Hosts[1].Address, seconds)
}

const bothReady = "agent=True server=True"

// readyNodes is what the API says of the nodes.
func readyNodes(t *testing.T, site *testbed.Site) string {
	t.Helper()
	var texts []string
	for _, name := range []string{"agent", "server"} {
		if ready, there := nodes(t, site.Hosts[0])[name]; there {
			texts = append(texts, name+"="+ready)
		}
	}
	return strings.Join(texts, " ")
}

// hideNetwork takes containerd's network configuration away from the agent, or gives it back.
func hideNetwork(t *testing.T, site *testbed.Site, hide bool) {
	t.Helper()
	command := "umount /etc/cni/net.d"
	if hide {
		command = "mount -t tmpfs hidden /etc/cni/net.d"
	}
	onHost(t, site.Hosts[1], "sh", "-ec", command+" && systemctl restart k3s-agent")
}

func awaitNodes(t *testing.T, site *testbed.Site, want string) {
	t.Helper()
	eventually(t, "the nodes are "+want, 2*time.Minute, func() (bool, string) {
		got := readyNodes(t, site)
		return got == want, got
	})
}

// differencesOf runs status, which has to find something, and returns what it says of a
// host.
func differencesOf(t *testing.T, site *testbed.Site, host int) string {
	t.Helper()
	r := run(t, site.Boxlift(t.Context(), passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-o", "json"))
	if r.code != 7 {
		t.Errorf("status: want exit code 7: %v", r)
	}
	var status struct {
		Hosts []struct{ Differences []string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &status); err != nil || len(status.Hosts) != len(site.Hosts) {
		t.Fatalf("status -o json: %v\n%v", err, r)
	}
	return strings.Join(status.Hosts[host].Differences, "\n")
}

func testNodeNotReady(t *testing.T, site *testbed.Site) {
	hideNetwork(t, site, true)
	awaitNodes(t, site, "agent=False server=True")
	contains(t, "status", differencesOf(t, site, 1), "its node agent is not Ready: KubeletNotReady", "cni plugin not initialized")
	writeTimeout(t, site, 20)
	r := run(t, install(t.Context(), site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "1 of 2 hosts failed", "  "+site.Hosts[1].Address.String()+": its node agent is not Ready: KubeletNotReady",
		"what the cluster says of it:", "cni plugin not initialized", "boxlift: hint: see `journalctl -u k3s-agent`", "k3s kubectl describe node agent")
}

// installMeanwhile runs install, and mends something when it waits.
func installMeanwhile(t *testing.T, site *testbed.Site, waiting string, mend func()) {
	t.Helper()
	writeTimeout(t, site, 240)
	var output lockedBuffer
	c := install(t.Context(), site)
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &output, waiting)
	mend()
	if err := c.Wait(); err != nil {
		t.Fatalf("install: %v\n%s", err, output.String())
	}
	if diff := cmp.Diff(bothReady, readyNodes(t, site)); diff != "" {
		t.Errorf("install has ended, and the nodes are not Ready: %s\n%s", diff, output.String())
	}
}

// installWatched runs install, with something besides.
func installWatched(t *testing.T, site *testbed.Site, besides func()) {
	t.Helper()
	var output lockedBuffer
	c := install(t.Context(), site)
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	besides()
	if err := c.Wait(); err != nil {
		t.Fatalf("install: %v\n%s", err, output.String())
	}
}

func testNodeLate(t *testing.T, site *testbed.Site) {
	installMeanwhile(t, site, "wait for all nodes to be Ready", func() { hideNetwork(t, site, false) })
}

// nobodyJoins makes the API refuse new nodes, as it may for many reasons.
const nobodyJoins = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nobody-joins}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [nodes]}]}
  validations: [{expression: "false", message: nobody joins}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nobody-joins}
spec: {policyName: nobody-joins, validationActions: [Deny]}
`

func testNodeUnregistered(t *testing.T, site *testbed.Site) {
	server := site.Hosts[0]
	applyYAML(t, server, nobodyJoins)
	eventually(t, "nodes are refused", 30*time.Second, func() (bool, string) {
		out, err := server.ExecInput(t.Context(), []byte("{apiVersion: v1, kind: Node, metadata: {name: other}}"), "/usr/local/bin/k3s", "kubectl", "create", "--dry-run=server", "-f", "-")
		return err != nil && strings.Contains(err.Error(), "nobody joins"), fmt.Sprint(string(out), err)
	})
	kubectl(t, server, "delete", "node", "agent")
	contains(t, "status", differencesOf(t, site, 1), "its node is not registered in the cluster")
	// A kubelet without a node tries its CSINode six times, ever more seldom: the fifth time after 23 s, and the last
	// two minutes later. Its node is not Ready before; so that is not waited for.
	writeTimeout(t, site, 8)
	r := run(t, install(t.Context(), site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	// k3s says that it is ready when it has seen its node.
	agent := site.Hosts[1].Address.String()
	contains(t, "the error", r.stderr, agent+": start k3s-agent (its node is not registered in the cluster)",
		"k3s-agent was not ready after 8s", "boxlift: hint: see `journalctl -u k3s-agent`")
	installMeanwhile(t, site, "wait for k3s-agent on "+agent, func() {
		kubectl(t, server, "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "nobody-joins")
	})
}

// The program and the unit of the agent are changed, and its node is deleted.
func testChangedProgram(t *testing.T, site *testbed.Site) {
	const program, unit = "/usr/local/bin/k3s", "/etc/systemd/system/k3s-agent.service"
	agent := site.Hosts[1]
	sums := func() string { return onHost(t, agent, "sha256sum", program, unit) }
	before := sums()
	onHost(t, agent, "sh", "-ec", fmt.Sprintf("cp %[1]s %[1]s.changed && echo changed >>%[1]s.changed && mv %[1]s.changed %[1]s; echo '# changed' >>%[2]s; systemctl daemon-reload", program, unit))
	kubectl(t, site.Hosts[0], "delete", "node", "agent")
	contains(t, "status", differencesOf(t, site, 1), program+" differs", "the unit was changed", "its program, unit or config changed", "its node is not registered in the cluster")
	// The node registers while k3s is still importing its last archive. The run waits for that as long as something is
	// missing that the packs promise (TestImagesStepWaits shows it), and no longer: what this archive has is in a pack,
	// too.
	const images, slow = "var/lib/rancher/k3s/agent/images", "zz-slow.tar"
	pack := strings.Fields(onHost(t, agent, "sh", "-c", "ls -S /"+images+" | grep ^boxlift-"))
	if err := agent.PutSlowArchive(filepath.Join(images, slow), filepath.Join(images, pack[len(pack)-1])); err != nil {
		t.Fatal(err)
	}
	imported := func() bool {
		out := onHost(t, agent, "sh", "-c", "journalctl --no-pager -u k3s-agent | grep -c 'Imported images from /"+images+"/"+slow+"' || :")
		return strings.TrimSpace(out) != "0"
	}
	installWatched(t, site, func() {
		eventually(t, "the node registers", 2*time.Minute, func() (bool, string) {
			got := readyNodes(t, site)
			return strings.Contains(got, "agent="), got
		})
		t.Logf("when the node registers, the slow archive was imported: %v", imported())
	})
	eventually(t, "k3s says that the slow archive was imported", 20*time.Second, func() (bool, string) {
		return imported(), onHost(t, agent, "sh", "-c", "journalctl --no-pager -u k3s-agent | grep -i import | tail -n 30")
	})
	onHost(t, agent, "rm", "/"+images+"/"+slow)
	if diff := cmp.Diff(before, sums()); diff != "" {
		t.Errorf("program and unit are not what they were: %s", diff)
	}
	if diff := cmp.Diff(bothReady, readyNodes(t, site)); diff != "" {
		t.Error(diff)
	}
	// Pods of the node that was deleted are counted until Kubernetes clears them away.
	eventually(t, "status after the repair", time.Minute, func() (bool, string) {
		r := run(t, site.Boxlift(t.Context(), passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub"))
		return r.code == 0, r.String()
	})
}
