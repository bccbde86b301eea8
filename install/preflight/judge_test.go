package preflight

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/front"
	"github.com/liteboxd/boxlift/install/config/naming"
	"github.com/liteboxd/boxlift/install/config/timeservers"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/lookup"
	"github.com/liteboxd/boxlift/node/reach"
)

var update = flag.Bool("update", false, "write the golden files")

const gib = 1 << 30

// goodHost is a host without a fault, of the size that is recommended for its role.
func goodHost(name, address string, role config.Role, id byte) Subject {
	good := serverProfile().good
	if role == config.Agent {
		good = agentProfile().good
	}
	f := &facts.Facts{
		Version: facts.Version, Hostname: name,
		MachineID: strings.Repeat(string(id), 32), BootID: "boot-" + name,
		OS:           facts.OS{ID: "debian", Version: "12", Pretty: "Debian GNU/Linux 12 (bookworm)"},
		Architecture: "amd64", Platform: "linux/amd64",
		Kernel: facts.Kernel{Release: "6.1.0-18-amd64", Config: map[string]string{}, Modules: map[string]string{}},
		CPUs:   good.cpus, Memory: facts.Memory{Total: good.memory, Available: 6 * gib},
		Clock:   facts.Clock{Now: "2026-11-21T10:00:00Z", Synchronized: true},
		Cgroup:  facts.Cgroup{Version: 2, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		Systemd: facts.Systemd{Version: "252", State: "running"},
		SELinux: "disabled",
		Sysctls: map[string]string{
			"fs.inotify.max_user_instances": "8192", "fs.inotify.max_user_watches": "524288", "kernel.keys.root_maxkeys": "1000000",
			"kernel.keys.root_maxbytes": "25000000", "kernel.panic": "10", "kernel.panic_on_oops": "1", "vm.overcommit_memory": "1", "vm.panic_on_oom": "0",
			"net.ipv6.conf.all.disable_ipv6": "0",
		},
		Network: facts.Network{
			Interfaces: []facts.Interface{
				{Name: "lo", Up: true, Addresses: []string{"127.0.0.1/8", "::1/128"}},
				{Name: "eth0", Up: true, Addresses: []string{address + "/24", "fe80::1/64"}},
			},
			Routes: []facts.Route{
				{Destination: "0.0.0.0/0", Gateway: "10.0.0.1", Interface: "eth0"},
				{Destination: "10.0.0.0/24", Interface: "eth0"},
			},
			Resolvers: []string{"10.0.0.1"},
		},
		Ports: []facts.Port{{Protocol: "tcp", Address: "0.0.0.0", Port: 22, Owner: facts.Process{Name: "sshd", PID: 7, Unit: "ssh.service"}}},
		Units: []facts.Unit{
			{Name: "k3s.service", LoadState: "not-found", ActiveState: "inactive"},
			{Name: "k3s-agent.service", LoadState: "not-found", ActiveState: "inactive"},
			{Name: "docker.service", LoadState: "loaded", ActiveState: "active", UnitFileState: "enabled"},
			{Name: "ufw.service", LoadState: "loaded", ActiveState: "active", UnitFileState: "enabled"}, // but ufw is off
			{Name: "nm-cloud-setup.service", LoadState: "loaded", ActiveState: "inactive", UnitFileState: "disabled"},
		},
	}
	for _, p := range []string{"/", "/etc", "/opt", "/run", "/usr/local", "/var/lib/boxlift", "/var/lib/kubelet", "/var/lib/rancher", "/var/log"} {
		f.Mounts = append(f.Mounts, facts.Mount{
			Path: p, MountPoint: "/", Source: "/dev/sda1", Type: "ext4", Options: []string{"rw"}, Device: "8:1",
			Total: good.disk, Free: 60 * gib, Inodes: 6_000_000, FreeInodes: 5_000_000,
		})
	}
	k := &judgement{Need: Need{Config: &config.Config{Network: config.Network{Cilium: config.Cilium{}}}}, Subject: &Subject{}}
	for _, n := range k.kernelNeeds() {
		f.Kernel.Config[n.option] = "y"
	}
	return Subject{
		Name: name, Config: config.Host{Role: role, Host: address}, Platform: "linux/amd64", Facts: f, OffsetError: 10 * time.Millisecond,
		Packs: []facts.StoredFile{{Name: "boxlift-k3s-0123456789ab.tar", Size: gib}},
	}
}

// goodCluster is a server and an agent without a fault.
func goodCluster() (Need, []Subject) {
	subjects := []Subject{
		goodHost("server-1", "10.0.0.11", config.Server, 'a'),
		goodHost("agent-1", "10.0.0.21", config.Agent, 'b'),
	}
	c := &config.Config{
		Cluster: config.Cluster{Servers: []config.Host{subjects[0].Config}, Agents: []config.Host{subjects[1].Config}},
		Network: config.Network{Cilium: config.Cilium{PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), KubeProxyReplacement: true}},
	}
	subjects[0].K3sConfig = map[string]any{"disable-kube-proxy": true}
	sizes := Sizes{
		Files: []facts.StoredFile{{Name: "k3s-0123456789ab", Size: 100 * mib}}, K3s: 100 * mib,
	}
	return Need{
		Config: c, K3s: "v1.36.4+k3s1", Platforms: []lock.Platform{"linux/amd64"}, Sizes: map[lock.Platform]Sizes{"linux/amd64": sizes},
	}, subjects
}

// mount changes the mounts of some paths, or of all.
func (f fault) mount(change func(*facts.Mount), paths ...string) {
	for i := range f.server.Facts.Mounts {
		if m := &f.server.Facts.Mounts[i]; len(paths) == 0 || slices.Contains(paths, m.Path) {
			change(m)
		}
	}
}

// installed makes the server one that boxlift has installed.
func (f fault) installed() {
	f.server.Facts.K3s = facts.K3s{Path: "/usr/local/bin/k3s", Version: f.need.K3s, Managed: true, Created: "2026-11-21T09:00:00Z", DataDirs: []string{"/var/lib/rancher/k3s/server"}}
	f.unit(facts.Unit{Name: "k3s.service", LoadState: "loaded", ActiveState: "active", UnitFileState: "enabled"})
}

// withoutUnit lets k3s be installed and run, but for systemd's knowing of it.
func (f fault) withoutUnit() {
	f.installed()
	f.server.Facts.Units = slices.DeleteFunc(f.server.Facts.Units, func(u facts.Unit) bool { return u.Name == "k3s.service" })
	f.server.Facts.Processes = []facts.Process{k3sItself, inPod}
}

func (f fault) unit(u facts.Unit) {
	f.server.Facts.Units = append(slices.DeleteFunc(f.server.Facts.Units, func(o facts.Unit) bool { return o.Name == u.Name }), u)
}

func (f fault) listen(protocol, address string, port int, owner facts.Process) {
	f.server.Facts.Ports = append(f.server.Facts.Ports, facts.Port{Protocol: protocol, Address: address, Port: port, Owner: owner})
}

// alone leaves the server as the only host of install.yaml.
func (f fault) alone() { f.need.Config.Cluster.Agents = nil }

// registry lets the servers run a registry.
func (f fault) registry(port int) {
	f.need.Config.Seeding = config.Seeding{Mode: config.SeedRegistry, Registry: config.SeedingRegistry{Port: port}}
}

// serve lets the server be a DNS server for the LAN.
func (f fault) serve() {
	f.need.Config.Names = &config.Names{Serve: &naming.Serve{On: []string{f.server.Config.Address()}}}
}

// servesTime lets the server serve time to the others.
func (f fault) servesTime() {
	f.need.Config.Time, f.server.Config.ServesTime = &timeservers.Time{}, true
}

// peers lets the nodes get images from each other.
func (f fault) peers() {
	f.need.Config.Seeding.PeerToPeer = true
	f.server.K3sConfig["embedded-registry"] = true
}

// external lets the nodes pull from a registry that both have tried.
func (f fault) external(agents config.AgentSeeding, state reach.State, detail string) {
	f.need.Config.Seeding = config.Seeding{Mode: config.SeedExternal, Agents: agents, External: &config.ExternalRegistry{Address: "harbor.lan"}}
	for _, s := range []*Subject{f.server, f.agent} {
		s.Reach = []Reached{{Address: "harbor.lan", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 443}, Use: "the registry", State: state, Detail: detail}}
	}
}

// fault is what a test may change.
type fault struct {
	need          *Need
	server, agent *Subject
}

type faultTest struct {
	name string
	make func(fault)
	// want has "host check severity" of each finding.
	want []string
}

var (
	ntpd           = facts.Process{Name: "ntpd", PID: 98, Executable: "/usr/sbin/ntpd", Unit: "ntpsec.service"}
	nginx          = facts.Process{Name: "nginx", PID: 99, Executable: "/usr/sbin/nginx", Unit: "nginx.service"}
	k3sItself      = facts.Process{Name: "k3s-server", PID: 50, Executable: "/var/lib/rancher/k3s/data/01/bin/k3s", Unit: "k3s.service"}
	etcdChild      = facts.Process{Name: "etcd", PID: 51, Executable: "/usr/bin/etcd", Unit: "k3s.service"}
	dnsItself      = facts.Process{Name: "dnsmasq", PID: 61, Executable: "/usr/sbin/dnsmasq", Unit: "boxlift-dns.service"}
	registryItself = facts.Process{Name: "boxlift-registr", PID: 60, Executable: "/usr/local/libexec/boxlift-registry", Unit: "boxlift-registry.service"}
	inPod          = facts.Process{Name: "cilium-agent", PID: 52, Executable: "/usr/bin/cilium-agent", Unit: "kubepods"}
)

// front gives the server an address to have in turn with others.
func (f fault) front(vip string) {
	f.server.Config.Path = "cluster.servers[0]"
	f.need.Config.Cluster.Servers = []config.Host{f.server.Config}
	f.need.Config.Cluster.Front = &front.Front{VIP: netip.MustParseAddr(vip), On: []string{f.server.Config.Path}}
}

func faultTests() []faultTest {
	const s, a = "server-1 ", "agent-1 "
	return []faultTest{
		{"nothing", func(fault) {}, nil},

		{"no facts", func(f fault) { f.agent.Facts = nil }, []string{a + "facts error"}},

		{"other platform", func(f fault) { f.agent.Platform = "linux/arm64"; f.agent.Facts.Platform = "linux/arm64" }, []string{a + "platform error"}},
		{"two platforms in one", func(f fault) { f.agent.Facts.Platform = "linux/386" }, []string{a + "platform error"}},
		{"second platform of the bundle", func(f fault) {
			f.agent.Platform, f.agent.Facts.Platform = "linux/arm64", "linux/arm64"
			f.need.Platforms = append(f.need.Platforms, "linux/arm64")
		}, nil},

		{"an image that nobody has", func(f fault) {
			f.agent.Images = []ImageFault{{Image: "r.lan/team/api:1", Answers: []ImageAnswer{{Registry: "r.lan", Place: "team/api:1",
				Setting: "seeding.external", Answer: lookup.Answer{State: lookup.Absent, Detail: "it answers 404 Not Found"}}}}}
		}, []string{a + "images error"}},

		{"not root", func(f fault) { f.server.Facts.User = 1000 }, []string{s + "root error"}},

		{"no systemd", func(f fault) { f.server.Facts.Systemd = facts.Systemd{} }, []string{s + "systemd error"}},
		{"offline", func(f fault) { f.server.Facts.Systemd.State = "offline" }, []string{s + "systemd error"}},
		{"rescue", func(f fault) { f.server.Facts.Systemd.State = "maintenance" }, []string{s + "systemd error"}},
		{"going down", func(f fault) { f.server.Facts.Systemd.State = "stopping" }, []string{s + "systemd error"}},
		{"booting", func(f fault) { f.server.Facts.Systemd.State = "starting" }, []string{s + "systemd warning"}},
		{"degraded", func(f fault) { f.server.Facts.Systemd.State = "degraded" }, nil},

		{"one CPU", func(f fault) { f.server.Facts.CPUs, f.agent.Facts.CPUs = 1, 1 }, []string{s + "cpu warning", a + "cpu warning"}},
		{"two CPUs", func(f fault) { f.server.Facts.CPUs = 2 }, []string{s + "cpu warning"}},
		{"a server's CPUs for an agent", func(f fault) { f.agent.Facts.CPUs = 4 }, []string{a + "cpu warning"}},
		{"two CPUs for a single machine", func(f fault) { f.alone(); f.server.Facts.CPUs = 2 }, nil},
		{"one CPU for a single machine", func(f fault) { f.alone(); f.server.Facts.CPUs = 1 }, []string{s + "cpu warning"}},

		{"server with little memory", func(f fault) { f.server.Facts.Memory.Total = 800 * mib }, []string{s + "memory error"}},
		{"server with 1 GiB", func(f fault) { f.server.Facts.Memory.Total = 980 * mib }, []string{s + "memory warning"}},
		{"server with 4 GiB", func(f fault) { f.server.Facts.Memory.Total = 3860 * mib }, []string{s + "memory warning"}},
		{"server with 8 GiB", func(f fault) { f.server.Facts.Memory.Total = 7800 * mib }, nil},
		{"agent with little memory", func(f fault) { f.agent.Facts.Memory.Total = 400 * mib }, []string{a + "memory error"}},
		{"agent with 512 MiB", func(f fault) { f.agent.Facts.Memory.Total = 480 * mib }, []string{a + "memory warning"}},
		{"agent with 16 GiB", func(f fault) { f.agent.Facts.Memory.Total = 15700 * mib }, nil},
		{"single machine with little memory", func(f fault) { f.alone(); f.server.Facts.Memory.Total = 800 * mib }, []string{s + "memory error"}},
		{"single machine with 2 GiB", func(f fault) { f.alone(); f.server.Facts.Memory.Total = 1930 * mib }, []string{s + "memory warning"}},
		{"single machine with 4 GiB", func(f fault) { f.alone(); f.server.Facts.Memory.Total = 3860 * mib }, nil},
		{"unknown memory", func(f fault) { f.server.Facts.Memory = facts.Memory{} }, nil},

		{"a disk of 50 GB", func(f fault) { f.mount(func(m *facts.Mount) { m.Total, m.Free = 46*gib, 40*gib }) }, []string{s + "disk-size warning"}},
		{"a disk of 50 GB for a single machine", func(f fault) {
			f.alone()
			f.mount(func(m *facts.Mount) { m.Total, m.Free = 46*gib, 40*gib })
		}, nil},
		{"a disk of 40 GB for a single machine", func(f fault) {
			f.alone()
			f.mount(func(m *facts.Mount) { m.Total, m.Free = 37*gib, 30*gib })
		}, []string{s + "disk-size warning"}},
		{"a small disk for the system alone", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/usr", 4*gib, 3*gib }, "/usr/local")
		}, nil},

		// 4 GiB of packs, 300 MiB of k3s' programs and some 200 MiB of files.
		{"full disk", func(f fault) { f.mount(func(m *facts.Mount) { m.Free = 4 * gib }) }, []string{s + "disk error"}},
		{"just enough on a small disk", func(f fault) { f.mount(func(m *facts.Mount) { m.Total, m.Free = 8*gib, 6*gib }) }, []string{s + "disk-size warning"}},
		{"the kubelet would evict", func(f fault) { f.mount(func(m *facts.Mount) { m.Free = 8 * gib }) }, []string{s + "disk error"}},
		{"the kubelet is told not to", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Free = 8 * gib })
			f.server.K3sConfig["kubelet-arg"] = []any{"eviction-hard=nodefs.available<1%", "image-gc-high-threshold=99"}
		}, nil},
		{"the kubelet would remove images", func(f fault) { f.mount(func(m *facts.Mount) { m.Free = 15 * gib }) }, []string{s + "disk warning"}},
		{"k3s has left old programs", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Free = 4*gib + 300*mib })
			f.server.Facts.K3s.OldPrograms = 472 * mib
		}, []string{s + "disk error"}},
		{"old programs of k3s where they help the kubelet", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Free = 15 * gib })
			f.server.Facts.K3s.OldPrograms = 236 * mib
		}, []string{s + "disk warning"}},
		{"old programs of k3s on another disk than the full one", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/usr", 4*gib, 90*mib }, "/usr/local")
			f.server.Facts.K3s.OldPrograms = 236 * mib
		}, []string{s + "disk error"}},
		{"old programs of k3s, and room enough", func(f fault) { f.server.Facts.K3s.OldPrograms = 236 * mib }, nil},
		{"an archive for this host alone", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/usr", 4*gib, 190*mib }, "/usr/local")
			f.server.Archives = []facts.StoredFile{{Name: "cilium-linux-amd64.tar.gz-0123456789ab", Size: 40 * mib}}
		}, []string{s + "disk error"}},
		{"the archive is there", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/usr", 4*gib, 190*mib }, "/usr/local")
			f.server.Archives = []facts.StoredFile{{Name: "cilium-linux-amd64.tar.gz-0123456789ab", Size: 40 * mib}}
			f.server.Facts.Files = append(f.server.Facts.Files, f.server.Archives...)
		}, nil},
		{"disk of its own for the data", func(f fault) {
			f.mount(func(m *facts.Mount) {
				m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/var/lib/rancher", 4*gib, 4*gib
			}, "/var/lib/rancher")
		}, []string{s + "disk error", s + "disk-size warning"}},
		{"small disk for programs", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "8:2", "/usr", 4*gib, 90*mib }, "/usr/local")
		}, []string{s + "disk error"}},
		{"small /run", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Device, m.MountPoint, m.Total, m.Free = "0:5", "/run", 8*mib, 8*mib }, "/run")
		}, []string{s + "disk error"}},
		{"packs are there, but not imported", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Total, m.Free = 8*gib, 4*gib })
			f.server.Facts.Packs = []facts.Pack{{Name: "boxlift-k3s-0123456789ab.tar", Size: gib}}
		}, []string{s + "disk warning", s + "disk-size warning"}},
		{"all is there", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Total, m.Free = 8*gib, 2*gib })
			f.installed()
			f.server.Facts.Packs = []facts.Pack{{Name: "boxlift-k3s-0123456789ab.tar", Size: gib}}
			f.server.Facts.Files = f.need.Sizes["linux/amd64"].Files
		}, []string{s + "disk-size warning"}},
		{"a pack of another size is there", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Total, m.Free = 8*gib, 2*gib })
			f.installed()
			f.server.Facts.Packs = []facts.Pack{{Name: "boxlift-k3s-0123456789ab.tar", Size: gib - 1}}
		}, []string{s + "disk error", s + "disk-size warning"}},

		{"no inodes", func(f fault) { f.mount(func(m *facts.Mount) { m.FreeInodes = 100_000 }) }, []string{s + "inodes error"}},
		{"inodes without a number", func(f fault) { f.mount(func(m *facts.Mount) { m.Inodes, m.FreeInodes = 0, 0 }) }, nil},

		{"read-only", func(f fault) { f.mount(func(m *facts.Mount) { m.ReadOnly = true }, "/etc") }, []string{s + "read-only error"}},
		{"read-only, but not ours", func(f fault) { f.mount(func(m *facts.Mount) { m.ReadOnly = true }, "/") }, nil},

		{"noexec", func(f fault) {
			f.mount(func(m *facts.Mount) { m.NoExec, m.MountPoint = true, "/var" }, "/var/lib/rancher", "/var/lib/boxlift", "/var/lib/kubelet", "/var/log")
		}, []string{s + "noexec error"}},
		{"noexec, but nothing runs there", func(f fault) {
			f.mount(func(m *facts.Mount) { m.NoExec = true }, "/run", "/etc", "/var/log")
		}, nil},

		{"overlay", func(f fault) { f.mount(func(m *facts.Mount) { m.Type = "overlay" }) }, []string{s + "filesystem error"}},
		{"overlay with another snapshotter", func(f fault) {
			f.mount(func(m *facts.Mount) { m.Type = "overlay" })
			f.server.K3sConfig["snapshotter"] = "native"
		}, nil},
		{"NFS", func(f fault) { f.mount(func(m *facts.Mount) { m.Type = "nfs4" }, "/var/lib/rancher") }, []string{s + "filesystem error"}},
		{"FUSE", func(f fault) { f.mount(func(m *facts.Mount) { m.Type = "fuse.sshfs" }, "/var/lib/rancher") }, []string{s + "filesystem error"}},
		{"memory as a disk", func(f fault) { f.mount(func(m *facts.Mount) { m.Type = "tmpfs" }, "/var/lib/rancher") }, []string{s + "filesystem warning"}},
		{"xfs", func(f fault) { f.mount(func(m *facts.Mount) { m.Type = "xfs" }) }, nil},

		{"old kernel", func(f fault) { f.server.Facts.Kernel.Release = "5.4.0-150-generic" }, []string{s + "kernel error"}},
		{"kernel 5.10", func(f fault) { f.server.Facts.Kernel.Release = "5.10.0-30-amd64" }, nil},
		{"RHEL 8.10", func(f fault) {
			f.server.Facts.Kernel.Release = "4.18.0-553.el8_10.x86_64"
			f.server.Facts.OS = facts.OS{ID: "rocky", IDLike: []string{"rhel", "centos", "fedora"}, Version: "8.10"}
		}, nil},
		{"RHEL 8.6", func(f fault) {
			f.server.Facts.Kernel.Release = "4.18.0-372.el8.x86_64"
			f.server.Facts.OS = facts.OS{ID: "rhel", Version: "8.6", Pretty: "Red Hat Enterprise Linux 8.6"}
		}, []string{s + "kernel error"}},
		{"4.18 of another system", func(f fault) { f.server.Facts.Kernel.Release = "4.18.0-1-amd64" }, []string{s + "kernel error"}},

		{"kernel without BPF and SCHEDSTATS", func(f fault) {
			delete(f.server.Facts.Kernel.Config, "CGROUP_BPF")
			delete(f.server.Facts.Kernel.Config, "SCHEDSTATS")
		}, []string{s + "kernel-options error", s + "kernel-options warning"}},
		{"module not installed", func(f fault) {
			f.server.Facts.Kernel.Config["VXLAN"] = "m"
			f.server.Facts.Kernel.Modules["vxlan"] = "missing"
		}, []string{s + "kernel-options error"}},
		{"modules available", func(f fault) {
			f.server.Facts.Kernel.Config["VXLAN"], f.server.Facts.Kernel.Config["OVERLAY_FS"] = "m", "m"
			f.server.Facts.Kernel.Modules = map[string]string{"vxlan": "available", "overlay": "loaded"}
		}, nil},
		{"built in says the configuration", func(f fault) { f.server.Facts.Kernel.Modules["vxlan"] = "missing" }, nil},
		{"only the modules are known", func(f fault) {
			f.server.Facts.Kernel.Config = nil
			f.server.Facts.Kernel.Modules = map[string]string{"vxlan": "missing", "ip_set": "available"}
		}, []string{s + "kernel-options error"}},
		{"nothing is known of the kernel", func(f fault) { f.server.Facts.Kernel.Config, f.server.Facts.Kernel.Modules = nil, nil }, nil},
		{"no VXLAN, but native routing", func(f fault) {
			delete(f.server.Facts.Kernel.Config, "VXLAN")
			f.need.CiliumValues = map[string]any{"routingMode": "native"}
		}, nil},
		{"other features", func(f fault) {
			f.need.CiliumValues = map[string]any{
				"tunnelProtocol": "geneve", "bandwidthManager": map[string]any{"enabled": true},
				"encryption": map[string]any{"enabled": true, "type": "wireguard"},
			}
			for _, o := range []string{"GENEVE", "NET_SCH_FQ"} {
				f.agent.Facts.Kernel.Config[o], f.server.Facts.Kernel.Config[o] = "y", "y"
			}
			f.agent.Facts.Kernel.Config["WIREGUARD"] = "m"
		}, []string{s + "kernel-options error"}},

		{"cgroup v1", func(f fault) { f.server.Facts.Cgroup.Version = 1 }, []string{s + "cgroup error"}},
		{"cgroup v1, allowed", func(f fault) {
			f.server.Facts.Cgroup.Version = 1
			f.server.K3sConfig["kubelet-arg"] = "fail-cgroupv1=false"
		}, nil},
		{"cgroup v1 with an older k3s", func(f fault) { f.server.Facts.Cgroup.Version = 1; f.need.K3s = "v1.34.9+k3s1" }, []string{s + "cgroup warning"}},
		{"no memory controller", func(f fault) { f.server.Facts.Cgroup.Controllers = []string{"cpuset", "cpu", "pids"} }, []string{s + "cgroup error"}},
		{"no cpuset controller", func(f fault) { f.server.Facts.Cgroup.Controllers = []string{"cpu", "memory", "pids"} }, []string{s + "cgroup warning"}},
		{"unknown cgroups", func(f fault) { f.server.Facts.Cgroup = facts.Cgroup{} }, nil},

		{"API port in use", func(f fault) { f.listen("tcp6", "::", 6443, nginx) }, []string{s + "ports error"}},
		{"several in use", func(f fault) {
			f.listen("tcp", "0.0.0.0", 10250, nginx)
			f.listen("tcp6", "::", 10250, nginx)
			f.listen("tcp", "10.0.0.11", 4244, nginx)
			f.listen("udp", "0.0.0.0", 8472, facts.Process{})
		}, []string{s + "ports error", s + "ports warning", s + "ports error"}},
		{"local port in use", func(f fault) { f.listen("tcp", "127.0.0.1", 10248, nginx) }, []string{s + "ports error"}},
		{"local port in use elsewhere", func(f fault) { f.listen("tcp", "10.0.0.11", 10248, nginx) }, nil},
		{"same number, other protocol", func(f fault) { f.listen("udp", "0.0.0.0", 6443, nginx); f.listen("tcp", "0.0.0.0", 8472, nginx) }, nil},
		{"etcd's port with one server", func(f fault) { f.listen("tcp", "0.0.0.0", 2379, nginx) }, nil},
		{"etcd's port with several", func(f fault) {
			f.listen("tcp", "0.0.0.0", 2379, nginx)
			f.need.Config.Cluster.Servers = append(f.need.Config.Cluster.Servers, config.Host{Role: config.Server}, config.Host{Role: config.Server})
		}, []string{s + "ports error"}},
		{"moved API port", func(f fault) {
			f.listen("tcp", "0.0.0.0", 6443, nginx)
			f.server.K3sConfig["https-listen-port"] = 7443
		}, nil},
		{"the cluster's own", func(f fault) {
			f.installed()
			f.listen("tcp6", "::", 6443, k3sItself)
			f.listen("tcp", "127.0.0.1", 10010, etcdChild)
			f.listen("tcp", "0.0.0.0", 4240, inPod)
			f.listen("udp", "0.0.0.0", 8472, facts.Process{})
			f.server.Facts.Processes = []facts.Process{k3sItself, inPod}
		}, nil},
		{"the cluster without its unit", func(f fault) { f.withoutUnit() }, nil},
		{"another version's cluster without its unit", func(f fault) {
			f.withoutUnit()
			f.server.Facts.K3s.Version = "v1.33.13+k3s1"
		}, []string{s + "k3s error"}},
		{"another version's data without its unit", func(f fault) {
			f.withoutUnit()
			f.server.Facts.K3s.Version = "v1.33.13+k3s1"
			f.server.Facts.Processes = nil
		}, []string{s + "k3s error"}},
		{"another version's pods on an agent without its unit", func(f fault) {
			f.agent.Facts.K3s = facts.K3s{Path: "/usr/local/bin/k3s", Version: "v1.33.13+k3s1", Managed: true}
			f.agent.Facts.Processes = []facts.Process{inPod}
		}, []string{a + "k3s error"}},
		{"another version placed, and nothing begun", func(f fault) {
			f.agent.Facts.K3s = facts.K3s{Path: "/usr/local/bin/k3s", Version: "v1.33.13+k3s1", Managed: true}
		}, []string{a + "k3s warning"}},
		{"another cluster's pods", func(f fault) { f.server.Facts.Processes = []facts.Process{inPod} }, []string{s + "kubernetes error"}},
		{"a stranger in the cluster", func(f fault) { f.installed(); f.listen("tcp", "0.0.0.0", 9964, nginx) }, []string{s + "ports error"}},

		{"the registry's port in use", func(f fault) { f.registry(5443); f.listen("tcp", "0.0.0.0", 5443, nginx) }, []string{s + "ports error"}},
		{"the registry's port in use on an agent", func(f fault) {
			f.registry(5443)
			f.agent.Facts.Ports = append(f.agent.Facts.Ports, facts.Port{Protocol: "tcp", Address: "0.0.0.0", Port: 5443, Owner: nginx})
		}, nil},
		{"the registry itself", func(f fault) { f.registry(5443); f.listen("tcp", "10.0.0.11", 5443, registryItself) }, nil},
		{"no registry", func(f fault) { f.listen("tcp", "0.0.0.0", 5443, nginx) }, nil},
		{"the registry's port is the API's", func(f fault) { f.registry(6443) }, []string{s + "seeding error"}},
		{"the registry's port is a service's", func(f fault) { f.registry(30443) }, []string{s + "seeding error"}},
		{"services have other ports", func(f fault) {
			f.registry(30443)
			f.server.K3sConfig["service-node-port-range"] = "20000-20100"
		}, nil},
		{"peers, and nobody to ask", func(f fault) { f.peers(); f.need.Config.Cluster.Agents = nil }, []string{s + "seeding warning"}},
		{"peers with an old k3s", func(f fault) { f.peers(); f.need.K3s = "v1.33.6+k3s1" }, []string{s + "seeding error"}},
		{"peers with a new k3s", fault.peers, nil},
		{"peers' ports in use", func(f fault) {
			f.peers()
			for _, port := range []int{5001, 6443} {
				f.agent.Facts.Ports = append(f.agent.Facts.Ports, facts.Port{Protocol: "tcp", Address: "0.0.0.0", Port: port, Owner: nginx})
			}
		}, []string{a + "ports error", a + "ports error"}},

		{"the DNS server's port in use", func(f fault) {
			f.serve()
			f.listen("udp", "0.0.0.0", 53, nginx)
			f.listen("tcp", "10.0.0.11", 53, nginx)
		}, []string{s + "ports error", s + "ports error"}},
		{"other addresses' DNS servers", func(f fault) {
			f.serve()
			for _, address := range []string{"127.0.0.53", "192.168.122.1"} {
				f.listen("udp", address, 53, nginx)
				f.listen("tcp", address, 53, nginx)
			}
		}, nil},
		{"the DNS server itself", func(f fault) { f.serve(); f.listen("udp", "10.0.0.11", 53, dnsItself) }, nil},
		{"somebody's DNS server, and none of boxlift's", func(f fault) { f.listen("udp", "0.0.0.0", 53, nginx) }, nil},
		{"somebody's DNS server on another host", func(f fault) {
			f.serve()
			f.agent.Facts.Ports = append(f.agent.Facts.Ports, facts.Port{Protocol: "udp", Address: "0.0.0.0", Port: 53, Owner: nginx})
		}, nil},

		{"localhost", func(f fault) { f.server.Facts.Hostname = "localhost" }, []string{s + "hostname error"}},
		{"localhost with a name", func(f fault) { f.server.Facts.Hostname = "localhost"; f.server.Config.Name = "server-1" }, nil},
		{"capitals", func(f fault) { f.server.Facts.Hostname = "Server_1" }, []string{s + "hostname error"}},
		{"long name", func(f fault) { f.server.Facts.Hostname = strings.Repeat("a", 64) }, []string{s + "hostname error"}},
		{"no name", func(f fault) { f.server.Facts.Hostname = "" }, []string{s + "hostname error"}},
		{"domain name", func(f fault) { f.server.Facts.Hostname = "server-1.lan" }, nil},
		{"same name", func(f fault) { f.agent.Facts.Hostname = "server-1" }, []string{a + "hostname error"}},
		{"same name, but for the configuration", func(f fault) { f.agent.Facts.Hostname = "server-1"; f.agent.Config.Name = "worker" }, nil},
		{"a name that is given", func(f fault) {
			f.need.Config.Names = &config.Names{Hosts: []config.Name{{Name: "agent-1", Address: netip.MustParseAddr("10.0.0.5")}}}
		}, []string{a + "hostname error"}},
		{"a name that is given with its own address", func(f fault) {
			f.need.Config.Names = &config.Names{Hosts: []config.Name{{Name: "agent-1", Address: netip.MustParseAddr("10.0.0.21")}}}
		}, nil},
		{"the ingress' name", func(f fault) {
			f.need.Config.Names, f.need.Config.LiteBoxd = &config.Names{}, &config.LiteBoxd{IngressHost: "agent-1", GatewayIngressHost: "server-1"}
		}, []string{a + "hostname error"}},
		{"the ingress' name by its own address", func(f fault) {
			f.need.Config.Names = &config.Names{Ingress: netip.MustParseAddr("10.0.0.100")}
			f.need.Config.LiteBoxd = &config.LiteBoxd{IngressHost: "agent-1", GatewayIngressHost: "server-1"}
		}, []string{s + "hostname error", a + "hostname error"}},
		{"the ingress' name, which nobody writes", func(f fault) {
			f.need.Config.LiteBoxd = &config.LiteBoxd{IngressHost: "agent-1", GatewayIngressHost: "server-1"}
		}, nil},
		{"same name by the configuration", func(f fault) { f.agent.Config.Name = "server-1" }, []string{a + "hostname error"}},

		{"no machine-id", func(f fault) { f.server.Facts.MachineID = "" }, []string{s + "machine-id error"}},
		{"uninitialized", func(f fault) { f.server.Facts.MachineID = "uninitialized" }, []string{s + "machine-id error"}},
		{"zero", func(f fault) { f.server.Facts.MachineID = strings.Repeat("0", 32) }, []string{s + "machine-id error"}},
		{"same machine-id", func(f fault) { f.agent.Facts.MachineID = f.server.Facts.MachineID }, []string{a + "machine-id error"}},
		{"same host", func(f fault) {
			f.agent.Facts.MachineID, f.agent.Facts.BootID = f.server.Facts.MachineID, f.server.Facts.BootID
		}, []string{a + "machine-id error"}},

		{"behind the server", func(f fault) { f.agent.Offset = -3 * time.Second }, []string{a + "clock error"}},
		{"a little behind the server", func(f fault) { f.agent.Offset = -1500 * time.Millisecond }, []string{a + "clock warning"}},
		{"perhaps behind the server", func(f fault) { f.agent.Offset, f.agent.OffsetError = -3*time.Second, 2500*time.Millisecond }, nil},
		{"nobody knows", func(f fault) { f.agent.OffsetError = 8 * time.Second }, []string{a + "clock warning"}},
		{"ahead of the server", func(f fault) { f.agent.Offset = 3 * time.Second }, []string{a + "clock warning"}},
		{"behind a server that is old", func(f fault) { f.installed(); f.agent.Offset = -3 * time.Second }, []string{a + "clock warning"}},
		{"before a server that is old", func(f fault) { f.installed(); f.agent.Offset = -2 * time.Hour }, []string{a + "clock error"}},
		{"all are ahead of the operator", func(f fault) { f.server.Offset, f.agent.Offset = time.Minute, time.Minute }, []string{s + "clock warning"}},
		{"near enough", func(f fault) { f.server.Offset, f.agent.Offset = 4*time.Second, 3500*time.Millisecond }, nil},

		{"behind the server, until chrony sets it", func(f fault) { f.servesTime(); f.agent.Offset = -time.Hour }, []string{a + "clock error prepared"}},
		{"ahead of the server, until chrony sets it", func(f fault) { f.servesTime(); f.agent.Offset = time.Hour }, []string{a + "clock warning prepared"}},
		{"not known, with chrony", func(f fault) { f.servesTime(); f.agent.OffsetError = 8 * time.Second }, []string{a + "clock warning"}},
		{"another one serves time", func(f fault) { f.servesTime(); f.listen("udp", "0.0.0.0", 123, ntpd) }, []string{s + "ports error"}},
		{"chrony serves time", func(f fault) {
			f.servesTime()
			f.listen("udp", "0.0.0.0", 123, facts.Process{Name: "chronyd", PID: 9, Unit: "chrony.service"})
		}, nil},
		{"serving time without the section", func(f fault) { f.listen("udp", "0.0.0.0", 123, ntpd) }, nil},

		{"nodeIP of nobody", func(f fault) { f.server.Config.NodeIP = netip.MustParseAddr("10.0.9.9") }, []string{s + "node-ip error"}},
		{"nodeIP", func(f fault) { f.server.Config.NodeIP = netip.MustParseAddr("10.0.0.11") }, nil},

		{"no default route", func(f fault) { f.server.Facts.Network.Routes = f.server.Facts.Network.Routes[1:] }, []string{s + "default-route error"}},
		{"no default route on a single host", func(f fault) {
			f.server.Facts.Network.Routes = f.server.Facts.Network.Routes[1:]
			f.need.Config.Cluster.Agents = nil
		}, []string{s + "default-route error"}},
		{"default route to a dummy", func(f fault) { f.server.Facts.Network.Routes[0].Interface = "dummy0" }, []string{s + "default-route error"}},
		{"default route to a dummy with nodeIP", func(f fault) {
			f.server.Facts.Network.Routes[0].Interface = "dummy0"
			f.server.Config.NodeIP = netip.MustParseAddr("10.0.0.11")
		}, []string{s + "default-route warning"}},
		{"default route to a dummy on a single host", func(f fault) {
			f.server.Facts.Network.Routes[0].Interface = "dummy0"
			f.need.Config.Cluster.Agents = nil
		}, nil},
		{"default route of IPv6 only", func(f fault) { f.server.Facts.Network.Routes[0].Destination = "::/0" }, []string{s + "default-route error"}},

		{"no name server", func(f fault) { f.server.Facts.Network.Resolvers = nil }, []string{s + "resolv-conf warning"}},
		{"loopback name server", func(f fault) { f.server.Facts.Network.Resolvers = []string{"127.0.0.53"} }, []string{s + "resolv-conf warning"}},
		{"one of two is loopback", func(f fault) { f.server.Facts.Network.Resolvers = []string{"10.0.0.1", "::1"} }, []string{s + "resolv-conf warning"}},
		{"systemd-resolved", func(f fault) {
			f.server.Facts.Network.Resolvers, f.server.Facts.Network.Upstream = []string{"127.0.0.53"}, []string{"10.0.0.1"}
		}, nil},
		{"a file of its own", func(f fault) {
			f.server.Facts.Network.Resolvers = nil
			f.server.K3sConfig["resolv-conf"] = "/etc/k3s-resolv.conf"
		}, nil},

		{"swap", func(f fault) { f.server.Facts.Memory.Swap = gib }, []string{s + "swap warning"}},

		{"firewalld", func(f fault) {
			f.unit(facts.Unit{Name: "firewalld.service", LoadState: "loaded", ActiveState: "active"})
		}, []string{s + "firewall warning"}},
		{"firewalld is off", func(f fault) {
			f.unit(facts.Unit{Name: "firewalld.service", LoadState: "loaded", ActiveState: "inactive"})
		}, nil},
		{"ufw", func(f fault) { f.server.Facts.UFW = true }, []string{s + "firewall warning"}},

		{"all that hosts.prepare changes", func(f fault) {
			f.need.Config.Prepare = true
			f.server.Facts.Memory.Swap = gib
			f.server.Facts.UFW = true
			f.unit(facts.Unit{Name: "firewalld.service", LoadState: "loaded", ActiveState: "active"})
			f.unit(facts.Unit{Name: "nm-cloud-setup.timer", LoadState: "loaded", ActiveState: "active"})
			f.server.Facts.Sysctls["fs.inotify.max_user_watches"] = "8192"
			f.server.Facts.Sysctls["vm.panic_on_oom"] = "1"
			f.server.K3sConfig["protect-kernel-defaults"], f.server.K3sConfig["service-cidr"] = true, "10.43.0.0/16,fd43::/112"
			f.server.Facts.Sysctls["net.ipv6.conf.all.disable_ipv6"] = "1"
			closed := Reached{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443},
				Use: "the API server", State: reach.Silent}
			f.agent.Reach = []Reached{closed}
		}, []string{s + "swap warning prepared", s + "firewall warning prepared", s + "firewall warning prepared",
			s + "nm-cloud-setup error prepared", s + "inotify warning prepared", s + "sysctls error prepared",
			s + "sysctls error prepared", a + "reach error prepared"}},
		{"what hosts.prepare does not change", func(f fault) {
			f.need.Config.Prepare = true
			f.server.Facts.UFW = true
			f.server.Facts.Kernel.Release = "5.4.0"
			closed := Reached{Host: "agent-1", Address: "10.0.0.21", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 10250},
				Use: "the kubelet", State: reach.Silent}
			f.server.Reach = []Reached{closed}
		}, []string{s + "kernel error", s + "firewall warning prepared", s + "reach error"}},
		{"nm-cloud-setup", func(f fault) {
			f.unit(facts.Unit{Name: "nm-cloud-setup.service", LoadState: "loaded", UnitFileState: "enabled"})
			f.unit(facts.Unit{Name: "nm-cloud-setup.timer", LoadState: "loaded", ActiveState: "active", UnitFileState: "disabled"})
		}, []string{s + "nm-cloud-setup error"}},

		{"SELinux without policy", func(f fault) { f.server.Facts.SELinux = "enforcing" }, []string{s + "selinux error"}},
		{"SELinux that k3s does not use", func(f fault) { f.server.Facts.SELinux, f.server.Facts.SELinuxPolicy = "enforcing", true }, []string{s + "selinux warning"}},
		{"SELinux", func(f fault) {
			f.server.Facts.SELinux, f.server.Facts.SELinuxPolicy = "enforcing", true
			f.server.K3sConfig["selinux"] = true
		}, nil},
		{"SELinux permissive", func(f fault) { f.server.Facts.SELinux = "permissive" }, nil},

		{"few inotify instances", func(f fault) { f.server.Facts.Sysctls["fs.inotify.max_user_instances"] = "128" }, []string{s + "inotify warning"}},
		{"unknown inotify", func(f fault) { delete(f.server.Facts.Sysctls, "fs.inotify.max_user_instances") }, nil},

		{"few keys", func(f fault) { f.server.Facts.Sysctls["kernel.keys.root_maxkeys"] = "200" }, []string{s + "sysctls warning"}},
		{"protected defaults", func(f fault) {
			f.server.Facts.Sysctls["vm.overcommit_memory"], f.server.Facts.Sysctls["kernel.panic"] = "0", "0"
			f.server.K3sConfig["protect-kernel-defaults"] = true
		}, []string{s + "sysctls error"}},
		{"defaults that the kubelet changes", func(f fault) { f.server.Facts.Sysctls["vm.overcommit_memory"] = "0" }, nil},
		{"IPv6 off", func(f fault) { f.server.Facts.Sysctls["net.ipv6.conf.all.disable_ipv6"] = "1" }, nil},
		{"IPv6 off, but wanted", func(f fault) {
			f.server.Facts.Sysctls["net.ipv6.conf.all.disable_ipv6"] = "1"
			f.server.K3sConfig["service-cidr"] = "10.43.0.0/16,fd00:43::/112"
		}, []string{s + "sysctls error"}},

		{"networks of pods and services overlap", func(f fault) { f.server.K3sConfig["service-cidr"] = "10.42.128.0/17" }, []string{s + "networks error"}},
		{"the LAN is the services' network", func(f fault) {
			f.server.K3sConfig["service-cidr"] = []string{"10.0.0.0/16"}
		}, []string{s + "networks error", a + "networks error"}},
		{"a route into the pods' network", func(f fault) {
			f.agent.Facts.Network.Routes = append(f.agent.Facts.Network.Routes, facts.Route{Destination: "10.42.7.0/24", Gateway: "10.0.0.99", Interface: "eth0"})
		}, []string{a + "networks error"}},
		{"a name server in the services' network", func(f fault) { f.agent.Facts.Network.Resolvers = []string{"10.43.0.2"} }, []string{a + "networks error"}},
		{"an address in the pods' network", func(f fault) {
			f.agent.Facts.Network.Interfaces = append(f.agent.Facts.Network.Interfaces, facts.Interface{Name: "eth1", Addresses: []string{"10.42.0.7/32"}})
		}, []string{a + "networks error"}},
		{"the cluster's own routes", func(f fault) {
			f.installed()
			f.server.Facts.Network.Interfaces = append(f.server.Facts.Network.Interfaces, facts.Interface{Name: "cilium_host", Addresses: []string{"10.42.0.7/32"}})
			f.server.Facts.Network.Routes = append(f.server.Facts.Network.Routes,
				facts.Route{Destination: "10.42.0.0/24", Interface: "cilium_host"},
				facts.Route{Destination: "10.42.1.0/24", Gateway: "10.0.0.21", Interface: "eth0"})
		}, nil},

		{"a kubelet that is enabled", func(f fault) {
			f.unit(facts.Unit{Name: "kubelet.service", LoadState: "loaded", UnitFileState: "enabled"})
		}, []string{s + "kubernetes error"}},
		{"a kubelet that is not", func(f fault) {
			f.unit(facts.Unit{Name: "kubelet.service", LoadState: "loaded", UnitFileState: "disabled"})
		}, nil},
		{"a kubelet that runs", func(f fault) {
			f.unit(facts.Unit{Name: "kubelet.service", LoadState: "loaded", ActiveState: "active", UnitFileState: "enabled"})
			f.server.Facts.Processes = []facts.Process{{Name: "kubelet", PID: 5, Unit: "kubelet.service"}}
		}, []string{s + "kubernetes error"}},
		{"a kubelet in Docker", func(f fault) { f.server.Facts.Processes = []facts.Process{{Name: "kubelet", PID: 5, Unit: "docker"}} }, []string{s + "kubernetes error"}},
		{"a kubelet beside the cluster", func(f fault) {
			f.installed()
			f.server.Facts.Processes = []facts.Process{k3sItself, {Name: "kubelet", PID: 5, Unit: "session-1.scope"}}
		}, []string{s + "kubernetes error"}},

		{"another pod network", func(f fault) { f.server.Facts.CNIConfigs = []string{"10-flannel.conflist"} }, []string{s + "cni error"}},
		{"Cilium's", func(f fault) {
			f.server.Facts.CNIConfigs = []string{"05-cilium.conflist", "10-flannel.conflist.cilium_bak", "README"}
		}, nil},

		{"installed by boxlift", func(f fault) { f.installed() }, nil},
		{"installed by somebody", func(f fault) {
			f.installed()
			f.server.Facts.K3s.Managed = false
			f.server.Facts.Processes = []facts.Process{k3sItself}
		}, []string{s + "k3s error"}},
		{"installed as an agent", func(f fault) {
			f.installed()
			f.unit(facts.Unit{Name: "k3s.service", LoadState: "not-found"})
			f.unit(facts.Unit{Name: "k3s-agent.service", LoadState: "loaded", ActiveState: "active"})
		}, []string{s + "k3s error"}},
		{"another version", func(f fault) { f.installed(); f.server.Facts.K3s.Version = "v1.35.1+k3s1" }, []string{s + "k3s error"}},
		{"another version that does not run", func(f fault) {
			f.server.Facts.K3s = facts.K3s{Path: "/usr/local/bin/k3s", Version: "v1.35.1+k3s1"}
		}, []string{s + "k3s warning"}},
		{"a package that the bundle does not have", func(f fault) {
			f.server.Packages = &apt.Outlook{Host: apt.Host{ID: "debian", Architecture: "amd64"}, Wanted: []string{"chrony"}}
		}, []string{s + "packages error"}},
		{"a package with something that was interrupted", func(f fault) {
			f.server.Packages = &apt.Outlook{Host: apt.Host{ID: "debian", Architecture: "amd64", Journal: true}, Wanted: []string{"chrony"},
				Carried: []apt.Carried{{Name: "chrony", Version: "4", Architecture: "amd64"}}}
		}, []string{s + "packages warning"}},
		{"a front in the server's network", func(f fault) { f.front("10.0.0.200") }, nil},
		{"a front in another network", func(f fault) { f.front("10.9.0.200") }, []string{s + "front error"}},
		{"a front by a host's address that is not its own", func(f fault) {
			f.front("10.0.0.200")
			f.server.Config.Host, f.server.Config.NodeIP = "192.0.2.7", netip.Addr{}
			f.need.Config.Cluster.Servers[0] = f.server.Config
		}, []string{s + "front error"}},
		{"a front's address that somebody has", func(f fault) {
			f.front("10.0.0.200")
			f.server.FrontOccupant = "02:00:00:00:00:01"
		}, []string{s + "front error"}},
		{"another data directory", func(f fault) { f.installed(); f.server.Facts.K3s.DataDir = "/data/k3s" }, []string{s + "k3s error"}},
		{"the usual data directory", func(f fault) { f.installed(); f.server.Facts.K3s.DataDir = "/var/lib/rancher/k3s/" }, nil},
		{"data of another cluster", func(f fault) {
			f.server.Facts.K3s.DataDirs = []string{"/var/lib/rancher/k3s/agent", "/var/lib/rancher/k3s/server"}
		}, []string{s + "k3s error"}},
		{"packs alone", func(f fault) { f.server.Facts.K3s.DataDirs = []string{"/var/lib/rancher/k3s/agent"} }, nil},
		{"a second k3s", func(f fault) {
			f.unit(facts.Unit{Name: "k3s-test.service", LoadState: "loaded", ActiveState: "active"})
		}, []string{s + "k3s error"}},

		{"not reached", func(f fault) {
			f.agent.Reach = []Reached{
				{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443}, Use: "the API server", State: reach.OK},
				{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 10250}, Use: "the kubelet", State: reach.Refused, Detail: "connection refused"},
				{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "udp", Port: 8472}, Use: "traffic between pods (VXLAN)", State: reach.Silent, Detail: "no answer"},
			}
		}, []string{a + "reach error"}},
		{"not reached through firewalld", func(f fault) {
			f.unit(facts.Unit{Name: "firewalld.service", LoadState: "loaded", ActiveState: "active"})
			f.agent.Reach = []Reached{
				{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443}, Use: "the API server", State: reach.OK},
				{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 10250}, Use: "the kubelet", State: reach.Failed, Detail: "no route to host"},
			}
		}, []string{s + "firewall warning", a + "reach error"}},
		{"the servers' token on an agent", func(f fault) { f.agent.TokenFault = jointoken.OfServers },
			[]string{a + "token warning"}},
		{"the servers' token was on agents", func(f fault) { f.server.TokenFault = jointoken.Exposed },
			[]string{s + "token warning"}},
		{"a change of the token was broken off", func(f fault) { f.server.TokenFault = jointoken.Unfinished },
			[]string{s + "token warning"}},
		{"another token for agents", func(f fault) { f.server.TokenFault = jointoken.Differs },
			[]string{s + "token warning"}},
		{"nothing reached", func(f fault) {
			f.agent.Reach = []Reached{{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443}, Use: "the API server", State: reach.Silent, Detail: "no answer"}}
		}, []string{a + "reach error"}},
		{"not tried", func(f fault) {
			f.agent.Reach = []Reached{{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443}, State: NotTried}}
		}, []string{a + "reach warning"}},
		{"the external registry not reached", func(f fault) {
			f.external(config.AgentsFull, reach.Refused, "connection refused")
		}, []string{s + "reach warning", a + "reach warning"}},
		{"the external registry not reached by agents that need it", func(f fault) {
			f.external(config.AgentsBoot, reach.Silent, "no answer")
		}, []string{s + "reach warning", a + "reach error"}},
		{"the external registry not known", func(f fault) {
			f.external(config.AgentsBoot, reach.Failed, "lookup harbor.lan: no such host")
		}, []string{s + "reach warning", a + "reach error"}},
		{"the external registry not tried", func(f fault) { f.external(config.AgentsBoot, NotTried, "") }, []string{s + "reach warning", a + "reach warning"}},
		{"the external registry reached", func(f fault) { f.external(config.AgentsBoot, reach.OK, "") }, nil},
		{"all reached", func(f fault) {
			f.agent.Reach = []Reached{{Host: "server-1", Address: "10.0.0.11", Endpoint: reach.Endpoint{Protocol: "tcp", Port: 6443}, State: reach.OK}}
		}, nil},
	}
}

// The golden file has the texts of all findings, to be read.
func TestJudge(t *testing.T) {
	var texts strings.Builder
	for _, test := range faultTests() {
		need, subjects := goodCluster()
		test.make(fault{&need, &subjects[0], &subjects[1]})
		findings := Judge(need, subjects)
		var got []string
		if len(findings) > 0 {
			fmt.Fprintf(&texts, "== %s\n", test.name)
		}
		for _, f := range findings {
			got = append(got, strings.Join(strings.Fields(f.Host+" "+f.Check+" "+f.Unprepared+" "+f.Severity), " "))
			fmt.Fprintf(&texts, "%s: %s: %s: %s\n  needed: %s\n  %s\n", f.Host, f.Check, f.Severity, f.Found, f.Needed, f.Hint)
			if f.Found == "" || f.Needed == "" || f.Hint == "" {
				t.Errorf("%s: something is left out of %+v", test.name, f)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s\n%+v", test.name, diff, findings)
		}
		if failed := slices.ContainsFunc(test.want, func(w string) bool { return strings.HasSuffix(w, Error) }); Failed(findings) != failed {
			t.Errorf("%s: failed is %v", test.name, !failed)
		}
	}
	const golden = "testdata/findings.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(texts.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), texts.String()); diff != "" {
		t.Error(diff)
	}
}

// Every check has a fault that it finds, and no fault is found by a check that is not in
// the catalogue.
func TestEveryCheckHasAFault(t *testing.T) {
	tested := make(map[string]bool)
	for _, test := range faultTests() {
		for _, w := range test.want {
			tested[strings.Fields(w)[1]] = true
		}
	}
	for _, c := range Catalogue() {
		if !tested[c.ID] {
			t.Errorf("no test has a fault that %s finds", c.ID)
		}
		delete(tested, c.ID)
		if c.Title == "" || c.Doc == "" {
			t.Errorf("%s is not described", c.ID)
		}
	}
	if len(tested) > 0 {
		t.Errorf("not in the catalogue: %v", tested)
	}
}

// Hosts in their order, and for each of them the catalogue in its own.
func TestOrder(t *testing.T) {
	need, subjects := goodCluster()
	for i := range subjects {
		subjects[i].Facts.Memory.Swap = gib
		subjects[i].Facts.User = 1
		subjects[i].Facts.CNIConfigs = []string{"x.conf"}
	}
	var got []string
	for _, f := range Judge(need, subjects) {
		got = append(got, f.Host+" "+f.Check)
	}
	want := []string{"server-1 root", "server-1 swap", "server-1 cni", "agent-1 root", "agent-1 swap", "agent-1 cni"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Nothing that facts may hold brings the judge down: these are empty.
func TestJudgeEmptyFacts(t *testing.T) {
	need, subjects := goodCluster()
	for i := range subjects {
		subjects[i].Facts, subjects[i].K3sConfig = &facts.Facts{}, nil
	}
	if !Failed(Judge(need, subjects)) {
		t.Error("hosts without anything pass")
	}
	Judge(need, nil)
}

func TestNodeAddress(t *testing.T) {
	_, subjects := goodCluster()
	s := subjects[0]
	if got := NodeAddress(s); got != "10.0.0.11" {
		t.Errorf("got %s", got)
	}
	s.Config.Host = "server.example" // or an address that is translated on the way
	if got := NodeAddress(s); got != "10.0.0.11" {
		t.Errorf("by name: got %s", got)
	}
	s.Config.NodeIP = netip.MustParseAddr("10.9.9.9")
	if got := NodeAddress(s); got != "10.9.9.9" {
		t.Errorf("with nodeIP: got %s", got)
	}
	s.Config.NodeIP, s.Facts = netip.Addr{}, nil
	if got := NodeAddress(s); got != "server.example" {
		t.Errorf("without facts: got %s", got)
	}
}
