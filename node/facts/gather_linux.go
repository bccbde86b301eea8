package facts

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/programs"
	"github.com/liteboxd/boxlift/node/wire"
)

// Options say where to look. The zero value is right for a node with k3s'
// standard directories.
type Options struct {
	// ImagesDir is where packs are; "" means wire.ImagesDir.
	ImagesDir string
}

// Bounds that keep facts small and quick on any host.
const (
	maxFactFile = 4 << 20
	// maxProcesses is how many processes are looked at.
	maxProcesses = 1 << 17
	// commandTime is how long systemctl or k3s may take.
	commandTime = 5 * time.Second
	maxOutput   = 64 << 10
)

// Gather reads the facts. It changes nothing, takes a few seconds at most even where
// commands hang, and never fails: what is missing is told in Problems.
func Gather(ctx context.Context, opts Options) Facts {
	if opts.ImagesDir == "" {
		opts.ImagesDir = wire.ImagesDir
	}
	h := &host{root: "/"}
	f := h.files(opts)
	f.Hostname = h.hostname()
	f.CPUs = runtime.NumCPU()
	f.User = os.Geteuid()
	f.Kernel.Release = h.release()
	h.kernel(&f.Kernel)
	f.Mounts = h.mounts(watchedPaths(opts.ImagesDir))
	f.Network.Interfaces = h.interfaces()
	f.Systemd = h.systemd(ctx)
	f.Units = h.units(ctx)
	f.K3s = h.k3s(ctx)
	f.Clock = h.clock()
	f.Problems = h.problems
	return f
}

// host reads facts below a root directory, which is another one in tests.
type host struct {
	root     string
	problems []string
	// patience is how long a command may take; 0 means commandTime.
	patience time.Duration
}

func (h *host) problem(format string, args ...any) {
	if len(h.problems) < wire.MaxEntries {
		h.problems = append(h.problems, fmt.Sprintf(format, args...))
	}
}

// files gathers what is read from files alone.
func (h *host) files(opts Options) Facts {
	f := Facts{
		Version:      Version,
		MachineID:    h.line("/etc/machine-id"),
		BootID:       h.line("/proc/sys/kernel/random/boot_id"),
		OS:           h.os(),
		Architecture: runtime.GOARCH,
		Platform:     "linux/" + runtime.GOARCH,
		Memory:       h.memory(),
		Cgroup:       h.cgroup(),
		SELinux:      h.selinux(),
		UFW:          h.ufw(),
		Sysctls:      h.sysctls(),
		CNIConfigs:   h.list("/etc/cni/net.d"),
		Packs:        h.packs(opts.ImagesDir),
		Files:        h.storedFiles(),
	}
	f.SELinuxPolicy = h.selinuxPolicy()
	f.Ports, f.Processes = h.ports()
	f.Network.Routes = h.routes()
	h.resolvers(&f.Network)
	return f
}

// read returns a file's content, or nil when there is none or it cannot be read; the
// latter is a problem.
func (h *host) read(name string) []byte {
	f, err := os.Open(filepath.Join(h.root, name))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.problem("read %s: %v", name, err)
		}
		return nil
	}
	defer hostfile.CloseRead(f)
	content, err := io.ReadAll(io.LimitReader(f, maxFactFile))
	if err != nil {
		h.problem("read %s: %v", name, err)
		return nil
	}
	return content
}

func (h *host) line(name string) string { return strings.TrimSpace(string(h.read(name))) }

func (h *host) exists(name string) bool {
	_, err := os.Stat(filepath.Join(h.root, name))
	return err == nil
}

// list returns the names in a directory that may be missing.
func (h *host) list(name string) []string {
	d, err := os.Open(filepath.Join(h.root, name))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.problem("list %s: %v", name, err)
		}
		return nil
	}
	defer hostfile.CloseRead(d)
	names, err := d.Readdirnames(wire.MaxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		h.problem("list %s: %v", name, err)
	}
	slices.Sort(names)
	return names
}

func lines(b []byte) []string { return strings.Split(strings.TrimRight(string(b), "\n"), "\n") }

func (h *host) hostname() string {
	name, err := os.Hostname()
	if err != nil {
		h.problem("read the host name: %v", err)
	}
	return name
}

func (h *host) os() OS {
	content := h.read("/etc/os-release")
	if content == nil {
		content = h.read("/usr/lib/os-release")
	}
	values := make(map[string]string)
	for _, line := range lines(content) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		values[key] = unquote(value)
	}
	if len(values) == 0 {
		h.problem("read os-release: it is missing or empty")
	}
	return OS{
		ID:      values["ID"],
		IDLike:  strings.Fields(values["ID_LIKE"]),
		Version: values["VERSION_ID"],
		Pretty:  values["PRETTY_NAME"],
	}
}

// unquote undoes the shell's quoting as far as os-release(5) allows it.
func unquote(s string) string {
	if len(s) < 2 || s[0] != s[len(s)-1] || s[0] != '"' && s[0] != '\'' {
		return s
	}
	quote := s[0]
	s = s[1 : len(s)-1]
	if quote == '\'' {
		return s
	}
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\$`, `$`, "\\`", "`").Replace(s)
}

func (h *host) release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		h.problem("read the kernel's release: %v", err)
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelModules are those that k3s and Cilium use.
func kernelModules() []string {
	return []string{
		"algif_hash", "br_netfilter", "cls_bpf", "geneve", "ip6_tables", "ip_set", "ip_set_hash_ip", "ip_tables",
		"iptable_filter", "iptable_mangle",
		"iptable_nat", "iptable_raw", "nf_conntrack", "nf_tables", "overlay", "sch_fq", "sch_ingress",
		"veth", "vxlan", "wireguard",
		"xt_CT", "xt_TPROXY", "xt_comment", "xt_mark", "xt_set", "xt_socket",
	}
}

// kernelOptions are those that k3s and Cilium want to be set.
func kernelOptions() []string {
	return []string{
		"BPF", "BPF_JIT", "BPF_SYSCALL", "BRIDGE_NETFILTER", "CGROUPS", "CGROUP_BPF", "CRYPTO_SHA1",
		"CRYPTO_USER_API_HASH",
		"FIB_RULES", "GENEVE", "IP_SET", "IP_SET_HASH_IP", "NETFILTER_XT_MATCH_COMMENT", "NETFILTER_XT_MATCH_MARK",
		"NETFILTER_XT_MATCH_SOCKET", "NETFILTER_XT_SET", "NETFILTER_XT_TARGET_CT", "NETFILTER_XT_TARGET_MARK",
		"NETFILTER_XT_TARGET_TPROXY", "NET_CLS_ACT", "NET_CLS_BPF", "NET_SCH_FQ", "NET_SCH_INGRESS",
		"OVERLAY_FS", "PERF_EVENTS",
		"SCHEDSTATS", "VETH", "VXLAN", "WIREGUARD",
	}
}

// kernel reads modules and options of the release that k names.
func (h *host) kernel(k *Kernel) {
	loaded := make(map[string]bool)
	for _, line := range lines(h.read("/proc/modules")) {
		name, _, _ := strings.Cut(line, " ")
		loaded[name] = true
	}
	builtin := h.moduleNames(path.Join("/lib/modules", k.Release, "modules.builtin"))
	available := h.moduleNames(path.Join("/lib/modules", k.Release, "modules.dep"))
	k.Modules = make(map[string]string)
	for _, name := range kernelModules() {
		switch {
		case loaded[name]:
			k.Modules[name] = "loaded"
		case builtin[name], h.exists(path.Join("/sys/module", name)):
			k.Modules[name] = "builtin"
		case available[name]:
			k.Modules[name] = "available"
		case len(available) > 0:
			k.Modules[name] = "missing"
		}
	}
	if len(available) == 0 {
		h.problem("read /lib/modules/%s/modules.dep: it is missing or empty, so that modules that are not loaded are "+
			"not "+
			"known", k.Release)
	}
	config := h.kernelConfig(k.Release)
	if config == nil {
		h.problem("read the kernel's configuration: neither /proc/config.gz nor /boot/config-%s can be read", k.Release)
		return
	}
	k.Config = make(map[string]string)
	for _, option := range kernelOptions() {
		if value, ok := config[option]; ok {
			k.Config[option] = value
		}
	}
}

// moduleNames reads modules.builtin or modules.dep: a module's path starts each line.
func (h *host) moduleNames(name string) map[string]bool {
	names := make(map[string]bool)
	for _, line := range lines(h.read(name)) {
		file, _, _ := strings.Cut(line, ":")
		if module, _, ok := strings.Cut(path.Base(file), ".ko"); ok {
			names[strings.ReplaceAll(module, "-", "_")] = true
		}
	}
	return names
}

func (h *host) kernelConfig(release string) map[string]string {
	var content []byte
	if packed := h.read("/proc/config.gz"); packed != nil {
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err == nil {
			content, err = io.ReadAll(io.LimitReader(z, maxFactFile))
		}
		if err != nil {
			h.problem("read /proc/config.gz: %v", err)
		}
	}
	for _, name := range []string{path.Join("/boot", "config-"+release), path.Join("/lib/modules", release, "config")} {
		if len(content) == 0 {
			content = h.read(name)
		}
	}
	if len(content) == 0 {
		return nil
	}
	config := make(map[string]string)
	for _, line := range lines(content) {
		option, value, ok := strings.Cut(line, "=")
		if option, isOption := strings.CutPrefix(option, "CONFIG_"); ok && isOption {
			config[option] = unquote(value)
		}
	}
	return config
}

func (h *host) memory() Memory {
	var m Memory
	for _, line := range lines(h.read("/proc/meminfo")) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 54)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			m.Total = kib << 10
		case "MemAvailable:":
			m.Available = kib << 10
		case "SwapTotal:":
			m.Swap = kib << 10
		}
	}
	if m.Total == 0 {
		h.problem("read /proc/meminfo: it does not say how much memory there is")
	}
	return m
}

func watchedPaths(imagesDir string) []string {
	paths := []string{
		"/", "/boot", "/etc", "/opt", "/run", "/tmp", "/usr/local", "/usr/local/bin", "/var", "/var/lib",
		"/var/lib/boxlift",
		"/var/lib/kubelet", "/var/lib/rancher", "/var/log",
	}
	if imagesDir != wire.ImagesDir {
		paths = append(paths, imagesDir)
	}
	return paths
}

// mountInfo is one line of /proc/self/mountinfo.
type mountInfo struct {
	point, fsType, source, device string
	options                       []string
}

// mounts finds for each path the mount that it, or the nearest directory above it that
// exists, is on.
func (h *host) mounts(paths []string) []Mount {
	table := h.mountTable()
	var mounts []Mount
	for _, p := range paths {
		existing := p
		for existing != "/" && !h.exists(existing) {
			existing = path.Dir(existing)
		}
		resolved, err := filepath.EvalSymlinks(filepath.Join(h.root, existing))
		if err == nil {
			resolved, err = filepath.Rel(h.root, resolved)
		}
		if err != nil {
			h.problem("find the mount of %s: %v", p, err)
			continue
		}
		m := Mount{Path: p}
		info := mountOf(table, path.Join("/", resolved))
		m.MountPoint, m.Source, m.Type, m.Options, m.Device = info.point, info.source, info.fsType, info.options, info.device
		m.ReadOnly = slices.Contains(m.Options, "ro")
		m.NoExec = slices.Contains(m.Options, "noexec")
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(h.root, existing), &st); err != nil {
			h.problem("ask for the free space of %s: %v", p, err)
		} else {
			m.Total, m.Free = product(st.Blocks, st.Bsize), product(st.Bavail, st.Bsize)
			m.Inodes, m.FreeInodes = product(st.Files, 1), product(st.Ffree, 1)
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// product multiplies what a filesystem says, which may be anything: some say that they
// have 2^64-1 inodes.
func product(n uint64, size int64) int64 {
	if size <= 0 || n > wire.MaxNumber/uint64(size) {
		return wire.MaxNumber
	}
	return int64(n) * size
}

func (h *host) mountTable() []mountInfo {
	var table []mountInfo
	for _, line := range lines(h.read("/proc/self/mountinfo")) {
		// 36 35 98:0 /root /point rw,noatime optional... - ext3 /dev/sda1 rw,errors=continue
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 2 {
			continue
		}
		m := mountInfo{point: unescapeMount(left[4]), device: left[2], fsType: right[0],
			source: unescapeMount(right[1])}
		m.options = strings.Split(left[5], ",")
		if len(right) > 2 {
			for _, o := range strings.Split(right[2], ",") {
				// A mount can be read-only on a filesystem that is not, and the other way round.
				if !slices.Contains(m.options, o) && !(o == "rw" && slices.Contains(m.options, "ro")) {
					m.options = append(m.options, o)
				}
			}
		}
		if slices.Contains(m.options, "ro") {
			m.options = slices.DeleteFunc(m.options, func(o string) bool { return o == "rw" })
		}
		table = append(table, m)
	}
	if len(table) == 0 {
		h.problem("read /proc/self/mountinfo: it names no mounts")
	}
	return table
}

// unescapeMount undoes the octal escapes of space, tab, line feed and backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountOf returns the last mount on the longest prefix of a path.
func mountOf(table []mountInfo, p string) mountInfo {
	var best mountInfo
	for _, m := range table {
		inside := p == m.point || m.point == "/" || strings.HasPrefix(p, m.point+"/")
		if inside && len(m.point) >= len(best.point) {
			best = m
		}
	}
	return best
}

func (h *host) cgroup() Cgroup {
	for _, m := range h.mountTable() {
		if m.point == "/sys/fs/cgroup" && m.fsType == "cgroup2" {
			return Cgroup{Version: 2, Controllers: strings.Fields(h.line("/sys/fs/cgroup/cgroup.controllers"))}
		}
	}
	var c Cgroup
	for _, line := range lines(h.read("/proc/cgroups")) {
		fields := strings.Fields(line)
		if len(fields) == 4 && !strings.HasPrefix(line, "#") && fields[3] == "1" {
			c.Version = 1
			c.Controllers = append(c.Controllers, fields[0])
		}
	}
	return c
}

func (h *host) selinux() string {
	switch h.line("/sys/fs/selinux/enforce") {
	case "1":
		return "enforcing"
	case "0":
		return "permissive"
	default:
		return "disabled"
	}
}

// selinuxPolicy looks where the package and semodule put the policy of k3s.
func (h *host) selinuxPolicy() bool {
	if h.exists("/usr/share/selinux/packages/k3s.pp") {
		return true
	}
	for _, priority := range []string{"100", "200", "400"} {
		if h.exists(path.Join("/var/lib/selinux/targeted/active/modules", priority, "k3s")) {
			return true
		}
	}
	return false
}

func (h *host) ufw() bool {
	for _, line := range lines(h.read("/etc/ufw/ufw.conf")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "ENABLED="); ok {
			return strings.EqualFold(unquote(strings.TrimSpace(value)), "yes")
		}
	}
	return false
}

func (h *host) storedFiles() []StoredFile {
	dir := path.Join(wire.FilesDir, "files")
	var files []StoredFile
	for _, name := range h.list(dir) {
		if info, err := os.Lstat(filepath.Join(h.root, dir, name)); err == nil && info.Mode().IsRegular() {
			files = append(files, StoredFile{Name: name, Size: info.Size()})
		}
	}
	return files
}

func (h *host) sysctls() map[string]string {
	values := make(map[string]string)
	for _, name := range []string{
		"fs.file-max", "fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "kernel.keys.root_maxbytes",
		"kernel.keys.root_maxkeys", "kernel.panic", "kernel.panic_on_oops", "kernel.pid_max",
		"net.bridge.bridge-nf-call-iptables",
		"net.ipv4.conf.all.rp_filter", "net.ipv4.ip_forward", "net.ipv6.conf.all.disable_ipv6",
		"net.ipv6.conf.all.forwarding",
		"vm.max_map_count", "vm.overcommit_memory", "vm.panic_on_oom",
	} {
		if value := h.line(path.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))); value != "" {
			values[name] = value
		}
	}
	return values
}

func (h *host) resolvers(n *Network) {
	n.Resolvers, n.Search = parseResolvConf(h.read("/etc/resolv.conf"))
	n.Upstream, _ = parseResolvConf(h.read("/run/systemd/resolve/resolv.conf"))
}

func parseResolvConf(content []byte) (servers, search []string) {
	for _, line := range lines(content) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			servers = append(servers, fields[1])
		case "search", "domain":
			search = fields[1:]
		}
	}
	return servers, search
}

func (h *host) interfaces() []Interface {
	all, err := net.Interfaces()
	if err != nil {
		h.problem("list the network interfaces: %v", err)
	}
	var found []Interface
	for _, i := range all[:min(len(all), wire.MaxEntries)] {
		f := Interface{Name: i.Name, MAC: i.HardwareAddr.String(), MTU: i.MTU, Up: i.Flags&net.FlagUp != 0}
		addresses, err := i.Addrs()
		if err != nil {
			h.problem("list the addresses of %s: %v", i.Name, err)
		}
		for _, a := range addresses {
			f.Addresses = append(f.Addresses, a.String())
		}
		found = append(found, f)
	}
	return found
}

// packs looks at the packs without reading their blobs.
func (h *host) packs(dir string) []Pack {
	root, err := os.OpenRoot(filepath.Join(h.root, dir))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.problem("open the images directory: %v", err)
		}
		return nil
	}
	defer func() { _ = root.Close() }() // it was only read
	var packs []Pack
	stored := pack.Stored(h.list(dir))
	for _, name := range pack.Sorted(stored) {
		p := Pack{Name: name}
		if info, err := root.Lstat(stored[name]); err == nil {
			p.Size = info.Size()
		}
		err := pack.Read(root, stored[name], func(r *ocitar.Reader) error {
			index, err := r.ReadAll(ocitar.IndexFile, wire.MaxIndex)
			p.Digest = string(digest.FromBytes(index))
			return err
		})
		if err != nil {
			p.Digest = ""
			h.problem("read the pack %s: %v", path.Join(dir, stored[name]), err)
		}
		packs = append(packs, p)
	}
	return packs
}

// run runs a command for a short time and returns the start of its output, also when it
// ends with another status than 0: it may be all that there is to know. What the command
// has started ends with it.
func (h *host) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(h.patience, commandTime))
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	var out limitedBuffer
	c.Stdout = &out
	err := c.Run()
	if ctx.Err() != nil {
		err = errors.New("it did not end in time")
	}
	return out.String(), err
}

// limitedBuffer keeps the first maxOutput bytes and then refuses, which closes the
// writer's pipe.
type limitedBuffer struct{ content bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	room := maxOutput - b.content.Len()
	n, _ := b.content.Write(p[:min(len(p), room)]) // never fails
	if n < len(p) {
		return n, fmt.Errorf("it printed more than %d bytes", maxOutput)
	}
	return n, nil
}

func (b *limitedBuffer) String() string { return b.content.String() }

func (h *host) systemd(ctx context.Context) Systemd {
	if !h.exists("/run/systemd/system") {
		return Systemd{}
	}
	var s Systemd
	out, err := h.run(ctx, "systemctl", "--version")
	if err != nil {
		h.problem("run systemctl --version: %v", err)
	}
	// systemd 252 (252.39-1~deb12u1)
	if fields := strings.Fields(out); len(fields) > 1 {
		s.Version = fields[1]
	}
	// Its status is not 0 whenever the answer is not "running".
	out, err = h.run(ctx, "systemctl", "is-system-running")
	if s.State = strings.TrimSpace(out); s.State == "" && err != nil {
		h.problem("run systemctl is-system-running: %v", err)
	}
	return s
}

func unitNames() []string {
	return []string{
		"containerd.service", "docker.service", "firewalld.service", "k0scontroller.service", "k0sworker.service",
		"k3s-agent.service",
		"k3s.service", "kubelet.service", "nm-cloud-setup.service", "nm-cloud-setup.timer",
		"rke2-agent.service", "rke2-server.service",
		"snap.microk8s.daemon-kubelite.service", "ufw.service",
	}
}

func (h *host) units(ctx context.Context) []Unit {
	if !h.exists("/run/systemd/system") {
		return nil
	}
	const properties = "Id,LoadState,ActiveState,SubState,UnitFileState,ExecMainStartTimestamp,MainPID,NRestarts"
	args := []string{"show", "-p", properties, "--"}
	names := unitNames()
	// With a name of one's own, k3s' install.sh makes such units.
	for _, name := range h.list(unitDir) {
		if strings.HasPrefix(name, "k3s-") && strings.HasSuffix(name, ".service") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	out, err := h.run(ctx, "systemctl", append(args, names...)...)
	if err != nil {
		h.problem("run systemctl show: %v", err)
	}
	return parseUnits(out)
}

// parseUnits reads blocks of KEY=VALUE lines with an empty line between them.
func parseUnits(out string) []Unit {
	var units []Unit
	for block := range strings.SplitSeq(out, "\n\n") {
		var u Unit
		for _, line := range lines([]byte(block)) {
			key, value, _ := strings.Cut(line, "=")
			switch key {
			case "Id":
				u.Name = value
			case "LoadState":
				u.LoadState = value
			case "ActiveState":
				u.ActiveState = value
			case "SubState":
				u.SubState = value
			case "UnitFileState":
				u.UnitFileState = value
			case "ExecMainStartTimestamp":
				u.Started = value
			case "MainPID":
				u.MainPID, _ = strconv.Atoi(value)
			case "NRestarts":
				u.Restarts, _ = strconv.Atoi(value)
			}
		}
		if u.Name != "" {
			units = append(units, u)
		}
	}
	return units
}

const (
	unitDir = "/etc/systemd/system"
	k3sDir  = "/etc/rancher/k3s"
)

var (
	dataDirKey  = lazyregexp.New(`(?m)^["']?data-dir["']?[ \t]*:[ \t]*(.*)$`)
	dataDirFlag = lazyregexp.New(`--data-dir['"]?(?:=|[\s\\'"]+)['"]?([^\s'"\\]+)`)
)

// k3sDataDir reads what k3s has been told to keep its data in, by file or by flag.
func (h *host) k3sDataDir() (dir string) {
	configs := []string{path.Join(k3sDir, "config.yaml")}
	for _, name := range h.list(path.Join(k3sDir, "config.yaml.d")) {
		configs = append(configs, path.Join(k3sDir, "config.yaml.d", name))
	}
	for _, name := range configs {
		for _, m := range dataDirKey.FindAllSubmatch(h.read(name), -1) {
			value, _, _ := strings.Cut(string(m[1]), " #")
			dir = unquote(strings.TrimSpace(value))
		}
	}
	for _, name := range []string{"k3s.service", "k3s-agent.service"} {
		if m := dataDirFlag.FindSubmatch(h.read(path.Join(unitDir, name))); m != nil {
			dir = string(m[1])
		}
	}
	return dir
}

// k3s finds the binary where install.sh puts it, and what boxlift writes beside it.
func (h *host) k3s(ctx context.Context) K3s {
	k := K3s{
		// Boxlift's own files; the first is there before the service is.
		Managed: h.exists(path.Join(k3sDir, "boxlift-token")) || h.exists(path.Join(wire.FilesDir, "k3s-service")),
		DataDir: h.k3sDataDir(),
	}
	if info, err := os.Stat(filepath.Join(h.root, "/var/lib/rancher/k3s/server/tls/server-ca.crt")); err == nil {
		k.Created = info.ModTime().UTC().Format(time.RFC3339)
	}
	old, err := programs.OldSize(h.root)
	if err != nil {
		h.problem("find what older versions of k3s have left: %v", err)
	}
	k.OldPrograms = old
	for _, dir := range []string{"server", "agent"} {
		if p := path.Join("/var/lib/rancher/k3s", dir); h.exists(p) {
			k.DataDirs = append(k.DataDirs, p)
		}
	}
	for _, p := range []string{"/usr/local/bin/k3s", "/opt/bin/k3s"} {
		info, err := os.Stat(filepath.Join(h.root, p))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		k.Path, k.Size = p, info.Size()
		out, err := h.run(ctx, filepath.Join(h.root, p), "--version")
		// k3s version v1.36.4+k3s1 (0123abcd)
		if fields := strings.Fields(out); err == nil && len(fields) > 2 && fields[1] == "version" {
			k.Version = fields[2]
		} else {
			h.problem("run %s --version: %v, output %.100q", p, err, out)
		}
		return k
	}
	return k
}

func (h *host) clock() Clock {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		h.problem("ask the kernel about its clock: %v", err)
	}
	return Clock{
		Synchronized: err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		Now:          time.Now().UTC().Format(time.RFC3339Nano),
	}
}

// portLooks is how often ports are looked at until every TCP port has an owner: who owned it may
// have ended in between, or be just beginning. The kernel's own have none however often one looks.
const portLooks = 3

// ports finds sockets that listen, and, for a user who may see them, their owners. It
// returns the parts of Kubernetes that run as well, since it looks at all processes.
func (h *host) ports() ([]Port, []Process) {
	for look := 1; ; look++ {
		ports, processes, denied := h.lookAtPorts()
		if denied {
			h.problem("find the owners of ports: not all processes can be looked at without root")
		}
		isOrphan := func(p Port) bool { return strings.HasPrefix(p.Protocol, "tcp") && p.Owner.PID == 0 }
		if denied || look == portLooks || !slices.ContainsFunc(ports, isOrphan) {
			return ports, processes
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (h *host) lookAtPorts() (_ []Port, _ []Process, denied bool) {
	var ports []Port
	owned := make(map[string][]int) // by socket inode: positions in ports
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		scanner := bufio.NewScanner(bytes.NewReader(h.read("/proc/net/" + protocol)))
		for scanner.Scan() && len(ports) < wire.MaxEntries {
			port, inode, ok := parseSocket(protocol, scanner.Text())
			if ok {
				owned[inode] = append(owned[inode], len(ports))
				ports = append(ports, port)
			}
		}
	}
	processes, denied := h.processes(ports, owned)
	slices.SortStableFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Address, b.Address))
	})
	return ports, processes, denied
}

// parseSocket reads a line of /proc/net/tcp and its kin.
func parseSocket(protocol, line string) (Port, string, bool) {
	const listen, udpOpen = "0A", "07"
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return Port{}, "", false
	}
	// An open UDP socket without a peer takes in what comes to its port.
	if strings.HasPrefix(protocol, "tcp") && fields[3] != listen || strings.HasPrefix(protocol, "udp") &&
		fields[3] != udpOpen {
		return Port{}, "", false
	}
	address, portHex, ok := strings.Cut(fields[1], ":")
	port, err := strconv.ParseUint(portHex, 16, 16)
	ip := hexIP(address)
	if !ok || err != nil || ip == nil {
		return Port{}, "", false
	}
	return Port{Protocol: protocol, Address: ip.String(), Port: int(port)}, fields[9], true
}

// hexIP reads an address as /proc/net has it: 32-bit words in the byte order of the
// machine, which is little-endian on all that boxlift runs on.
func hexIP(s string) net.IP {
	if len(s) != 8 && len(s) != 32 {
		return nil
	}
	var ip net.IP
	for ; s != ""; s = s[8:] {
		word, err := strconv.ParseUint(s[:8], 16, 32)
		if err != nil {
			return nil
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	return ip
}

// kubernetesProcesses are the names of Kubernetes' parts, and of other pod networks, as
// the kernel has them: cut off after 15 bytes.
func kubernetesProcesses() []string {
	return []string{
		"calico-node", "cilium-agent", "flanneld", "k0s", "k3s-agent", "k3s-server", "kube-apiserver",
		"kube-controller",
		"kube-proxy",
		"kube-scheduler", "kubelet", "kubelite", "rke2",
	}
}

// processes looks through all processes: for the owners of sockets among their open
// files, and for parts of Kubernetes. denied says that not all can be looked at.
func (h *host) processes(ports []Port, owned map[string][]int) (found []Process, denied bool) {
	for _, pid := range h.pids() {
		p := Process{PID: pid}
		dir := path.Join("/proc", strconv.Itoa(pid))
		open := filepath.Join(h.root, dir, "fd")
		// A process that ends meanwhile is none.
		entries, err := os.ReadDir(open)
		denied = denied || errors.Is(err, fs.ErrPermission)
		for _, e := range entries {
			link, err := os.Readlink(filepath.Join(open, e.Name()))
			if err != nil {
				continue // closed in the meantime
			}
			inode, ok := strings.CutPrefix(link, "socket:[")
			positions := owned[strings.TrimSuffix(inode, "]")]
			if !ok || len(positions) == 0 {
				continue
			}
			if p.Name == "" {
				p = h.process(dir, pid)
			}
			for _, i := range positions {
				if ports[i].Owner.PID == 0 {
					ports[i].Owner = p
				}
			}
		}
		if p.Name == "" {
			name, _ := os.ReadFile(filepath.Join(h.root, dir, "comm"))
			p.Name = strings.TrimSpace(string(name))
		}
		if slices.Contains(kubernetesProcesses(), p.Name) && len(found) < wire.MaxEntries {
			found = append(found, h.process(dir, pid))
		}
	}
	return found, denied
}

// pids lists the processes.
func (h *host) pids() []int {
	d, err := os.Open(filepath.Join(h.root, "/proc"))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.problem("list /proc: %v", err)
		}
		return nil
	}
	defer hostfile.CloseRead(d)
	names, err := d.Readdirnames(maxProcesses)
	if err != nil && !errors.Is(err, io.EOF) {
		h.problem("list /proc: %v", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func (h *host) process(dir string, pid int) Process {
	p := Process{Name: h.line(path.Join(dir, "comm")), PID: pid}
	if exe, err := os.Readlink(filepath.Join(h.root, dir, "exe")); err == nil {
		p.Executable = exe
	}
	p.Unit = parseUnit(h.read(path.Join(dir, "cgroup")))
	return p
}

// parseUnit finds in /proc/PID/cgroup what a process belongs to. With cgroup v1 there is
// a line for each hierarchy, and not all of them need to say the same.
func parseUnit(content []byte) string {
	var unit string
	rank := 0
	see := func(name string, r int) {
		if r >= rank {
			unit, rank = name, r
		}
	}
	for _, line := range lines(content) {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[2], "/") {
			switch {
			case strings.HasPrefix(name, "kubepods"):
				see("kubepods", 3)
			case name == "docker", strings.HasPrefix(name, "docker-"):
				see("docker", 2)
			case strings.HasSuffix(name, ".service"), strings.HasSuffix(name, ".scope"):
				see(name, 1)
			}
		}
	}
	return unit
}

// routes reads the main routing tables.
func (h *host) routes() []Route {
	var routes []Route
	for i, line := range lines(h.read("/proc/net/route")) {
		if r, ok := parseRoute(line); ok && i > 0 && len(routes) < wire.MaxEntries {
			routes = append(routes, r)
		}
	}
	for _, line := range lines(h.read("/proc/net/ipv6_route")) {
		if r, ok := parseRoute6(line); ok && len(routes) < wire.MaxEntries {
			routes = append(routes, r)
		}
	}
	return routes
}

const (
	routeUp      = 0x1
	routeReject  = 0x200
	routeLocal   = 0x80000000
	routeAnycast = 0x100000
)

// parseRoute reads a line of /proc/net/route:
// Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT.
func parseRoute(line string) (Route, bool) {
	f := strings.Fields(line)
	if len(f) < 8 {
		return Route{}, false
	}
	flags, err := strconv.ParseUint(f[3], 16, 32)
	metric, metricErr := strconv.Atoi(f[6])
	destination, gateway, mask := hexIP(f[1]), hexIP(f[2]), hexIP(f[7])
	if err != nil || metricErr != nil || flags&routeUp == 0 || flags&routeReject != 0 || destination == nil ||
		mask == nil {
		return Route{}, false
	}
	if _, bits := net.IPMask(mask).Size(); bits == 0 {
		return Route{}, false // not a prefix
	}
	r := Route{
		Destination: (&net.IPNet{IP: destination, Mask: net.IPMask(mask)}).String(),
		Interface:   f[0],
		Metric:      metric,
	}
	if gateway != nil && !gateway.IsUnspecified() {
		r.Gateway = gateway.String()
	}
	return r, true
}

// parseRoute6 reads a line of /proc/net/ipv6_route: destination, its prefix length,
// source, its prefix length, next hop, metric, reference count, use count, flags, device,
// all in hexadecimal.
func parseRoute6(line string) (Route, bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[9] == "lo" {
		return Route{}, false
	}
	flags, err := strconv.ParseUint(f[8], 16, 32)
	if err != nil || flags&routeUp == 0 || flags&(routeReject|routeLocal|routeAnycast) != 0 {
		return Route{}, false
	}
	prefix, prefixErr := strconv.ParseUint(f[1], 16, 8)
	metric, metricErr := strconv.ParseUint(f[5], 16, 32)
	destination, gateway := plainHexIP(f[0]), plainHexIP(f[4])
	if prefixErr != nil || metricErr != nil || destination == nil || gateway == nil {
		return Route{}, false
	}
	r := Route{Destination: fmt.Sprintf("%s/%d", destination, prefix), Interface: f[9], Metric: int(metric)}
	if !gateway.IsUnspecified() {
		r.Gateway = gateway.String()
	}
	return r, true
}

// plainHexIP reads an IPv6 address in network byte order.
func plainHexIP(s string) net.IP {
	if len(s) != 32 {
		return nil
	}
	ip := make(net.IP, 0, net.IPv6len)
	for ; s != ""; s = s[2:] {
		b, err := strconv.ParseUint(s[:2], 16, 8)
		if err != nil {
			return nil
		}
		ip = append(ip, byte(b))
	}
	return ip
}
