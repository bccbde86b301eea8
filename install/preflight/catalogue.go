package preflight

// IDs of checks whose fault may keep a host from being looked at, or is found out from the cluster.
const (
	CheckFacts     = "facts"
	CheckPlatform  = "platform"
	CheckRoot      = "root"
	CheckNoExec    = "noexec"
	CheckHostname  = "hostname"
	CheckClock     = "clock"
	CheckMachineID = "machine-id"
)

// Catalogue lists the checks in the order of their findings. docs/preflight.md has the
// same list.
func Catalogue() []Check {
	return []Check{
		{CheckFacts, "the host says what it is like",
			"Error when the host cannot be logged in to, or boxlift-node could not gather facts.", judgeFacts},
		{CheckPlatform, "operating system and architecture",
			"Error when the bundle carries nothing for the host's platform, or the host runs programs of another one " +
				"than it says. The bundle's signature and bytes are verified before any host is contacted.",
			judgePlatform},
		{CheckRoot, "root, directly or through sudo",
			"Error when boxlift-node does not run as root.", judgeRoot},
		{"systemd", "systemd runs the host",
			"Error when systemd is not the host's init, is in rescue mode or is going down; warning while the host " +
				"still boots.", judgeSystemd},
		{"cpu", "number of CPUs",
			"Warning with fewer than the [profile](#sizes) recommends.", judgeCPU},
		{"memory", "memory",
			"Error with less than the [profile](#sizes) has as the least, warning with less than it recommends.",
			judgeMemory},
		{"disk", "free space",
			"Error when a filesystem has less free than the bundle needs there: packs, containerd's copy of their " +
				"blobs, the unpacked layers (twice their size), files and programs, what lies on one filesystem " +
				"added up and what is there already taken off; or when less than 5 % of it would stay free, where " +
				"k3s' kubelet evicts pods. Warning when less than 15 % would stay free, where the kubelet removes " +
				"images. Each says how much of what is there are programs of older versions of k3s that boxlift prune " +
				"would remove.", judgeDisk},
		{"disk-size", "size of the disk",
			"Warning when /var/lib/rancher is on a filesystem that is smaller than the [profile](#sizes) recommends. What " +
				"has to be free on it is the business of disk.", judgeDiskSize},
		{"inodes", "free inodes",
			"Error when a filesystem has too few for the files of the unpacked layers, counted as one for each 16 KiB.",
			judgeInodes},
		{"read-only", "mounted read-only",
			"Error when something that has to be written to is on a read-only mount.", judgeReadOnly},
		{CheckNoExec, "mounted noexec",
			"Error when programs cannot be run from where they are put. k3s unpacks its own below /var/lib/rancher.",
			judgeNoExec},
		{"filesystem", "type of filesystem",
			"Error when /var/lib/rancher is on a filesystem that overlayfs or the datastore cannot be on (overlay, " +
				"NFS, CIFS, FAT and the like); warning when it is in memory.", judgeFilesystem},
		{"kernel", "version of the kernel",
			"Error below 5.10, but 4.18 of RHEL 8.10 and its kin is fine (Cilium's requirements).", judgeKernel},
		{"kernel-options", "options and modules of the kernel",
			"Error when something that the chosen features need is neither built in nor loadable, warning when only " +
				"some feature will be missing. Where neither the kernel's configuration nor its list of modules can " +
				"be read there is no finding.", judgeKernelOptions},
		{"cgroup", "control groups",
			"Error for cgroup v1 with k3s 1.35 or newer, unless kubelet-arg has fail-cgroupv1=false, and for a " +
				"missing controller among cpu, memory and pids; warning for v1 with an older k3s and for a missing " +
				"cpuset.", judgeCgroup},
		{"ports", "ports in use",
			"Error when something else listens on a port that k3s, Cilium, boxlift's registry, its DNS server or a server " +
				"of time needs, warning where only a feature is lost. What belongs to the cluster that boxlift has " +
				"installed is fine.", judgePorts},
		{"seeding", "how images come to the hosts",
			"Error when seeding.registry.port is a port that k3s, Cilium or services need, and when " +
				"seeding.peerToPeer is set and the bundle's k3s does not share images that came from a file: it " +
				"takes v1.32.11, v1.33.7, v1.34.3, v1.35.0 or newer. Warning when it is set and there is one host.",
			judgeSeeding},
		{"images", "images that are not in the bundle",
			"Error when an image of LiteBoxd's, of liteboxd.extraImages or of Cilium's that the bundle does not carry cannot " +
				"be had for the host's platform from where registries or seeding.external say that nodes pull it. The host " +
				"itself asks, with the login and the authorities that nodes are going to have.", judgeImages},
		{CheckHostname, "names of nodes",
			"Error when the node's name (name in install.yaml, or else the host's own) is not a lower-case name by " +
				"RFC 1123 of at most 63 characters, is localhost, or is that of another host, of a node of the " +
				"cluster that is another machine, or of something else in the section names or of LiteBoxd's " +
				"ingress.", judgeHostname},
		{CheckMachineID, "/etc/machine-id",
			"Error when it is missing, not valid, or that of another host, or when a host that is new to the cluster " +
				"has that of a node with another name.", judgeMachineID},
		{CheckClock, "clocks",
			"Error when a host is more than 2 s behind the first server for certain: certificates are not valid yet " +
				"there. Once the cluster's certificate authority is older than that, it is a warning. Warning for " +
				"more than 1 s of difference, for one that is not known well enough, and for more than 5 s to the " +
				"operator's clock. With a section time in install.yaml, a difference is set by chrony and stops " +
				"nothing.", judgeClock},
		{"node-ip", "nodeIP",
			"Error when no interface of the host has the nodeIP of install.yaml.", judgeNodeIP},
		{"default-route", "default route",
			"Error when there is none: k3s does not start, or services do not work. Error when it goes to a dummy " +
				"interface and there are several hosts without nodeIP, since the nodes would take the dummy's " +
				"address; with nodeIP a warning.", judgeDefaultRoute},
		{"resolv-conf", "name servers",
			"Warning when neither /etc/resolv.conf nor systemd-resolved has one that pods can reach.", judgeResolvers},
		{"swap", "swap",
			"Warning when it is on: k3s starts, but limits of memory do not hold.", judgeSwap},
		{"firewall", "firewalld and ufw",
			"Warning when one is active, with the commands that open it.", judgeFirewall},
		{"nm-cloud-setup", "nm-cloud-setup",
			"Error when its service or timer is enabled or active: it breaks the routes of pods.", judgeCloudSetup},
		{"selinux", "SELinux",
			"Error when it is enforcing without the policy of k3s-selinux; warning when it is enforcing and k3s is " +
				"not told to use it.", judgeSELinux},
		{"inotify", "limits of inotify",
			"Warning below 512 instances or 65536 watches: a node with many containers uses them up.", judgeInotify},
		{"sysctls", "other sysctls",
			"Error when protect-kernel-defaults is set without cluster.hardening and a sysctl is " +
				"not what the kubelet insists on, and when " +
				"IPv6 is switched off but pods or services have IPv6 addresses; warning for a " +
				"kernel.keys.root_maxkeys below 10000 (k3s check-config).", judgeSysctls},
		{"packages", "packages of the distribution",
			"For hosts that need packages which they do not have. Error when the bundle does not have one for the host's " +
				"release and architecture, or the host is not of Debian's family; when apt, with the bundle's packages and " +
				"nothing else, lacks something that they depend on; when the host holds what would have to change, or has " +
				"something that they conflict with. Warning when dpkg was interrupted, which is finished first, and when " +
				"packages of the host's would get a newer version.", judgePackages},
		{"front", "the address that servers have in turn",
			"For servers of cluster.front. Error when the address is not in the network of the host's own address, and when " +
				"somebody answers at it who is no host of the cluster.", judgeFront},
		{"networks", "networks of pods and services",
			"Error when they overlap each other, or an address, a route or a name server of a host.", judgeNetworks},
		{"kubernetes", "another Kubernetes",
			"Error when a kubelet or another part of Kubernetes that is not this cluster's runs, or is enabled.",
			judgeKubernetes},
		{"cni", "another pod network",
			"Error when /etc/cni/net.d has a configuration that is not Cilium's: containerd would use it until " +
				"Cilium is up.", judgeCNI},
		{"k3s", "k3s that is there already",
			"Error when it was neither set up by boxlift nor adopted, has the other role, another version, or " +
				"another data directory; warning for a binary of another version that nothing uses.", judgeK3s},
		{"token", "tokens of servers and agents",
			"Warning when an agent has the servers' token, as in clusters that an older boxlift began; when agents " +
				"have " +
				"had the servers' token, or a change of it was broken off; and when a server lets agents in by " +
				"another token " +
				"than the others.", judgeToken},
		{"reach", "hosts reach each other",
			"Error when a host does not reach another on a port of k3s, Cilium, boxlift's registry or its DNS " +
				"server; warning when " +
				"that could not be tried. Warning when a host does not reach the registry of seeding.external, an " +
				"error for an agent that has to pull from it to start LiteBoxd (seeding.agents: boot).", judgeReach},
	}
}
