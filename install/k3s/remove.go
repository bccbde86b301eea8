package k3s

import ()

func Uninstaller(server bool) string {
	if server {
		return "/usr/local/bin/k3s-uninstall.sh"
	}
	return "/usr/local/bin/k3s-agent-uninstall.sh"
}
