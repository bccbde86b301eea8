package sitetest

import (
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// WholeBundle is a bundle with k3s and Cilium, as small as they may be, and with these versions.
func WholeBundle(t testing.TB, v lock.Validity, k3s, cilium string) *bundle.Reader {
	t.Helper()
	const cni = "quay.io/cilium/cilium:v1.20.0"
	image := func(ref string) smallbundle.Image {
		layers := [][]byte{smallbundle.Layer(t, map[string]string{"program": ref})}
		return smallbundle.Image{Ref: ref, Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: layers}, {Name: "linux/arm64", Layers: layers}}}
	}
	chart := kubetest.Chart(t, cilium, map[string]string{"templates/agent.yaml": kubetest.Workload("DaemonSet", "cilium", "", cni)})
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Validity: v, Components: []smallbundle.Component{
		{
			Name: site.K3sComponent, Version: k3s, Images: []smallbundle.Image{image("docker.io/rancher/mirrored-pause:3.6")},
			Files: []smallbundle.File{
				{Name: site.InstallScript, Content: "#!/bin/sh\n"},
				{Name: site.K3sProgram, Platform: "linux/amd64", Content: "k3s " + k3s},
			},
		},
		{
			Name: site.CiliumComponent, Version: cilium, Images: []smallbundle.Image{image(cni)},
			Charts: []smallbundle.File{{Name: "cilium", Content: string(chart)}},
		},
	}})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// Facts are those of a host that has nothing, and lacks nothing to become a node.
func Facts(hostname, address string) *facts.Facts {
	const gib = 1 << 30
	f := &facts.Facts{
		Version: facts.Version, Hostname: hostname, MachineID: machineID(hostname), BootID: "boot-" + hostname,
		OS: facts.OS{ID: "debian", Version: "12", Pretty: "Debian GNU/Linux 12"}, Architecture: "amd64",
		Platform: "linux/amd64", Kernel: facts.Kernel{Release: "6.1.0-18-amd64"}, CPUs: 8,
		Memory: facts.Memory{Total: 16 * gib, Available: 6 * gib}, Clock: facts.Clock{Synchronized: true},
		Cgroup:  facts.Cgroup{Version: 2, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		Systemd: facts.Systemd{Version: "252", State: "running"}, SELinux: "disabled",
		Network: facts.Network{
			Interfaces: []facts.Interface{{Name: "eth0", Up: true, Addresses: []string{address + "/24"}}},
			Routes: []facts.Route{{Destination: "0.0.0.0/0", Gateway: "10.0.0.1", Interface: "eth0"},
				{Destination: "10.0.0.0/24", Interface: "eth0"}},
			Resolvers: []string{"10.0.0.1"},
		},
	}
	for _, name := range []string{"/", "/etc", "/opt", "/run", "/usr/local", "/var/lib/boxlift", "/var/lib/kubelet",
		"/var/lib/rancher", "/var/log"} {
		f.Mounts = append(f.Mounts, facts.Mount{Path: name, MountPoint: "/", Source: "/dev/sda1", Type: "ext4",
			Options: []string{"rw"}, Device: "8:1", Total: 200 * gib, Free: 60 * gib, Inodes: 6_000_000, FreeInodes: 5_000_000})
	}
	return f
}

// Hosts are those of a configuration, each with facts of its own and nothing else, by address.
func Hosts(t testing.TB, c *config.Config) (map[string]*hosttest.Fake, site.Dial) {
	t.Helper()
	fakes, hosts := make(map[string]*hosttest.Fake), make(map[string]host.Host)
	for i, h := range c.Hosts() {
		name := "node-" + string(rune('1'+i))
		f := NewHost(t, name, Facts(name, h.Host))
		f.Program("journalctl", hosttest.Prints(""))
		f.WriteFile(t, "/etc/resolv.conf", "nameserver 10.0.0.1\n", 0o644)
		fakes[h.Host], hosts[h.Host] = f, f
	}
	return fakes, DialTo(hosts)
}
