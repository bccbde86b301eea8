package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// ghosts are nodes that nobody runs, with versions that this cluster never had: a server whose
// etcd is too old for etcd 3.6, and an agent whose kubelet is too old for the API server.
const ghosts = `apiVersion: v1
kind: Node
metadata:
  name: ghost-server
  labels: {node-role.kubernetes.io/control-plane: "true", node-role.kubernetes.io/etcd: "true"}
spec: {unschedulable: true}
---
apiVersion: v1
kind: Node
metadata: {name: ghost-agent}
spec: {unschedulable: true}
`

// testGates makes every gate of an upgrade refuse on a cluster of one host, and makes sure that
// nothing was touched by then. Afterwards the cluster is of no use: LiteBoxd's volume is on its
// way out.
func testGates(t *testing.T, site *testbed.Site, env []string) {
	t.Helper()
	server := site.Hosts[0]
	refused := func(bundle string, more ...string) map[string]string {
		gates := make(map[string]string)
		for _, g := range planUpgradeWith(t, site, env, bundle, 3, more...).Gates {
			if g.Outcome == "refused" {
				gates[g.Gate] += g.Subject + ": " + g.Reason + "; "
			}
			if g.Outcome == "refused" && g.Way == "" {
				t.Errorf("gate %s refuses and does not say how to go on: %s", g.Gate, g.Reason)
			}
		}
		return gates
	}
	check := func(what string, got, want map[string]string) {
		if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
			t.Errorf("%s: gates that refuse: %s\n%v", what, diff, got)
		}
		for gate, reason := range want {
			contains(t, what+": gate "+gate, got[gate], reason)
		}
	}
	far := bundleEdited(t, "  k3s:\n    version: "+release.K3s+"\n", "  k3s:\n    version: v1.38.1+k3s1\n    requiresDrain: true\n")
	older := bundleEdited(t, "version: "+release.K3s, "version: v1.36.3+k3s1", "version: "+release.Cilium, "version: 1.18.9",
		"  liteboxd:\n    version: "+release.LiteBoxd+"\n", "  liteboxd:\n    version: v0.6.99\n    upgradesFrom: [\">=0.6.11 <0.7.0\"]\n")
	foreign := bundleOf(t, upstream.LockOptions{Platforms: []string{"linux/arm64"}})

	onHost(t, server, "sh", "-c", "mount --bind /opt /opt && mount -o remount,bind,noexec /opt; echo 'debug: true' >>/etc/rancher/k3s/config.yaml")
	files, record := hostFiles(t, site.Hosts), recordVersion(t, server)
	applyYAML(t, server, ghosts)
	for name, version := range map[string]string{"ghost-server": "v1.33.3+k3s1", "ghost-agent": "v1.32.1+k3s1"} {
		kubectl(t, server, "patch", "node", name, "--subresource", "status", "-p", `{"status": {"nodeInfo": {"kubeletVersion": "`+version+`"}}}`)
	}
	want := map[string]string{
		"hosts": "ghost-agent: the node is in the cluster and not in install.yaml", "nodes": "ghost-agent: the node is not Ready",
		"drift": "its program, unit or config changed since it was started", "preflight": "/opt is mounted noexec", "kubernetes-minor": "from Kubernetes 1.36 to 1.38",
		"kubelet-skew": "its kubelet is v1.32.1+k3s1", "etcd": "ghost-server: its k3s v1.33.3+k3s1 brings an etcd before 3.5.26",
		"drain": "the lock asks that nodes are drained", "cilium-kubernetes": "the bundle has 1.38",
	}
	check("too far", refused(far), want)
	r := run(t, site.Boxlift(t.Context(), env, "upgrade", "--bundle", far, "--key", "boxlift.pub"))
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	kubectl(t, server, "delete", "node", "ghost-server", "ghost-agent")
	check("older", refused(older, "--accept-drift"), map[string]string{
		"preflight": "/opt", "downgrade": "k3s " + release.K3s + " runs", "upgrades-from": ">=0.6.11 <0.7.0",
		"cilium-minor": "from Cilium 1.20 to 1.18", "cilium-kubernetes": "the bundle has 1.36",
	})
	onHost(t, server, "umount", "/opt")

	// What is only for another platform has no LiteBoxd either.
	config, err := os.ReadFile(filepath.Join(site.Bed.Dir, "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	plain, _, _ := strings.Cut(string(config), "liteboxd:")
	strict := strings.Replace(string(config), testbed.CgroupV1, "", 1)
	for name, content := range map[string]string{"plain.yaml": plain, "strict.yaml": strict} {
		if err := os.WriteFile(filepath.Join(site.Bed.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("another platform", refused(foreign, "-f", "plain.yaml", "--accept-drift", "--accept-untested-cilium"), map[string]string{
		"platforms": "the host is linux/amd64, and the bundle is for linux/arm64",
	})
	if diff := cmp.Diff(files, hostFiles(t, site.Hosts)); diff != "" {
		t.Errorf("hosts were changed:\n%s", diff)
	}
	if diff := cmp.Diff(record, recordVersion(t, server)); diff != "" {
		t.Errorf("the record was changed: %s", diff)
	}
	if backups, err := os.ReadDir(filepath.Join(site.Bed.Dir, "backups")); err == nil {
		t.Errorf("an upgrade that was refused made backups: %v", backups)
	}

	// A bundle without a serial is older than one with. The record is as if there had been one.
	serial := map[string]string{"kubernetes-minor": "from Kubernetes 1.36 to 1.38"}
	drain := []string{"--accept-drift", "--accept-untested-cilium", "--drain-nodes-and-end-their-sandboxes"}
	accept := append(slices.Clone(drain), "--interrupt-what-has-its-data-on", server.Address.String())
	document := kubectl(t, server, "-n", "kube-system", "get", "secret", "boxlift-releases",
		"-o", `go-template={{index .data "record.json" | base64decode}}`)
	document = strings.Replace(document, `{"format":5,`, `{"format":5,"serial":9,`, 1)
	kubectl(t, server, "-n", "kube-system", "patch", "secret", "boxlift-releases", "-p",
		fmt.Sprintf(`{"data":{"record.json":%q}}`, base64.StdEncoding.EncodeToString([]byte(document))))
	check("an older bundle that is accepted", refused(far, append(accept, "--accept-older-bundle")...), serial)
	if onHost(t, server, "sh", "-c", "test -e /sys/fs/cgroup/cgroup.controllers || echo v1") != "" {
		v1 := maps.Clone(serial)
		v1["cgroup"], v1["preflight"] = "the host has cgroup v1", "cgroup v2 for k3s v1.38.1+k3s1"
		check("cgroup v1, and settings that do not allow it",
			refused(far, append(accept, "--accept-older-bundle", "-f", "strict.yaml")...), v1)
	}
	serial["serial"] = "the bundle has no serial, and the cluster has had one with the serial 9"
	check("an older bundle", refused(far, accept...), serial)
	r = run(t, site.Boxlift(t.Context(), env, "install", "--bundle", older, "--key", "boxlift.pub"))
	if r.code != 3 {
		t.Errorf("an older bundle is installed: %v", r)
	}
	contains(t, "install of an older bundle", r.stderr, serial["serial"])
	r = run(t, site.Boxlift(t.Context(), env, "upgrade", "--bundle", older, "--key", "boxlift.pub", "--accept-drift"))
	if r.code != 3 {
		t.Errorf("an upgrade to an older bundle: %v", r)
	}
	contains(t, "upgrade to an older bundle", r.stderr, serial["serial"])
	joining := strings.Replace(string(config), "cluster:\n", "cluster:\n  agents: [{host: 10.77.0.250, password: p}]\n", 1)
	if err := os.WriteFile(filepath.Join(site.Bed.Dir, "joining.yaml"), []byte(joining), 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, site.Boxlift(t.Context(), env, "node", "add", "--hosts", "10.77.0.250", "--bundle", older, "--key", "boxlift.pub",
		"-f", "joining.yaml"))
	if r.code == 0 { // the host is not there besides
		t.Errorf("node add with an older bundle: %v", r)
	}
	contains(t, "node add with an older bundle", r.stderr, serial["serial"])

	kubectl(t, server, "-n", "kube-system", "delete", "secret", "boxlift-releases")
	kubectl(t, server, "-n", "plant-box", "delete", "pvc", "liteboxd-api-data", "--wait=false")
	last := map[string]string{
		"record": "no record", "kubernetes-minor": "from Kubernetes 1.36 to 1.38", "volume": "was deleted by somebody",
		"data": "server: the node would be drained, and holds data that is on no other: " +
			"LiteBoxd's database (the claim plant-box/liteboxd-api-data)",
	}
	check("without a record", refused(far, drain...), last)
	delete(last, "data")
	check("what may be down", refused(far, accept...), last)
}
