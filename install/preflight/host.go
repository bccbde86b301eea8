package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/facts"
)

func judgeFacts(j *judgement) {
	if j.facts == nil {
		j.fail("the host has not said what it is like", "facts",
			"run `boxlift preflight` again; what boxlift-node says when it fails is in the log")
	}
}

func judgePlatform(j *judgement) {
	var carried []string
	for _, p := range j.Platforms {
		carried = append(carried, string(p))
	}
	switch {
	case !slices.Contains(j.Platforms, j.Platform):
		j.fail("the host is "+string(j.Platform), "one of the platforms that the bundle carries: "+
			strings.Join(carried, ", "),
			"build a bundle whose lock lists "+string(j.Platform)+", or choose another host")
	case j.facts != nil && j.facts.Platform != "" && lock.Platform(j.facts.Platform) != j.Platform:
		j.fail(fmt.Sprintf("the host says that it is %s, but its programs are %s", j.Platform, j.facts.Platform),
			"one platform",
			"log in to the host itself and not to a container or a changed root on it (personality, chroot)")
	}
}

func judgeRoot(j *judgement) {
	if j.facts.User != 0 {
		j.fail(fmt.Sprintf("boxlift-node runs as the user %d", j.facts.User), "root",
			"log in as root, or set sudo: true (and sudoPassword, if sudo asks for one) in install.yaml")
	}
}

func judgeSystemd(j *judgement) {
	const needed = "systemd as init, running"
	switch j.facts.Systemd.State {
	case "", "offline":
		j.fail("systemd does not run the host", needed, "k3s is run as a service of systemd: choose another host")
	case "maintenance":
		j.fail("systemd is in rescue or emergency mode", needed,
			"find out why with `systemctl --failed` and `journalctl -xb`, then reboot the host")
	case "stopping":
		j.fail("the host is going down", needed, "run the command again when the host is up")
	case "initializing", "starting":
		j.warn("the host is still booting", needed, "see `systemctl list-jobs`; k3s starts when what comes before it "+
			"has started")
	}
}

func judgeKernel(j *judgement) {
	release := j.facts.Kernel.Release
	if !before(release, 5, 10) {
		return
	}
	// Red Hat carries what Cilium needs back to this kernel, from 8.10 on.
	os := j.facts.OS
	family := slices.Contains([]string{"rhel", "rocky", "almalinux", "ol", "centos"}, os.ID) ||
		slices.Contains(os.IDLike, "rhel")
	if family && strings.HasPrefix(release, "4.18.") && os.Version == "8.10" {
		return
	}
	j.fail("kernel "+release, "kernel 5.10 or newer, or 4.18 of RHEL 8.10",
		"install a newer kernel, or a newer release of "+cmpOr(os.Pretty, "the system")+", and reboot")
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// kernelNeed is an option of the kernel, and the module that it is when it is one.
type kernelNeed struct {
	option, module string
	severity, why  string
}

// kernelNeeds are Cilium's and k3s' for the features that are chosen.
func (j *judgement) kernelNeeds() []kernelNeed {
	const base, masquerade, l7 = "Cilium's programs", "masquerading", "policies for HTTP and DNS"
	needs := []kernelNeed{
		{"BPF", "", Error, base},
		{"BPF_SYSCALL", "", Error, base},
		{"BPF_JIT", "", Error, base},
		{"NET_CLS_BPF", "cls_bpf", Error, base},
		{"NET_CLS_ACT", "", Error, base},
		{"NET_SCH_INGRESS", "sch_ingress", Error, base},
		{"CGROUPS", "", Error, "containers"},
		{"CGROUP_BPF", "", Error, base},
		{"PERF_EVENTS", "", Error, base},
		{"CRYPTO_SHA1", "", Warning, base},
		{"CRYPTO_USER_API_HASH", "algif_hash", Warning, base},
		{"SCHEDSTATS", "", Warning, "Cilium's figures about itself"},
		{"FIB_RULES", "", Error, "Cilium's routes"},
		{"VETH", "veth", Error, "pods"},
		{"NETFILTER_XT_SET", "xt_set", Error, masquerade},
		{"IP_SET", "ip_set", Error, masquerade},
		{"IP_SET_HASH_IP", "ip_set_hash_ip", Error, masquerade},
		{"NETFILTER_XT_MATCH_COMMENT", "xt_comment", Error, masquerade},
		{"NETFILTER_XT_TARGET_TPROXY", "xt_TPROXY", Warning, l7},
		{"NETFILTER_XT_TARGET_MARK", "xt_mark", Warning, l7},
		{"NETFILTER_XT_TARGET_CT", "xt_CT", Warning, l7},
		{"NETFILTER_XT_MATCH_MARK", "xt_mark", Warning, l7},
		{"NETFILTER_XT_MATCH_SOCKET", "xt_socket", Warning, l7},
	}
	if setting(j.K3sConfig, "snapshotter") == "" || setting(j.K3sConfig, "snapshotter") == "overlayfs" {
		needs = append(needs, kernelNeed{"OVERLAY_FS", "overlay", Error, "containers' file systems"})
	}
	if !j.kubeProxyReplaced() {
		needs = append(needs, kernelNeed{"BRIDGE_NETFILTER", "br_netfilter", Warning, "kube-proxy"})
	}
	switch tunnel(j.CiliumValues) {
	case "vxlan":
		needs = append(needs, kernelNeed{"VXLAN", "vxlan", Error, "traffic between nodes"})
	case "geneve":
		needs = append(needs, kernelNeed{"GENEVE", "geneve", Error, "traffic between nodes"})
	}
	if wireguard(j.CiliumValues) {
		needs = append(needs, kernelNeed{"WIREGUARD", "wireguard", Error, "encryption between nodes"})
	}
	if chartValue(j.CiliumValues, "bandwidthManager", "enabled") == true {
		needs = append(needs, kernelNeed{"NET_SCH_FQ", "sch_fq", Error, "the bandwidth manager"})
	}
	return needs
}

func (j *judgement) kubeProxyReplaced() bool {
	return j.Need.Config.Network.Cilium.KubeProxyReplacement
}

// lacks reports whether the kernel certainly cannot do what is needed.
func (n kernelNeed) lacks(k facts.Kernel) bool {
	missing := n.module != "" && k.Modules[n.module] == "missing"
	if k.Config == nil {
		return missing
	}
	switch k.Config[n.option] {
	case "y":
		return false
	case "m":
		return missing
	default:
		return k.Modules[n.module] != "loaded" // made for this kernel by somebody else
	}
}

func judgeKernelOptions(j *judgement) {
	for _, severity := range []string{Error, Warning} {
		var options, uses []string
		absent := true // only the modules, that is
		for _, n := range j.kernelNeeds() {
			if n.severity != severity || !n.lacks(j.facts.Kernel) {
				continue
			}
			options = append(options, n.option)
			if !slices.Contains(uses, n.why) {
				uses = append(uses, n.why)
			}
			absent = absent && (j.facts.Kernel.Config == nil || j.facts.Kernel.Config[n.option] == "m")
		}
		if len(options) == 0 {
			continue
		}
		hint := "install the distribution's usual kernel (not a minimal one) and its modules (such as " +
			"linux-modules-extra-" + j.facts.Kernel.Release + "), and reboot"
		if absent {
			hint = "the modules are not installed: install the kernel's further modules (such as linux-modules-extra-" +
				j.facts.Kernel.Release + " or kernel-modules-extra)"
		}
		j.add(severity, fmt.Sprintf("the kernel %s lacks %s", j.facts.Kernel.Release, strings.Join(options, ", ")),
			"these options, built in or as modules, for "+strings.Join(uses, ", "), hint)
	}
}

// AllowsCgroupV1 reports whether the settings in config.yaml have the kubelet run on a host with cgroup v1, which it
// refuses by itself from Kubernetes 1.35 on.
func AllowsCgroupV1(k3sConfig map[string]any) bool {
	off, given := kubeletArg(k3sConfig, "fail-cgroupv1")
	return given && off == "false"
}

func judgeCgroup(j *judgement) {
	c := j.facts.Cgroup
	if c.Version == 0 {
		return
	}
	const toV2 = "boot with cgroup v2: add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and reboot"
	if c.Version == 1 {
		switch {
		case before(j.Need.K3s, 1, 35):
			j.warn("cgroup v1", "cgroup v2: k3s refuses v1 from 1.35 on", toV2+" before that upgrade")
		case AllowsCgroupV1(j.K3sConfig):
		default:
			j.fail("cgroup v1", "cgroup v2 for k3s "+j.Need.K3s, toV2+
				", or set kubelet-arg: [fail-cgroupv1=false] in the host's k3s settings")
		}
	}
	var missing, wished []string
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(c.Controllers, name) {
			missing = append(missing, name)
		}
	}
	if !slices.Contains(c.Controllers, "cpuset") {
		wished = append(wished, "cpuset")
	}
	hint := "switch them on in the kernel's command line and reboot"
	if slices.Contains(missing, "memory") {
		hint = "add cgroup_memory=1 cgroup_enable=memory to the kernel's command line and reboot"
	}
	if len(missing) > 0 {
		j.fail("control groups without "+strings.Join(missing, ", "), "the controllers cpu, memory and pids", hint)
	}
	if len(wished) > 0 {
		j.warn("control groups without "+strings.Join(wished, ", "),
			"the controller cpuset, for containers that ask for CPUs of their own", hint)
	}
}

func judgeSwap(j *judgement) {
	if j.facts.Memory.Swap > 0 {
		j.mend(Warning, progress.Bytes(j.facts.Memory.Swap)+" of swap",
			"none: with swap, limits of memory do not hold and pods get slow instead of being restarted",
			"switch it off with: swapoff -a, and remove its lines from /etc/fstab (or mask its unit: systemctl "+
				"list-units --type=swap)")
	}
}

func judgeSELinux(j *judgement) {
	if j.facts.SELinux != "enforcing" {
		return
	}
	switch {
	case !j.facts.SELinuxPolicy:
		j.fail("SELinux is enforcing, and the policy of k3s is not installed", "the package k3s-selinux",
			"install k3s-selinux and the container-selinux that it needs from the distribution's media, or set "+
				"SELinux to permissive: setenforce 0, and SELINUX=permissive in /etc/selinux/config")
	case !settingOn(j.K3sConfig, "selinux"):
		j.warn("SELinux is enforcing, but k3s is not told to use it", "selinux: true in the settings of k3s",
			"set selinux: true in the host's k3s settings; without it containers run without SELinux' protection")
	}
}

// sysctl returns a sysctl that is a number.
func (j *judgement) sysctl(name string) (int64, bool) {
	n, err := strconv.ParseInt(j.facts.Sysctls[name], 10, 64)
	return n, err == nil
}

// setSysctls says how to set sysctls for good.
func setSysctls(list ...Sysctl) string {
	values := make([]string, 0, len(list))
	for _, s := range list {
		values = append(values, fmt.Sprintf("%s=%d", s.Name, s.Value))
	}
	return fmt.Sprintf(`printf '%%s\n' %s >> /etc/sysctl.d/90-k3s.conf && sysctl --system`, strings.Join(values, " "))
}

func judgeInotify(j *judgement) {
	var low []string
	for _, want := range inotify {
		if n, known := j.sysctl(want.Name); known && !want.Fits(n) {
			low = append(low, fmt.Sprintf("%s = %d", want.Name, n))
		}
	}
	if len(low) > 0 {
		j.mend(Warning, strings.Join(low, ", "), inotify[0].Name+" of 512 and "+inotify[1].Name+" of 65536 at least",
			"raise them with: "+setSysctls(inotify...))
	}
}

func judgeSysctls(j *judgement) {
	var differ []string
	var set []Sysctl
	for _, want := range j.keyrings() {
		if n, known := j.sysctl(want.Name); known && !want.Fits(n) {
			differ = append(differ, fmt.Sprintf("%s = %d", want.Name, n))
			set = append(set, want)
		}
	}
	switch {
	case len(differ) == 0:
	case settingOn(j.K3sConfig, "protect-kernel-defaults"):
		j.mend(Error, strings.Join(differ, ", "), "the kubelet's values, because protect-kernel-defaults is set",
			"set them with: "+setSysctls(set...))
	default:
		j.mend(Warning, strings.Join(differ, ", "), "10000 at least: every container takes a keyring",
			"raise it with: "+setSysctls(set...))
	}
	if n, known := j.sysctl(ipv6[0].Name); known && !ipv6[0].Fits(n) {
		if net, ok := j.ipv6Network(); ok {
			j.mend(Error, "IPv6 is switched off", "IPv6, because "+net.name+" is "+net.prefix.String(),
				"switch it on with: "+setSysctls(ipv6...))
		}
	}
}
