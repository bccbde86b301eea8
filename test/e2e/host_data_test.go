package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/testbed"
)

// apiOnAgent lets LiteBoxd's database be made on the agent.
const apiOnAgent = `apiVersion: apps/v1
kind: Deployment
metadata: {name: liteboxd-api}
spec: {template: {spec: {nodeSelector: {kubernetes.io/hostname: agent}}}}
`

// persistentSandbox has the shape that LiteBoxd gives to one, on the agent, without the labels by which LiteBoxd
// would find that it has not made it.
const persistentSandbox = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: sandbox-data-7f, namespace: liteboxd-sandbox}
spec: {accessModes: [ReadWriteOnce], storageClassName: local-path, resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: sandbox-7f, namespace: liteboxd-sandbox}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: sandbox-7f}}
  template:
    metadata: {labels: {app: sandbox-7f}}
    spec:
      nodeSelector: {kubernetes.io/hostname: agent}
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: ` + netcheckImage + `, args: [serve], volumeMounts: [{name: data, mountPath: /data}]}
      volumes: [{name: data, persistentVolumeClaim: {claimName: sandbox-data-7f}}]
`

// sandboxFile is a file of the persistent sandbox, as the agent has it.
const sandboxFile = "/var/lib/rancher/k3s/storage/*_liteboxd-sandbox_sandbox-data-7f/kept"

// testDataStays makes sure that the agent, which has LiteBoxd's database and a persistent sandbox, is removed by
// neither of the two ways, also when its node was deleted by a run that was killed, and that LiteBoxd then says
// what it said before. Last, it is removed with all that it holds, after a backup.
func testDataStays(t *testing.T, site *testbed.Site, b *box) {
	t.Helper()
	server, agent := site.Hosts[0], site.Hosts[1]
	applyYAML(t, server, persistentSandbox)
	kubectl(t, server, "-n", "liteboxd-sandbox", "rollout", "status", "deployment/sandbox-7f", "--timeout=120s")
	onHost(t, agent, "sh", "-c", "for d in "+filepath.Dir(sandboxFile)+"; do echo kept >$d/kept; done")
	said := func() map[string]string {
		found := map[string]string{"the sandbox's file": onHost(t, agent, "sh", "-c", "cat "+sandboxFile)}
		for _, path := range []string{"templates", "images/prepull"} {
			eventually(t, "LiteBoxd's "+path, 2*time.Minute, func() (bool, string) {
				status, answer, err := b.ask(t.Context(), http.MethodGet, boxHost, "/api/v1/"+path, nil, nil)
				found[path] = string(answer)
				return err == nil && status == http.StatusOK, fmt.Sprintf("status %d, %v: %s", status, err, answer)
			})
		}
		return found
	}
	before := said()
	stays := func(what string, r result) {
		t.Helper()
		if r.code != 3 {
			t.Errorf("%s: want exit code 3: %v", what, r)
		}
		contains(t, what, r.stderr, "hosts are not drained, deleted or uninstalled that hold data which is on no other",
			"LiteBoxd's database (the claim liteboxd-system/liteboxd-api-data), up to ", " in /var/lib/rancher/k3s/storage/",
			"persistent sandbox 7f (the claim liteboxd-sandbox/sandbox-data-7f)", "--give-up-the-data-on")
	}
	remove := func(more ...string) *exec.Cmd {
		args := []string{"node", "remove", "-f", "install.yaml", "--delete-unmanaged-pods", "--hosts", agent.Address.String()}
		return site.Boxlift(t.Context(), passwords, append(args, more...)...)
	}
	both := func() { writeConfig(t, site.Bed, twoHosts+withLiteBoxd, server.Address, agent.Address) }
	without := func() {
		writeConfig(t, site.Bed, `cluster:
  name: e2e
  master: {host: %s, password: "${ROOT_PASSWORD}"}
  absentAgentLogin: {user: admin, password: "${ADMIN_PASSWORD}", sudo: true}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
runtime: {removeAbsentAgents: true}
`+withLiteBoxd, server.Address)
	}
	node := func() string {
		return kubectl(t, server, "get", "node", "agent", "-o", "jsonpath={.metadata.uid} {.spec}")
	}
	spec := node()
	stays("node remove", run(t, remove()))
	stays("node remove in a dry run", run(t, remove("--dry-run")))
	without()
	stays("install without the agent", run(t, install(t.Context(), site)))
	stays("a dry run without the agent", run(t, install(t.Context(), site, "--dry-run")))
	if diff := cmp.Diff(spec, node()); diff != "" {
		t.Errorf("the agent's node was touched: %s", diff)
	}
	both()
	if diff := cmp.Diff(before, said()); diff != "" {
		t.Errorf("after removals that were refused: %s", diff)
	}

	// Boxlift dies when the node is deleted, and k3s not yet uninstalled: an install without the agent, and later node
	// remove comes to its end.
	giveUp := []string{"--give-up-the-data-on", agent.Address.String()}
	var output lockedBuffer
	without()
	c := install(t.Context(), site, giveUp...)
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &output, "cordon the node agent")
	if err := agent.BlockSSH(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &output, "delete the node agent")
	eventually(t, "the node is deleted", time.Minute, func() (bool, string) {
		titles := readState(t, site).titles("converge")
		return slices.Contains(titles, "delete the node agent"), fmt.Sprint(titles, output.String())
	})
	_ = c.Process.Signal(syscall.SIGKILL)
	if _ = c.Wait(); !killed(c) {
		t.Fatalf("it came to its end:\n%s", output.String())
	}
	if err := agent.UnblockSSH(t.Context()); err != nil {
		t.Fatal(err)
	}
	both()
	stays("node remove of a host without a node", run(t, remove()))
	without()
	stays("install without the agent, whose node is gone", run(t, install(t.Context(), site)))
	both()
	mustRun(t, install(t.Context(), site))
	kubectl(t, server, "-n", "liteboxd-sandbox", "rollout", "status", "deployment/sandbox-7f", "--timeout=120s")
	if diff := cmp.Diff(before, said()); diff != "" {
		t.Errorf("after a removal that was killed: %s", diff)
	}

	r := mustRun(t, remove(giveUp...))
	contains(t, "the removal", r.stdout, "persistent sandbox 7f",
		"given up with "+agent.Address.String()+": LiteBoxd's database")
	named := shownBackup.FindStringSubmatch(r.stdout)
	if named == nil {
		t.Fatalf("no backup is named: %v", r)
	}
	content, err := os.ReadFile(filepath.Join(named[1], "backup.json"))
	if err != nil {
		t.Fatal(err)
	}
	var backup struct{ Rows map[string][]string }
	if err := json.Unmarshal(content, &backup); err != nil || len(backup.Rows["templates"]) != 1 {
		t.Errorf("the backup: %v: %s", err, content)
	}
	if info, err := os.Stat(filepath.Join(named[1], "liteboxd.db")); err != nil || info.Size() == 0 {
		t.Errorf("the backup's database: %v", err)
	}
	left := onHost(t, agent, "sh", "-c", "ls -d /var/lib/rancher/k3s /usr/local/bin/k3s 2>/dev/null || :")
	if left = strings.TrimSpace(left); left != "" {
		t.Errorf("the agent still has %s", left)
	}
}
