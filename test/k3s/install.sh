#!/bin/sh
# Sets k3s up as a systemd service, for hosts without internet: the binary must
# already be there, and nothing is downloaded. It belongs to the k3s of this
# folder, is steered by the same variables as k3s' own script, and leaves the same
# files behind. Like there, what a restart is decided by is compared from when the
# script starts, so that a binary put in place before does not count as new, and
# neither configuration nor images are looked at:
#
#   INSTALL_K3S_SKIP_DOWNLOAD   true or binary: required, as there is no download
#   INSTALL_K3S_SKIP_ENABLE     true: do not enable the service, nor start it
#   INSTALL_K3S_SKIP_START      true: do not start the service
#   INSTALL_K3S_FORCE_RESTART   true: restart the service even if nothing has changed
#   INSTALL_K3S_EXEC            command and arguments; the script's own arguments follow
#   INSTALL_K3S_NAME            name of the service, behind "k3s-"
#   INSTALL_K3S_TYPE            systemd's service type (notify)
#   INSTALL_K3S_BIN_DIR         where the binary is (/usr/local/bin, else /opt/bin)
#   INSTALL_K3S_BIN_DIR_READ_ONLY  true: write nothing there
#   INSTALL_K3S_SYSTEMD_DIR     where the unit goes (/etc/systemd/system)
#   INSTALL_K3S_SYMLINK         skip or force the links kubectl, crictl and ctr
#   K3S_*, CONTAINERD_*, HTTP_PROXY, HTTPS_PROXY, NO_PROXY  kept for the service in its .env file
set -eu

info() { echo "[INFO]  $*"; }
warn() { echo "[WARN]  $*" >&2; }
fatal() {
	echo "[ERROR] $*" >&2
	exit 1
}

# Quotes an argument for a systemd command line.
quote() {
	printf "%s" "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/%/%%/g' -e 's/\$/$$/g' -e 's/^/"/' -e 's/$/"/'
}

decide() {
	[ "$(id -u)" = 0 ] || fatal 'this script must run as root'
	command -v systemctl >/dev/null || fatal 'cannot find systemd to run k3s'
	case ${K3S_URL:-https://} in
	https://*) ;;
	*) fatal "only https:// URLs are supported for K3S_URL (have $K3S_URL)" ;;
	esac

	# The first word is the command, unless it is a flag.
	case ${1:-} in
	'' | -*)
		if [ -n "${K3S_URL:-}" ]; then
			[ -n "${K3S_TOKEN:-}${K3S_TOKEN_FILE:-}" ] || fatal 'K3S_URL is set, but neither K3S_TOKEN nor K3S_TOKEN_FILE'
			command=agent
		else
			command=server
		fi
		;;
	*)
		command=$1
		shift
		;;
	esac
	command_line=$command
	for argument in "$@"; do
		command_line="$command_line $(quote "$argument")"
	done

	name=k3s
	if [ -n "${INSTALL_K3S_NAME:-}" ]; then
		name=k3s-$INSTALL_K3S_NAME
	elif [ "$command" != server ]; then
		name=k3s-$command
	fi
	case $name in *[!A-Za-z0-9_.-]*) fatal "invalid service name $name" ;; esac

	bin_dir=${INSTALL_K3S_BIN_DIR:-}
	if [ -z "$bin_dir" ]; then
		bin_dir=/usr/local/bin
		if ! (touch "$bin_dir/.k3s-writable" && rm "$bin_dir/.k3s-writable") 2>/dev/null; then
			bin_dir=/opt/bin
		fi
	fi
	systemd_dir=${INSTALL_K3S_SYSTEMD_DIR:-/etc/systemd/system}
	binary=$bin_dir/k3s
	unit=$systemd_dir/$name.service
	env_file=$unit.env
	killall=$bin_dir/k3s-killall.sh
	uninstall=$bin_dir/$name-uninstall.sh
}

# What a restart of the service depends on.
fingerprint() {
	sha256sum "$binary" "$unit" "$env_file" 2>/dev/null || true
}

find_binary() {
	case ${INSTALL_K3S_SKIP_DOWNLOAD:-} in
	true | binary) ;;
	*) fatal 'this script cannot download k3s: put the binary in place and set INSTALL_K3S_SKIP_DOWNLOAD=true' ;;
	esac
	[ -x "$binary" ] || fatal "executable k3s binary not found at $binary"
	info 'Skipping k3s download and verify'
}

write_links() {
	[ "${INSTALL_K3S_BIN_DIR_READ_ONLY:-}" = true ] && return
	[ "${INSTALL_K3S_SYMLINK:-}" = skip ] && return
	for tool in kubectl crictl ctr; do
		link=$bin_dir/$tool
		if [ "${INSTALL_K3S_SYMLINK:-}" = force ]; then
			ln -sf k3s "$link"
		elif [ ! -e "$link" ] && ! command -v "$tool" >/dev/null; then
			info "Creating $link symlink to k3s"
			ln -s k3s "$link"
		fi
	done
}

write_scripts() {
	[ "${INSTALL_K3S_BIN_DIR_READ_ONLY:-}" = true ] && return
	info "Creating killall script $killall"
	cat >"$killall" <<-'END'
		#!/bin/sh
		# Stops all k3s services and what they run. Of a network that is not k3s'
		# own it knows nothing.
		[ "$(id -u)" = 0 ] || exec sudo "$0" "$@"
		for unit in /etc/systemd/system/k3s*.service; do
			[ -s "$unit" ] && systemctl stop "$(basename "$unit")"
		done
		# Pods outlive the service: end the shims, and everything below them.
		descendants() {
			for child in $(ps -o pid= --ppid "$1"); do
				descendants "$child"
				echo "$child"
			done
		}
		for shim in $(ps -e -o pid= -o args= | sed -n 's!^ *\([0-9]*\) [^ ]*containerd-shim[^ ]* .*-address /run/k3s/containerd/containerd.sock.*!\1!p'); do
			# shellcheck disable=SC2046 # one word per process
			kill -9 "$shim" $(descendants "$shim") 2>/dev/null
		done
		unmount_and_remove() {
			while read -r _ at _; do
				case $at in "$1"*) echo "$at" ;; esac
			done </proc/self/mounts | sort -r | while read -r at; do
				{ umount "$at" 2>/dev/null || umount -l "$at"; } && rm -rf "$at"
			done
			rm -rf "$1"
		}
		unmount_and_remove /run/k3s
		unmount_and_remove /var/lib/kubelet/pods
		unmount_and_remove /var/lib/kubelet/plugins
		unmount_and_remove /run/netns/cni-
		ip netns list | sed -n 's/^\(cni-[^ ]*\).*/\1/p' | while read -r name; do ip netns delete "$name"; done
		ip -o link show master cni0 2>/dev/null | sed -n 's/^[0-9]*: \([^:@]*\).*/\1/p' | while read -r link; do ip link delete "$link"; done
		for link in cni0 flannel.1 flannel-v6.1 flannel-wg flannel-wg-v6; do
			ip link delete "$link" 2>/dev/null
		done
		rm -rf /var/lib/cni
		for family in iptables ip6tables; do
			command -v $family-save >/dev/null || continue
			$family-save | grep -v -e KUBE- -e CNI- | grep -v -i flannel | $family-restore
		done
		true
	END
	info "Creating uninstall script $uninstall"
	cat >"$uninstall" <<-END
		#!/bin/sh
		# Removes k3s with all its data. The node's password in /etc/rancher/node stays.
		[ "\$(id -u)" = 0 ] || exec sudo "\$0" "\$@"
		"$killall"
		systemctl disable "$name"
		systemctl reset-failed "$name"
		rm -f "$unit" "$env_file"
		systemctl daemon-reload
		for other in "$systemd_dir"/k3s*.service; do
			if [ -s "\$other" ]; then
				echo 'Additional k3s services installed, skipping uninstall of k3s'
				rm -f "$uninstall"
				exit 0
			fi
		done
		for tool in kubectl crictl ctr; do
			[ "\$(readlink "$bin_dir/\$tool")" = k3s ] && rm -f "$bin_dir/\$tool"
		done
		rm -rf /etc/rancher/k3s /run/k3s /run/flannel /var/lib/rancher/k3s /var/lib/kubelet
		rm -f "$binary" "$killall" "$uninstall"
	END
	chmod 755 "$killall" "$uninstall"
}

# The service starts anew from these two files on each run: what was set in an
# earlier run and is not set in this one is gone.
remove_service() {
	systemctl disable "$name" >/dev/null 2>&1 || true
	rm -f "$unit" "$env_file"
}

write_env() {
	info "env: Creating environment file $env_file"
	(umask 077 && : >"$env_file")
	env | sed -n -e 's/^\(K3S_[A-Za-z0-9_]*\)=.*/\1/p' -e 's/^\(CONTAINERD_[A-Za-z0-9_]*\)=.*/\1/p' \
		-e 's/^\(HTTPS\{0,1\}_PROXY\)=.*/\1/p' -e 's/^\(NO_PROXY\)=.*/\1/p' \
		-e 's/^\(https\{0,1\}_proxy\)=.*/\1/p' -e 's/^\(no_proxy\)=.*/\1/p' | sort -u |
		while read -r variable; do
			eval "value=\${$variable:-}"
			# shellcheck disable=SC2154 # eval sets it
			printf '%s="%s"\n' "$variable" "$(printf '%s' "$value" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g')"
		done >>"$env_file"
}

write_unit() {
	info "systemd: Creating service file $unit"
	cat >"$unit" <<-END
		[Unit]
		Description=k3s
		Wants=network-online.target
		After=network-online.target

		[Service]
		Type=${INSTALL_K3S_TYPE:-notify}
		EnvironmentFile=-/etc/default/%N
		EnvironmentFile=-/etc/sysconfig/%N
		EnvironmentFile=-$env_file
		KillMode=process
		Delegate=yes
		User=root
		LimitNOFILE=1048576
		LimitNPROC=infinity
		LimitCORE=infinity
		TasksMax=infinity
		TimeoutStartSec=0
		Restart=always
		RestartSec=5s
		ExecStartPre=-/sbin/modprobe br_netfilter
		ExecStartPre=-/sbin/modprobe overlay
		ExecStart=$binary $command_line

		[Install]
		WantedBy=multi-user.target
	END
	chmod 644 "$unit"
}

# Takes rules out of the firewall that an earlier run has left behind.
strip_rules() {
	for family in iptables ip6tables; do
		rules=$($family-save 2>/dev/null) || continue
		case $rules in *'-A CNI-HOSTPORT-MASQ'*) continue ;; esac
		case $rules in *KUBE-* | *CNI-* | *flannel*) ;; *) continue ;; esac
		printf '%s\n' "$rules" | grep -v -e KUBE- -e CNI- | grep -v -i flannel | $family-restore
	done
}

start() {
	[ "${INSTALL_K3S_SKIP_ENABLE:-}" = true ] && return
	info "systemd: Enabling $name unit"
	systemctl enable "$unit" >/dev/null
	systemctl daemon-reload
	[ "${INSTALL_K3S_SKIP_START:-}" = true ] && return
	if [ "$before" = "$(fingerprint)" ] && [ "${INSTALL_K3S_FORCE_RESTART:-}" != true ]; then
		info 'No change detected so skipping service start'
		return
	fi
	strip_rules
	info "systemd: Starting $name"
	systemctl restart "$name"
}

# INSTALL_K3S_EXEC is split into words, by the shell's rules, as if it were typed.
eval "set -- ${INSTALL_K3S_EXEC:-} $(for argument in "$@"; do
	printf " '%s'" "$(printf '%s' "$argument" | sed "s/'/'\\\\''/g")"
done)"
decide "$@"
before=$(fingerprint)
find_binary
write_links
write_scripts
remove_service
write_env
write_unit
start
