package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
)

const helper = "/var/lib/boxlift/bin/boxlift-node"

// labHosts are two real hosts with boxlift-node on them.
type labHosts struct {
	*lab.Lab
	server, agent *lab.Host
	known         string // a file of their keys
}

func newLabHosts(ctx context.Context, t *testing.T) labHosts {
	t.Helper()
	hosts := labHosts{Lab: labhost.New(ctx, t, "preflight")}
	program := labhost.NodeProgram(ctx, t)
	for name, h := range map[string]**lab.Host{"server-1": &hosts.server, "agent-1": &hosts.agent} {
		*h = labhost.Make(ctx, t, hosts.Lab, lab.HostOptions{Name: name})
		labhost.Put(ctx, t, *h, helper, "0755", program)
	}
	hosts.known = labhost.KnownHosts(t, hosts.server, hosts.agent)
	return hosts
}

func (l labHosts) facts(ctx context.Context, t *testing.T, h *lab.Host, as ...string) (*facts.Facts, time.Duration, time.Duration) {
	t.Helper()
	before := time.Now()
	out, err := h.Exec(ctx, append(as, helper, "facts")...)
	after := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	f, err := facts.Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.Parse(time.RFC3339Nano, f.Clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	half := after.Sub(before) / 2
	return f, now.Sub(before.Add(half)), half
}

// subjects gathers the facts of both hosts.
func (l labHosts) subjects(ctx context.Context, t *testing.T) []Subject {
	t.Helper()
	subjects := make([]Subject, 2)
	for i, h := range []*lab.Host{l.server, l.agent} {
		s := &subjects[i]
		s.Name, s.Config = h.Name, config.Host{Role: config.Server, Host: h.Address.String(), Port: 22, User: "root"}
		if i > 0 {
			s.Config.Role = config.Agent
		}
		s.Facts, s.Offset, s.OffsetError = l.facts(ctx, t, h)
		s.Platform, s.Packs = "linux/amd64", []facts.StoredFile{{Name: "boxlift-k3s-0123456789ab.tar", Size: gib}}
		if s.Facts.Architecture == "arm64" {
			s.Platform = "linux/arm64"
		}
	}
	subjects[0].K3sConfig = map[string]any{"disable-kube-proxy": true}
	return subjects
}

func (l labHosts) need(subjects []Subject, k3s string) Need {
	need, _ := goodCluster()
	need.Config.Cluster.Servers[0], need.Config.Cluster.Agents[0] = subjects[0].Config, subjects[1].Config
	need.K3s = k3s
	need.Platforms[0] = subjects[0].Platform
	need.Sizes[subjects[0].Platform] = need.Sizes["linux/amd64"]
	return need
}

// start runs boxlift-node over SSH, from the operator's place.
func (l labHosts) start(h *lab.Host) func(context.Context, ...string) (io.WriteCloser, io.Reader, func() error, error) {
	return func(ctx context.Context, args ...string) (io.WriteCloser, io.Reader, func() error, error) {
		c := l.OperatorCommand(ctx, "ssh", append([]string{
			"-F", "none", "-i", l.KeyFile(), "-o", "UserKnownHostsFile=" + l.known, "-o", "StrictHostKeyChecking=yes",
			"-o", "HostKeyAlgorithms=ssh-ed25519", "-o", "BatchMode=yes", "root@" + h.Address.String(), helper,
		}, args...)...)
		c.WaitDelay = time.Second
		var stderr bytes.Buffer
		c.Stderr = &stderr
		stdin, err := c.StdinPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		stdout, err := c.StdoutPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		if err := c.Start(); err != nil {
			return nil, nil, nil, err
		}
		return stdin, stdout, sync.OnceValue(func() error {
			if err := c.Wait(); err != nil {
				return fmt.Errorf("%w: %s", err, stderr.String())
			}
			return nil
		}), nil
	}
}

func (l labHosts) reach(ctx context.Context, t *testing.T, subjects []Subject, need Need) {
	t.Helper()
	var hosts []ReachHost
	for i, h := range []*lab.Host{l.server, l.agent} {
		hosts = append(hosts, ReachHost{
			Name: h.Name, Address: NodeAddress(subjects[i]), Role: subjects[i].Config.Role, Ports: ReachPorts(need, subjects, i),
			Outside: ReachOutside(need), Start: l.start(h),
		})
	}
	begin := time.Now()
	found, err := Reach(ctx, hosts)
	t.Logf("reach took %s", time.Since(begin).Round(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	for i := range subjects {
		subjects[i].Reach = found[subjects[i].Name]
	}
	for _, h := range []*lab.Host{l.server, l.agent} {
		if out, err := h.Exec(ctx, "pgrep", "-a", "boxlift-node"); err == nil {
			t.Errorf("%s: still running: %s", h.Name, out)
		}
	}
}

func commands(ctx context.Context, t *testing.T, h *lab.Host, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if _, err := h.Exec(ctx, "sh", "-ec", line); err != nil {
			t.Fatal(err)
		}
	}
}

// service is a command that makes a real unit of something that sleeps.
func service(name, program string) string {
	return fmt.Sprintf(`cp /bin/sleep %[2]s
printf '[Service]\nExecStart=%[2]s infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/%[1]s
systemctl daemon-reload
systemctl enable --quiet --now %[1]s`, name, program)
}

func TestOnHosts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	hosts := newLabHosts(ctx, t)

	t.Run("hosts without faults", func(t *testing.T) {
		subjects := hosts.subjects(ctx, t)
		need := hosts.need(subjects, "v1.34.9+k3s1")
		hosts.reach(ctx, t, subjects, need)
		for _, f := range Judge(need, subjects) {
			t.Logf("%+v", f)
			// The disk is this machine's, whatever is on it.
			if f.Severity == Error && f.Check != "disk" {
				t.Errorf("%+v", f)
			}
		}
		var tried []string
		for _, s := range subjects {
			for _, r := range s.Reach {
				tried = append(tried, fmt.Sprintf("%s -> %s %s %s", s.Name, r.Host, r.Endpoint, r.State))
			}
		}
		want := []string{
			"server-1 -> agent-1 10250/tcp ok", "server-1 -> agent-1 4240/tcp ok", "server-1 -> agent-1 8472/udp ok",
			"agent-1 -> server-1 6443/tcp ok", "agent-1 -> server-1 10250/tcp ok", "agent-1 -> server-1 4240/tcp ok", "agent-1 -> server-1 8472/udp ok",
		}
		if !slices.Equal(tried, want) {
			t.Errorf("tried %q, want %q", tried, want)
		}
	})

	t.Run("ways in which images come to hosts", func(t *testing.T) {
		look := func(seeding config.Seeding) (findings []Finding, tried []string) {
			t.Helper()
			subjects := hosts.subjects(ctx, t)
			need := hosts.need(subjects, "v1.34.9+k3s1")
			need.Config.Seeding = seeding
			if seeding.PeerToPeer {
				subjects[0].K3sConfig["embedded-registry"] = true
			}
			hosts.reach(ctx, t, subjects, need)
			for _, s := range subjects {
				for _, r := range s.Reach {
					tried = append(tried, fmt.Sprintf("%s -> %s %s %s", s.Name, r.Host, r.Endpoint, r.State))
				}
			}
			return Judge(need, subjects), tried
		}
		has := func(findings []Finding, host, check, severity, found string) bool {
			return slices.ContainsFunc(findings, func(f Finding) bool {
				return f.Host == host && f.Check == check && f.Severity == severity && strings.Contains(f.Found, found)
			})
		}
		registry := config.Seeding{Mode: config.SeedRegistry, Registry: config.SeedingRegistry{Port: 5443}, PeerToPeer: true}
		const inUse = "port 5443/tcp is in use by socat"
		findings, tried := look(registry)
		for _, want := range []string{"agent-1 -> server-1 5443/tcp ok", "agent-1 -> server-1 5001/tcp ok", "server-1 -> agent-1 5001/tcp ok", "server-1 -> agent-1 6443/tcp ok"} {
			if !slices.Contains(tried, want) {
				t.Errorf("tried %q, want %q among it", tried, want)
			}
		}
		if has(findings, "server-1", "ports", Error, "") || has(findings, "server-1", "seeding", Error, "") || has(findings, "server-1", "reach", Error, "") {
			t.Errorf("without a fault: %+v", findings)
		}
		commands(ctx, t, hosts.server, "systemd-run --quiet --unit=boxlift-registry socat TCP-LISTEN:5443,fork,reuseaddr EXEC:/bin/true")
		if findings, _ = look(registry); has(findings, "server-1", "ports", Error, inUse) {
			t.Errorf("the registry itself: %+v", findings)
		}
		commands(ctx, t, hosts.server, "systemctl stop boxlift-registry", "systemd-run --quiet --unit=other socat TCP-LISTEN:5443,fork,reuseaddr EXEC:/bin/true")
		commands(ctx, t, hosts.agent, "iptables --wait --insert INPUT --protocol tcp --dport 5001 --jump REJECT")
		findings, _ = look(registry)
		if !has(findings, "server-1", "ports", Error, inUse) || !has(findings, "server-1", "reach", Error, "5001/tcp for the embedded registry") {
			t.Errorf("with faults: %+v", findings)
		}
		commands(ctx, t, hosts.agent, "iptables --wait --delete INPUT --protocol tcp --dport 5001 --jump REJECT")

		external := config.Seeding{Mode: config.SeedExternal, Agents: config.AgentsBoot, External: &config.ExternalRegistry{Address: hosts.server.Address.String() + ":5443"}}
		findings, tried = look(external)
		if !slices.Contains(tried, "agent-1 ->  5443/tcp ok") || has(findings, "agent-1", "reach", Error, "the registry") {
			t.Errorf("tried %q, found %+v", tried, findings)
		}
		commands(ctx, t, hosts.server, "systemctl stop other")
		if findings, _ = look(external); !has(findings, "agent-1", "reach", Error, "it does not reach the registry") || !has(findings, "server-1", "reach", Warning, "it does not reach the registry") {
			t.Errorf("without the registry: %+v", findings)
		}
		external.External.Address = "harbor.invalid"
		if findings, _ = look(external); !has(findings, "agent-1", "reach", Error, "(harbor.invalid:443)") {
			t.Errorf("with a name that nobody knows: %+v", findings)
		}
	})

	t.Run("hosts with many faults", func(t *testing.T) {
		commands(ctx, t, hosts.server,
			"systemd-run --quiet --unit=squatter socat TCP-LISTEN:6443,fork,reuseaddr EXEC:/bin/true",
			"systemd-run --quiet --unit=local socat TCP-LISTEN:10248,bind=127.0.0.1,fork EXEC:/bin/true",
			"ip link add vx0 type vxlan id 7 dev eth0 dstport 8472 && ip link set vx0 up",
			"mkdir -p /var/lib/rancher && mount -t tmpfs -o size=64m,nr_inodes=500 small /var/lib/rancher",
			"mount --bind /opt /opt && mount -o remount,bind,noexec /opt",
			"ip route add 10.42.5.0/24 via 10.77.0.1",
			"ip link add lan1 type veth peer name lan2 && ip address add 10.43.0.5/24 dev lan1 && ip link set lan1 up",
			"ip route delete default",
			"echo 128 >/proc/sys/fs/inotify/max_user_instances",
			"echo 200 >/proc/sys/kernel/keys/root_maxkeys",
			"echo nameserver 127.0.0.53 >/etc/resolv.conf",
			"mkdir -p /etc/cni/net.d && echo '{}' >/etc/cni/net.d/10-flannel.conflist",
			"mkdir -p /etc/ufw && echo ENABLED=yes >/etc/ufw/ufw.conf",
			service("firewalld.service", "/usr/local/bin/firewalld"),
			service("ufw.service", "/usr/local/bin/ufw-init"),
			service("nm-cloud-setup.service", "/usr/local/bin/nm-cloud-setup"),
			service("kubelet.service", "/usr/local/bin/kubelet"),
		)
		if err := hosts.server.ReadOnly(ctx, "/usr/local"); err != nil {
			t.Fatal(err)
		}
		id, err := hosts.server.Exec(ctx, "cat", "/etc/machine-id")
		if err != nil {
			t.Fatal(err)
		}
		commands(ctx, t, hosts.agent,
			"echo "+strings.TrimSpace(string(id))+" >/etc/machine-id",
			"hostname server-1",
			"cp /bin/sleep /usr/local/bin/kube-proxy && systemd-run --quiet --unit=manual /usr/local/bin/kube-proxy infinity",
			`printf '#!/bin/sh\necho "k3s version v1.30.1+k3s1 (0123abcd)"\n' >/usr/local/bin/k3s && chmod 0755 /usr/local/bin/k3s`,
			"mkdir -p /etc/rancher/k3s && echo 'data-dir: /srv/k3s' >/etc/rancher/k3s/config.yaml",
			service("k3s.service", "/usr/local/bin/k3s-server"),
			"iptables --wait --insert INPUT --protocol tcp --dport 10250 --jump DROP",
			"iptables --wait --insert INPUT --protocol udp --dport 8472 --jump REJECT",
		)
		subjects := hosts.subjects(ctx, t)
		subjects[1].Offset -= time.Minute
		subjects[1].Config.NodeIP = netip.MustParseAddr("10.77.0.99")
		need := hosts.need(subjects, "v1.36.4+k3s1")
		subjects[1].Config.NodeIP = netip.Addr{} // only for the judge: packets have to arrive
		hosts.reach(ctx, t, subjects, need)
		subjects[1].Config.NodeIP = netip.MustParseAddr("10.77.0.99")
		findings := Judge(need, subjects)
		for _, f := range findings {
			t.Logf("%+v", f)
		}
		for _, want := range []struct{ host, check, severity, found string }{
			{"server-1", "disk", Error, "on /var/lib/rancher"},
			{"server-1", "inodes", Error, "on /var/lib/rancher"},
			{"server-1", "filesystem", Warning, "tmpfs"},
			{"server-1", "read-only", Error, "/usr/local is mounted read-only"},
			{"server-1", "noexec", Error, "/opt is mounted noexec"},
			{"server-1", "ports", Error, "port 6443/tcp is in use by socat (process "},
			{"server-1", "ports", Error, ", squatter.service)"},
			{"server-1", "ports", Error, "port 10248/tcp is in use by socat"},
			{"server-1", "ports", Error, "port 8472/udp is in use by somebody unknown, perhaps an interface of the kernel's"},
			{"server-1", "default-route", Error, "no default route"},
			{"server-1", "resolv-conf", Warning, "127.0.0.53"},
			{"server-1", "firewall", Warning, "firewalld is active"},
			{"server-1", "firewall", Warning, "ufw is active"},
			{"server-1", "nm-cloud-setup", Error, "nm-cloud-setup.service"},
			{"server-1", "inotify", Warning, "max_user_instances = 128"},
			{"server-1", "sysctls", Warning, "root_maxkeys = 200"},
			{"server-1", "networks", Error, "10.42.5.0/24 is routed to 10.77.0.1"},
			{"server-1", "networks", Error, "lan1 has the address 10.43.0.5/24"},
			{"server-1", "kubernetes", Error, "kubelet.service runs"},
			{"server-1", "cni", Error, "10-flannel.conflist"},
			{"server-1", "reach", Error, "10250/tcp for the kubelet (no answer), 8472/udp for traffic between pods (VXLAN) (refused)"},
			{"agent-1", "hostname", Error, "server-1"},
			{"agent-1", "machine-id", Error, "it has the /etc/machine-id of server-1"},
			{"agent-1", "clock", Error, "behind that of server-1"},
			{"agent-1", "node-ip", Error, "10.77.0.99; there are " + hosts.agent.Address.String()},
			{"agent-1", "kubernetes", Error, "kube-proxy (process "},
			{"agent-1", "k3s", Error, "already"},
			{"agent-1", "k3s", Error, "k3s v1.30.1+k3s1 is installed"},
			{"agent-1", "k3s", Error, "/srv/k3s"},
		} {
			if !slices.ContainsFunc(findings, func(f Finding) bool {
				return f.Host == want.host && f.Check == want.check && f.Severity == want.severity && strings.Contains(f.Found, want.found)
			}) {
				t.Errorf("not found: %+v", want)
			}
		}
		// The agent reaches the server on all that can be tried, on a port that is in use too.
		for _, r := range subjects[1].Reach {
			if r.State != reach.OK || r.Port == 8472 {
				t.Errorf("agent-1: %+v", r)
			}
		}
		if subjects[0].Facts.Cgroup.Version == 1 && !slices.ContainsFunc(findings, func(f Finding) bool { return f.Check == "cgroup" && f.Severity == Error }) {
			t.Error("cgroup v1 was not found")
		}
	})

	t.Run("a host that is not root's", func(t *testing.T) {
		subjects := hosts.subjects(ctx, t)
		subjects[1].Facts, _, _ = hosts.facts(ctx, t, hosts.agent, "setpriv", "--reuid=65534", "--clear-groups")
		findings := Judge(hosts.need(subjects, "v1.36.4+k3s1"), subjects)
		if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Host == "agent-1" && f.Check == "root" && f.Severity == Error }) {
			t.Errorf("not found: %+v", findings)
		}
	})

	t.Run("a host that is gone", func(t *testing.T) {
		subjects := hosts.subjects(ctx, t)
		need := hosts.need(subjects, "v1.36.4+k3s1")
		var group []ReachHost
		for i, h := range []*lab.Host{hosts.server, hosts.agent} {
			group = append(group, ReachHost{Name: h.Name, Address: h.Address.String(), Ports: ReachPorts(need, subjects, i), Start: hosts.start(h)})
		}
		gone := errors.New("the connection is lost")
		group[1].Start = func(context.Context, ...string) (io.WriteCloser, io.Reader, func() error, error) {
			return nil, nil, nil, gone
		}
		found, err := Reach(ctx, group)
		if !errors.Is(err, gone) || !strings.HasPrefix(err.Error(), "agent-1: ") {
			t.Errorf("got %v", err)
		}
		for _, r := range found["server-1"] {
			if r.State != NotTried || r.Detail == "" {
				t.Errorf("got %+v", r)
			}
		}
		if len(found["server-1"]) == 0 {
			t.Error("nothing is said of what could not be tried")
		}
	})
}
