// Package controller stands in for LiteBoxd's network-controller, which is the API's image
// with another argument: it keeps one CiliumNetworkPolicy for each sandbox that may reach only some
// domains.
package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// reconcile writes the policies of all sandboxes that are to have one, as a whole, deletes those of
// others, and returns the version of what it saw. They are told by their names: they have no labels.
func (c *controller) reconcile(ctx context.Context) (version string, err error) {
	sandboxes, err := c.store.Sandboxes(ctx)
	if err != nil {
		return "", fmt.Errorf("list sandboxes: %w", err)
	}
	wanted := map[string]bool{}
	for _, b := range sandboxes {
		if len(b.AllowedDomains) == 0 || b.Status == "failed" {
			continue
		}
		p := policy(b)
		wanted[p.GetName()] = true
		if err := c.write(ctx, p); err != nil {
			return "", fmt.Errorf("write network policy %s: %w", p.GetName(), err)
		}
	}
	list, err := c.policies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list network policies: %w", err)
	}
	for _, found := range list.Items {
		name := found.GetName()
		if !strings.HasPrefix(name, policyPrefix) || wanted[name] {
			continue
		}
		if err := c.policies.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return "", fmt.Errorf("delete network policy %s: %w", name, err)
		}
	}
	return list.GetResourceVersion(), nil
}

// write replaces a policy, of which nothing but the resourceVersion stays.
func (c *controller) write(ctx context.Context, p *unstructured.Unstructured) error {
	is, err := c.policies.Get(ctx, p.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.policies.Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	p.SetResourceVersion(is.GetResourceVersion())
	_, err = c.policies.Update(ctx, p, metav1.UpdateOptions{})
	return err
}

// policy lets a sandbox reach its domains, and the DNS that it needs for it.
func policy(b store.Sandbox) *unstructured.Unstructured {
	var domains []any
	for _, domain := range b.AllowedDomains {
		kind := "matchName"
		if strings.HasPrefix(domain, "*.") {
			kind = "matchPattern"
		}
		domains = append(domains, map[string]any{kind: domain})
	}
	port := func(number, protocol string) map[string]any {
		return map[string]any{"port": number, "protocol": protocol}
	}
	toPorts := func(ports ...any) []any { return []any{map[string]any{"ports": ports}} }
	dns := map[string]any{"matchLabels": map[string]any{"k8s-app": "kube-dns", "io.kubernetes.pod.namespace": "kube-system"}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": policies.GroupVersion().String(), "kind": "CiliumNetworkPolicy",
		"metadata": map[string]any{"name": policyPrefix + b.ID},
		"spec": map[string]any{
			"endpointSelector": map[string]any{"matchLabels": map[string]any{"app": "liteboxd", "sandbox-id": b.ID}},
			"egress": []any{
				map[string]any{"toFQDNs": domains, "toPorts": toPorts(port("443", "TCP"), port("80", "TCP"))},
				map[string]any{"toEndpoints": []any{dns}, "toPorts": toPorts(port("53", "UDP"), port("53", "TCP"))},
			},
		},
	}}
}
