package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// setUpByHand makes the k3s of a host one that somebody has set up with k3s' own script: its unit has arguments, its
// tokens come from the environment, and nothing of boxlift's is left.
func setUpByHand(t *testing.T, h, server *lab.Host) {
	t.Helper()
	const script = `set -e
folder=/etc/rancher/k3s
service=k3s-agent K3S_TOKEN=$(cat $folder/boxlift-token)
if [ ! -e /etc/systemd/system/$service.service ]; then
    service=k3s K3S_AGENT_TOKEN=$(cat $folder/boxlift-agent-token)
    export K3S_AGENT_TOKEN
    set -- server --flannel-backend=none --disable-network-policy --secrets-encryption
    settings='disable-kube-proxy: true'
else
    export K3S_URL="$1"
    set -- agent
fi
export K3S_TOKEN INSTALL_K3S_SKIP_DOWNLOAD=true
cp /var/lib/boxlift/files/install.sh-* /root/install.sh
[ ! -e $folder/boxlift-resolv.conf ] || { cp $folder/boxlift-resolv.conf $folder/resolv.conf && resolver="resolv-conf: $folder/resolv.conf"; }
systemctl stop $service
rm -rf $folder/config.yaml* $folder/boxlift-* /var/lib/boxlift /etc/systemd/system/$service.service*
printf '%s\n%s\nkubelet-arg: [fail-cgroupv1=false]\n' "${settings:-}" "${resolver:-}" >$folder/config.yaml
sh /root/install.sh "$@"`
	onHost(t, h, "sh", "-c", script, "sh", "https://"+server.Address.String()+":6443")
}

const ownRegistries = `registries:
  mirrors:
    registry.example.lan: {endpoint: ["https://registry.example.lan:5000"]}
`

// A server and an agent that somebody else has set up are refused until they are adopted. Then they stay as they are,
// and nothing of them is started again or written, until an upgrade replaces their program, and nothing else. Before
// that the key of bundles is lost.
func TestUpgradeAdopted(t *testing.T) {
	parallel(t, 4*time.Minute)
	site := newTwoHosts(t)
	server, agent := site.Hosts[0], site.Hosts[1]
	writeConfig(t, site.Bed, twoHosts+ownRegistries, server.Address, agent.Address)
	next := bundleOf(t, upstream.LockOptions{Release: upstream.Patched})
	mustRun(t, install(t.Context(), site))
	setUpByHand(t, server, server)
	setUpByHand(t, agent, server)
	eventually(t, "the cluster", 3*time.Minute, func() (bool, string) {
		out, err := tryKubectl(t, server, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10s")
		return err == nil, out
	})
	refused := run(t, install(t.Context(), site))
	contains(t, "install", refused.stderr, "is installed, and not by boxlift", "boxlift adopt finds out whether it can stay as it is")
	if refused.code != 6 {
		t.Errorf("want exit code 6: %v", refused)
	}

	testAdoptsWhatFits(t, site)
	look := func() map[string]string { // k3s writes its k3s.yaml anew when it is started
		found := make(map[string]string)
		for _, h := range site.Hosts {
			found[h.Name] = onHost(t, h, "sh", "-c", `systemctl show -p MainPID "$1" && cd /etc && sha256sum systemd/system/$1.service* $(find rancher/k3s -type f ! -name k3s.yaml | sort)`, "sh", service(t, h))
		}
		return found
	}
	before := look()
	mustRun(t, install(t.Context(), site))
	contains(t, "install again", mustRun(t, install(t.Context(), site)).stdout, "nothing to do")
	added := mustRun(t, site.Boxlift(t.Context(), passwords, "node", "add", "--hosts", agent.Address.String(), "--bundle", "bundle.tar", "--key", "boxlift.pub"))
	contains(t, "node add", added.stdout, "nothing to do")
	statusIsWell(t, site, "bundle.tar")
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("what was adopted was changed: %s", diff)
	}
	onHost(t, agent, "systemctl", "stop", "k3s-agent")
	contains(t, "install with an agent that is stopped", mustRun(t, install(t.Context(), site)).stderr, ": start k3s-agent (the service is inactive)")

	next = testLostKey(t, site, next)
	done := succeeded(t, "the upgrade", upgrade(t, site, next))
	t.Log(done.stdout)
	if diff := cmp.Diff(map[string]string{"server": upstream.Patched.K3s, "agent": upstream.Patched.K3s}, kubelets(t, server)); diff != "" {
		t.Errorf("after the upgrade: %s", diff)
	}
	for name, is := range look() {
		_, is, _ = strings.Cut(is, "\n")
		if _, was, _ := strings.Cut(before[name], "\n"); is != was {
			t.Errorf("%s: more than the program was changed, from\n%s\nto\n%s", name, was, is)
		}
	}
	statusIsWell(t, site, next)
	contains(t, "the upgrade again", succeeded(t, "the upgrade again", upgrade(t, site, next)).stdout, "nothing to do")
	checkNothingLeaked(t, site)
}

// testAdoptsWhatFits adopts hosts once they are as install.yaml makes them, and tells what is not.
func testAdoptsWhatFits(t *testing.T, site *testbed.Site) {
	t.Helper()
	server, agent := site.Hosts[0], site.Hosts[1]
	adopt := func(code int) result {
		t.Helper()
		r := run(t, site.Boxlift(t.Context(), passwords, "adopt", "--bundle", "bundle.tar", "--key", "boxlift.pub"))
		if r.code != code {
			t.Errorf("want exit code %d: %v", code, r)
		}
		return r
	}
	const unfit, registries = "/etc/rancher/k3s/config.yaml.d/unfit.yaml", "/etc/rancher/k3s/registries.yaml"
	onHost(t, server, "sh", "-c", "mkdir -p /etc/rancher/k3s/config.yaml.d && echo 'cluster-dns: 10.43.0.99' >"+unfit)
	onHost(t, agent, "mv", registries, "/root")
	contains(t, "adopt", adopt(3).stderr, "cluster-dns is 10.43.0.99, and install.yaml makes it not set: all servers have to agree on it; write cluster.serverConfig: {cluster-dns: 10.43.0.99}")
	onHost(t, server, "rm", unfit)
	contains(t, "adopt", adopt(0).stdout, "is recorded as release", "it is adopted, and stays as it is",
		registries+" is another one than install.yaml makes it: k3s was adopted and keeps what it has")
	onHost(t, agent, "mv", "/root/registries.yaml", registries)
	contains(t, "adopt again", adopt(0).stdout, "nothing to do")
}
