package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/liteboxd/boxlift/test/debian"
)

// usualSuite is the release of Debian's that hosts have.
const usualSuite = "bookworm"

// guestInit runs as the first process of every host and becomes systemd.
//
//go:embed init.sh
var guestInit string

// basePackages is what a host has beyond Debian's minimum. runc and the network plugins are there for
// test/k3s, which brings none of its own, and containerd for tests of those that are not k3s'; nothing starts
// them.
func basePackages() []string {
	return strings.Fields(`
		systemd systemd-sysv libpam-systemd dbus openssh-server sudo
		iproute2 iptables iputils-ping netbase conntrack ipset socat ethtool curl ca-certificates
		procps kmod mount util-linux tar gzip xz-utils
		containerd runc containernetworking-plugins`)
}

// baseLinks are symbolic links below the base root, and what they point at.
// Debian has the network plugins in another place than container runtimes look.
func baseLinks() [][2]string {
	var links [][2]string
	for _, plugin := range strings.Fields("bridge firewall host-local loopback portmap ptp") {
		links = append(links, [2]string{"opt/cni/bin/" + plugin, "/usr/lib/cni/" + plugin})
	}
	return links
}

// notInBase is what is removed from the base root: what must differ between
// hosts, and what hosts copy for nothing.
func notInBase() []string {
	return strings.Fields(`
		etc/ssh/ssh_host_* etc/machine-id var/lib/dbus/machine-id etc/hostname etc/resolv.conf
		var/cache/apt/archives/*.deb var/lib/apt/lists/*_*
		usr/share/doc usr/share/info usr/share/locale usr/share/man`)
}

// hostFiles is what differs from Debian's defaults on every host: path to content.
func hostFiles() map[string]string {
	return map[string]string{
		"sbin/lab-init": guestInit,
		// Empty, and not absent: systemd then makes a new one for each host.
		"etc/machine-id": "",
		// There is no name server on the LAN.
		"etc/resolv.conf": "",
		// Container shims ignore SIGTERM, and a reboot would wait 90 seconds for them.
		"etc/systemd/system.conf.d/lab.conf":      "[Manager]\nDefaultTimeoutStopSec=10s\nDefaultEnvironment=GOGC=400\n",
		"etc/systemd/journald.conf.d/lab.conf":    "[Journal]\nStorage=persistent\n",
		"etc/ssh/sshd_config.d/lab.conf":          "PasswordAuthentication yes\nPermitRootLogin yes\nUseDNS no\nMaxStartups 100\n",
		"etc/systemd/system/ssh.service.d/n.conf": "[Service]\nRestart=always\n",
	}
}

// masked units cannot work in a container or would reach for the internet;
// without them, is-system-running says running.
func maskedUnits() []string {
	return strings.Fields(`
		e2scrub_reap.service e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
		console-getty.service sys-kernel-debug.mount sys-kernel-tracing.mount
		systemd-networkd.service systemd-networkd.socket containerd.service`)
}

// installPackages installs what the machine lacks to make hosts.
func installPackages(ctx context.Context, log func(string)) error {
	return debian.Ensure(ctx, log,
		debian.Program{Name: "debootstrap", Package: "debootstrap"},
		debian.Program{Name: "systemd-nspawn", Package: "systemd-container"},
		debian.Program{Name: "ip", Package: "iproute2"},
		debian.Program{Name: "ssh-keygen", Package: "openssh-client"},
	)
}

// ensureBase returns the tar file with the root file system of hosts of a release, and makes
// it when there is none yet that was made from the same key.
func ensureBase(ctx context.Context, suite string, log func(string)) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(cache, "base.lock"))
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return "", fmt.Errorf("wait for another process that makes the base root: %w", err)
	}
	defer func() { _ = lock.Close() }() // closing a lock loses nothing

	key := sha256.Sum256(fmt.Append(nil, suite, runtime.GOARCH, basePackages(), notInBase(), baseLinks()))
	base := filepath.Join(cache, fmt.Sprintf("base-%x.tar", key[:6]))
	if _, err := os.Stat(base); err == nil {
		return base, nil
	}
	work := filepath.Join(cache, "base.work")
	if err := clearWork(work); err != nil {
		return "", err
	}
	if err := makeBase(ctx, suite, work, base, log); err != nil {
		return "", errors.Join(fmt.Errorf("make the hosts' base root: %w", err), clearWork(work))
	}
	return base, clearWork(work)
}

// clearWork removes a working directory. A debootstrap that was killed may
// have left /proc mounted in it.
func clearWork(work string) error {
	if err := unmountBelow(work); err != nil {
		return err
	}
	return os.RemoveAll(work)
}

func makeBase(ctx context.Context, suite, work, base string, log func(string)) error {
	root, tarball := filepath.Join(work, "root"), filepath.Join(work, "base.tar")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	log("making the base root of hosts with " + suite + " with debootstrap (once, takes about two minutes)")
	args := []string{"--variant=minbase", "--include=" + strings.Join(basePackages(), ","), suite, root}
	if mirror := debianMirror(ctx, suite); mirror != "" {
		args = append(args, mirror)
	}
	if out, err := run(ctx, nil, "debootstrap", args...); err != nil {
		return fmt.Errorf("%w: %s", err, lastLines(out, 10))
	}
	if err := cleanBase(root); err != nil {
		return err
	}
	for _, link := range baseLinks() {
		path := filepath.Join(root, link[0])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(link[1], path); err != nil {
			return err
		}
	}
	if _, err := run(ctx, nil, "tar", "--create", "--numeric-owner", "--xattrs", "--xattrs-include=*",
		"--file", tarball, "--directory", root, "."); err != nil {
		return err
	}
	return os.Rename(tarball, base)
}

func cleanBase(root string) error {
	for _, pattern := range notInBase() {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// debianMirror is where this machine's own apt gets the suite from, so that
// a local mirror serves debootstrap too. Without one, debootstrap has a default.
func debianMirror(ctx context.Context, suite string) string {
	out, err := run(ctx, nil, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if codename, uri, ok := strings.Cut(strings.TrimSpace(line), " "); ok && codename == suite {
			return uri
		}
	}
	return ""
}

func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
