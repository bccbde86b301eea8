package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// configDir is where the chart has the agent look for its configuration: one file a key.
const configDir = "/tmp/cilium/config-map"

// failKey of the configuration names the program that is to fail.
const failKey = "boxlift-test-fail"

// config is what ConfigMap cilium-config says.
type config map[string]string

// readConfig reads the folder that the argument --config-dir names.
func readConfig(args []string) (config, error) {
	dir := configDir
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--config-dir="); ok {
			dir = value
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	c := config{}
	for _, entry := range entries {
		// A ConfigMap's volume has folders for its own use.
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		value, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		c[entry.Name()] = strings.TrimSpace(string(value))
	}
	return c, nil
}

// pool is the range that pods' addresses come from, and the size of one node's part.
func (c config) pool() (pool netip.Prefix, bits int, err error) {
	if mode := c["ipam"]; mode != "cluster-pool" {
		return pool, 0, fmt.Errorf("ipam is %q: only cluster-pool is implemented", mode)
	}
	// A list has its first range used.
	first, _, _ := strings.Cut(strings.ReplaceAll(c["cluster-pool-ipv4-cidr"], ",", " "), " ")
	if pool, err = netip.ParsePrefix(first); err != nil || !pool.Addr().Is4() {
		return pool, 0, fmt.Errorf("cluster-pool-ipv4-cidr is %q, no IPv4 range: %w", c["cluster-pool-ipv4-cidr"], err)
	}
	bits, err = strconv.Atoi(c["cluster-pool-ipv4-mask-size"])
	if err != nil || bits < pool.Bits() || bits > 30 {
		return pool, 0, fmt.Errorf("cluster-pool-ipv4-mask-size is %q, which does not fit %s", c["cluster-pool-ipv4-mask-size"], pool)
	}
	return pool.Masked(), bits, nil
}

// clients are the cluster as the pod's service account sees it, under the address in
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which the chart sets.
type clients struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

func connect() (*clients, error) {
	c, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	c.UserAgent = "cilium-standin"
	typed, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	untyped, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return &clients{typed: typed, dynamic: untyped}, nil
}

func nodeName() string { return os.Getenv("K8S_NODE_NAME") }

func namespace() string {
	if ns := os.Getenv("CILIUM_K8S_NAMESPACE"); ns != "" {
		return ns
	}
	return metav1.NamespaceSystem
}

// buildConfig writes ConfigMap cilium-config into dir, as the agent's first init container.
func buildConfig(ctx context.Context, dir string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	var data map[string]string
	err = retry(ctx, "read ConfigMap cilium-config", func() error {
		configMap, err := c.typed.CoreV1().ConfigMaps(namespace()).Get(ctx, "cilium-config", metav1.GetOptions{})
		if err == nil {
			data = configMap.Data
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for key, value := range data {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(key)), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// retry tries each second until it works or ctx ends, and logs what kept it.
func retry(ctx context.Context, what string, try func() error) error {
	said := ""
	for {
		err := try()
		if err == nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			log.Printf("%s: %v: trying again", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(time.Second):
		}
	}
}
