package e2e

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// testCertificates lists the certificates of a cluster whose ingress has one in a Secret. What only a cluster shows:
// that its API finds Secrets by their type, and that all of k3s' certificates are known by what they are for.
func testCertificates(t *testing.T, site *testbed.Site) {
	t.Helper()
	const made = "/var/lib/rancher/k3s/server/tls/serving-kube-apiserver"
	kubectl(t, site.Hosts[0], "-n", "liteboxd-system", "create", "secret", "tls", "box-tls", "--cert="+made+".crt", "--key="+made+".key")
	defer kubectl(t, site.Hosts[0], "-n", "liteboxd-system", "delete", "secret", "box-tls")
	certs := func(format string) string {
		return mustRun(t, site.Boxlift(t.Context(), passwords, "certs", "status", "-f", "install.yaml", "-o", format)).stdout
	}
	contains(t, "certs status", certs("json"), `"kind": "server"`, `"kind": "client"`, `"kind": "authority"`,
		`"kind": "secret"`, `"path": "Secret liteboxd-system/box-tls"`)
	contains(t, "certs status -o prometheus", certs("prometheus"),
		`kind="secret",host="",path="Secret liteboxd-system/box-tls"`, `boxlift_certificates_unread{cluster="e2e"} 0`)
}

// testRenewal has a server renew its certificates, which end in 50 days, by itself. Only a host with a k3s shows that
// systemd starts the program in the confines of its unit, that k3s starts again and pods go on running, and that API
// and kubelet show what is new.
func testRenewal(t *testing.T, h *lab.Host, boxlift func(...string) string) {
	t.Helper()
	contains(t, "certs status", boxlift("certs", "status", "--local"), "0 end soon; the first in 364 days",
		"a timer renews its certificates ahead of their end, and has not looked yet")
	const lifetime = "/etc/default/k3s"
	onHost(t, h, "sh", "-c", "echo CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS=50 >"+lifetime)
	boxlift("certs", "rotate", "--local")
	onHost(t, h, "rm", lifetime)
	looked := func() {
		t.Helper()
		onHost(t, h, "systemctl", "start", "boxlift-renewal.service") // which ends when it has ended
	}
	running := func() string {
		t.Helper()
		return kubectl(t, h, "get", "pods", "-A", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].state.running.startedAt}{"\n"}{end}`)
	}
	before, keys := running(), onHost(t, h, "sha256sum", "/var/lib/rancher/k3s/server/tls/client-admin.key")
	looked()
	contains(t, "what came of it", onHost(t, h, "cat", "/var/lib/boxlift/renewal.json"), `"renewed":"`)
	contains(t, "certs status after it", boxlift("certs", "status", "--local"), "0 end soon; the first in 364 days",
		", renewed them on ")
	contains(t, "the Lease", kubectl(t, h, "-n", "kube-system", "get", "lease", "boxlift-renewal", "-o", "jsonpath=[{.spec.holderIdentity}]"), "[]")
	if diff := cmp.Diff(before, running()); diff != "" {
		t.Errorf("pods were started again: %s", diff)
	}
	if now := onHost(t, h, "sha256sum", "/var/lib/rancher/k3s/server/tls/client-admin.key"); now != keys {
		t.Error("a renewal keeps keys; they were changed")
	}
	started := func() string {
		return onHost(t, h, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "k3s.service")
	}
	last := started()
	looked()
	if started() != last {
		t.Error("k3s was started again with new certificates")
	}
	contains(t, "the timers", onHost(t, h, "systemctl", "list-timers", "--no-pager"), "boxlift-renewal.timer")
}
