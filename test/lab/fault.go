package lab

import (
	"context"
	"fmt"
)

// ReadOnly makes a directory of the host, and what is below it, read-only
// until Restore or the next boot.
func (h *Host) ReadOnly(ctx context.Context, dir string) error {
	if _, err := h.Exec(ctx, "mount", "--bind", dir, dir); err != nil {
		return err
	}
	_, err := h.Exec(ctx, "mount", "-o", "remount,bind,ro", dir)
	return err
}

// FullDisk puts an empty file system of the given size over a directory of
// the host, which is made if need be, until Restore or the next boot.
func (h *Host) FullDisk(ctx context.Context, dir string, size int64) error {
	if _, err := h.Exec(ctx, "mkdir", "-p", dir); err != nil {
		return err
	}
	_, err := h.Exec(ctx, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=755", size), "full", dir)
	return err
}

// Restore undoes ReadOnly or FullDisk.
func (h *Host) Restore(ctx context.Context, dir string) error {
	_, err := h.Exec(ctx, "umount", "--lazy", dir)
	return err
}

// Unplug pulls the host's network cable: it stays on, and nobody hears
// of it. It stays unplugged across boots.
func (h *Host) Unplug(ctx context.Context) error { return h.setUnplugged(ctx, true) }

// Plug undoes Unplug.
func (h *Host) Plug(ctx context.Context) error { return h.setUnplugged(ctx, false) }

func (h *Host) setUnplugged(ctx context.Context, unplugged bool) error {
	h.mu.Lock()
	h.unplugged = unplugged
	h.mu.Unlock()
	return h.plug(ctx, !unplugged)
}

func (h *Host) plug(ctx context.Context, in bool) error {
	state := "down"
	if in {
		state = "up"
	}
	return h.lab.lan.ip(ctx, "link", "set", h.port(), state)
}

// LimitLinks changes how fast the operator and every host of the lab may send, in
// tc's words such as "1gbit", until another rate is set or, for a host, its next boot.
// No rate takes the limit away.
func (l *Lab) LimitLinks(ctx context.Context, rate string) error {
	args := []string{"qdisc", "replace", "dev", "eth0", "root", "noqueue"}
	if rate != "" {
		args = append(args[:5], "tbf", "rate", rate, "burst", "1mb", "latency", "100ms")
	}
	if out, err := l.OperatorCommand(ctx, "tc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("limit the operator's link: %w\n%s", err, out)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hosts {
		if _, err := h.Exec(ctx, append([]string{"tc"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// BlockSSH drops what arrives at the SSH port, until UnblockSSH or the next
// boot: connections neither succeed nor fail, open ones hang.
func (h *Host) BlockSSH(ctx context.Context) error {
	_, err := h.Exec(ctx, append([]string{"iptables", "--wait", "--insert"}, blockedSSH()...)...)
	return err
}

// UnblockSSH undoes BlockSSH.
func (h *Host) UnblockSSH(ctx context.Context) error {
	_, err := h.Exec(ctx, append([]string{"iptables", "--wait", "--delete"}, blockedSSH()...)...)
	return err
}

func blockedSSH() []string {
	return []string{"INPUT", "--protocol", "tcp", "--dport", "22", "--jump", "DROP"}
}

// ChangeHostKeys gives the host new SSH host keys.
func (h *Host) ChangeHostKeys(ctx context.Context) error {
	_, err := h.Exec(ctx, "sh", "-c", "rm /etc/ssh/ssh_host_* && ssh-keygen -q -A && systemctl restart ssh")
	return err
}
