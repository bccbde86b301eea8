package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// When k3s does not start, the error has what it said, the hosts that wait for it are
// named, and the same command goes on once the cause is mended.
func testK3sDoesNotStart(t *testing.T, site *testbed.Site) {
	ctx := t.Context()
	good := strings.Replace(twoHosts, "${ROOT_PASSWORD}", "${ROOT_PASSWORD}\n    k3s: {tlsSAN: [k3s.example.internal]}", 1)

	// A cause that no file of boxlift's shows: when it is gone, what systemd counted before
	// is of no account.
	dropIn := "/etc/systemd/system/k3s.service.d"
	onHost(t, site.Hosts[0], "sh", "-c", "mkdir "+dropIn+" && printf '[Service]\\nExecStartPre=/bin/false\\nRestartSec=1\\n' >"+dropIn+"/fail.conf")
	r := run(t, install(ctx, site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "k3s does not start", "tried again 3 times")
	onHost(t, site.Hosts[0], "rm", "-r", dropIn)
	mustRun(t, install(ctx, site))
	checkRunning(t, site)

	bad := strings.Replace(good, "tlsSAN: [k3s.example.internal]", `installArgs: ["--no-such-flag=1"]`, 1)

	writeConfig(t, site.Bed, bad, site.Hosts[0].Address, site.Hosts[1].Address)
	r = run(t, install(ctx, site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "k3s does not start", "no-such-flag", "journalctl -u k3s",
		"not gone on with because of that: "+site.Hosts[1].Address.String())

	writeConfig(t, site.Bed, good, site.Hosts[0].Address, site.Hosts[1].Address)
	mustRun(t, install(ctx, site))
	checkRunning(t, site)
	contains(t, "k3s' config", onHost(t, site.Hosts[0], "cat", "/etc/rancher/k3s/config.yaml"), "k3s.example.internal")

	// A bundle with another k3s is for an upgrade, which takes more care than this.
	r = run(t, site.Boxlift(ctx, passwords, "install", "--bundle", bundleWithK3s(t, "v1.36.5+k3s1"), "--key", "boxlift.pub"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "k3s "+release.K3s+" is installed", "does not change the version of what runs")
	checkRunning(t, site)
	writeConfig(t, site.Bed, twoHosts, site.Hosts[0].Address, site.Hosts[1].Address)
	mustRun(t, install(ctx, site))
}

// signedWithCosignsKey builds the shared lock once more.
func signedWithCosignsKey(t *testing.T) (bundle, publicKey string) {
	t.Helper()
	cosign := toolbin.Build(t, "cosign")
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), cosign, "generate-key-pair")
	c.Dir = dir
	c.Env = append(os.Environ(), "COSIGN_PASSWORD="+testbed.KeyPassword)
	mustRun(t, c)
	bed := connected(t)
	bundle = filepath.Join(dir, "bundle.tar")
	mustRun(t, bed.Command(t.Context(), append([]string{"bundle", "build", "-f", bed.LockFile(), "-o", bundle, "--key", filepath.Join(dir, "cosign.key"),
		"--reuse", bed.Bundle()}, bed.MirrorFlags()...)...))
	return bundle, filepath.Join(dir, "cosign.pub")
}

// fingerprint is that of a public key in the form of authorized_keys.
func fingerprint(t *testing.T, line string) string {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	return ssh.FingerprintSHA256(key)
}
