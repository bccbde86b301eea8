package k3s

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
)

// kubeletHealth is where a kubelet with these arguments says that it is well, "" when it does so nowhere. The last
// argument of a name counts.
func kubeletHealth(args []string) string {
	address, port := "127.0.0.1", "10248"
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "healthz-bind-address":
			address = value
		case "healthz-port":
			port = value
		}
	}
	if port == "0" {
		return ""
	}
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsUnspecified() {
		address = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(address, port) + "/healthz"
}

// texts are the values of a setting of k3s that may be given several times.
func texts(setting any) []string {
	switch v := setting.(type) {
	case string:
		return []string{v}
	case []string:
		return v
	}
	return nil
}

// kubeletRuns reports whether the host's kubelet answers. K3s says that it is ready as soon as the API and the node's
// object are there, which on a node that is known is before containerd runs. It starts the kubelet only when it has
// imported its images, the last archive perhaps not to the end.
func (n *Node) kubeletRuns(ctx context.Context) (bool, error) {
	settings := n.Settings()
	args := texts(settings["kubelet-arg"])
	if n.Host.Adopted != nil {
		args = n.Host.Adopted.Settings["kubelet-arg"]
	}
	url := kubeletHealth(args)
	if settings["disable-agent"] == true || url == "" {
		return true, nil
	}
	target := []reach.ProbeTarget{{Kind: reach.ProbeHTTP, Target: url}}
	out, err := n.Host.Root(ctx, "ask the kubelet whether it is well", site.HelperPath, "probe", "-wait", "5s", "-http",
		url)
	if err != nil {
		return false, err
	}
	report, err := reach.ReadProbeReport(bytes.NewReader(out), target)
	if err != nil {
		return false, fmt.Errorf("%s: ask the kubelet whether it is well: what %s says: %w", n.Host.Name,
			site.HelperPath, err)
	}
	return report.Results[0].Status == http.StatusOK, nil
}
