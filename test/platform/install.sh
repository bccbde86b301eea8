#!/bin/sh
# The install.sh of package platform: what that of k3s v1.36 does where nothing is downloaded and nothing is started.
set -e
[ "$INSTALL_K3S_SKIP_DOWNLOAD" = true ] && [ "$INSTALL_K3S_SKIP_START" = true ]
[ -x /usr/local/bin/k3s ] || { echo "[ERROR]  Executable k3s binary not found at /usr/local/bin/k3s" >&2; exit 1; }
name=k3s
[ "$INSTALL_K3S_EXEC" = server ] || name=k3s-agent
unit=/etc/systemd/system/$name.service
cat >/usr/local/bin/k3s-killall.sh <<KILLALL
#!/bin/sh
systemctl stop $name.service
KILLALL
chmod 755 /usr/local/bin/k3s-killall.sh
cat >/usr/local/bin/$name-uninstall.sh <<UNINSTALL
#!/bin/sh
set -e
[ ! -x /usr/local/bin/k3s-killall.sh ] || /usr/local/bin/k3s-killall.sh || :
systemctl disable $name || :
rm -f $unit $unit.env
systemctl daemon-reload
rm -f /usr/local/bin/$name-uninstall.sh
rm -rf /etc/rancher/k3s /run/k3s /var/lib/rancher/k3s /var/lib/kubelet
rm -f /usr/local/bin/k3s /usr/local/bin/k3s-killall.sh
UNINSTALL
chmod 755 /usr/local/bin/$name-uninstall.sh
systemctl disable $name >/dev/null 2>&1 || :
rm -f $unit $unit.env
: >$unit.env
chmod 600 $unit.env
cat >$unit <<UNIT
[Unit]
Description=Lightweight Kubernetes
[Install]
WantedBy=multi-user.target
[Service]
Type=notify
EnvironmentFile=-$unit.env
KillMode=process
ExecStart=/usr/local/bin/k3s $INSTALL_K3S_EXEC
UNIT
[ "$INSTALL_K3S_SKIP_ENABLE" != true ] || exit 0
systemctl enable $name
systemctl daemon-reload
