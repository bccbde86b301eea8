package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// preflightConfig has a server whose sudo asks for another password than SSH does, an
// agent that is reached with the keys of an SSH agent, and one behind the server, under a
// name that only the server knows. An image is to come from a registry that is not there.
const preflightConfig = `cluster:
  name: faulty
  servers:
    - {host: %[1]s, name: server, user: admin, password: '${ADMIN_PASSWORD}', sudo: true, sudoPassword: '${ROOT_PASSWORD}'}
  agents:
    - {host: %[2]s, agent: true, nodeIP: 10.77.0.99}
    - {host: third.lan, password: '${ROOT_PASSWORD}', bastion: server}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium, cilium: {values: {operator: {image: {override: "%[1]s:5999/site/operator:1"}}}}}
registries: {configs: {"%[1]s:5999": {}}}
seeding: {mode: registry, registry: {port: 31000}}
`

// hostFault is something wrong with a host, and what preflight has to say of it. The
// texts are parts of what it says.
type hostFault struct {
	// make is what is done on the host; the faults of one host are made in their order.
	make string
	// check and severity are the finding's; found, needed and hint parts of its texts.
	check, severity, found, needed, hint string
}

// fakeUnit is a shell command that makes a real unit of something that sleeps.
func fakeUnit(name, program string) string {
	return fmt.Sprintf(`cp /bin/sleep %[2]s
printf '[Service]\nExecStart=%[2]s infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/%[1]s
systemctl daemon-reload
systemctl enable --quiet --now %[1]s`, name, program)
}

// over is a shell command that puts a file over one of the kernel's: what $1 prints is
// seen there.
func over(name, content string) string {
	return fmt.Sprintf("mkdir -p /root/faults && %s >/root/faults/%[2]s && mount --bind /root/faults/%[2]s %[3]s", content, filepath.Base(name), name)
}

// sshd is a shell command that starts the SSH server anew, with a drop-in for its unit.
func sshd(service string) string {
	return fmt.Sprintf("mkdir -p /etc/systemd/system/ssh.service.d && printf '[Service]\\n%s\\n' >/etc/systemd/system/ssh.service.d/fault.conf && systemctl daemon-reload && systemctl restart ssh", service)
}

const (
	failed = preflight.Error
	warned = preflight.Warning
)

func serverFaults() []hostFault {
	return []hostFault{
		{"", "seeding", failed, "seeding.registry.port is 31000, one of those that Kubernetes gives to services", "a port that nothing else on servers needs", "another seeding.registry.port"},
		{sshd("CPUAffinity=0"), "cpu", warned, "1 CPU", "4 CPUs recommended for a server", "more CPUs"},
		{over("/proc/meminfo", `printf 'MemTotal: 614400 kB\nMemAvailable: 300000 kB\nSwapTotal: 1048576 kB\n'`),
			"memory", failed, "600.0 MiB of memory", "8.0 GiB recommended for a server, 1.0 GiB at the least", "more memory"},
		{"", "swap", warned, "1.0 GiB of swap", "none", "swapoff -a"},
		{`if [ -e /sys/fs/cgroup/cgroup.controllers ]
then ` + over("/sys/fs/cgroup/cgroup.controllers", "echo cpu io pids") + `
else ` + over("/proc/cgroups", `printf 'cpu\t1\t1\t1\npids\t2\t1\t1\n'`) + `
fi`, "cgroup", failed, "control groups without memory", "the controllers cpu, memory and pids", "cgroup_enable=memory"},
		{"", "cgroup", warned, "control groups without cpuset", "cpuset", "command line"},
		{"mkdir -p /var/lib/rancher && mount -t tmpfs -o size=64m,nr_inodes=500 small /var/lib/rancher",
			"disk", failed, "64.0 MiB free of 64.0 MiB on /var/lib/rancher", "in /var/lib/rancher for packs", "mount a larger disk at /var/lib/rancher"},
		{"", "disk-size", warned, "a disk of 64.0 MiB on /var/lib/rancher", "100.0 GiB recommended for a server", "mount a larger disk at /var/lib/rancher"},
		{"", "inodes", failed, "inodes free on /var/lib/rancher", "for the files of the unpacked layers", "df -i"},
		{"", "filesystem", warned, "tmpfs: it is gone after a reboot", "ext4 or xfs", "mount one at /var/lib/rancher"},
		{"mount --bind /opt /opt && mount -o remount,bind,noexec /opt", "noexec", failed, "/opt is mounted noexec", "to run programs from /opt", "mount -o remount,exec /opt"},
		{"systemd-run --quiet --unit=squatter socat TCP-LISTEN:6443,fork,reuseaddr EXEC:/bin/true",
			"ports", failed, "port 6443/tcp is in use by socat (process PID, squatter.service)", "the port for the API server", "ss -Hlnpt 'sport = :6443'"},
		{"ip link add vx0 type vxlan id 7 dev eth0 dstport 8472 && ip link set vx0 up",
			"ports", failed, "port 8472/udp is in use by somebody unknown, perhaps an interface of the kernel's", "VXLAN", "ip -details link show type vxlan"},
		{"ip route add 10.42.5.0/24 via 10.77.0.1", "networks", failed, "10.42.5.0/24 is routed to 10.77.0.1", "the pods' network 10.42.0.0/16 for the cluster alone", "network.cilium.podCIDR"},
		{"ip link add lan1 type veth peer name lan2 && ip address add 10.43.0.5/24 dev lan1 && ip link set lan1 up",
			"networks", failed, "lan1 has the address 10.43.0.5/24", "the services' network 10.43.0.0/16 for the cluster alone", "service-cidr"},
		{"ip route delete default", "default-route", failed, "there is no default route", "a default route, even where it leads nowhere", "ip route add default via 10.77.0."},
		{"echo 128 >/proc/sys/fs/inotify/max_user_instances", "inotify", warned, "fs.inotify.max_user_instances = 128", "512", "sysctl --system"},
		{"echo 200 >/proc/sys/kernel/keys/root_maxkeys", "sysctls", warned, "kernel.keys.root_maxkeys = 200", "10000", "sysctl --system"},
		{"mkdir -p /etc/cni/net.d && echo '{}' >/etc/cni/net.d/10-flannel.conflist", "cni", failed, "10-flannel.conflist", "no configuration but Cilium's", "mv /etc/cni/net.d/10-flannel.conflist"},
		{fakeUnit("firewalld.service", "/usr/local/bin/firewalld"), "firewall", warned, "firewalld is active", "no firewall, or one that lets through", "--add-port=10250/tcp"},
		{"mkdir -p /etc/ufw && echo ENABLED=yes >/etc/ufw/ufw.conf\n" + fakeUnit("ufw.service", "/usr/local/bin/ufw-init"), "firewall", warned, "ufw is active", "no firewall", "ufw allow 10250/tcp"},
		{fakeUnit("nm-cloud-setup.service", "/usr/local/bin/nm-cloud-setup"), "nm-cloud-setup", failed, "nm-cloud-setup.service enabled or active", "switched off", "systemctl disable --now nm-cloud-setup.service"},
		{fakeUnit("kubelet.service", "/usr/local/bin/kubelet"), "kubernetes", failed, "kubelet.service runs", "no Kubernetes but the one", "systemctl disable --now kubelet.service"},
		{"iptables --wait --insert INPUT --protocol tcp --dport 4240 --jump DROP", "", "", "", "", ""}, // seen by the agent
		{"mount --bind /usr/local /usr/local && mount -o remount,bind,ro /usr/local", "read-only", failed, "/usr/local is mounted read-only", "to write to /usr/local", "mount -o remount,rw /usr/local"},
		{"", "images", failed, "asked for site/operator:1, FIRST:5999 gave no answer", "from where install.yaml says", "curl -v https://FIRST:5999/v2/"},
		{"", "reach", failed, "it does not reach SECOND (10.77.0.99) on", "to reach every other host on these ports", "nodeIP in install.yaml"},
	}
}

func agentFaults() []hostFault {
	return []hostFault{
		{"hostname Second.LAN", "hostname", failed, `the host is called "Second.LAN"`, "a name of at most 63", "hostnamectl set-hostname NAME"},
		{`printf '#!/bin/sh\nexec /usr/bin/date -d "1 hour ago" "$@"\n' >/usr/local/bin/date && chmod 0755 /usr/local/bin/date`,
			"clock", failed, "behind that of server (FIRST)", "the time of server", "chrony"},
		{sshd(`ExecStart=\nExecStart=/usr/bin/setarch --uname-2.6 /usr/sbin/sshd -D`), "kernel", failed, "kernel 2.6.", "kernel 5.10 or newer", "install a newer kernel"},
		{`if [ -e /proc/config.gz ]
then ` + over("/proc/config.gz", `printf 'CONFIG_BPF=y\nCONFIG_BPF_SYSCALL=y\n' | gzip`) + `
else printf 'CONFIG_BPF=y\nCONFIG_BPF_SYSCALL=y\n' >/boot/config-$(setarch --uname-2.6 uname -r)
fi`, "kernel-options", failed, "CGROUP_BPF", "for Cilium's programs", "linux-modules-extra-2.6."},
		{"", "kernel-options", warned, "SCHEDSTATS", "Cilium's figures about itself", "install the distribution's usual kernel"},
		{`mkdir -p /etc/systemd/system/rescue.service.d
printf '[Service]\nType=simple\nExecStartPre=\nExecStart=\nExecStart=/bin/sleep infinity\nExecStopPost=\n' >/etc/systemd/system/rescue.service.d/fault.conf
systemctl daemon-reload && systemctl start rescue.target`, "systemd", failed, "rescue or emergency mode", "systemd as init, running", "systemctl --failed"},
		// The kernel's own folder takes no new ones, so that a copy of it has to.
		{`mkdir -p /root/fs && mount -t tmpfs fs /root/fs
for d in /sys/fs/*; do mkdir /root/fs/${d##*/} && mount --rbind $d /root/fs/${d##*/}; done
mkdir -p /root/fs/selinux && echo 1 >/root/fs/selinux/enforce
mount --rbind /root/fs /sys/fs`, "selinux", failed, "SELinux is enforcing, and the policy of k3s is not installed", "k3s-selinux", "setenforce 0"},
		{`mkdir -p /var/lib/rancher /root/lower /root/upper && mount -t tmpfs upper /root/upper && mkdir /root/upper/u /root/upper/w
mount -t overlay -o lowerdir=/root/lower,upperdir=/root/upper/u,workdir=/root/upper/w overlay /var/lib/rancher`,
			"filesystem", failed, "/var/lib/rancher is on /var/lib/rancher, which is overlay", "a filesystem of a local disk", "mount one at"},
		{"", "node-ip", failed, "no interface has the nodeIP 10.77.0.99; there are SECOND (eth0)", "nodeIP to be an address of the host", "correct nodeIP"},
		{`printf '#!/bin/sh\necho "k3s version v1.30.1+k3s1 (0123abcd)"\n' >/usr/local/bin/k3s && chmod 0755 /usr/local/bin/k3s
mkdir -p /etc/rancher/k3s && echo 'data-dir: /srv/k3s' >/etc/rancher/k3s/config.yaml
` + fakeUnit("k3s.service", "/usr/local/bin/k3s-server"), "k3s", failed, "the host runs k3s as server already", "a host without k3s, or with k3s as agent", "k3s-uninstall.sh"},
		{"", "k3s", failed, "k3s v1.30.1+k3s1 is installed", release.K3s, "install with the bundle that the cluster was installed from"},
		{"", "k3s", failed, "k3s keeps its data in /srv/k3s", "/var/lib/rancher/k3s", "remove data-dir"},
		{"", "images", failed, "asked for site/operator:1, FIRST:5999 gave no answer", "from where install.yaml says", "curl -v https://FIRST:5999/v2/"},
		{"", "reach", failed, "it does not reach server (FIRST) (FIRST) on 4240/tcp for Cilium's health checks (no answer)", "to reach every other host on these ports", "firewall-cmd --permanent --add-port=4240/tcp"},
	}
}

func thirdFaults() []hostFault {
	return []hostFault{
		{"hostname server", "hostname", failed, "the node would be called server, as server (FIRST) is", "a name of its own", "set name for this host"},
		{"", "machine-id", failed, "it has the /etc/machine-id of server (FIRST), as a copy of it has", "an identity of its own", "systemd-machine-id-setup"},
		{"echo nameserver 127.0.0.53 >/etc/resolv.conf", "resolv-conf", warned, "127.0.0.53, which pods cannot reach", "a name server that pods can reach", "/etc/resolv.conf"},
		{"", "images", failed, "asked for site/operator:1, FIRST:5999 gave no answer", "from where install.yaml says", "curl -v https://FIRST:5999/v2/"},
		{"", "reach", failed, "it does not reach SECOND (10.77.0.99) on", "to reach every other host on these ports", "ping 10.77.0.99"},
		{"", "reach", failed, "4240/tcp for Cilium's health checks (no answer)", "to reach every other host on these ports", "firewall-cmd --permanent --add-port=4240/tcp"},
	}
}

// knownBeside are warnings that depend on the machine that runs the test.
func knownBeside(f preflight.Finding) bool {
	return f.Check == "disk" && strings.HasSuffix(f.Found, " on /") ||
		f.Severity == warned && slices.Contains([]string{"kernel-options", "cgroup", "cpu", "memory", "disk-size"}, f.Check)
}

// makeFaults breaks the hosts, and returns what is to be found, in the words for them in
// messages.
func makeFaults(t *testing.T, site *testbed.Site) (want []preflight.Finding) {
	t.Helper()
	first, second, third := site.Hosts[0], site.Hosts[1], site.Hosts[2]
	words := strings.NewReplacer("FIRST", first.Address.String(), "SECOND", second.Address.String())
	for _, group := range []struct {
		host   *lab.Host
		name   string
		faults []hostFault
	}{
		{first, words.Replace("server (FIRST)"), serverFaults()}, {second, second.Address.String(), agentFaults()}, {third, "third.lan", thirdFaults()},
	} {
		for _, f := range group.faults {
			if f.make != "" {
				onHost(t, group.host, "sh", "-ec", f.make)
			}
			if f.check != "" {
				want = append(want, preflight.Finding{
					Host: group.name, Check: f.check, Severity: f.severity,
					Found: words.Replace(f.found), Needed: f.needed, Hint: words.Replace(f.hint),
				})
			}
		}
	}
	return want
}

// checkFindings compares findings with what was to be found: all of it and nothing else.
func checkFindings(t *testing.T, got, want []preflight.Finding) {
	t.Helper()
	pid := regexp.MustCompile(`\(process [0-9]+`)
	expected := make(map[int]bool)
	for _, w := range want {
		found := slices.IndexFunc(got, func(f preflight.Finding) bool {
			return f.Host == w.Host && f.Check == w.Check && f.Severity == w.Severity &&
				strings.Contains(pid.ReplaceAllString(f.Found, "(process PID"), w.Found) && strings.Contains(f.Needed, w.Needed) && strings.Contains(f.Hint, w.Hint)
		})
		if found < 0 {
			t.Errorf("not found: %+v", w)
		}
		expected[found] = true
	}
	for i, f := range got {
		if f.Host == "" || f.Found == "" || f.Needed == "" || f.Hint == "" {
			t.Errorf("something is left out of %+v", f)
		}
		if !expected[i] && !knownBeside(f) {
			t.Errorf("nobody has made this fault: %+v", f)
		}
	}
}

// everything is what a host is like: all its files but those of boxlift's helper, and its
// mounts, network, units and sysctls. What logging in changes is left out.
func everything(t *testing.T, h *lab.Host) string {
	t.Helper()
	return onHost(t, h, "sh", "-c", `find / \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /home -o -path /var/log -o -path /var/lib/boxlift -o -path /var/lib/sudo -o -path /var/lib/systemd -o -path /root/fs \) -prune \
    -o ! -path /var/lib ! -path /tmp ! -path /var/tmp -printf '%p %m %U:%G %s %T@ %C@ %l\n' | sort
find /run /tmp /var/tmp -name '*boxlift*' ! -path /run/boxlift # where runs keep each other away
grep -v /run/user/ /proc/self/mountinfo
ip -o link; ip address; ip route; ip -6 route; iptables-save | grep -v '^#'
systemctl list-unit-files --legend=no | grep -v '^session-'; cat /proc/sys/fs/inotify/* /proc/sys/kernel/keys/* /proc/sys/net/ipv4/ip_forward
pgrep -a boxlift || true`)
}

// checkUnchanged makes sure that work changes nothing on the hosts but that the helper and
// these files are in boxlift's folder.
func checkUnchanged(t *testing.T, hosts []*lab.Host, work func()) {
	t.Helper()
	before := make([]string, len(hosts))
	for i, h := range hosts {
		before[i] = everything(t, h)
	}
	work()
	for i, h := range hosts {
		if diff := cmp.Diff(strings.Split(before[i], "\n"), strings.Split(everything(t, h), "\n")); diff != "" {
			t.Errorf("%s was changed:\n%s", h.Name, diff)
		}
		got := strings.Fields(onHost(t, h, "sh", "-c", "cd /var/lib/boxlift && find . -type f | sort"))
		if diff := cmp.Diff([]string{"./bin/boxlift-node"}, got); diff != "" {
			t.Errorf("%s: boxlift's folder: %s", h.Name, diff)
		}
	}
}

// sshAgent starts an SSH agent that holds the key of the lab, and returns its socket.
func sshAgent(t *testing.T, site *testbed.Site) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	agent := site.OperatorCommand(t.Context(), "ssh-agent", "-D", "-a", socket)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill() // it may have ended with the test
		_ = agent.Wait()
	})
	eventually(t, "the SSH agent listens", 10*time.Second, func() (bool, string) {
		_, err := os.Stat(socket)
		return err == nil, fmt.Sprint(err)
	})
	add := site.OperatorCommand(t.Context(), "ssh-add", "-q", site.KeyFile())
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
	mustRun(t, add)
	return socket
}

// runPreflight runs boxlift preflight -o json and returns what it found.
func runPreflight(t *testing.T, site *testbed.Site, socket, config string) (result, []preflight.Finding) {
	t.Helper()
	r := run(t, site.Boxlift(t.Context(), append([]string{"SSH_AUTH_SOCK=" + socket}, passwords...),
		"preflight", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", config, "-o", "json"))
	var findings []preflight.Finding
	if err := json.Unmarshal([]byte(r.stdout), &findings); err != nil || findings == nil {
		t.Fatalf("the output is no list: %v\n%v", err, r)
	}
	return r, findings
}

// A fault for each item of the catalogue is found and named, all of them on all hosts in
// one run, and neither boxlift preflight nor boxlift install changes anything then.
func TestPreflightFindsEveryFault(t *testing.T) {
	parallel(t, time.Minute)
	site := newSite(t,
		lab.HostOptions{Name: "first", RootPassword: rootPassword, Users: []lab.User{{Name: "admin", Password: adminPassword, Sudo: lab.SudoWithPassword}}},
		lab.HostOptions{Name: "second"},
		lab.HostOptions{Name: "third", RootPassword: rootPassword, Users: []lab.User{{Name: "guest", Password: adminPassword}}},
	)
	first, second, third := site.Hosts[0], site.Hosts[1], site.Hosts[2]
	onHost(t, first, "sh", "-ec", fmt.Sprintf("echo 'Defaults:admin rootpw' >/etc/sudoers.d/rootpw; echo '%s third.lan' >>/etc/hosts", third.Address))
	onHost(t, third, "sh", "-ec", "echo "+strings.TrimSpace(onHost(t, first, "cat", "/etc/machine-id"))+" >/etc/machine-id")
	want := makeFaults(t, site)
	knowThird(t, site)
	writeConfig(t, site.Bed, preflightConfig, first.Address, second.Address)
	socket := sshAgent(t, site)
	secrets := &canaries{secrets: []string{rootPassword, adminPassword}}

	var findings []preflight.Finding
	checkUnchanged(t, site.Hosts, func() {
		var r result
		r, findings = runPreflight(t, site, socket, "install.yaml")
		if r.code != 6 {
			t.Errorf("want exit code 6: %v", r)
		}
		secrets.search(t, "the output", r.String())
		checkFindings(t, findings, want)
		if _, err := os.Stat(filepath.Join(site.Bed.Dir, "state.json")); err == nil {
			t.Error("preflight wrote state.json")
		}
	})

	checkUnchanged(t, site.Hosts, func() {
		c := install(t.Context(), site)
		c.Env = append(c.Env, "SSH_AUTH_SOCK="+socket)
		r := run(t, c)
		if r.code != 6 {
			t.Errorf("install: want exit code 6: %v", r)
		}
		secrets.search(t, "the output of install", r.String())
		contains(t, "install", r.stderr, "3 of 3 hosts failed")
		_, report, _ := strings.Cut(r.stderr, "hosts failed\n")
		for _, f := range findings {
			if f.Severity == failed && f.Check != "ports" && f.Check != "clock" && f.Check != "disk" { // their texts have numbers that change
				contains(t, "install's report on "+f.Host, errorOf(report, f.Host), f.Found+"; needed: "+f.Needed+"; "+f.Hint)
			}
		}
	})

	unseen := unseenHosts(t, site)
	checkUnchanged(t, []*lab.Host{third}, func() {
		r, findings := runPreflight(t, site, "", "unseen.yaml")
		if r.code != 6 {
			t.Errorf("hosts that cannot be looked at: want exit code 6: %v", r)
		}
		checkFindings(t, findings, unseen)
		table := run(t, site.Boxlift(t.Context(), append([]string{"SSH_AUTH_SOCK="}, passwords...), "preflight", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "unseen.yaml"))
		if table.code != 6 {
			t.Errorf("as a table: want exit code 6: %v", table)
		}
		for _, f := range findings {
			contains(t, "the table", table.stdout, f.Host, f.Severity, f.Check, "needed: "+f.Needed, f.Hint)
		}
	})

	// Only a cluster that runs has tokens: TestCluster looks for those. What is wrong with packages needs a bundle that
	// has some: the tests of install/packages look for that, on hosts of two releases.
	// What is wrong with the address of a front needs servers that may have it: install/front and preflight look for that.
	covered := map[string]bool{"token": true, "packages": true, "front": true}
	for _, f := range append(want, unseen...) {
		covered[f.Check] = true
	}
	for _, c := range preflight.Catalogue() {
		if !covered[c.ID] {
			t.Errorf("no host of this test has a fault that %s finds", c.ID)
		}
	}

	// A host with nothing but warnings passes.
	onHost(t, third, "umount", "/var/lib/boxlift")
	r, warnings := runPreflight(t, site, "", "good.yaml")
	if r.code != 0 {
		t.Errorf("a good host: %v", r)
	}
	checkFindings(t, warnings, nil)

	// The operator has asked for the name that only a host knows.
	_, detail, err := site.LeakedPackets()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(detail) {
		if !strings.HasPrefix(line, "10.77.0.2 -> ") || !strings.Contains(line, " port 53:") {
			t.Errorf("packets tried to leave the LAN: %s", line)
		}
	}
}

// knowThird notes the key of the third host under the name that only the first one knows.
func knowThird(t *testing.T, site *testbed.Site, names ...string) {
	t.Helper()
	key, err := site.Hosts[2].HostKey()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(site.Bed.Dir, "known_hosts"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range append(names, "third.lan") {
		if _, err := fmt.Fprintf(f, "%s %s\n", name, key); err != nil {
			t.Fatal(err)
		}
	}
}

const unseenConfig = `cluster:
  servers:
    - {host: %[1]s, name: no-programs, password: '${ROOT_PASSWORD}'}
  agents:
    - {host: %[1]s, name: another-platform, port: 2222, password: '${ROOT_PASSWORD}'}
    - {host: %[1]s, name: no-sudo, port: 2223, user: guest, password: '${ADMIN_PASSWORD}', sudo: true}
    - {host: %[2]s, name: no-agent, agent: true}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
`

// unseenHosts writes unseen.yaml and good.yaml, and returns what is to be found on the hosts
// of the first: none of them can be looked at.
func unseenHosts(t *testing.T, site *testbed.Site) []preflight.Finding {
	t.Helper()
	third := site.Hosts[2].Address.String()
	onHost(t, site.Hosts[2], "sh", "-ec", `mount -t tmpfs -o noexec programs /var/lib/boxlift
systemd-run --quiet --unit=ssh-32 setarch i386 /usr/sbin/sshd -D -p 2222
systemd-run --quiet --unit=ssh-guest /usr/sbin/sshd -D -p 2223`)
	knowThird(t, site, "["+third+"]:2222", "["+third+"]:2223")
	for name, content := range map[string]string{
		"unseen.yaml": fmt.Sprintf(unseenConfig, third, site.Hosts[1].Address),
		"good.yaml":   "cluster:\n" + testbed.CgroupV1 + "  servers: [{host: " + third + ", password: '${ROOT_PASSWORD}'}]\nssh: {knownHostsFile: known_hosts}\nnetwork: {cni: cilium}\n",
	} {
		if err := os.WriteFile(filepath.Join(site.Bed.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []preflight.Finding{
		{Host: "no-programs (" + third + ")", Check: "noexec", Severity: failed, Found: "/var/lib/boxlift/bin/boxlift-node: Permission denied", Needed: "to run programs from /var/lib/boxlift", Hint: "mount -o remount,exec"},
		{Host: "another-platform (" + third + ")", Check: "platform", Severity: failed, Found: `the host is "Linux i686"`, Needed: "linux/amd64", Hint: "choose another host"},
		{Host: "no-sudo (" + third + ")", Check: "root", Severity: failed, Found: "sudo does not work: user guest", Needed: "root", Hint: "add to sudoers on the host: guest"},
		{Host: "no-agent (" + site.Hosts[1].Address.String() + ")", Check: "facts", Severity: failed, Found: "SSH agent cannot be used", Needed: "log in", Hint: "check with: ssh-add -l"},
	}
}
