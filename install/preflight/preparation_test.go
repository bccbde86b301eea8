package preflight

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/naming"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
)

// A host is prepared for what findings tell of: what the kernel has as modules, what its sysctls have to be, and what
// others reach it by. What it has not told is left alone.
func TestPrepare(t *testing.T) {
	need, subjects := goodCluster()
	server, agent := &subjects[0], &subjects[1]
	server.Facts.Kernel.Modules = map[string]string{"overlay": "loaded", "vxlan": "available", "veth": "builtin", "xt_set": "missing",
		"wireguard": "available"}
	server.Facts.UFW = true
	server.Facts.Units = append(server.Facts.Units, facts.Unit{Name: "firewalld.service", ActiveState: "inactive"})
	delete(server.Facts.Sysctls, "fs.inotify.max_user_watches")
	agent.K3sConfig = map[string]any{"protect-kernel-defaults": "true"}
	server.K3sConfig["service-cidr"] = "10.43.0.0/16,fd43::/112"
	agent.Facts.Units = append(agent.Facts.Units, facts.Unit{Name: "firewalld.service", ActiveState: "active"})
	subjects = append(subjects, Subject{Name: "silent"})
	need.Config.Names = &config.Names{Serve: &naming.Serve{On: []string{agent.Config.Address()}}}

	port := func(protocol string, number int) reach.Endpoint {
		return reach.Endpoint{Protocol: protocol, Port: number}
	}
	networks := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")}
	want := []Preparation{
		{
			Modules: []string{"overlay", "vxlan"},
			Sysctls: []Sysctl{
				{Name: "fs.inotify.max_user_instances", Value: 8192, Least: 512},
				{Name: "kernel.keys.root_maxkeys", Value: 1000000, Least: 10000},
				{Name: "net.ipv6.conf.all.disable_ipv6", Required: true}, {Name: "net.ipv6.conf.default.disable_ipv6", Required: true},
			},
			Ports:    []reach.Endpoint{port("tcp", 6443), port("tcp", 10250), port("tcp", 4240), port("udp", 8472)},
			Networks: networks, UFW: true, Interface: "eth0", CloudSetup: []string{"nm-cloud-setup.service"},
		},
		{
			Sysctls: []Sysctl{
				{Name: "fs.inotify.max_user_instances", Value: 8192, Least: 512},
				{Name: "fs.inotify.max_user_watches", Value: 524288, Least: 65536},
				{Name: "kernel.keys.root_maxbytes", Value: 25000000, Required: true}, {Name: "kernel.keys.root_maxkeys", Value: 1000000, Required: true},
				{Name: "kernel.panic", Value: 10, Required: true}, {Name: "kernel.panic_on_oops", Value: 1, Required: true},
				{Name: "vm.overcommit_memory", Value: 1, Required: true}, {Name: "vm.panic_on_oom", Value: 0, Required: true},
				{Name: "net.ipv6.conf.all.disable_ipv6", Required: true}, {Name: "net.ipv6.conf.default.disable_ipv6", Required: true},
			},
			Ports:    []reach.Endpoint{port("tcp", 10250), port("tcp", 4240), port("udp", 8472), port("tcp", 53), port("udp", 53)},
			Networks: networks, Firewalld: true, Interface: "eth0", CloudSetup: []string{"nm-cloud-setup.service"},
		},
		{},
	}
	if diff := cmp.Diff(want, Prepare(need, subjects), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

// A sysctl that has a least value may be more than it is set to.
func TestSysctlFits(t *testing.T) {
	for _, test := range []struct {
		s    Sysctl
		n    int64
		want bool
	}{
		{Sysctl{Value: 8192, Least: 512}, 511, false}, {Sysctl{Value: 8192, Least: 512}, 512, true},
		{Sysctl{Value: 8192, Least: 512}, 1 << 40, true}, {Sysctl{Value: 1}, 2, false}, {Sysctl{Value: 0}, 0, true},
	} {
		if got := test.s.Fits(test.n); got != test.want {
			t.Errorf("%+v and %d: %t", test.s, test.n, got)
		}
	}
}
