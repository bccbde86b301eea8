package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const operatorHealth = "127.0.0.1:9234"

var customResources = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// resourceTypes are those of Cilium's that something may want to make objects of. Their
// schemas are left open.
var resourceTypes = []struct {
	kind, plural string
	namespaced   bool
}{
	{"CiliumNode", "ciliumnodes", false},
	{"CiliumEndpoint", "ciliumendpoints", true},
	{"CiliumIdentity", "ciliumidentities", false},
	{"CiliumNetworkPolicy", "ciliumnetworkpolicies", true},
	{"CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicies", false},
	{"CiliumEgressGatewayPolicy", "ciliumegressgatewaypolicies", false},
	{"CiliumCIDRGroup", "ciliumcidrgroups", false},
	{"CiliumNodeConfig", "ciliumnodeconfigs", true},
	{"CiliumLocalRedirectPolicy", "ciliumlocalredirectpolicies", true},
}

type operator struct {
	*clients
	pool     netip.Prefix
	bits     int
	taint    string // key
	setTaint bool

	pods, nodes, ciliumNodes cache.SharedIndexInformer
}

func runOperator(ctx context.Context, args []string) error {
	c, err := readConfig(args)
	if err != nil {
		return err
	}
	h := &health{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.serve(ctx, operatorHealth) })
	log.Printf("cilium-operator-generic %s on %s", version(), nodeName())
	if c[failKey] == "operator" {
		h.fail()
		return group.Wait()
	}
	o := &operator{taint: c["agent-not-ready-taint-key"], setTaint: c["set-cilium-node-taints"] == "true"}
	if o.taint == "" {
		o.taint = "node.cilium.io/agent-not-ready"
	}
	if o.pool, o.bits, err = c.pool(); err != nil {
		return err
	}
	if o.clients, err = connect(); err != nil {
		return err
	}
	group.Go(func() error {
		if err := retry(ctx, "register resource types", func() error { return o.registerTypes(ctx) }); err != nil {
			return nil // told to end
		}
		h.set(nil)
		return o.lead(ctx)
	})
	return group.Wait()
}

func (o *operator) registerTypes(ctx context.Context) error {
	for _, t := range resourceTypes {
		scope := "Cluster"
		if t.namespaced {
			scope = "Namespaced"
		}
		_, err := o.dynamic.Resource(customResources).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1",
			"kind":       "CustomResourceDefinition",
			"metadata":   map[string]any{"name": t.plural + ".cilium.io"},
			"spec": map[string]any{
				"group": "cilium.io",
				"scope": scope,
				"names": map[string]any{"kind": t.kind, "plural": t.plural, "singular": strings.ToLower(t.kind)},
				"versions": []any{map[string]any{
					"name": "v2", "served": true, "storage": true,
					"schema":       map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
					"subresources": map[string]any{"status": map[string]any{}},
				}},
			},
		}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	_, err := o.dynamic.Resource(ciliumNodes).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// lead works while this operator is the one that leads.
func (o *operator) lead(ctx context.Context) error {
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace(), Name: "cilium-operator-resource-lock"},
			Client:     o.typed.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: nodeName()},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer cancel()
				failed = o.run(ctx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if failed == nil && ctx.Err() == nil {
		failed = errors.New("this operator does not lead any more")
	}
	return failed
}

func (o *operator) run(ctx context.Context) error {
	log.Print("leads")
	changes, changed := signals()
	factory := informers.NewSharedInformerFactory(o.typed, 0)
	agents := informers.NewSharedInformerFactoryWithOptions(o.typed, 0, informers.WithNamespace(namespace()),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = "k8s-app=cilium" }))
	o.nodes = factory.Core().V1().Nodes().Informer()
	o.pods = agents.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{o.nodes, o.pods} {
		if err := onChange(informer, changed); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	agents.Start(ctx.Done())
	var err error
	if o.ciliumNodes, err = watchCiliumNodes(ctx, o.dynamic, changed); err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), o.nodes.HasSynced, o.pods.HasSynced, o.ciliumNodes.HasSynced) {
		return nil // told to end
	}
	repeat(ctx, changes, 50*time.Millisecond, func() bool {
		err := errors.Join(o.giveRanges(ctx), o.markNodes(ctx))
		if err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		return err == nil
	})
	return nil
}

// giveRanges gives a range to each CiliumNode without one.
func (o *operator) giveRanges(ctx context.Context) error {
	var used []netip.Prefix
	var without []*unstructured.Unstructured
	// From the API, not from what was seen last: a range must never be given twice.
	list, err := o.dynamic.Resource(ciliumNodes).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CiliumNodes: %w", err)
	}
	for i := range list.Items {
		if own, ok := podCIDR(&list.Items[i]); ok {
			used = append(used, own)
		} else {
			without = append(without, &list.Items[i])
		}
	}
	for _, u := range without {
		free, err := freeRange(o.pool, o.bits, used)
		if err != nil {
			return err
		}
		if err := unstructured.SetNestedStringSlice(u.Object, []string{free.String()}, "spec", "ipam", "podCIDRs"); err != nil {
			return err
		}
		if _, err := o.dynamic.Resource(ciliumNodes).Update(ctx, u, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("give a pod CIDR to %s: %w", u.GetName(), err)
		}
		used = append(used, free)
		log.Printf("%s has pod CIDR %s", u.GetName(), free)
	}
	return nil
}

// freeRange is the first range of the pool with so many bits that overlaps with none that
// is used.
func freeRange(pool netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, error) {
	for address := pool.Addr(); pool.Contains(address); {
		candidate := netip.PrefixFrom(address, bits)
		if !slices.ContainsFunc(used, candidate.Overlaps) {
			return candidate, nil
		}
		last := address.As4()
		step := uint32(1) << (32 - bits)
		n := uint32(last[0])<<24 | uint32(last[1])<<16 | uint32(last[2])<<8 | uint32(last[3])
		if n+step < n {
			break
		}
		n += step
		address = netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return netip.Prefix{}, fmt.Errorf("the pool %s has no range of /%d left", pool, bits)
}

// markNodes says on each node that has an agent whether that agent is ready: by the
// NetworkUnavailable condition, and by the taint that keeps pods away.
func (o *operator) markNodes(ctx context.Context) error {
	ready := map[string]bool{}
	for _, object := range o.pods.GetStore().List() {
		pod := object.(*corev1.Pod)
		if pod.Spec.NodeName == "" {
			continue
		}
		// One of two pods on a node is enough: the other one is ending.
		ready[pod.Spec.NodeName] = ready[pod.Spec.NodeName] || isReady(pod)
	}
	var errs []error
	for _, object := range o.nodes.GetStore().List() {
		node := object.(*corev1.Node)
		up, hasAgent := ready[node.Name]
		if !hasAgent {
			continue
		}
		if err := o.markNode(ctx, node, up); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("mark node %s: %w", node.Name, err))
		}
	}
	return errors.Join(errs...)
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (o *operator) markNode(ctx context.Context, node *corev1.Node, up bool) error {
	taints, changed := nodeTaints(node.Spec.Taints, o.taint, up, o.setTaint)
	if changed {
		patch, err := json.Marshal(map[string]any{
			// The list is replaced as a whole: never one that has changed meanwhile.
			"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": taints},
		})
		if err != nil {
			return err
		}
		if _, err := o.typed.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
		log.Printf("node %s: agent ready: %v", node.Name, up)
	}
	available := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	})
	if !up || available {
		return nil
	}
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "CiliumIsUp",
		Message: "Cilium is running on this node", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return err
	}
	_, err = o.typed.CoreV1().Nodes().PatchStatus(ctx, node.Name, patch)
	return err
}

// nodeTaints gives the taints that a node should have.
func nodeTaints(present []corev1.Taint, key string, up, set bool) (wanted []corev1.Taint, changed bool) {
	isOurs := func(t corev1.Taint) bool { return t.Key == key }
	switch has := slices.ContainsFunc(present, isOurs); {
	case up && has:
		return slices.DeleteFunc(slices.Clone(present), isOurs), true
	case !up && !has && set:
		return append(slices.Clone(present), corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}), true
	}
	return present, false
}
