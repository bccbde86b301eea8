package preflight

import (
	"net/netip"
	"slices"

	"github.com/liteboxd/boxlift/install/hardening"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
)

// Preparation is what hosts.prepare changes on one host: what findings tell of otherwise, with the same values. It
// goes by what the host has said of itself, so what it could not tell is not in it.
type Preparation struct {
	// Modules of the kernel are there to be loaded, in alphabetical order.
	Modules []string
	// Sysctls are all that the host has, whether their values fit or not.
	Sysctls []Sysctl
	// Ports are those that other hosts reach, Networks those of pods and services.
	Ports    []reach.Endpoint
	Networks []netip.Prefix
	// UFW and Firewalld say which firewall is active.
	UFW, Firewalld bool
	// Interface is the one that other hosts reach the host by, "" where that is not known.
	Interface string
	// CloudSetup are the units of nm-cloud-setup that are installed.
	CloudSetup []string
}

// Sysctl is one that a host has to have a certain value of, or is better with it.
type Sysctl struct {
	Name string
	// Value is what it is set to. Where Least is not 0, more than that is fine as well.
	Value, Least int64
	// Required says that the kubelet does not start, or pods have no network, with another value.
	Required bool
}

// Fits reports whether a value is fine as it is.
func (s Sysctl) Fits(n int64) bool {
	if s.Least != 0 {
		return n >= s.Least
	}
	return n == s.Value
}

var (
	inotify = []Sysctl{
		{Name: "fs.inotify.max_user_instances", Value: 8192, Least: 512},
		{Name: "fs.inotify.max_user_watches", Value: 524288, Least: 65536},
	}
	// What the kubelet does not set itself with protectKernelDefaults (Kubernetes, pkg/kubelet/cm).
	kubeletSysctls = []Sysctl{
		{Name: "kernel.keys.root_maxbytes", Value: 25000000, Required: true},
		{Name: "kernel.keys.root_maxkeys", Value: 1000000, Required: true},
		{Name: "kernel.panic", Value: 10, Required: true}, {Name: "kernel.panic_on_oops", Value: 1, Required: true},
		{Name: "vm.overcommit_memory", Value: 1, Required: true}, {Name: "vm.panic_on_oom", Value: 0, Required: true},
	}
	// every container takes a keyring (k3s check-config)
	keyrings = []Sysctl{{Name: "kernel.keys.root_maxkeys", Value: 1000000, Least: 10000}}
	ipv6     = []Sysctl{
		{Name: "net.ipv6.conf.all.disable_ipv6", Value: 0, Required: true},
		{Name: "net.ipv6.conf.default.disable_ipv6", Value: 0, Required: true},
	}
)

// Prepare says what is to be changed on hosts, for each subject.
func Prepare(need Need, subjects []Subject) []Preparation {
	list := make([]Preparation, len(subjects))
	for i := range subjects {
		s := &subjects[i]
		if s.Facts == nil {
			continue
		}
		j := &judgement{Need: need, subjects: subjects, index: i, Subject: s, facts: s.Facts}
		p := &list[i]
		p.Modules, p.Sysctls, p.Ports = j.modules(), j.sysctls(), j.openPorts()
		for _, n := range j.networks() {
			if !slices.Contains(p.Networks, n.prefix) {
				p.Networks = append(p.Networks, n.prefix)
			}
		}
		p.UFW, p.Firewalld = hasUFW(s.Facts), hasFirewalld(s.Facts)
		if address, err := netip.ParseAddr(NodeAddress(*s)); err == nil {
			p.Interface, _, _ = s.has(address)
		}
		for _, name := range cloudSetupUnits {
			if s.Facts.Unit(name).LoadState == "loaded" {
				p.CloudSetup = append(p.CloudSetup, name)
			}
		}
	}
	return list
}

// modules are those of the chosen features that this kernel has as modules.
func (j *judgement) modules() []string {
	var names []string
	for _, n := range j.kernelNeeds() {
		switch j.facts.Kernel.Modules[n.module] {
		case "loaded", "available":
			names = append(names, n.module)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sysctls are those that the host has and that are judged.
func (j *judgement) sysctls() []Sysctl {
	wanted := slices.Concat(inotify, j.keyrings())
	if _, ok := j.ipv6Network(); ok {
		wanted = append(wanted, ipv6...)
	}
	return slices.DeleteFunc(wanted, func(s Sysctl) bool {
		if s == ipv6[1] {
			s = ipv6[0] // the two are there together, and hosts tell of the first
		}
		_, known := j.sysctl(s.Name)
		return !known
	})
}

// keyrings are the sysctls that are judged beside those of inotify. Hardening sets its own.
func (j *judgement) keyrings() []Sysctl {
	if j.Need.Config.Cluster.Hardening != hardening.None {
		return nil
	}
	if settingOn(j.K3sConfig, "protect-kernel-defaults") {
		return kubeletSysctls
	}
	return keyrings
}

// ipv6Network is the first network of pods or services that has IPv6 addresses.
func (j *judgement) ipv6Network() (network, bool) {
	list := j.networks()
	i := slices.IndexFunc(list, func(n network) bool { return n.prefix.Addr().Is6() })
	if i < 0 {
		return network{}, false
	}
	return list[i], true
}

// openPorts are the host's ports that other hosts reach.
func (j *judgement) openPorts() []reach.Endpoint {
	var open []reach.Endpoint
	for _, p := range j.ports(j.Subject) {
		if p.peers {
			open = append(open, p.Endpoint)
		}
	}
	return open
}

// isOpened reports whether a host has a firewall that hosts.prepare opens.
func (j *judgement) isOpened(name string) bool {
	i := slices.IndexFunc(j.subjects, func(s Subject) bool { return s.Name == name && s.Facts != nil })
	return i >= 0 && (hasUFW(j.subjects[i].Facts) || hasFirewalld(j.subjects[i].Facts))
}

func hasFirewalld(f *facts.Facts) bool { return f.Unit("firewalld.service").ActiveState == "active" }

func hasUFW(f *facts.Facts) bool { return f.UFW && f.Unit("ufw.service").ActiveState == "active" }

var cloudSetupUnits = []string{"nm-cloud-setup.service", "nm-cloud-setup.timer"}

// cloudSetup are the units of nm-cloud-setup that run or will.
func cloudSetup(f *facts.Facts) []string {
	var on []string
	for _, name := range cloudSetupUnits {
		u := f.Unit(name)
		if u.LoadState == "loaded" && (u.UnitFileState == "enabled" || u.ActiveState == "active" ||
			u.ActiveState == "activating") {
			on = append(on, name)
		}
	}
	return on
}
