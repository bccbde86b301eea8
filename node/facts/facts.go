package facts

// Version is the version of the form of [Facts].
const Version = 3

// Facts is what boxlift-node says about its host, in one JSON document. What could not
// be read is empty, and Problems says why; only what does not exist on such a host is
// empty without a word. Sizes are in bytes.
type Facts struct {
	Version   int    `json:"version"`
	Hostname  string `json:"hostname"`
	MachineID string `json:"machineID"`
	// BootID changes with every boot.
	BootID string `json:"bootID"`
	OS     OS     `json:"os"`
	// Architecture is Go's word for it (amd64, arm64); Platform has the OS before it
	// (linux/amd64).
	Architecture string `json:"architecture"`
	Platform     string `json:"platform"`
	Kernel       Kernel `json:"kernel"`
	CPUs         int    `json:"cpus"`
	Memory       Memory `json:"memory"`
	// Mounts has an entry for each of the paths that boxlift and k3s write to.
	Mounts []Mount `json:"mounts"`
	Ports  []Port  `json:"ports"`
	// Processes are the parts of Kubernetes that run, whoever has started them.
	Processes []Process `json:"processes,omitempty"`
	Clock     Clock     `json:"clock"`
	Cgroup    Cgroup    `json:"cgroup"`
	Network   Network   `json:"network"`
	Systemd   Systemd   `json:"systemd"`
	// Units has an entry for each unit that is of interest, installed or not.
	Units []Unit `json:"units"`
	// SELinux is "enforcing", "permissive", or "disabled".
	SELinux string `json:"selinux"`
	// SELinuxPolicy says that the policy of k3s (the package k3s-selinux) is installed.
	SELinuxPolicy bool `json:"selinuxPolicy,omitempty"`
	// UFW says that ufw is switched on in its configuration; its unit runs either way.
	UFW bool `json:"ufw,omitempty"`
	// Sysctls has dotted names.
	Sysctls map[string]string `json:"sysctls"`
	K3s     K3s               `json:"k3s"`
	// CNIConfigs are the names of the files in /etc/cni/net.d.
	CNIConfigs []string `json:"cniConfigs,omitempty"`
	// Packs are those in the images directory.
	Packs []Pack `json:"packs,omitempty"`
	// Files are those that boxlift keeps in /var/lib/boxlift/files, by name.
	Files []StoredFile `json:"files,omitempty"`
	// User is the effective user's numeric id.
	User     int      `json:"user"`
	Problems []string `json:"problems,omitempty"`
}

// OS is from os-release(5).
type OS struct {
	ID      string   `json:"id"`
	IDLike  []string `json:"idLike,omitempty"`
	Version string   `json:"version"`
	Pretty  string   `json:"pretty"`
}

// Kernel describes the running kernel.
type Kernel struct {
	Release string `json:"release"`
	// Modules says for each module of interest whether it is "loaded", "builtin",
	// "available" (can be loaded) or "missing". A module of which that cannot be told, on
	// a host that has no list of its kernel's modules, has no entry.
	Modules map[string]string `json:"modules"`
	// Config has the options of interest that are set, without CONFIG_, as y, m or a
	// value. It is nil when the kernel's configuration cannot be read.
	Config map[string]string `json:"config,omitempty"`
}

// Memory is from /proc/meminfo.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
	Swap      int64 `json:"swap"`
}

// Mount is the filesystem that a path is on, or, while the path does not exist, will be
// on.
type Mount struct {
	Path       string `json:"path"`
	MountPoint string `json:"mountPoint"`
	Source     string `json:"source"`
	Type       string `json:"type"`
	// Options are the mount's and the filesystem's, each once.
	Options  []string `json:"options"`
	ReadOnly bool     `json:"readOnly"`
	NoExec   bool     `json:"noExec"`
	// Device is equal for paths on the same filesystem.
	Device string `json:"device"`
	Total  int64  `json:"total"`
	// Free is what an ordinary user may still write.
	Free int64 `json:"free"`
	// Inodes is 0 on a filesystem that makes them as they are needed.
	Inodes     int64 `json:"inodes"`
	FreeInodes int64 `json:"freeInodes"`
}

// Port is a port that something listens on.
type Port struct {
	// Protocol is tcp, tcp6, udp or udp6.
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Port     int    `json:"port"`
	// Owner is one owner. It is empty when none could be found: only root sees those of
	// others, and a socket of the kernel's own, such as a VXLAN interface's, has none.
	Owner Process `json:"owner,omitzero"`
}

// Process is a running program.
type Process struct {
	// Name is the kernel's name for it, at most 15 bytes.
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// Executable is its path, as seen by the process.
	Executable string `json:"executable,omitempty"`
	// Unit is the systemd unit that it belongs to. It is "kubepods" for what a kubelet
	// runs in a pod, and "docker" for what runs in a container of Docker's.
	Unit string `json:"unit,omitempty"`
}

// Clock is read last, right before the document is written.
type Clock struct {
	// Now is UTC in the form of RFC 3339 with nanoseconds.
	Now string `json:"now"`
	// Synchronized is what the kernel says: whether somebody disciplines the clock.
	Synchronized bool `json:"synchronized"`
}

// Cgroup says how control groups are mounted.
type Cgroup struct {
	// Version is 2 when only the unified hierarchy is there, 1 otherwise, 0 if unknown.
	Version     int      `json:"version"`
	Controllers []string `json:"controllers"`
}

// Network is the state of the main routing tables and the resolver.
type Network struct {
	Interfaces []Interface `json:"interfaces"`
	Routes     []Route     `json:"routes"`
	// Resolvers and Search are from /etc/resolv.conf; Upstream are systemd-resolved's own
	// servers, when it runs.
	Resolvers []string `json:"resolvers,omitempty"`
	Search    []string `json:"search,omitempty"`
	Upstream  []string `json:"upstream,omitempty"`
}

// Interface is a network interface. Addresses have their prefix length (10.0.0.1/24).
type Interface struct {
	Name      string   `json:"name"`
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu"`
	Up        bool     `json:"up"`
	Addresses []string `json:"addresses,omitempty"`
}

// Route is one route; Destination of a default route is 0.0.0.0/0 or ::/0.
type Route struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway,omitempty"`
	Interface   string `json:"interface"`
	Metric      int    `json:"metric"`
}

// Default reports whether it is a default route.
func (r Route) Default() bool { return r.Destination == "0.0.0.0/0" || r.Destination == "::/0" }

// Systemd is empty on a host without systemd.
type Systemd struct {
	Version string `json:"version"`
	// State is what systemctl is-system-running says.
	State string `json:"state"`
}

// Unit is the state of a unit, in systemctl's words. LoadState is "not-found" for one
// that is not installed.
type Unit struct {
	Name          string `json:"name"`
	LoadState     string `json:"loadState"`
	ActiveState   string `json:"activeState"`
	SubState      string `json:"subState"`
	UnitFileState string `json:"unitFileState,omitempty"`
	// Started is when the main process was started, as systemctl prints it.
	Started  string `json:"started,omitempty"`
	MainPID  int    `json:"mainPID,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
}

// Unit returns the state of a unit; it is empty when nothing is known about it.
func (f *Facts) Unit(name string) Unit {
	for _, u := range f.Units {
		if u.Name == name {
			return u
		}
	}
	return Unit{Name: name}
}

// K3s is what is there of k3s.
type K3s struct {
	// Path, Version and Size are those of the binary, if there is one.
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Size    int64  `json:"size,omitempty"`
	// Managed says that boxlift has set up k3s here.
	Managed bool `json:"managed,omitempty"`
	// DataDir is what k3s' configuration or unit sets as data-dir; "" is the default.
	DataDir string `json:"dataDir,omitempty"`
	// DataDirs are k3s' directories that exist, such as /var/lib/rancher/k3s/server.
	DataDirs []string `json:"dataDirs,omitempty"`
	// OldPrograms is the room of what k3s has unpacked of its older versions and nothing runs from any more: what
	// boxlift prune removes.
	OldPrograms int64 `json:"oldPrograms,omitempty"`
	// Created is when the server's certificate authority was made, by this host's clock,
	// in the form of RFC 3339. It is empty where there is none.
	Created string `json:"created,omitempty"`
}

// StoredFile is a file that boxlift has brought.
type StoredFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Pack is a pack in the images directory.
type Pack struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Digest is the sha256 of its index.json; it is empty when the file is not a pack in
	// its right form, which Problems then says.
	Digest string `json:"digest"`
}
