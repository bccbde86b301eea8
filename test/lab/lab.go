// Package lab makes LAN hosts for end-to-end tests and demonstrations: real
// systemd and real OpenSSH in systemd-nspawn, each with an address of its own
// on a LAN that leads nowhere, and a place for the operator on the same LAN.
//
// The LAN is a bridge in a network namespace of its own. That namespace has no
// link to the machine's network, so nothing can leave it, two labs never
// meet, and the machine's links, filter rules and sysctls are not touched:
//
//	10.77.0.1     the gateway: every default route points at it, it forwards nothing
//	10.77.0.2     the operator, see Lab.OperatorCommand and Lab.Dial
//	10.77.0.11-   the hosts, in the order in which they were made
//
// No program on a host can set the clock, which is the machine's: the kernel refuses it.
//
// Every frame that a host or the operator sends towards an address outside the
// LAN is counted, see Lab.LeakedPackets.
//
// What a lab takes from the machine are processes, control groups below
// boxlift-lab, a directory in the cache, and systemd-nspawn's notes in /run.
// Lab.Close gives all of it back. What stays is one setting of the machine: hosts share
// its fs.inotify.max_user_instances, which is raised to what several kubelets need.
// When the process that made a lab is killed, its hosts die with it, and what
// it leaves behind is removed by the next New, or by CleanStale.
//
// It needs Linux, root and Debian's packages; Missing says what is not there.
package lab

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/test/need"
)

const (
	lanPrefix    = "10.77.0.0/24"
	gateway      = "10.77.0.1"
	operator     = "10.77.0.2"
	firstHost    = 11
	lastHost     = 250
	bridge       = "lan"
	operatorPort = "operator"
)

// EnvCache names the environment variable with the directory that holds what
// is kept between runs. Without it, it is boxlift in the user's cache directory.
const EnvCache = "BOXLIFT_CACHE"

// Options describe a lab. The zero value is usable.
type Options struct {
	// Name goes into the name of the lab's directory, for people who look at it.
	Name string
	// Log gets one line per slow step. Nil discards them.
	Log func(line string)
}

// Lab is one LAN. Its methods may be called from several goroutines.
type Lab struct {
	id        string // unique on this machine; names the directory and the control groups
	dir       string
	base      string // tar of the hosts' root file system
	log       func(string)
	lock      *flock.Flock
	lan       *netns
	operator  *netns
	leaks     *leakCounter
	publicKey string

	mu    sync.Mutex
	hosts []*Host
}

// Missing says what this machine lacks for a lab, one reason per line, and
// nothing when New can be expected to work. Packages that New can install are
// not reasons.
func Missing() []string {
	if runtime.GOOS != "linux" {
		return []string{"hosts are made with systemd-nspawn, which needs Linux: this is " + runtime.GOOS}
	}
	if os.Geteuid() != 0 {
		return []string{"making hosts needs root"}
	}
	var missing []string
	if release, err := os.ReadFile("/etc/os-release"); err != nil || !bytes.Contains(release, []byte("\nID=debian\n")) {
		missing = append(missing, "hosts are made with Debian's tools: this system is not Debian")
	}
	if ns, err := newNetns(); err != nil {
		missing = append(missing, fmt.Sprintf("no permission to make a network namespace: %v", err))
	} else if err := ns.close(); err != nil {
		missing = append(missing, err.Error())
	}
	if groups, err := cgroupMounts(); err != nil {
		missing = append(missing, err.Error())
	} else if len(groups) == 0 {
		missing = append(missing, "no control group hierarchy is mounted")
	}
	return missing
}

// Require leaves the test out, with the reason, on a machine where no lab can be
// made; see [need.LeaveOut].
func Require(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("hosts are left out with -short")
	}
	missing := Missing()
	if len(missing) == 0 {
		return
	}
	need.LeaveOut(t, "no LAN hosts on this machine: "+strings.Join(missing, "; "))
}

// New makes an empty LAN. The first call on a machine installs the Debian
// packages that it needs and makes the hosts' base root, which takes minutes;
// later calls find it in the cache. The context bounds New, not the lab.
func New(ctx context.Context, opts Options) (_ *Lab, err error) {
	if missing := Missing(); len(missing) > 0 {
		return nil, fmt.Errorf("make lab: %s", strings.Join(missing, "; "))
	}
	l := &Lab{log: opts.Log}
	if l.log == nil {
		l.log = func(string) {}
	}
	if err := CleanStale(); err != nil {
		l.log(err.Error()) // in nobody's way: labs do not meet
	}
	if err := installPackages(ctx, l.log); err != nil {
		return nil, fmt.Errorf("make lab: %w", err)
	}
	if l.base, err = ensureBase(ctx, usualSuite, l.log); err != nil {
		return nil, fmt.Errorf("make lab: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make lab: %w", err), l.Close())
		}
	}()
	if err := l.makeDir(opts.Name); err != nil {
		return nil, err
	}
	if err := l.makeKey(); err != nil {
		return nil, err
	}
	if err := l.makeLAN(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// CacheDir is where tests of hosts keep what they use again.
func CacheDir() (string, error) { return cacheDir() }

// cacheDir is where labs and their base root live.
func cacheDir() (string, error) {
	if dir := os.Getenv(EnvCache); dir != "" {
		return filepath.Join(dir, "lab"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (%s can name one): %w", EnvCache, err)
	}
	return filepath.Join(dir, "boxlift", "lab"), nil
}

// lockLabs gives the directory of all labs, and keeps other processes from
// adding or removing labs until unlock is called. It holds one directory per
// lab and, beside each, NAME.lock, which is locked for as long as the process
// that made the lab lives.
func lockLabs() (dir string, unlock func(), err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(cache, "labs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	lock := flock.New(filepath.Join(cache, "labs.lock"))
	if err := lock.Lock(); err != nil {
		return "", nil, fmt.Errorf("lock the labs: %w", err)
	}
	return dir, func() { _ = lock.Close() }, nil // closing a lock loses nothing
}

func (l *Lab) makeDir(name string) error {
	labs, unlock, err := lockLabs()
	if err != nil {
		return err
	}
	defer unlock()
	var unique [4]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return err
	}
	id := hex.EncodeToString(unique[:])
	if name != "" {
		if !validName(name) {
			return fmt.Errorf("lab name %q: want letters, digits and dashes", name)
		}
		id = name + "-" + id
	}
	lock := flock.New(filepath.Join(labs, id+".lock"))
	if err := lock.Lock(); err != nil {
		return err
	}
	l.id, l.lock, l.dir = id, lock, filepath.Join(labs, id)
	if _, err := makeCgroups(id); err != nil {
		return err
	}
	return os.Mkdir(l.dir, 0o700)
}

// makeKey makes the key pair that every account on every host accepts.
func (l *Lab) makeKey() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "operator")
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	l.publicKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))) + " operator"
	return os.WriteFile(l.KeyFile(), pem.EncodeToMemory(block), 0o600)
}

func (l *Lab) makeLAN(ctx context.Context) (err error) {
	if l.lan, err = newNetns(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", bridge, "address", mac(1), "type", "bridge", "stp_state", "0", "forward_delay", "0"},
		{"address", "add", gateway + "/24", "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if err := l.lan.ip(ctx, args...); err != nil {
			return err
		}
	}
	// A new namespace may inherit ip_forward from the machine, and where the
	// bridge netfilter is loaded, frames between hosts would pass through
	// filter rules.
	if err := l.lan.sysctl(ctx, "net/ipv4/ip_forward", "0"); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		if err := l.lan.sysctl(ctx, "net/bridge/bridge-nf-call-iptables", "0"); err != nil {
			return err
		}
	}
	if l.leaks, err = newLeakCounter(l.lan, bridge, netip.MustParsePrefix(lanPrefix)); err != nil {
		return err
	}
	if l.operator, err = newNetns(); err != nil {
		return err
	}
	return l.connect(ctx, l.operator, operatorPort, netip.MustParseAddr(operator))
}

// connect puts a namespace on the LAN, through a port of the bridge with the
// given name. An existing port of that name is replaced.
func (l *Lab) connect(ctx context.Context, ns *netns, port string, address netip.Addr) error {
	// The port outlives its namespace for a moment: the kernel removes
	// namespaces in the background.
	_ = l.lan.ip(ctx, "link", "delete", port)
	number := int(address.As4()[3])
	// Without fixed hardware addresses, the neighbours of a rebooted host
	// cannot reach it until their ARP entries have expired.
	if err := l.lan.ip(ctx, "link", "add", port, "type", "veth",
		"peer", "name", "eth0", "address", mac(number), "netns", ns.path()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", address.String() + "/24", "broadcast", "+", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", gateway},
	} {
		if err := ns.ip(ctx, args...); err != nil {
			return err
		}
	}
	return l.lan.ip(ctx, "link", "set", port, "master", bridge, "up")
}

func mac(number int) string { return fmt.Sprintf("02:00:0a:4d:00:%02x", number) }

// KeyFile is the path of the private key, in OpenSSH's format and without a
// passphrase, that every account on every host accepts.
func (l *Lab) KeyFile() string { return filepath.Join(l.dir, "operator.key") }

// Dir is a directory that lives as long as the lab, for files that the
// operator needs.
func (l *Lab) Dir() string { return l.dir }

// OperatorCommand is exec.CommandContext at the operator's place on the LAN:
// the command sees the LAN and its own loopback, and no other network.
func (l *Lab) OperatorCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	return l.operator.command(ctx, name, args...)
}

// Dial connects from the operator's place. The address must be numeric.
func (l *Lab) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %s from the operator's place: %w", address, err)
	}
	err = l.operator.do(func() error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// LeakedPackets says how many packets hosts and operator have tried to send
// to addresses outside the LAN since the lab was made or ResetLeaked was
// called. Broadcast, multicast and link-local IPv6 stay on a LAN and do not
// count; an ARP request for an outside address does. The detail names sources, destinations and
// protocols, one per line with its number of packets, for as many packets as
// the kernel has kept.
func (l *Lab) LeakedPackets() (n uint64, detail string, err error) { return l.leaks.read() }

// ResetLeaked starts the count of LeakedPackets anew.
func (l *Lab) ResetLeaked() error { return l.leaks.reset() }

// Close cuts the power of all hosts and undoes everything that the lab did to
// the machine. It goes on after errors and reports them all. Close may be
// called more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	hosts := l.hosts
	l.hosts = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	errs := make([]error, len(hosts))
	var group sync.WaitGroup
	for i, h := range hosts {
		group.Go(func() { errs[i] = h.close(ctx) })
	}
	group.Wait()
	if l.leaks != nil {
		errs = append(errs, l.leaks.close())
		l.leaks = nil
	}
	for _, ns := range []**netns{&l.operator, &l.lan} {
		if *ns != nil {
			errs = append(errs, (*ns).close())
			*ns = nil
		}
	}
	if l.lock != nil {
		_, unlock, err := lockLabs()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer unlock()
		errs = append(errs, removeLab(l.dir, l.id, l.lock))
		l.lock = nil
	}
	return errors.Join(errs...)
}

// CleanStale removes what killed processes have left of their labs. Labs
// whose process lives are left alone.
func CleanStale() error {
	labs, unlock, err := lockLabs()
	if err != nil {
		return err
	}
	defer unlock()
	locks, err := filepath.Glob(filepath.Join(labs, "*.lock"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		lock := flock.New(path)
		if ok, err := lock.TryLock(); err != nil || !ok {
			continue // its process lives
		}
		dir := strings.TrimSuffix(path, ".lock")
		if err := removeLab(dir, filepath.Base(dir), lock); err != nil {
			errs = append(errs, fmt.Errorf("remove stale lab: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeLab removes the processes, control groups and files of a lab whose
// lock the caller holds, beside that of lockLabs, and gives the lab's lock up.
func removeLab(dir, id string, lock *flock.Flock) error {
	errs := []error{removeCgroups(id), removeRuntime(dir, id)}
	// Nothing is mounted there unless something went wrong. But to follow a
	// mount while deleting would be the end of what is mounted.
	if err := unmountBelow(dir); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, lock.Close()) // the next CleanStale tries again
	}
	return errors.Join(os.Remove(lock.Path()), lock.Close())
}

// machinePrefix begins the names under which systemd-nspawn knows hosts.
const machinePrefix = "lab-"

// removeRuntime removes what systemd-nspawn keeps for the hosts of a lab in
// /run. It would do so itself, if it were not killed and if /run were always a
// file system of its own.
func removeRuntime(dir, id string) error {
	const runtime = "/run/systemd/nspawn"
	left, err := filepath.Glob(runtime + "/*/" + machinePrefix + id + "-*")
	if err != nil {
		return err
	}
	roots, err := filepath.Glob(dir + "/hosts/*/root")
	if err != nil {
		return err
	}
	for _, root := range roots {
		info, err := os.Stat(root)
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			left = append(left, fmt.Sprintf("%s/locks/inode-%d:%d", runtime, stat.Dev, stat.Ino))
		}
	}
	var errs []error
	for _, path := range left {
		if err := unmountBelow(path); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything that is mounted in dir or below.
func unmountBelow(dir string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	var errs []error
	for i := len(mounts) - 1; i >= 0; i-- {
		at := mounts[i].at
		if at == dir || strings.HasPrefix(at, dir+"/") {
			if _, err := run(context.Background(), nil, "umount", "--lazy", at); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

type mount struct{ at, fstype string }

// readMounts lists the mounts that this process sees, in mount order.
func readMounts() ([]mount, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var mounts []mount
	for line := range strings.Lines(string(info)) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 1 {
			return nil, fmt.Errorf("list mounts: unexpected line %q", line)
		}
		at, err := strconv.Unquote(`"` + strings.ReplaceAll(fields[4], `"`, `\"`) + `"`)
		if err != nil {
			return nil, fmt.Errorf("list mounts: path %q: %w", fields[4], err)
		}
		mounts = append(mounts, mount{at: at, fstype: kind[0]})
	}
	return mounts, nil
}

// run runs a command to its end and returns its standard output. Its error
// carries the end of what the command wrote to standard error.
func run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	return runCommand(exec.CommandContext(ctx, name, args...), stdin)
}

func runCommand(cmd *exec.Cmd, stdin []byte) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		if len(said) > 2000 {
			said = "… " + said[len(said)-2000:]
		}
		return out, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return out, nil
}

func validName(name string) bool {
	if name == "" || len(name) > 40 || strings.Trim(name, "-") != name {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
