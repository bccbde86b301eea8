package site

import (
	"context"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// K3sVersion reads the second word of "k3s version v1.36.4+k3s1 (...)".
func (h *Host) K3sVersion(ctx context.Context) (string, error) {
	out, err := h.Root(ctx, "ask k3s for its version", K3sBinary, "--version")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[0] != "k3s" || fields[1] != "version" {
		return "", fmt.Errorf("ask k3s for its version: it printed %.200q", out)
	}
	return printable.Short(fields[2], 100), nil
}

// ReadyWith says what a node, nil for one that is not registered, lacks to be Ready with a
// version of k3s.
func ReadyWith(k3s string) func(*kube.Node) string {
	return func(n *kube.Node) string {
		switch {
		case n == nil:
			return "its node is not registered in the cluster"
		case n.Kubelet != k3s:
			return fmt.Sprintf("its node %s runs %s, and is to run %s", n.Name, n.Kubelet, k3s)
		case !n.Ready:
			return fmt.Sprintf("its node %s is not Ready: %s", n.Name, n.Reason)
		}
		return ""
	}
}
