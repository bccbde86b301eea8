package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/progress"
)

// preflight connects to all hosts and refuses those that cannot become what they are
// to be. All findings on all hosts are reported, and nothing is changed on any host
// when there is one, apart from boxlift's own helper.
func (in *installer) preflight(ctx context.Context) error {
	task := in.Reporter.Task(fmt.Sprintf("look at %s", counted(len(in.hosts), "host")), 0)
	err := in.eachHost(ctx, in.hosts, in.inspect)
	if same := in.checkUnique(); err == nil {
		err = same
	}
	for _, h := range in.hosts {
		h.refused = h.err != nil
	}
	task.Done(err)
	return err
}

// inspect gathers what is needed to judge one host.
func (in *installer) inspect(ctx context.Context, h *host) error {
	if err := in.connect(ctx, h); err != nil {
		return err
	}
	if platforms := in.contents.Platforms(); !slices.Contains(platforms, h.platform) {
		return fmt.Errorf("the host is %s, but the bundle carries %s only: build a bundle whose lock lists that platform", h.platform, platformsText(platforms))
	}
	if _, err := h.root(ctx, "become root", "true"); err != nil {
		return err
	}
	var err error
	if h.packs, err = in.Bundle.Packs(h.platform); err != nil {
		return err
	}
	for _, p := range h.packs {
		h.images += len(p.Images)
	}
	if in.DryRun {
		return nil
	}
	if err := h.placeHelper(ctx, in.Bundle, in.contents); err != nil {
		return fmt.Errorf("place boxlift-node: %w", err)
	}
	if err := h.gatherFacts(ctx); err != nil {
		return err
	}
	return in.judge(h)
}

// Finding is one reason why a host cannot be installed.
type Finding struct {
	// Found and Needed say what is there and what has to be; Hint says how to mend it.
	Found, Needed, Hint string
}

// findingsError lists all that is wrong with a host.
type findingsError []Finding

func (e findingsError) Error() string {
	lines := make([]string, 0, len(e))
	for _, f := range e {
		lines = append(lines, fmt.Sprintf("%s; needed: %s; %s", f.Found, f.Needed, f.Hint))
	}
	return strings.Join(lines, "\n  ")
}

// judge compares a host's facts with what the bundle needs.
func (in *installer) judge(h *host) error {
	var findings findingsError
	add := func(found, needed, hint string) { findings = append(findings, Finding{found, needed, hint}) }
	f := h.facts
	if f.User != 0 {
		add(fmt.Sprintf("boxlift-node runs as the user %d", f.User), "root", "log in as root, or set sudo: true")
	}
	if f.Systemd.State == "" || f.Systemd.State == "offline" {
		add("systemd does not run the host", "systemd as init", "k3s is run as a systemd service; choose another host")
	}
	// Changing the version of a running cluster takes an order, a backup and a way back.
	if f.K3s.Version != "" && f.K3s.Version != in.k3s {
		add("k3s "+f.K3s.Version+" is installed", "k3s "+in.k3s+", the bundle's, or none",
			"install with the bundle that the cluster was installed from; this command does not change the version of what runs")
	}
	other := config.Agent
	if h.config.Role == config.Agent {
		other = config.Server
	}
	if f.Unit(unit(other)+".service").LoadState == "loaded" {
		add("the host runs k3s as "+string(other)+" already", "a host without k3s, or with k3s as "+string(h.config.Role),
			"remove k3s from it with "+unit(other)+"-uninstall.sh, or choose another host")
	}
	var size int64
	for _, p := range h.packs {
		if !slices.ContainsFunc(f.Packs, func(held node.Pack) bool { return held.Name == packName(p) }) {
			size += p.Size
		}
	}
	for _, m := range f.Mounts {
		if m.ReadOnly && slices.Contains([]string{"/etc", "/usr/local", "/var/lib/rancher", node.FilesDir}, m.Path) {
			add(fmt.Sprintf("%s is on %s, which is mounted read-only", m.Path, m.MountPoint), "a filesystem that can be written to", "remount it with: mount -o remount,rw "+m.MountPoint)
		}
		if m.NoExec && slices.Contains([]string{"/usr/local", "/var/lib/rancher", node.FilesDir}, m.Path) {
			add(fmt.Sprintf("%s is on %s, which is mounted noexec", m.Path, m.MountPoint), "a filesystem that programs can run from", "remount it with: mount -o remount,exec "+m.MountPoint)
		}
		// The packs stay, and containerd keeps a copy of their blobs.
		if m.Path == "/var/lib/rancher" && m.Free < 2*size {
			add(fmt.Sprintf("%s has %s free on %s", m.Path, progress.Bytes(m.Free), m.MountPoint),
				progress.Bytes(2*size)+" for the packs and containerd's copy of them", "make room there, or mount a larger disk at /var/lib/rancher")
		}
	}
	if len(findings) > 0 {
		return findings
	}
	return nil
}

// checkUnique finds hosts that are one and the same, and returns the first error.
func (in *installer) checkUnique() (err error) {
	seen := make(map[string]*host)
	for _, h := range in.hosts {
		if h.facts == nil || h.facts.MachineID == "" {
			continue
		}
		if other := seen[h.facts.MachineID]; other != nil {
			h.fail(fmt.Errorf("it has the same /etc/machine-id as %s: it is the same host, or a copy of it; remove one from install.yaml, or give the copy an identity of its own with: rm /etc/machine-id && systemd-machine-id-setup", other.name))
			if err == nil {
				err = h.err
			}
			continue
		}
		seen[h.facts.MachineID] = h
	}
	return err
}
