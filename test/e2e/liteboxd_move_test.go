package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// apiOnServer has LiteBoxd's database be made on the server, without keeping it from other nodes.
const apiOnServer = `apiVersion: apps/v1
kind: Deployment
metadata: {name: liteboxd-api}
spec:
  template:
    spec:
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [server]}]}
`

// moving is LiteBoxd on its way between a server and an agent.
type moving struct {
	*testbed.Site
	box   *box
	boxes []boxed
}

// testMove brings LiteBoxd's database to the agent, killed on the way, and back from a backup when the agent is lost
// for good. Whole runs of both are shown on a platform in memory. Only a cluster shows what its own controllers make of
// a claim that is made anew and of the pods of a node that is gone, and that LiteBoxd works with what it gets.
func testMove(t *testing.T, site *testbed.Site, b *box, boxes []boxed) {
	t.Helper()
	server, agent := site.Hosts[0], site.Hosts[1]
	kubectl(t, server, "cordon", "server") // so that one is on the agent
	m := &moving{Site: site, box: b, boxes: append(boxes, b.newSandbox())}
	kubectl(t, server, "uncordon", "server")
	applyYAML(t, server, persistentSandbox)
	kubectl(t, server, "-n", "liteboxd-sandbox", "rollout", "status", "deployment/sandbox-7f", "--timeout=120s")
	b.call(http.MethodPost, "images/prepull", map[string]any{"image": upstream.SandboxRef}, nil)
	eventually(t, "the prepull", time.Minute, func() (bool, string) {
		said := m.said(t)["images/prepull"]
		return strings.Contains(said, "completed"), said
	})
	m.isOn(t, "server")
	before, pods := m.said(t), sandboxPods(t, server)

	planned := mustRun(t, m.move(t, "--to", "agent", "--dry-run"))
	contains(t, "the plan", planned.stdout, "would back up LiteBoxd", "would stop LiteBoxd", "would copy LiteBoxd's database to agent")
	killAt(t, m.move(t, "--to", agent.Address.String()), "give LiteBoxd the volume")
	if wanted := kubectl(t, server, "get", "deployment", "-n", "liteboxd-system", "liteboxd-api", "-o", "jsonpath={.spec.replicas}"); wanted != "0" {
		t.Errorf("it was killed when LiteBoxd was stopped, and is to have %s pods", wanted)
	}
	t.Logf("killed, there is the claim %s", kubectl(t, server, "get", "pvc", "-n", "liteboxd-system", "--ignore-not-found", "-o",
		"jsonpath={.items[*].spec.volumeName} {.items[*].status.phase} {.items[*].metadata.deletionTimestamp}"))
	moved := mustRun(t, m.move(t, "--to", agent.Address.String()))
	contains(t, "liteboxd move", moved.stdout, "boxlift liteboxd move --confirm removes it")
	m.isOn(t, "agent")
	if diff := cmp.Diff(before, m.said(t)); diff != "" {
		t.Errorf("LiteBoxd after the move: %s", diff)
	}
	samePods(t, site, "sandboxes", pods, sandboxPods(t, server))
	for _, s := range m.boxes {
		eventually(t, "a sandbox through the gateway", time.Minute, func() (bool, string) {
			status, text, err := b.ask(t.Context(), http.MethodGet, gatewayHost, s.path(8080), s.header(), nil)
			return err == nil && status == http.StatusOK && strings.Contains(string(text), s.Pod), fmt.Sprintf("status %d, %v: %s", status, err, text)
		})
	}
	if len(databases(t, server)) != 1 || len(databases(t, agent)) != 1 {
		t.Errorf("databases on the server: %q, on the agent: %q", databases(t, server), databases(t, agent))
	}

	node := func() string {
		return kubectl(t, server, "get", "node", "agent", "-o", "jsonpath={.metadata.uid} {.spec}")
	}
	spec := node()
	stays := run(t, m.remove(t))
	contains(t, "node remove", stays.stderr, "hosts are not drained, deleted or uninstalled that hold data which is on no other",
		"LiteBoxd's database (the claim liteboxd-system/liteboxd-api-data)", " in "+databases(t, agent)[0],
		"persistent sandbox 7f", "boxlift liteboxd move", "--give-up-the-data-on")
	if stays.code != 3 || node() != spec {
		t.Errorf("node remove: %s was %s: %v", node(), spec, stays)
	}
	mustRun(t, m.move(t, "--confirm"))
	if left := databases(t, server); len(left) > 0 {
		t.Errorf("on the server is left: %q", left)
	}
	m.loseAgent(t)
}

// loseAgent takes the power from the agent, which has LiteBoxd's database and a persistent sandbox, for good, and
// brings LiteBoxd back on the server.
func (m *moving) loseAgent(t *testing.T) {
	t.Helper()
	server, agent := m.Hosts[0], m.Hosts[1]
	made := mustRun(t, m.Boxlift(t.Context(), passwords, "backup", "create", "-f", "install.yaml", "-o", "json"))
	var report struct{ Path string }
	if err := json.Unmarshal([]byte(made.stdout), &report); err != nil {
		t.Fatalf("%v: %v", err, made)
	}
	// Pods of a node that is gone have five minutes before Kubernetes starts them elsewhere: the ingress is on the server.
	kubectl(t, server, "-n", "kube-system", "patch", "deployment", "traefik", "-p", `{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "server"}}}}}`)
	kubectl(t, server, "-n", "kube-system", "rollout", "status", "deployment/traefik", "--timeout=120s")
	before := m.said(t)
	m.box.call(http.MethodPost, "templates", map[string]any{"name": "later", "spec": map[string]any{"image": netcheckImage}}, nil)
	if err := agent.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitNodes(t, m.Site, "agent=Unknown server=True")
	ran := strings.Join(strings.Fields(kubectl(t, server, "get", "pods", "-n", "liteboxd-sandbox", "-l", "app=liteboxd",
		"--field-selector", "spec.nodeName=agent", "-o", "jsonpath={.items[*].metadata.name}")), ", ")
	lost := run(t, m.move(t, "--to", "server"))
	contains(t, "a move of what is lost", lost.stderr, "it cannot be copied", "boxlift backup restore --only liteboxd brings LiteBoxd back")
	if lost.code != 3 {
		t.Errorf("want exit code 3: %v", lost)
	}

	restored := mustRun(t, m.Boxlift(t.Context(), passwords, "backup", "restore", "--only", "liteboxd", "-f", "install.yaml",
		"--lose-what-changed-since-the-backup-of", "e2e"))
	contains(t, "what is lost", restored.stderr, report.Path, "on the node server", "The node agent, which has the database, is gone",
		"sandboxes that ran on agent: "+ran+"\n", "persistent sandboxes with their volumes on agent: 7f\n")
	contains(t, "the restore", restored.stdout, "what was done since is on agent only", "these persistent sandboxes have their volumes on agent")
	m.isOn(t, "server")
	if diff := cmp.Diff(before, m.said(t)); diff != "" {
		t.Errorf("LiteBoxd after the restore: %s", diff)
	}

	// What the cluster knows of the agent's volumes is not forgotten unasked either.
	if r := run(t, m.move(t, "--confirm")); r.code == 0 {
		t.Errorf("the volume of a host that is off was removed: %v", r)
	}
	mustRun(t, m.move(t, "--confirm", "--forget-unreachable-host"))
	r := run(t, m.remove(t, "--forget-unreachable-host"))
	contains(t, "node remove of the lost host", r.stderr, "persistent sandbox 7f")
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	mustRun(t, m.remove(t, "--forget-unreachable-host", "--give-up-the-data-on", agent.Address.String()))
	if _, there := nodes(t, server)["agent"]; there {
		t.Error("the lost host's node is still there")
	}
	for _, namespace := range []string{"kube-system", "liteboxd-system"} {
		kubectl(t, server, "-n", namespace, "wait", "--for=condition=Available", "deployments", "--all", "--timeout=120s")
	}
}

func (m *moving) move(t *testing.T, more ...string) *exec.Cmd {
	t.Helper()
	return m.Boxlift(t.Context(), passwords, append([]string{"liteboxd", "move", "-f", "install.yaml", "--force-after", "1s"}, more...)...)
}

func (m *moving) remove(t *testing.T, more ...string) *exec.Cmd {
	t.Helper()
	args := []string{"node", "remove", "-f", "install.yaml", "--delete-unmanaged-pods", "--hosts", m.Hosts[1].Address.String()}
	return m.Boxlift(t.Context(), passwords, append(args, more...)...)
}

// said is what LiteBoxd says of what its database has: templates, prepulls, and of each sandbox what it was made from
// and its token, which it can only read with its key.
func (m *moving) said(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	ask := func(path string) (text []byte) {
		eventually(t, "LiteBoxd's "+path, time.Minute, func() (bool, string) {
			status, answer, err := m.box.ask(t.Context(), http.MethodGet, boxHost, "/api/v1/"+path, nil, nil)
			text = answer
			return err == nil && status == http.StatusOK, fmt.Sprintf("status %d, %v: %s", status, err, answer)
		})
		return text
	}
	for _, path := range []string{"templates", "images/prepull"} {
		found[path] = string(ask(path))
	}
	for _, s := range m.boxes {
		var row struct{ Template, Image, AccessToken, CreatedAt, ExpiresAt string }
		if err := json.Unmarshal(ask("sandboxes/"+s.ID), &row); err != nil || row.AccessToken != s.AccessToken {
			t.Errorf("the sandbox %s: %v: %+v, want the token %s", s.ID, err, row, s.AccessToken)
		}
		found[s.ID] = fmt.Sprintf("%+v", row)
	}
	return found
}

// isOn makes sure that all that uses LiteBoxd's database runs on one node.
func (m *moving) isOn(t *testing.T, node string) {
	t.Helper()
	for _, app := range []string{"liteboxd-api", "liteboxd-gateway", "liteboxd-network-controller"} {
		got := strings.Fields(kubectl(t, m.Hosts[0], "get", "pods", "-n", "liteboxd-system", "-l", "app="+app, "-o", "jsonpath={.items[*].spec.nodeName}"))
		if len(got) == 0 || strings.Join(got, "") != strings.Repeat(node, len(got)) {
			t.Errorf("%s is on %q, want %s", app, got, node)
		}
	}
}

// databases are the folders of LiteBoxd's database on a host.
func databases(t *testing.T, h *lab.Host) []string {
	t.Helper()
	return strings.Fields(onHost(t, h, "sh", "-c", "ls -d /var/lib/rancher/k3s/storage/*_liteboxd-api-data 2>/dev/null || :"))
}
