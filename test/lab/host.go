package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Sudo says what an account may do with sudo.
type Sudo int

// The accounts' possibilities.
const (
	NoSudo           Sudo = iota // sudo refuses the account
	SudoWithPassword             // sudo asks for the account's password
	SudoNoPassword               // sudo asks nothing
)

// User is an account on a host, beside root. Every account, root included,
// accepts the lab's key.
type User struct {
	Name     string
	Password string // empty: no login by password
	Sudo     Sudo
}

// HostOptions describe a host.
type HostOptions struct {
	// Name is the host's name: lower-case letters, digits and dashes.
	Name string
	// RootPassword lets root log in by password. Empty: by key only.
	RootPassword string
	Users        []User
	// Personality is the architecture that uname reports to everything that
	// the host runs by itself, logins included (not to Exec), in the words of
	// systemd-nspawn --personality. Empty: the machine's. On a 64-bit PC, x86
	// makes it i686.
	Personality string
	// Suite is the release of Debian's that the host has, by its codename. Empty: bookworm. The first host of another
	// one on a machine takes minutes.
	Suite string
}

// Host is a host of a lab. Its methods may be called from several goroutines,
// but what is switched on and off at the same time ends in either state.
type Host struct {
	Name    string
	Address netip.Addr
	// Root is the path, on this machine, of the host's root file system, for
	// assertions. What the host mounts is not in it.
	Root string

	lab         *Lab
	dir         string
	personality string

	mu        sync.Mutex
	power     context.Context // done when the host has gone off; nil before the first Up
	nspawn    *os.Process
	boots     int
	net       *netns
	unplugged bool
	exit      error
	goingOff  bool // switched off: a reboot does not bring it back
}

// Host makes a host and switches it on.
func (l *Lab) Host(ctx context.Context, opts HostOptions) (_ *Host, err error) {
	if !validName(opts.Name) {
		return nil, fmt.Errorf("host name %q: want lower-case letters, digits and dashes", opts.Name)
	}
	h, err := l.addHost(opts)
	if err != nil {
		return nil, err
	}
	if err := h.provision(ctx, opts); err != nil {
		return nil, fmt.Errorf("make host %s: %w", h.Name, err)
	}
	if err := h.Up(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// addHost gives a host its address. It is closed with the lab from here on.
func (l *Lab) addHost(opts HostOptions) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := firstHost + len(l.hosts)
	if number > lastHost {
		return nil, fmt.Errorf("make host %s: the LAN is full", opts.Name)
	}
	for _, other := range l.hosts {
		if other.Name == opts.Name {
			return nil, fmt.Errorf("make host %s: there is one of that name", opts.Name)
		}
	}
	dir := filepath.Join(l.dir, "hosts", opts.Name)
	lan := netip.MustParsePrefix(lanPrefix).Addr().As4()
	h := &Host{
		Name: opts.Name, Address: netip.AddrFrom4([4]byte{lan[0], lan[1], lan[2], byte(number)}),
		Root: filepath.Join(dir, "root"), lab: l, dir: dir, personality: opts.Personality,
	}
	l.hosts = append(l.hosts, h)
	return h, nil
}

// provision makes the root file system of a host that has not run yet.
func (h *Host) provision(ctx context.Context, opts HostOptions) error {
	if err := os.MkdirAll(h.Root, 0o755); err != nil {
		return err
	}
	base := h.lab.base
	if opts.Suite != "" {
		var err error
		if base, err = ensureBase(ctx, opts.Suite, h.lab.log); err != nil {
			return err
		}
	}
	if _, err := run(ctx, nil, "tar", "--extract", "--numeric-owner", "--preserve-permissions", "--xattrs", "--xattrs-include=*",
		"--file", base, "--directory", h.Root); err != nil {
		return err
	}
	files := hostFiles()
	files["etc/hostname"] = h.Name + "\n"
	files["etc/hosts"] = fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", h.Address, h.Name)
	accounts := append([]User{{Name: "root", Password: opts.RootPassword}}, opts.Users...)
	var passwords strings.Builder
	for _, user := range accounts {
		home := "root"
		if user.Name != "root" {
			home = "home/" + user.Name
			if err := h.chroot(ctx, nil, "useradd", "--create-home", "--shell", "/bin/bash", user.Name); err != nil {
				return err
			}
		}
		files[home+"/.ssh/authorized_keys"] = h.lab.publicKey + "\n"
		if user.Password != "" {
			fmt.Fprintf(&passwords, "%s:%s\n", user.Name, user.Password)
		}
		switch user.Sudo {
		case SudoWithPassword:
			files["etc/sudoers.d/"+user.Name] = user.Name + " ALL=(ALL) ALL\n"
		case SudoNoPassword:
			files["etc/sudoers.d/"+user.Name] = user.Name + " ALL=(ALL) NOPASSWD: ALL\n"
		}
	}
	for name, content := range files {
		mode := os.FileMode(0o644)
		switch {
		case strings.HasPrefix(name, "etc/sudoers.d/"):
			mode = 0o440
		case strings.HasPrefix(name, "sbin/"):
			mode = 0o755
		}
		path := filepath.Join(h.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			return err
		}
	}
	for _, unit := range maskedUnits() {
		path := filepath.Join(h.Root, "etc/systemd/system", unit)
		if err := errors.Join(os.RemoveAll(path), os.Symlink("/dev/null", path)); err != nil {
			return err
		}
	}
	for _, user := range opts.Users {
		if err := h.chroot(ctx, nil, "chown", "--recursive", user.Name+":", "/home/"+user.Name+"/.ssh"); err != nil {
			return err
		}
	}
	// On standard input: argument lists are for everybody to read.
	if err := h.chroot(ctx, []byte(passwords.String()), "chpasswd", "--crypt-method", "SHA512"); err != nil {
		return err
	}
	return h.chroot(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/ssh_host_ed25519_key")
}

func (h *Host) chroot(ctx context.Context, stdin []byte, args ...string) error {
	_, err := run(ctx, stdin, "chroot", append([]string{h.Root}, args...)...)
	return err
}

// Up switches the host on and waits until its services run and SSH answers.
// It does nothing to a host that is on.
func (h *Host) Up(ctx context.Context) error {
	if !h.on() {
		if err := h.start(ctx); err != nil {
			return fmt.Errorf("boot host %s: %w", h.Name, err)
		}
	}
	return h.WaitSSH(ctx)
}

func (h *Host) on() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.power != nil && h.power.Err() == nil
}

// start boots the host, and keeps booting it for as long as it ends by asking
// for a reboot. It returns when the first boot has begun.
func (h *Host) start(ctx context.Context) error {
	power, off := context.WithCancel(context.Background())
	h.mu.Lock()
	h.power, h.goingOff = power, false
	h.mu.Unlock()
	began := make(chan error, 1)
	go func() {
		// The host is to die with the thread that has started it; so the
		// thread must live as long as the host.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer off()
		for tries := 1; ; tries++ {
			const askedForReboot = 133
			cmd, err := h.boot(ctx)
			began <- err
			if err == nil {
				err = cmd.Wait()
			}
			h.mu.Lock()
			h.nspawn, h.exit = nil, err
			again := !h.goingOff && cmd != nil && (cmd.ProcessState.ExitCode() == askedForReboot || tries < 3 && h.lostRace())
			h.mu.Unlock()
			if !again {
				return
			}
			// Nobody waits for a later boot's beginning.
			began, ctx = make(chan error, 1), context.Background()
		}
	}()
	return <-began
}

// lostRace reports whether nspawn gave up because of the folder that it shares with those
// that start at the same time.
func (h *Host) lostRace() bool { return strings.Contains(h.console(), "/run/systemd/nspawn/propagate") }

// boot starts the host once, with a network as fresh as a machine's after
// power-on. ctx bounds the preparations only.
func (h *Host) boot(ctx context.Context) (*exec.Cmd, error) {
	name := h.lab.id + "/" + h.Name
	if err := removeCgroups(name); err != nil {
		return nil, err
	}
	groups, err := makeCgroups(h.lab.id, h.Name)
	if err != nil {
		return nil, err
	}
	ns, err := newNetns()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	old, unplugged := h.net, h.unplugged
	h.net = ns
	h.mu.Unlock()
	if old != nil {
		if err := old.close(); err != nil {
			return nil, err
		}
	}
	if err := h.lab.connect(ctx, ns, h.port(), h.Address); err != nil {
		return nil, err
	}
	if unplugged {
		if err := h.plug(ctx, false); err != nil {
			return nil, err
		}
	}
	console, err := os.OpenFile(filepath.Join(h.dir, "console.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = console.Close() }() // the guest has its own copy

	// Not in a context's hands: the host outlives the call that boots it.
	cmd := exec.Command("/bin/sh", h.bootArgs(ns, groups)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=1")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = console, console, guestProcess()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nspawn = cmd.Process
	h.boots++
	if h.goingOff { // it was in the middle of a reboot
		_ = cmd.Process.Kill() // fails when it has ended by itself
	}
	return cmd, nil
}

// clockCapability lets a process set the clock (capabilities(7)). There is one clock, the machine's: no program of a
// host has it, whatever started the program. Without it systemd-nspawn forbids adjtimex(2) as well, also to those who
// only ask: that is allowed again, and the kernel sees to the rest.
const clockCapability = "CAP_SYS_TIME"

// joinGroups is a shell script that puts itself into the control groups named
// before "--" and becomes the command behind it.
const joinGroups = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"`

func (h *Host) bootArgs(ns *netns, groups []string) []string {
	args := append([]string{"-c", joinGroups, "boot"}, groups...)
	args = append(args, "--", "systemd-nspawn", "--quiet",
		"--directory="+h.Root, "--machine="+machinePrefix+h.lab.id+"-"+h.Name, "--hostname="+h.Name,
		"--register=no", "--keep-unit", "--network-namespace-path="+ns.path(),
		"--resolv-conf=off", "--timezone=off", "--link-journal=no",
		"--private-users=no", "--capability=all", "--drop-capability="+clockCapability,
		"--system-call-filter=add_key keyctl bpf perf_event_open adjtimex @keyring",
		"--kill-signal=SIGRTMIN+3", "--console=pipe", "--bind=/dev/kmsg")
	if h.personality != "" {
		args = append(args, "--personality="+h.personality)
	}
	return append(args, "/sbin/lab-init")
}

// port is the name of the host's port on the bridge.
func (h *Host) port() string { return fmt.Sprintf("port%d", h.Address.As4()[3]) }

// startTime is how long a host may take to start its services, k3s among them.
const startTime = 5 * time.Minute

// WaitSSH waits until the host's services have been started and its SSH
// server answers, for startTime at most.
func (h *Host) WaitSSH(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var last error
	for {
		if last = h.answers(ctx); last == nil {
			return nil
		}
		if !h.on() {
			h.mu.Lock()
			defer h.mu.Unlock()
			return fmt.Errorf("host %s is off: %w\n%s", h.Name, errors.Join(last, h.exit), h.console())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for host %s: %w\n%s", h.Name, errors.Join(ctx.Err(), last), h.console())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// answers says why the host cannot be logged into yet.
func (h *Host) answers(ctx context.Context) error {
	// Exit status 1 stands for degraded: up, but some unit has failed. It has been seen to
	// wait for ever when it was asked too early.
	asked, cancelAsked := context.WithTimeout(ctx, 30*time.Second)
	defer cancelAsked()
	out, err := h.Exec(asked, "systemctl", "is-system-running", "--wait")
	if state := strings.TrimSpace(string(out)); state != "running" && state != "degraded" {
		return fmt.Errorf("systemd says %q: %w", state, err)
	}
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := h.lab.Dial(dial, "tcp", netip.AddrPortFrom(h.Address, 22).String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if greeting, err := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(greeting, "SSH-2.0-") {
		return fmt.Errorf("SSH server's greeting is %q: %w", greeting, err)
	}
	return nil
}

// console gives the end of what the host has written to its console.
func (h *Host) console() string {
	text, err := os.ReadFile(filepath.Join(h.dir, "console.log"))
	if err != nil {
		return err.Error()
	}
	return lastLines(text, 20)
}

// Down shuts the host down in an orderly way and waits until it is off.
func (h *Host) Down(ctx context.Context) error {
	return h.switchOff(ctx, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.nspawn == nil {
			return nil
		}
		return h.nspawn.Signal(syscall.SIGTERM) // systemd-nspawn passes it on as --kill-signal
	})
}

// PowerCut ends the host at once, as pulling its plug would, but for what the
// host had written and not synced: this machine keeps that. Up switches it on
// again.
func (h *Host) PowerCut(ctx context.Context) error {
	return h.switchOff(ctx, func() error {
		leader, err := h.leader()
		if err != nil {
			// Too early or too late for a first process: end what runs it.
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.nspawn == nil {
				return nil
			}
			return h.nspawn.Kill()
		}
		return syscall.Kill(leader, syscall.SIGKILL)
	})
}

func (h *Host) switchOff(ctx context.Context, off func() error) error {
	h.mu.Lock()
	power := h.power
	h.goingOff = true
	h.mu.Unlock()
	if power == nil || power.Err() != nil {
		return nil
	}
	if err := off(); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("switch host %s off: %w", h.Name, err)
	}
	select {
	case <-power.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("switch host %s off: %w\n%s", h.Name, ctx.Err(), h.console())
	}
}

// Reboot restarts the host in an orderly way and waits until its services run
// again and SSH answers. A reboot that is asked for on the host itself works too; this one also waits.
func (h *Host) Reboot(ctx context.Context) error {
	before := h.bootCount()
	if _, err := h.Exec(ctx, "systemctl", "--no-block", "reboot"); err != nil {
		return fmt.Errorf("reboot host %s: %w", h.Name, err)
	}
	for h.bootCount() == before {
		if !h.on() {
			return fmt.Errorf("reboot host %s: it went off\n%s", h.Name, h.console())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("reboot host %s: %w", h.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return h.WaitSSH(ctx)
}

func (h *Host) bootCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// leader is the process, on this machine, that is the host's first process.
func (h *Host) leader() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nspawn == nil {
		return 0, fmt.Errorf("host %s is off", h.Name)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", h.nspawn.Pid))
	if err != nil {
		return 0, err
	}
	for _, child := range strings.Fields(string(children)) {
		status, err := os.ReadFile("/proc/" + child + "/status")
		if err != nil {
			continue
		}
		// systemd-nspawn's child for the mounts comes first; it has no process namespace.
		for line := range strings.Lines(string(status)) {
			if ids, ok := strings.CutPrefix(line, "NSpid:"); ok && len(strings.Fields(ids)) == 2 {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("host %s has no first process yet", h.Name)
}

// Exec runs a command on the host as root and returns what it wrote to
// standard output. It enters from the machine, not through the network, and
// is meant for assertions and for making faults.
func (h *Host) Exec(ctx context.Context, args ...string) ([]byte, error) {
	return h.ExecInput(ctx, nil, args...)
}

// ExecInput is Exec with something on the command's standard input.
func (h *Host) ExecInput(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	leader, err := h.leader()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "setpriv", append([]string{
		"--bounding-set", "-sys_time", "--inh-caps", "-sys_time", "--", "nsenter", "--target", strconv.Itoa(leader),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	// nsenter forks to enter the process namespace, and its child keeps the output open. So does,
	// where hosts have all processors, another program that is just being started.
	cmd.WaitDelay = 10 * time.Second
	out, err := runCommand(cmd, stdin)
	if err != nil {
		return out, fmt.Errorf("on host %s: %w", h.Name, err)
	}
	return out, nil
}

// HostKey is the host's Ed25519 key in the form of authorized_keys, without a comment.
func (h *Host) HostKey() (string, error) {
	line, err := os.ReadFile(filepath.Join(h.Root, "etc/ssh/ssh_host_ed25519_key.pub"))
	if err != nil {
		return "", fmt.Errorf("read host key of %s: %w", h.Name, err)
	}
	fields := strings.Fields(string(line))
	if len(fields) < 2 {
		return "", fmt.Errorf("read host key of %s: unexpected content %q", h.Name, line)
	}
	return fields[0] + " " + fields[1], nil
}

// KnownHosts is the host's line for a known_hosts file, under its address.
func (h *Host) KnownHosts() (string, error) {
	key, err := h.HostKey()
	return h.Address.String() + " " + key + "\n", err
}

// close ends the host for good.
func (h *Host) close(ctx context.Context) error {
	errs := []error{h.PowerCut(ctx)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.net != nil {
		errs = append(errs, h.net.close())
		h.net = nil
	}
	return errors.Join(errs...)
}
