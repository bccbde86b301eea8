#!/bin/sh
# The first process of a lab host: makes the container look like a machine of
# its own, and becomes systemd.
set -eu

# Otherwise what is mounted here appears twice, as / is shared with itself.
mount --make-rprivate /

# systemd-nspawn mounts the control groups read-only; a container runtime in
# the host needs to write them.
while read -r _ _ _ _ at _; do
	case $at in
	/sys/fs/cgroup | /sys/fs/cgroup/*) mount -o remount,bind,rw "$at" ;;
	esac
done </proc/self/mountinfo

# All hosts of all labs share root's inotify instances with the machine, and a
# Kubernetes server alone takes some thirty of the usual 128. The limit is
# raised, never lowered, and stays so: it reserves nothing.
limit=/proc/sys/fs/inotify/max_user_instances
if [ "$(cat $limit)" -lt 4096 ]; then
	echo 4096 >$limit || true
fi

# These sysctls are the whole machine's, and a kubelet writes them. The host
# gets copies of its own, and may not write the rest.
private=/run/lab-sysctl
for name in kernel/panic kernel/panic_on_oops kernel/pid_max kernel/core_pattern \
	kernel/keys/root_maxbytes kernel/keys/root_maxkeys \
	vm/overcommit_memory vm/panic_on_oom vm/max_map_count \
	fs/inotify/max_user_instances fs/inotify/max_user_watches; do
	[ -e "/proc/sys/$name" ] || continue
	mkdir -p "$private/${name%/*}"
	cat "/proc/sys/$name" >"$private/$name"
done
for area in /proc/sys/*; do
	[ "$area" = /proc/sys/net ] && continue # belongs to the network namespace
	mount --rbind "$area" "$area"
	mount -o remount,bind,ro "$area"
done
(cd "$private" && find . -type f) | while read -r name; do
	mount --bind "$private/$name" "/proc/sys/$name"
done
if [ -e /proc/sysrq-trigger ]; then
	mount --bind /dev/null /proc/sysrq-trigger # it would reboot the machine
fi

# Network plugins and container runtimes want these; in a container systemd
# leaves them out. A kernel without BPF is no reason not to boot.
mount -t bpf bpf /sys/fs/bpf || true
mount --make-rshared /

exec /lib/systemd/systemd
