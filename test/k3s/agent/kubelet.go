package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func (a *Agent) startKubelet(context.Context) error {
	resolvConf, err := a.resolvConf()
	if err != nil {
		return err
	}
	manifests := a.path("pod-manifests")
	config := a.path("etc", "kubelet.conf.d", "00-k3s-defaults.conf")
	for _, dir := range []string{manifests, filepath.Dir(config)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The disk under the hosts is shared, so little of it may be free without
	// anything being wrong.
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: %s
authorization:
  mode: Webhook
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [%s]
clusterDomain: %s
containerRuntimeEndpoint: unix:///run/k3s/containerd/containerd.sock
evictionHard:
  imagefs.available: 1%%
  nodefs.available: 1%%
  memory.available: 50Mi
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
healthzBindAddress: 127.0.0.1
protectKernelDefaults: %t
readOnlyPort: 0
resolvConf: %s
serializeImagePulls: false
shutdownGracePeriod: 0s
staticPodPath: %s
tlsCertFile: %s
tlsPrivateKeyFile: %s
`, a.path("client-ca.crt"), a.config.ClusterDNS, a.config.ClusterDomain, a.Settings.Bool("protect-kernel-defaults"), resolvConf,
		manifests, a.path("serving-kubelet.crt"), a.path("serving-kubelet.key"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	labels := append([]string{"node.kubernetes.io/instance-type=k3s"}, a.Settings.List("node-label")...)
	args := []string{"kubelet", "--config=" + config, "--kubeconfig=" + a.path("kubelet.kubeconfig"),
		"--hostname-override=" + a.node.Name, "--node-ip=" + a.node.IP, "--cert-dir=" + a.path(),
		"--node-labels=" + strings.Join(labels, ",")}
	if taints := a.Settings.List("node-taint"); len(taints) > 0 {
		args = append(args, "--register-with-taints="+strings.Join(taints, ","))
	}
	args = append(args, Args(a.Settings.List("kubelet-arg"))...)
	return a.start("kubelet", args)
}

// resolvConf is the file with the pods' name servers. As in k3s, a host whose
// own files name no usable one gets a file of ours.
func (a *Agent) resolvConf() (string, error) {
	if path := a.Settings.Get("resolv-conf", ""); path != "" {
		return path, nil
	}
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		if text, err := os.ReadFile(path); err == nil && usable(string(text)) {
			return path, nil
		}
	}
	path := a.path("etc", "resolv.conf")
	return path, os.WriteFile(path, []byte("nameserver 8.8.8.8\nnameserver 2001:4860:4860::8888\n"), 0o644)
}

func usable(resolvConf string) bool {
	servers := 0
	for line := range strings.Lines(resolvConf) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if ip := net.ParseIP(fields[1]); ip == nil || !ip.IsGlobalUnicast() {
			return false
		}
		servers++
	}
	return servers > 0
}

// waitKubelet returns when the kubelet answers.
func (a *Agent) waitKubelet(ctx context.Context) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close() // only the status counts
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// awaitNode calls NodeSeen when the cluster has the node's object.
func (a *Agent) awaitNode(ctx context.Context) {
	for {
		err := a.lookForNode(ctx)
		if err == nil {
			a.NodeSeen()
			return
		}
		logrus.Infof("Waiting for the node %s: %v", a.node.Name, err)
		if !Sleep(ctx, time.Second) {
			return
		}
	}
}

func (a *Agent) lookForNode(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", a.path("kubelet.kubeconfig"))
	if err != nil {
		return err
	}
	cluster, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = cluster.CoreV1().Nodes().Get(ctx, a.node.Name, metav1.GetOptions{})
	return err
}
