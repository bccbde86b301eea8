package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// TestThisMachine lets boxlift make a cluster of the very host that it runs on. Only here it can be seen that all that
// comes over SSH elsewhere comes as processes of boxlift's own to a real host: the helper, packs through its pipes,
// units, k3s that is started beside boxlift, and an API that is reached without a tunnel. There is no SSH server to
// fall back to.
func TestThisMachine(t *testing.T) {
	parallel(t, time.Minute)
	site := newSite(t, lab.HostOptions{Name: "alone"})
	h := site.Hosts[0]
	onHost(t, h, "systemctl", "stop", "ssh.service", "ssh.socket")
	folder := filepath.Join(h.Root, "srv", "boxlift")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	// Nothing waits for Traefik where no LiteBoxd is behind it.
	settings := strings.Replace(testbed.CgroupV1, "serverConfig: {", "serverConfig: {disable: [traefik], ", 1)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	config := "cluster:\n" + settings + "  servers: [{local: true}]\nnetwork: {cni: cilium}\n" +
		"backups: {recipients: [" + key.Recipient().String() + "]}\n"
	if err := os.WriteFile(filepath.Join(folder, "install.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(site.Bed.Programs, "linux-amd64", "boxlift"), site.Bed.Bundle(), site.Bed.PublicKey()} {
		mustRun(t, exec.CommandContext(t.Context(), "cp", "--dereference", "--reflink=auto", file, folder))
	}
	boxlift := func(args ...string) string {
		t.Helper()
		return onHost(t, h, append([]string{"env", "--chdir=/srv/boxlift", "./boxlift"}, args...)...)
	}
	from := []string{"--bundle", "bundle.tar", "--key", "boxlift.pub"}
	contains(t, "the installation", boxlift(append([]string{"install", "--kubeconfig", "kubeconfig"}, from...)...),
		"cluster default runs with bundle", "localhost  server")
	contains(t, "the kubeconfig", onHost(t, h, "cat", "/srv/boxlift/kubeconfig"), "https://"+h.Address.String()+":6443")
	boxlift("health")
	testRenewal(t, h, boxlift)
	boxlift(append([]string{"status"}, from...)...) // which ends with 7 when anything differs
	contains(t, "a second installation", boxlift(append([]string{"install"}, from...)...), "nothing to do")
	testScheduled(t, site, key, from, boxlift)
	checkNothingLeaked(t, site)
}

// testScheduled has a server back itself up by its service, and a fresh host become the cluster again from that. Only
// here a real systemd starts the program in the confines of its unit beside a k3s that runs.
func testScheduled(t *testing.T, site *testbed.Site, key *age.X25519Identity, from []string, boxlift func(...string) string) {
	t.Helper()
	h := site.Hosts[0]
	kubectl(t, h, "create", "configmap", "kept", "--from-literal=text=kept")
	was := kubectl(t, h, "get", "namespace", "default", "-o", "jsonpath={.metadata.uid}")
	contains(t, "the timer", onHost(t, h, "systemctl", "is-active", "boxlift-backup.timer"), "active")
	onHost(t, h, "systemctl", "start", "boxlift-backup.service") // which ends when the backup is proven
	listed := boxlift("backup", "list", "--scheduled", "-f", "install.yaml")
	t.Logf("scheduled backups:\n%s", listed)
	contains(t, "health", boxlift("health", "--only", "backup"), "backup")

	// Another host would be reached as this one: it is emptied, and has nothing but boxlift, the bundle and the backup.
	onHost(t, h, "sh", "-c", "cp /var/backups/boxlift/default/*.tar.age /srv/boxlift/backup.tar.age && rm -r /var/backups/boxlift /etc/boxlift-backup /srv/boxlift/state.json*")
	wipe(t, h)
	onHost(t, h, "systemctl", "stop", "ssh.service", "ssh.socket")
	if err := os.WriteFile(filepath.Join(h.Root, "srv", "boxlift", "key.txt"), []byte(key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	boxlift(append([]string{"install", "--restore", "backup.tar.age", "--backup-identity", "key.txt"}, from...)...)
	contains(t, "what was kept", kubectl(t, h, "get", "configmap", "kept", "-o", "jsonpath={.data.text}"), "kept")
	if is := kubectl(t, h, "get", "namespace", "default", "-o", "jsonpath={.metadata.uid}"); is != was {
		t.Errorf("it is another cluster: %s, and not %s", is, was)
	}
}
