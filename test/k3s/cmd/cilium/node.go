package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

var ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

// newCiliumNode is the CiliumNode of a node. It goes when the node goes.
func newCiliumNode(node *corev1.Node, address netip.Addr) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2",
		"kind":       "CiliumNode",
		"metadata": map[string]any{
			"name": node.Name,
			"ownerReferences": []any{map[string]any{
				"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": string(node.UID),
			}},
		},
		"spec": map[string]any{
			"addresses": []any{map[string]any{"type": string(corev1.NodeInternalIP), "ip": address.String()}},
			"ipam":      map[string]any{},
		},
	}}
}

// internalAddress is the IPv4 address under which other nodes reach the node.
func internalAddress(node *corev1.Node) (netip.Addr, error) {
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if address, err := netip.ParseAddr(a.Address); err == nil && address.Is4() {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s has no IPv4 InternalIP", node.Name)
}

// nodeRange is the part of the pool in a CiliumNode, and the address of its node.
func nodeRange(u *unstructured.Unstructured) (own netip.Prefix, address netip.Addr, ok bool) {
	list, _, err := unstructured.NestedSlice(u.Object, "spec", "addresses")
	if err != nil {
		return own, address, false
	}
	for _, entry := range list {
		if m, isMap := entry.(map[string]any); isMap && m["type"] == string(corev1.NodeInternalIP) && !address.IsValid() {
			text, _ := m["ip"].(string)
			if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
				address = a
			}
		}
	}
	own, ok = podCIDR(u)
	return own, address, ok && address.IsValid()
}

func podCIDR(u *unstructured.Unstructured) (netip.Prefix, bool) {
	list, _, err := unstructured.NestedStringSlice(u.Object, "spec", "ipam", "podCIDRs")
	if err != nil || len(list) == 0 {
		return netip.Prefix{}, false
	}
	own, err := netip.ParsePrefix(list[0])
	return own.Masked(), err == nil && own.Addr().Is4()
}

// watchCiliumNodes gives a running informer for CiliumNodes, whose changes call changed.
// The type must be registered.
func watchCiliumNodes(ctx context.Context, c dynamic.Interface, changed func()) (cache.SharedIndexInformer, error) {
	nodes := c.Resource(ciliumNodes)
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	if err := onChange(informer, changed); err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	return informer, nil
}

// onChange calls changed for every change that the informer sees.
func onChange(informer cache.SharedIndexInformer, changed func()) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	return err
}

// signals gives a channel that has a value whenever trigger was called since the last
// value was taken.
func signals() (c chan struct{}, trigger func()) {
	c = make(chan struct{}, 1)
	return c, func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// repeat calls do at each signal, settle after it so that changes that come together are
// one, each minute, and again after a second where do says false.
func repeat(ctx context.Context, c <-chan struct{}, settle time.Duration, do func() bool) {
	for {
		next := time.Minute
		if !do() {
			next = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		case <-c:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
	}
}
