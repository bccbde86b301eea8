package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// wipe takes everything of a cluster from a host, as setting it up anew would.
func wipe(t *testing.T, h *lab.Host) {
	t.Helper()
	onHost(t, h, "sh", "-c", `systemctl disable --quiet k3s k3s-agent 2>/dev/null; rm -f /etc/systemd/system/k3s*`)
	// What is mounted and routed goes with the power.
	if err := h.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	onHost(t, h, "sh", "-c", `rm -rf /var/lib/boxlift /var/lib/rancher /etc/rancher /var/lib/kubelet /etc/cni/net.d /usr/local/bin/k3s*`)
}

// identity is what makes a cluster this one: of its objects, what nobody can choose, the key that it signs with, and of
// LiteBoxd the key and the templates.
func identity(t *testing.T, server *lab.Host, b *box) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for what, args := range map[string][]string{
		"nodes":      {"nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`},
		"namespaces": {"namespaces", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`},
		"kept":       {"configmap", "kept", "-o", "jsonpath={.metadata.uid} {.data.text}"},
		"key":        {"secret", "-n", "liteboxd-system", "-o", `jsonpath={range .items[*]}{.metadata.name} {.data.SANDBOX_TOKEN_ENCRYPTION_KEY}{"\n"}{end}`},
		"site key":   {"secret", "-n", "kube-system", "boxlift-site-key", "-o", `jsonpath={.metadata.uid} {.data.site\.key}`},
		"volume":     {"pv", "-o", "jsonpath={.items[*].metadata.name}"},
	} {
		found[what] = kubectl(t, server, append([]string{"get"}, args...)...)
	}
	const tokens = "/etc/rancher/k3s/boxlift-"
	found["tokens"] = onHost(t, server, "sha256sum", tokens+"token", tokens+"agent-token")
	var templates json.RawMessage
	b.call(http.MethodGet, "templates", nil, &templates)
	found["templates"] = string(templates)
	return found
}

// A cluster is backed up while it runs, replaced by its backup, lost with all its hosts and
// the operator's state, and brought back from the backup and encrypted volumes of the bundle. Then the
// host that has LiteBoxd's database is to be removed.
func TestBackup(t *testing.T) {
	parallel(t, 6*time.Minute)
	site := newTwoHosts(t)
	server := site.Hosts[0]
	writeConfig(t, site.Bed, twoHosts+withLiteBoxd, server.Address, site.Hosts[1].Address)
	writeSite(t, site, "values.env", "")
	writeSite(t, site, "system/patches/api.yaml", apiOnAgent)
	shown := shownLogin.FindStringSubmatch(mustRun(t, install(t.Context(), site)).stdout)
	if shown == nil {
		t.Fatal("the first login was not shown")
	}
	b := newBox(t, site, server)
	b.login(shown[1], shown[2])
	b.newTemplate()
	kubectl(t, server, "create", "configmap", "kept", "--from-literal=text=kept")
	before := identity(t, server, b)
	contains(t, "the templates", before["templates"], `"e2e"`)

	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(site.Bed.Dir, "key.txt"), []byte(key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := createBackup(t, site, key.Recipient().String())
	kubectl(t, server, "create", "configmap", "later", "--from-literal=text=later")
	r := run(t, install(t.Context(), site, "--restore", file, "--backup-identity", "key.txt"))
	contains(t, "install --restore over a cluster", r.stderr, "boxlift backup restore")
	if r.code != 6 {
		t.Errorf("install --restore over a cluster: %v", r)
	}

	certificates := mustRun(t, site.Boxlift(t.Context(), passwords, "certs", "status", "-f", "install.yaml"))
	contains(t, "certs status", certificates.stdout, "/var/lib/rancher/k3s/server/tls/client-admin.crt", "/etc/rancher/k3s/k3s.yaml", "/var/lib/rancher/k3s/agent/client-kubelet.crt", ", 0 end soon; the first in 364 days")
	adminKey := func() string {
		return onHost(t, server, "sha256sum", "/var/lib/rancher/k3s/server/tls/client-admin.key")
	}
	oldKey := adminKey()
	rotated := mustRun(t, site.Boxlift(t.Context(), passwords, "certs", "rotate", "-f", "install.yaml"))
	contains(t, "certs rotate", rotated.stdout, "renew the certificates of k3s: done", "renew the certificates of k3s-agent: done")
	if adminKey() == oldKey {
		t.Error("the administrator's key is the one from before")
	}

	restore := []string{"backup", "restore", file, "--backup-identity", "key.txt", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "install.yaml", "--lose-what-changed-since-the-backup-of", "e2e"}
	killOnce(t, site.Boxlift(t.Context(), passwords, restore...), ": restore the backup", "releases since: none", "objects that were made: ConfigMap default/later\n")
	r = run(t, install(t.Context(), site))
	contains(t, "install after a restore was killed", r.stderr, "boxlift backup restore has begun to restore a backup on hosts and did not end")
	replaced := mustRun(t, site.Boxlift(t.Context(), passwords, restore...))
	t.Logf("replaced:\n%s%s", replaced.stderr, replaced.stdout)
	contains(t, "what is lost", replaced.stderr, "What that is cannot be found out")
	if state := readState(t, site); state.Resumed != 1 || state.Result != "done" {
		t.Errorf("the state: %+v", state)
	}
	if out, err := tryKubectl(t, server, "get", "configmap", "later"); err == nil {
		t.Errorf("what came later is still there: %s", out)
	}
	if diff := cmp.Diff(before, identity(t, server, b)); diff != "" {
		t.Errorf("after the cluster was replaced: %s", diff)
	}

	const passphrase = "passphrase.txt"
	if err := os.WriteFile(filepath.Join(site.Bed.Dir, passphrase), []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sealed := mustRun(t, site.Boxlift(t.Context(), passwords, "backup", "create", "-f", "install.yaml", "--passphrase-file", passphrase, "-o", "json"))
	var second struct{ Path string }
	if err := json.Unmarshal([]byte(sealed.stdout), &second); err != nil {
		t.Fatalf("%v: %v", err, sealed)
	}
	for _, h := range site.Hosts {
		wipe(t, h)
	}
	for _, name := range []string{"state.json", "state.json.lock", "liteboxd-backups"} {
		if err := os.RemoveAll(filepath.Join(site.Bed.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// From a stick with a small filesystem, and for nobody else's eyes.
	bed, volumes := connected(t), filepath.Join(t.TempDir(), "volumes.tar")
	mustRun(t, bed.BuildCommand(t.Context(), "-o", volumes, "--reuse", bed.Bundle(), "--split", "32MiB", "--encrypt-to", key.Recipient().String()))
	restored := mustRun(t, install(t.Context(), site, "--restore", second.Path, "--backup-passphrase-file", passphrase, "--bundle", volumes, "--identity", "key.txt"))
	t.Logf("restored:\n%s", restored.stdout)
	b.login(shown[1], shown[2])
	if diff := cmp.Diff(before, identity(t, server, b)); diff != "" {
		t.Errorf("after the cluster was lost: %s", diff)
	}
	again := mustRun(t, install(t.Context(), site))
	contains(t, "install after the restore", again.stdout, "nothing to do")
	if mode := onHost(t, site.Hosts[1], "stat", "-c", "%a", "/var/lib/rancher/k3s/storage"); mode != "700\n" {
		t.Errorf("the folder of volumes has mode %s", mode)
	}
	testDataStays(t, site, b)
	checkNothingLeaked(t, site)
}

// killOnce kills a restore, which has to say first what is lost.
func killOnce(t *testing.T, c *exec.Cmd, said string, lost ...string) {
	t.Helper()
	contains(t, "what is lost", killAt(t, c, said), append(lost, "nodes that joined: none", "rows of LiteBoxd's database: none")...)
}

// killAt runs a command, kills it when it has said something, and returns what it said before.
func killAt(t *testing.T, c *exec.Cmd, said string) string {
	t.Helper()
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var before strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), said) {
		before.WriteString(lines.Text() + "\n")
	}
	if lines.Err() == nil && !strings.Contains(lines.Text(), said) {
		t.Fatalf("it has not said %q:\n%s", said, &before)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	return before.String()
}

// createBackup makes an encrypted backup and proves it, and makes sure that nothing is left
// of its making.
func createBackup(t *testing.T, site *testbed.Site, recipient string) (file string) {
	t.Helper()
	made := mustRun(t, site.Boxlift(t.Context(), passwords, "backup", "create", "-f", "install.yaml", "--encrypt-to", recipient, "-o", "json"))
	var report struct{ Path string }
	if err := json.Unmarshal([]byte(made.stdout), &report); err != nil {
		t.Fatalf("%v: %v", err, made)
	}
	contains(t, "what the backup has", made.stdout, `"release.json"`)
	if strings.Contains(made.String(), "::server:") {
		t.Errorf("a token is shown: %v", made)
	}
	verified := mustRun(t, site.Boxlift(t.Context(), nil, "backup", "verify", report.Path, "--identity", "key.txt"))
	contains(t, "backup verify", verified.stdout, "cluster:  e2e as of ", "sqlite, LiteBoxd's database", "encrypted")
	listed := mustRun(t, site.Boxlift(t.Context(), passwords, "backup", "list", "-f", "install.yaml"))
	contains(t, "backup list", listed.stdout, filepath.Base(report.Path), "encrypted")
	if !filepath.IsAbs(report.Path) {
		t.Errorf("the backup is at %s", report.Path)
	}
	entries, err := os.ReadDir(filepath.Dir(report.Path))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the backup: %v, %v", entries, err)
	}
	for _, h := range site.Hosts {
		if left := onHost(t, h, "sh", "-c", "ls -d /var/lib/boxlift/etcd-snapshot /var/lib/boxlift/.boxlift-put-* 2>/dev/null || :"); left != "" {
			t.Errorf("%s: left: %s", h.Name, left)
		}
	}
	return report.Path
}
