// Package controller stands in for LiteBoxd's network-controller, which is the API's image
// with another argument: it keeps one CiliumNetworkPolicy for each sandbox that may reach only some
// domains.
package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/kube"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

// policies are Cilium's network policies.
var policies = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnetworkpolicies"}

const policyPrefix = "sandbox-egress-allowlist-"

type controller struct {
	*edge.Settings
	store    *store.Store
	client   kubernetes.Interface
	policies dynamic.ResourceInterface
	interval time.Duration
}

// Run is the network-controller until ctx ends. It has no port and no probes.
func Run(ctx context.Context, release edge.Release, settings *edge.Settings) (err error) {
	interval, err := settings.Duration("NETWORK_POLICY_RECONCILE_INTERVAL", 10*time.Second)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, settings.DataDir, release.Schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	config, err := kube.Connect(settings.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	resources, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	c := &controller{settings, db, client, resources.Resource(policies).Namespace(settings.SandboxNamespace), interval}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	c.run(ctx)
	return nil
}

// prepare fails without the rights that the controller needs.
func (c *controller) prepare(ctx context.Context) error {
	if err := kube.EnsureNamespace(ctx, c.client, c.SandboxNamespace); err != nil {
		return err
	}
	return kube.Require(ctx, c.client, []kube.Rights{{
		Namespace: c.SandboxNamespace, Resource: "ciliumnetworkpolicies.cilium.io", Verbs: "get list watch create delete update patch",
	}})
}

// run reconciles at every interval, and whenever a policy changes.
func (c *controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		version, err := c.reconcile(ctx)
		if err == nil {
			err = c.wait(ctx, version)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.Log.Error("reconcile failed", "error", err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(c.interval):
		}
	}
}

// wait returns when a policy has changed or the interval is over.
func (c *controller) wait(ctx context.Context, version string) error {
	seconds := max(int64(c.interval.Seconds()), 1)
	watcher, err := c.policies.Watch(ctx, metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watch network policies: %w", err)
	}
	defer watcher.Stop()
	select {
	case <-ctx.Done():
	case <-watcher.ResultChan():
	}
	return nil
}

// reconcile makes the policies that are missing, deletes those whose sandbox is gone, and
// returns the version of what it saw.
func (c *controller) reconcile(ctx context.Context) (version string, err error) {
	sandboxes, err := c.store.Sandboxes(ctx)
	if err != nil {
		return "", fmt.Errorf("list sandboxes: %w", err)
	}
	wanted := map[string]*unstructured.Unstructured{}
	for _, b := range sandboxes {
		if len(b.AllowedDomains) > 0 {
			wanted[policyPrefix+b.ID] = policy(b)
		}
	}
	list, err := c.policies.List(ctx, metav1.ListOptions{LabelSelector: "app=liteboxd"})
	if err != nil {
		return "", fmt.Errorf("list network policies: %w", err)
	}
	for _, found := range list.Items {
		name := found.GetName()
		if _, ok := wanted[name]; !ok {
			if err := c.policies.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return "", fmt.Errorf("delete network policy %s: %w", name, err)
			}
		}
		delete(wanted, name)
	}
	for name, p := range wanted {
		if _, err := c.policies.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return "", fmt.Errorf("make network policy %s: %w", name, err)
		}
	}
	return list.GetResourceVersion(), nil
}

// policy lets a sandbox reach its domains, and the DNS that it needs for it.
func policy(b store.Sandbox) *unstructured.Unstructured {
	var domains []any
	for _, domain := range b.AllowedDomains {
		domains = append(domains, map[string]any{"matchName": domain})
	}
	ports := func(numbers ...string) []any {
		var list []any
		for _, n := range numbers {
			list = append(list, map[string]any{"port": n, "protocol": "ANY"})
		}
		return list
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": policies.GroupVersion().String(), "kind": "CiliumNetworkPolicy",
		"metadata": map[string]any{"name": policyPrefix + b.ID, "labels": map[string]any{"app": "liteboxd", "sandbox-id": b.ID}},
		"spec": map[string]any{
			"endpointSelector": map[string]any{"matchLabels": map[string]any{"sandbox-id": b.ID}},
			"egress": []any{
				map[string]any{"toFQDNs": domains, "toPorts": []any{map[string]any{"ports": ports("80", "443")}}},
				map[string]any{
					"toEndpoints": []any{map[string]any{"matchLabels": map[string]any{
						"k8s:io.kubernetes.pod.namespace": "kube-system", "k8s-app": "kube-dns"}}},
					"toPorts": []any{map[string]any{"ports": ports("53"), "rules": map[string]any{"dns": []any{map[string]any{"matchPattern": "*"}}}}},
				},
			},
		},
	}}
}
