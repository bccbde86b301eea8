package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newLab(ctx context.Context, t *testing.T) *Lab {
	t.Helper()
	l, err := New(ctx, Options{Name: "test", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// ownCache gives the test a cache of its own, with the base root of the usual
// one, so that its labs are not mixed up with those of tests that run at the same time.
func ownCache(ctx context.Context, t *testing.T) {
	t.Helper()
	if os.Getenv(victim) == "1" {
		return // it has been given one
	}
	log := func(line string) { t.Log(line) }
	if err := installPackages(ctx, log); err != nil {
		t.Fatal(err)
	}
	base, err := ensureBase(ctx, usualSuite, log)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv(EnvCache, dir)
	if err := os.Mkdir(filepath.Join(dir, "lab"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, filepath.Join(dir, "lab", filepath.Base(base))); err != nil {
		t.Fatal(err)
	}
}

// victim is set in the process that TestKilled starts.
const victim = "LAB_TEST_VICTIM"

// step logs how long a part took: these times are worth knowing, but not worth a failure.
func step(t *testing.T, what string, fn func() error) {
	t.Helper()
	start := time.Now()
	if err := fn(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %v", what, time.Since(start).Round(10*time.Millisecond))
}

func output(t *testing.T, h *Host, args ...string) string {
	t.Helper()
	out, err := h.Exec(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestLab(t *testing.T) {
	Require(t)
	ctx := testContext(t)
	step(t, "base root", func() error { ownCache(ctx, t); return nil })
	before := machineState(t)

	var l *Lab
	step(t, "lab", func() (err error) { l, err = New(ctx, Options{Name: "test"}); return err })
	t.Cleanup(func() { _ = l.Close() })
	users := []User{{Name: "ops", Password: "ops-pass", Sudo: SudoWithPassword}, {Name: "free", Sudo: SudoNoPassword}, {Name: "guest", Password: "guest-pass"}}
	var a, b *Host
	step(t, "first host", func() (err error) {
		a, err = l.Host(ctx, HostOptions{Name: "a", RootPassword: "root-pass", Users: users})
		return err
	})
	step(t, "second host", func() (err error) {
		b, err = l.Host(ctx, HostOptions{Name: "b", Personality: "x86"})
		return err
	})
	hosts := []*Host{a, b}
	knownHosts := filepath.Join(l.Dir(), "known_hosts")
	writeKnownHosts := func() {
		var lines string
		for _, h := range hosts {
			line, err := h.KnownHosts()
			if err != nil {
				t.Fatal(err)
			}
			lines += line
		}
		if err := os.WriteFile(knownHosts, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeKnownHosts()
	ssh := func(h *Host, user string, command ...string) (string, error) {
		args := append([]string{"-F", "none", "-i", l.KeyFile(), "-o", "UserKnownHostsFile=" + knownHosts, "-o", "StrictHostKeyChecking=yes",
			"-o", "HostKeyAlgorithms=ssh-ed25519", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", user + "@" + h.Address.String()}, command...)
		out, err := l.OperatorCommand(ctx, "ssh", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}

	t.Run("systemd runs", func(t *testing.T) {
		for _, h := range hosts {
			if state, err := h.Exec(ctx, "systemctl", "is-system-running", "--wait"); err != nil {
				t.Errorf("host %s is %s: %s", h.Name, state, output(t, h, "systemctl", "--failed", "--no-legend"))
			}
		}
	})

	t.Run("each host is one of its own", func(t *testing.T) {
		for _, what := range [][]string{{"cat", "/etc/machine-id"}, {"cat", "/etc/ssh/ssh_host_ed25519_key.pub"}, {"cat", "/proc/sys/kernel/random/boot_id"}, {"hostname"}} {
			if of := output(t, a, what...); of == output(t, b, what...) || of == "" {
				t.Errorf("%v is the same on both hosts: %q", what, of)
			}
		}
		// In a login, that is: Exec enters from the machine, and keeps its architecture.
		if got, err := ssh(b, "root", "uname -m"); runtime.GOARCH == "amd64" && (err != nil || got != "i686") {
			t.Errorf("uname -m says %s on a host with personality x86 (%v)", got, err)
		}
		// In a control group of their own: the group's path ends in the host's root.
		for _, h := range hosts {
			if got := output(t, h, "cat", "/proc/1/cgroup"); strings.Contains(got, cgroupRoot) || strings.Contains(got, "..") {
				t.Errorf("host %s sees control groups of the machine:\n%s", h.Name, got)
			}
		}
	})

	t.Run("no host sets the machine's clock", func(t *testing.T) {
		// adjtimex(2), first without a change, which anybody may, and then with one to the tick that the clock has
		// already. 1 is EPERM.
		const tick = `my $t = pack("q26", 0); syscall(159, $t) >= 0 or die "it cannot be read: $!";
my @n = unpack("q26", $t); $t = pack("Lx4q25", 0x4000, @n[1 .. 25]); print syscall(159, $t) < 0 ? 0 + $! : "set";`
		for _, h := range hosts {
			const script = `sed -n 's/^CapBnd:[[:space:]]*//p' /proc/1/status /proc/self/status`
			for set := range strings.FieldsSeq(output(t, h, "sh", "-c", script)) {
				if n, err := strconv.ParseUint(set, 16, 64); err != nil || n&(1<<25) != 0 || n == 0 {
					t.Fatalf("host %s has the capabilities %s: %v", h.Name, set, err)
				}
			}
			if runtime.GOARCH != "amd64" {
				continue // the number of the system call is another one
			}
			if got := output(t, h, "perl", "-e", tick); got != "1" {
				t.Errorf("setting the clock on host %s: %s", h.Name, got)
			}
		}
		if got, err := ssh(a, "root", "perl -e '"+tick+"'"); runtime.GOARCH == "amd64" && (err != nil || got != "1") {
			t.Errorf("setting the clock in a login: %s, %v", got, err)
		}
	})

	t.Run("logins from the operator's place", func(t *testing.T) {
		for _, h := range hosts {
			if got, err := ssh(h, "root", "hostname"); err != nil || got != h.Name {
				t.Errorf("ssh root@%s hostname: %q, %v", h.Name, got, err)
			}
		}
		for _, test := range []struct{ user, command, want string }{
			{"free", "sudo -n id -u", "0"},
			{"ops", "echo ops-pass | sudo -S -p '' id -u", "0"},
			{"ops", "sudo -n id -u 2>/dev/null || echo refused", "refused"},
			{"guest", "echo guest-pass | sudo -S -p '' id -u 2>/dev/null || echo refused", "refused"},
		} {
			if got, err := ssh(a, test.user, test.command); err != nil || !strings.HasSuffix(got, test.want) {
				t.Errorf("ssh %s@a %s: %q, %v", test.user, test.command, got, err)
			}
		}
		withPassword := func(user, password string) error {
			cmd := l.OperatorCommand(ctx, "ssh", "-F", "none", "-o", "UserKnownHostsFile="+knownHosts, "-o", "PubkeyAuthentication=no",
				"-o", "NumberOfPasswordPrompts=1", user+"@"+a.Address.String(), "true")
			askpass := filepath.Join(l.Dir(), "askpass")
			if err := os.WriteFile(askpass, []byte("#!/bin/sh\necho "+password+"\n"), 0o700); err != nil {
				return err
			}
			cmd.Env = append(os.Environ(), "SSH_ASKPASS="+askpass, "SSH_ASKPASS_REQUIRE=force")
			_, err := runCommand(cmd, nil)
			return err
		}
		for user, password := range map[string]string{"root": "root-pass", "ops": "ops-pass", "guest": "guest-pass"} {
			if err := withPassword(user, password); err != nil {
				t.Errorf("login of %s with the right password: %v", user, err)
			}
		}
		if err := withPassword("ops", "wrong"); err == nil {
			t.Error("a login with a wrong password succeeds")
		}
	})

	t.Run("nothing but the LAN answers", func(t *testing.T) {
		if out := output(t, a, "ping", "-c1", "-W2", b.Address.String()); !strings.Contains(out, " 0% packet loss") {
			t.Errorf("a does not reach b: %s", out)
		}
		output(t, b, "ping", "-c1", "-W2", operator)
		// A listener on every address of the machine, which no host may reach.
		listener, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		targets := []string{gateway}
		for _, address := range addresses {
			if ip, ok := address.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
				targets = append(targets, ip.IP.String())
			}
		}
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range targets {
			connect := fmt.Sprintf("echo > /dev/tcp/%s/%s", target, port)
			if _, err := a.Exec(ctx, "timeout", "1", "bash", "-c", connect); err == nil {
				t.Errorf("host a reaches the machine at %s", target)
			}
			if err := l.OperatorCommand(ctx, "timeout", "1", "bash", "-c", connect).Run(); err == nil {
				t.Errorf("the operator reaches the machine at %s", target)
			}
		}
	})

	t.Run("packets that try to leave are counted", func(t *testing.T) {
		leaked := func(want uint64) string {
			t.Helper()
			var n uint64
			var detail string
			for range 100 {
				var err error
				if n, detail, err = l.LeakedPackets(); err != nil {
					t.Fatal(err)
				} else if n == want {
					return detail
				}
				time.Sleep(20 * time.Millisecond)
			}
			t.Fatalf("%d packets are counted, want %d:\n%s", n, want, detail)
			return ""
		}
		if err := l.ResetLeaked(); err != nil {
			t.Fatal(err)
		}
		// What stays on the LAN.
		output(t, a, "ping", "-c1", "-W2", b.Address.String())
		output(t, a, "ping", "-c1", "-W2", gateway)
		output(t, a, "bash", "-c", "ping -b -c1 -W1 10.77.0.255 || true; ping -c1 -W1 224.0.0.1 || true; ping -c1 -W1 ff02::1%eth0 || true")
		if _, err := ssh(a, "root", "true"); err != nil {
			t.Fatal(err)
		}
		if detail := leaked(0); detail != "" {
			t.Errorf("nothing is counted, but the detail says %q", detail)
		}
		output(t, a, "bash", "-c", "echo x >/dev/udp/192.0.2.1/53")
		if want, got := "10.77.0.11 -> 192.0.2.1 udp port 53: 1", leaked(1); got != want {
			t.Errorf("detail is %q, want %q", got, want)
		}
		if out, err := l.OperatorCommand(ctx, "bash", "-c", "echo x >/dev/udp/192.0.2.1/9").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if want, got := "10.77.0.2 -> 192.0.2.1 udp port 9: 1", leaked(2); !strings.Contains(got, want) {
			t.Errorf("detail is %q, want %q in it", got, want)
		}
		output(t, b, "bash", "-c", "ip -6 address add fd01::b/64 dev eth0 nodad; ip -6 route add fd02::/64 via fe80::1 dev eth0; ip -6 neigh add fe80::1 lladdr 02:00:0a:4d:00:01 dev eth0; echo x >/dev/udp/fd02::1/53")
		leaked(3)
		output(t, b, "bash", "-c", "ip route add 198.51.100.0/24 dev eth0; timeout 0.5 ping -c1 198.51.100.7 || true")
		if want, got := "10.77.0.12 asks for 198.51.100.7: 1", leaked(4); !strings.Contains(got, want) {
			t.Errorf("detail is %q, want %q in it", got, want)
		}
		if err := l.ResetLeaked(); err != nil {
			t.Fatal(err)
		}
		leaked(0)
	})

	t.Run("sysctls of the machine are out of reach", func(t *testing.T) {
		own, err := os.ReadFile("/proc/sys/kernel/panic")
		if err != nil {
			t.Fatal(err)
		}
		output(t, a, "sh", "-c", "echo 4321 > /proc/sys/kernel/panic")
		if got := output(t, a, "cat", "/proc/sys/kernel/panic"); got != "4321" {
			t.Errorf("the host's copy says %s", got)
		}
		if now, err := os.ReadFile("/proc/sys/kernel/panic"); err != nil || string(now) != string(own) {
			t.Errorf("the machine's kernel.panic became %q, was %q (%v)", now, own, err)
		}
		if _, err := a.Exec(ctx, "sh", "-c", "echo 1 > /proc/sys/kernel/sysrq"); err == nil {
			t.Error("a host can write a sysctl of the machine")
		}
	})

	t.Run("a container runtime can work", func(t *testing.T) {
		output(t, a, "sh", "-ec", `for d in /sys/fs/cgroup/*/; do if [ -e $d/cgroup.procs ]; then mkdir $d/try; rmdir $d/try; fi; done`)
		if got := output(t, a, "stat", "-f", "-c", "%T", "/sys/fs/bpf"); got != "bpf_fs" {
			t.Errorf("/sys/fs/bpf is a %s", got)
		}
		if got := output(t, a, "findmnt", "-n", "-o", "PROPAGATION", "/"); !strings.Contains(got, "shared") {
			t.Errorf("/ is mounted %s", got)
		}
		output(t, a, "sh", "-ec", `mkdir -p /var/o/l /var/o/u /var/o/w /var/o/m; mount -t overlay -o lowerdir=/var/o/l,upperdir=/var/o/u,workdir=/var/o/w o /var/o/m; umount /var/o/m`)
	})

	t.Run("reboot", func(t *testing.T) {
		id, boot := output(t, a, "cat", "/etc/machine-id"), output(t, a, "cat", "/proc/sys/kernel/random/boot_id")
		output(t, a, "sh", "-c", "echo kept > /var/lib/kept")
		step(t, "reboot", func() error { return a.Reboot(ctx) })
		if now := output(t, a, "cat", "/proc/sys/kernel/random/boot_id"); now == boot {
			t.Error("the boot id is still the same")
		}
		if now := output(t, a, "cat", "/etc/machine-id", "/var/lib/kept"); now != id+"\nkept" {
			t.Errorf("machine-id and file are %q after the reboot", now)
		}
		if got := output(t, a, "journalctl", "--list-boots", "--quiet"); strings.Count(got, "\n") != 1 {
			t.Errorf("the journal knows these boots:\n%s", got)
		}
		if got, err := ssh(a, "root", "hostname"); err != nil || got != "a" {
			t.Errorf("ssh after reboot: %q, %v", got, err)
		}
		// One that is asked for through SSH, as the operator's tools would.
		boots := a.bootCount()
		_, _ = ssh(a, "root", "systemctl --no-block reboot")
		for a.bootCount() == boots {
			if ctx.Err() != nil {
				t.Fatal("the host has not rebooted")
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := a.WaitSSH(ctx); err != nil {
			t.Error(err)
		}
	})

	t.Run("off and on", func(t *testing.T) {
		for _, off := range []struct {
			name string
			do   func(context.Context) error
		}{{"down", a.Down}, {"power cut", a.PowerCut}} {
			step(t, off.name, func() error { return off.do(ctx) })
			if got, err := ssh(a, "root", "true"); err == nil {
				t.Errorf("after %s ssh still works: %s", off.name, got)
			}
			if _, err := a.Exec(ctx, "true"); err == nil {
				t.Errorf("after %s commands still run", off.name)
			}
			step(t, "up", func() error { return a.Up(ctx) })
			if got, err := ssh(a, "root", "hostname"); err != nil || got != "a" {
				t.Errorf("ssh after %s and up: %q, %v", off.name, got, err)
			}
		}
	})

	t.Run("power cut during a reboot", func(t *testing.T) {
		for _, pause := range []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond} {
			output(t, a, "systemctl", "--no-block", "reboot")
			time.Sleep(pause)
			if err := a.PowerCut(ctx); err != nil || a.on() {
				t.Errorf("%v after the reboot was asked for: on: %v, %v", pause, a.on(), err)
			}
			if err := a.Up(ctx); err != nil {
				t.Fatal(err)
			}
		}
	})

	t.Run("faults", func(t *testing.T) {
		try := func(script string) string {
			out, err := a.Exec(ctx, "sh", "-c", "{ "+script+"; } 2>&1")
			if err != nil {
				return strings.TrimSpace(string(out))
			}
			return "works"
		}
		for _, fault := range []struct {
			name            string
			make, undo      func() error
			attempt, broken string
		}{
			{"read-only", func() error { return a.ReadOnly(ctx, "/var/lib") }, func() error { return a.Restore(ctx, "/var/lib") },
				"touch /var/lib/x", "Read-only file system"},
			{"full disk", func() error { return a.FullDisk(ctx, "/var/lib", 1<<20) }, func() error { return a.Restore(ctx, "/var/lib") },
				"head -c 2000000 /dev/zero > /var/lib/x", "No space left on device"},
		} {
			if err := fault.make(); err != nil {
				t.Fatalf("%s: %v", fault.name, err)
			}
			if got := try(fault.attempt); !strings.Contains(got, fault.broken) {
				t.Errorf("%s: %s: %s", fault.name, fault.attempt, got)
			}
			if err := fault.undo(); err != nil {
				t.Fatalf("undo %s: %v", fault.name, err)
			}
			if got := try(fault.attempt); got != "works" {
				t.Errorf("%s undone: %s: %s", fault.name, fault.attempt, got)
			}
		}
		for _, fault := range []struct {
			name       string
			make, undo func(context.Context) error
		}{{"unplugged", a.Unplug, a.Plug}, {"blocked", a.BlockSSH, a.UnblockSSH}} {
			if err := fault.make(ctx); err != nil {
				t.Fatalf("%s: %v", fault.name, err)
			}
			dial, cancel := context.WithTimeout(ctx, time.Second)
			if conn, err := l.Dial(dial, "tcp", a.Address.String()+":22"); err == nil {
				t.Errorf("%s: the SSH port still answers", fault.name)
				_ = conn.Close()
			}
			cancel()
			if err := fault.undo(ctx); err != nil {
				t.Fatalf("undo %s: %v", fault.name, err)
			}
			if err := a.WaitSSH(ctx); err != nil {
				t.Errorf("%s undone: %v", fault.name, err)
			}
		}
		if err := a.ChangeHostKeys(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := ssh(a, "root", "true"); err == nil || !strings.Contains(got, "HAS CHANGED") {
			t.Errorf("ssh to a host with a changed key: %v: %s", err, got)
		}
		writeKnownHosts()
		if got, err := ssh(a, "root", "true"); err != nil {
			t.Errorf("ssh with the new key: %v: %s", err, got)
		}
	})

	t.Run("a second lab", func(t *testing.T) {
		// At the same time, with the same addresses, and out of sight.
		other := newLab(ctx, t)
		h, err := other.Host(ctx, HostOptions{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if h.Address != a.Address {
			t.Errorf("its first host is at %v, want %v", h.Address, a.Address)
		}
		if got := output(t, a, "cat", "/etc/machine-id"); got == output(t, h, "cat", "/etc/machine-id") {
			t.Error("hosts of two labs share a machine-id")
		}
	})

	step(t, "close", l.Close)
	if diff := cmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("the lab has left something on the machine (-before +after):\n%s", diff)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// TestKilled makes a lab in another process, kills that process, and looks at
// what is left before and after CleanStale.
func TestKilled(t *testing.T) {
	Require(t)
	ctx := testContext(t)
	if os.Getenv(victim) == "1" {
		l := newLab(ctx, t)
		if _, err := l.Host(ctx, HostOptions{Name: "victim"}); err != nil {
			t.Fatal(err)
		}
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		t.Fatal(self.Kill())
	}
	ownCache(ctx, t)
	before := machineState(t)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), victim+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the victim was not killed: %v\n%s", err, out)
	}
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "labs", "test-*", "hosts", "victim", "root", "etc"))
	if err != nil || len(left) != 1 {
		t.Fatalf("the victim has left %v, want one root (%v)", left, err)
	}
	info, err := os.Stat(filepath.Dir(left[0]))
	if err != nil {
		t.Fatal(err)
	}
	living := newLab(ctx, t) // cleans up, as every New does
	if exists(left[0]) {
		t.Errorf("%s is still there", left[0])
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && exists(fmt.Sprintf("/run/systemd/nspawn/locks/inode-%d:%d", stat.Dev, stat.Ino)) {
		t.Error("the lock of systemd-nspawn is still there")
	}
	if err := CleanStale(); err != nil {
		t.Fatal(err)
	}
	if !exists(living.KeyFile()) {
		t.Error("a living lab was removed as stale")
	}
	if err := living.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("left on the machine (-before +after):\n%s", diff)
	}
}

// machineState is everything on the machine that a lab could be expected to
// change, and that other labs leave alone.
func machineState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, command := range []string{"ip -o link", "ip -o address", "ip route", "ip netns", "mount", "iptables-save", "ip6tables-save"} {
		args := strings.Fields(command)
		if _, err := exec.LookPath(args[0]); err != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			// iptables-save puts the time into lines with #. Other tests, beside this one, mount the second.
			if !strings.HasPrefix(line, "#") && !strings.Contains(line, " type binfmt_misc ") {
				lines = append(lines, line)
			}
		}
		state[command] = strings.Join(lines, "")
	}
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{cache + "/labs/*", "/sys/fs/cgroup/*/" + cgroupRoot + "/test-*", "/sys/fs/cgroup/" + cgroupRoot + "/test-*",
		"/run/systemd/nspawn/*/" + machinePrefix + "test-*", "/run/systemd/machines/*", "/run/netns/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		state[pattern] = strings.Join(names, "\n")
	}
	readSysctls(t, state)
	return state
}

func readSysctls(t *testing.T, state map[string]string) {
	t.Helper()
	// These change by themselves.
	moving := []string{"random/", "ns_last_pid", "-state", "-nr", "nr_", "sched_domain", "nf_conntrack_count", "binfmt_misc", "pty/nr", "route/flush"}
	err := filepath.WalkDir("/proc/sys", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || slices.ContainsFunc(moving, func(m string) bool { return strings.Contains(path, m) }) {
			return err
		}
		if info, err := entry.Info(); err != nil || info.Mode()&0o200 == 0 {
			return err
		}
		value, err := os.ReadFile(path)
		if err == nil { // some can only be written
			state[path] = string(value)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
