package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const agentHealth = "127.0.0.1:9879"

// agent is the network of one node.
type agent struct {
	*clients
	config config
	pool   netip.Prefix
	health *health

	services, slices, nodes    cache.SharedIndexInformer
	policies, namespaces, pods cache.SharedIndexInformer

	installed table // in the kernel
	own       netip.Prefix
	routes    map[netip.Prefix]netip.Addr
	lastRules time.Time
	said      string
}

func runAgent(ctx context.Context, args []string) error {
	c, err := readConfig(args)
	if err != nil {
		return err
	}
	h := &health{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.serve(ctx, agentHealth) })
	log.Printf("cilium-agent %s on %s", version(), nodeName())
	if c[failKey] == "agent" {
		h.fail()
		return group.Wait()
	}
	pool, _, err := c.pool()
	if err != nil {
		return err
	}
	a := &agent{config: c, pool: pool, health: h}
	if a.clients, err = connect(); err != nil {
		return err
	}
	group.Go(func() error { return a.run(ctx) })
	return group.Wait()
}

// run works until ctx ends; what is set up then stays.
func (a *agent) run(ctx context.Context) error {
	changes, changed := signals()
	factory := informers.NewSharedInformerFactory(a.typed, 0)
	a.services = factory.Core().V1().Services().Informer()
	a.slices = factory.Discovery().V1().EndpointSlices().Informer()
	a.policies = factory.Networking().V1().NetworkPolicies().Informer()
	a.namespaces = factory.Core().V1().Namespaces().Informer()
	a.pods = factory.Core().V1().Pods().Informer()
	all := []cache.SharedIndexInformer{a.services, a.slices, a.policies, a.namespaces, a.pods}
	for _, informer := range all {
		if err := onChange(informer, changed); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())

	// The operator registers the type: without one the agent never gets ready.
	if err := a.waitFor(ctx, "wait for CiliumNodes", func() error { return a.register(ctx) }); err != nil {
		return nil // told to end
	}
	var err error
	if a.nodes, err = watchCiliumNodes(ctx, a.dynamic, changed); err != nil {
		return err
	}
	for _, informer := range append(all, a.nodes) {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil // told to end
		}
	}
	repeat(ctx, changes, 50*time.Millisecond, func() bool {
		err := a.sync(ctx)
		a.health.set(err)
		a.say(err)
		return err == nil
	})
	return nil
}

// waitFor is retry with the reason in the probe's answer.
func (a *agent) waitFor(ctx context.Context, what string, try func() error) error {
	return retry(ctx, what, func() error {
		err := try()
		if err != nil {
			a.health.set(fmt.Errorf("%s: %w", what, err))
		}
		return err
	})
}

// register makes this node's CiliumNode, or brings its address up to date.
func (a *agent) register(ctx context.Context) error {
	node, err := a.typed.CoreV1().Nodes().Get(ctx, nodeName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	address, err := internalAddress(node)
	if err != nil {
		return err
	}
	wanted := newCiliumNode(node, address)
	nodes := a.dynamic.Resource(ciliumNodes)
	present, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = nodes.Create(ctx, wanted, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if owners := present.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != node.UID {
		// Of another node with this name, which is about to be removed.
		return fmt.Errorf("CiliumNode %s belongs to an earlier node of that name", node.Name)
	}
	if _, known, _ := nodeRange(present); known == address {
		return nil
	}
	addresses, _, err := unstructured.NestedSlice(wanted.Object, "spec", "addresses")
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedSlice(present.Object, addresses, "spec", "addresses"); err != nil {
		return err
	}
	_, err = nodes.Update(ctx, present, metav1.UpdateOptions{})
	return err
}

// sync brings the node's network up to date.
func (a *agent) sync(ctx context.Context) error {
	var own netip.Prefix
	var address netip.Addr
	ranges := map[netip.Prefix]netip.Addr{}
	registered := false
	for _, object := range a.nodes.GetStore().List() {
		u := object.(*unstructured.Unstructured)
		cidr, at, ok := nodeRange(u)
		switch {
		case u.GetName() == nodeName():
			registered, own, address = true, cidr, at
		case ok:
			ranges[cidr] = at
		}
	}
	if !registered {
		if err := a.register(ctx); err != nil {
			return fmt.Errorf("register the node: %w", err)
		}
	}
	if !own.IsValid() {
		return fmt.Errorf("CiliumNode %s has no pod CIDR yet", nodeName())
	}
	if own != a.own {
		log.Printf("pod CIDR %s", own)
	}
	// As root of the network namespace, not of the container, whose /proc/sys is read-only.
	if err := os.WriteFile("/host/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0); err != nil {
		return fmt.Errorf("turn on forwarding: %w", err)
	}
	mtu, err := mtuOf(address)
	if err != nil {
		return err
	}
	if err := syncRoutes(a.pool, own, address, ranges); err != nil {
		return err
	}
	if !maps.Equal(ranges, a.routes) {
		log.Printf("routes to %d other nodes", len(ranges))
		a.routes = ranges
	}
	t := a.table(address, ranges)
	// Now and then without a change too: someone may have flushed the rules.
	if own != a.own || !reflect.DeepEqual(t, a.installed) || time.Since(a.lastRules) > 55*time.Second {
		if err := installRules(t, own, a.pool); err != nil {
			return err
		}
		if !reflect.DeepEqual(t, a.installed) {
			log.Printf("rules for %d service addresses and %d directions of pods with policies", len(t.Frontends), len(t.Filters))
		}
		a.installed, a.own, a.lastRules = t, own, time.Now()
	}
	name := a.config["write-cni-conf-when-ready"]
	if name == "" {
		name = "/host/etc/cni/net.d/05-cilium.conflist"
	}
	return writeNetworkConfig(name, own, mtu-tunnelOverhead, a.config["cni-exclusive"] == "true")
}

// table is what the cluster's objects say that this node forwards. ranges has the other
// nodes' addresses.
func (a *agent) table(address netip.Addr, ranges map[netip.Prefix]netip.Addr) table {
	t := newTable(list[*corev1.Service](a.services), list[*discoveryv1.EndpointSlice](a.slices), nodeName())
	cluster := []netip.Prefix{a.pool}
	for _, node := range append(slices.Collect(maps.Values(ranges)), address) {
		cluster = append(cluster, netip.PrefixFrom(node, 32))
	}
	slices.SortFunc(cluster, netip.Prefix.Compare)
	t.Filters = policies{
		Policies: list[*networkingv1.NetworkPolicy](a.policies), Namespaces: list[*corev1.Namespace](a.namespaces),
		Pods: list[*corev1.Pod](a.pods), Cluster: cluster,
	}.filters(nodeName())
	return t
}

func list[T any](informer cache.SharedIndexInformer) []T {
	var objects []T
	for _, object := range informer.GetStore().List() {
		objects = append(objects, object.(T))
	}
	return objects
}

// say logs an error once, and once that it is over.
func (a *agent) say(err error) {
	text := "ready"
	if err != nil {
		text = err.Error()
	}
	if text != a.said {
		log.Print(text)
		a.said = text
	}
}
