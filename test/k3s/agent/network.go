package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const networkConfig = `{
  "cniVersion": "0.4.0",
  "name": "cbr0",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "mtu": 1500,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// podNetwork stands for flannel: a bridge per node, and routes to the other
// nodes' pods through their addresses.
func (a *Agent) podNetwork(ctx context.Context, dir string) {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		logrus.Errorf("Failed to turn forwarding on: %v", err)
	}
	for {
		if err := a.updateNetwork(ctx, dir); err != nil {
			logrus.Warnf("Failed to set up the pod network: %v", err)
		}
		if !Sleep(ctx, 2*time.Second) {
			return
		}
	}
}

func (a *Agent) updateNetwork(ctx context.Context, dir string) error {
	config, err := clientcmd.BuildConfigFromFlags("", a.path("kubeproxy.kubeconfig")) // a kubelet may not list nodes
	if err != nil {
		return err
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		if node.Spec.PodCIDR == "" {
			continue
		}
		if node.Name == a.node.Name {
			text := fmt.Sprintf(networkConfig, node.Spec.PodCIDR)
			path := filepath.Join(dir, "10-flannel.conflist")
			if old, err := os.ReadFile(path); err == nil && string(old) == text {
				continue
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
				return err
			}
			if err := os.Rename(path+".new", path); err != nil {
				return err
			}
			// The other nodes' pods keep their addresses on the way here.
			_ = exec.Command("iptables", "-t", "nat", "-D", "POSTROUTING", "-s", a.config.ClusterCIDR, "-d", a.config.ClusterCIDR, "-j", "ACCEPT").Run()
			if out, err := exec.Command("iptables", "-t", "nat", "-I", "POSTROUTING", "-s", a.config.ClusterCIDR, "-d", a.config.ClusterCIDR, "-j", "ACCEPT").CombinedOutput(); err != nil {
				return fmt.Errorf("iptables: %w: %s", err, strings.TrimSpace(string(out)))
			}
			continue
		}
		for _, address := range node.Status.Addresses {
			if address.Type == "InternalIP" {
				if out, err := exec.Command("ip", "route", "replace", node.Spec.PodCIDR, "via", address.Address).CombinedOutput(); err != nil {
					return fmt.Errorf("route to %s: %w: %s", node.Name, err, strings.TrimSpace(string(out)))
				}
				break
			}
		}
	}
	return nil
}
