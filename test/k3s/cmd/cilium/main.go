// Command cilium stands in for Cilium's programs in tests: cilium-agent,
// cilium-operator-generic, cilium-envoy and what the chart's init containers call. Which
// one it is follows from the name under which it is started. The charts that install it
// are Cilium's own, and so are the rights, the probes and the configuration that it works
// with; the images that it is in are not.
//
// What it does as Cilium would: the operator registers Cilium's resource types, gives each
// CiliumNode a range of the cluster's pool, keeps the agent-not-ready taint and the
// NetworkUnavailable condition; the agent gets its range through its CiliumNode, answers
// its probe only when the node's network works, writes /host/etc/cni/net.d/05-cilium.conflist
// only then, sends what goes to other nodes through a VXLAN tunnel on Cilium's port,
// implements Services in place of kube-proxy, and drops what NetworkPolicies do not allow:
// address blocks never mean pods and nodes, and a node always reaches its own pods.
//
// What it does in another way: pods are plugged in by the reference plugins ptp,
// host-local and portmap, which the host must have in /opt/cni/bin; the tunnel is used
// whatever routing-mode is; Services and masquerading are nftables rules. Traffic to the
// pool or to a cluster address that leads nowhere is refused on the node and never leaves it.
//
// Policies apply to connections that begin after them, and to a pod from the moment when its
// address is known to the API server, which is shortly after it starts.
//
// What it does not do: IPv6, CiliumNetworkPolicies, named ports in egress rules, egress
// gateways, Hubble, encryption, health checks between nodes, node ports on the loopback
// address, and restarting pods that were started before it.
//
// The chart value extraConfig.boxlift-test-fail makes it fail on purpose: "agent" or
// "operator" names the program whose probe then answers 500 for ever. That program
// touches nothing else.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	switch name := filepath.Base(args[0]); name {
	case "cilium-agent":
		return runAgent(ctx, args[1:])
	case "cilium-operator-generic", "cilium-operator":
		return runOperator(ctx, args[1:])
	case "cilium-envoy-starter", "cilium-envoy":
		return runEnvoy(ctx)
	case "cilium-dbg", "cilium":
		return runDebug(ctx, args[1:])
	case "sh", "bash":
		// The pre-flight pods do their checks in init containers and then sleep.
		if strings.Contains(strings.Join(args[1:], " "), "sleep") {
			<-ctx.Done()
		}
	}
	return nil // all else is preparation that this agent does not need
}

// runEnvoy answers the probe.
func runEnvoy(ctx context.Context) error {
	h := &health{}
	h.set(nil)
	return h.serve(ctx, "127.0.0.1:9878")
}

func runDebug(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return nil
	}
	switch args[0] {
	case "build-config":
		return buildConfig(ctx, configDir)
	case "version":
		fmt.Println("Client:", version())
		return nil
	}
	return nil
}

// version is that of the image, which the program is not built for.
func version() string {
	data, err := os.ReadFile("/etc/cilium-version")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
