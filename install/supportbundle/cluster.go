package supportbundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/liteboxd/boxlift/install/kube/dump"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/redact"
)

// ErrUnreached is wrapped by errors that say that there was no API to collect from.
var ErrUnreached = fault.NewKind(fault.Host, "the cluster's API was not reached")

// resources are the objects that are collected whole, but for what [prune] takes out.
var resources = []dump.Resource{
	{Version: "v1", Name: "nodes"},
	{Version: "v1", Name: "namespaces"},
	{Version: "v1", Name: "pods"},
	{Version: "v1", Name: "events"},
	{Version: "v1", Name: "services"},
	{Version: "v1", Name: "persistentvolumes"},
	{Version: "v1", Name: "persistentvolumeclaims"},
	{Version: "v1", Name: "resourcequotas"},
	{Version: "v1", Name: "limitranges"},
	{Group: "apps", Version: "v1", Name: "deployments"},
	{Group: "apps", Version: "v1", Name: "daemonsets"},
	{Group: "apps", Version: "v1", Name: "statefulsets"},
	{Group: "apps", Version: "v1", Name: "replicasets"},
	{Group: "batch", Version: "v1", Name: "jobs"},
	{Group: "batch", Version: "v1", Name: "cronjobs"},
	{Group: "networking.k8s.io", Version: "v1", Name: "ingresses"},
	{Group: "networking.k8s.io", Version: "v1", Name: "ingressclasses"},
	{Group: "networking.k8s.io", Version: "v1", Name: "networkpolicies"},
	{Group: "discovery.k8s.io", Version: "v1", Name: "endpointslices"},
	{Group: "storage.k8s.io", Version: "v1", Name: "storageclasses"},
	{Group: "policy", Version: "v1", Name: "poddisruptionbudgets"},
	{Group: "cilium.io", Version: "v2", Name: "ciliumnodes"},
	{Group: "cilium.io", Version: "v2", Name: "ciliumnetworkpolicies"},
	{Group: "cilium.io", Version: "v2", Name: "ciliumclusterwidenetworkpolicies"},
}

// harmlessConfigMaps are those whose values are known to be settings without secrets, by namespace and name.
var harmlessConfigMaps = [][2]string{{"kube-system", "cilium-config"}, {"kube-system", "coredns"}}

// fromCluster collects from the API. unreached is why there is none; err is of the archive.
func (c *Collector) fromCluster(ctx context.Context, a *archive.Writer) (unreached, err error) {
	task := c.Site.Reporter.Task("collect from the cluster", 0)
	defer func() { task.Done(errors.Join(unreached, err)) }()
	err = a.AddJSON(ctx, archive.Item{Path: "cluster/version.json", Source: "/version"},
		func(ctx context.Context) (any, error) {
			if err := c.reach(ctx); err != nil {
				unreached = err
				return nil, err
			}
			version, err := c.Site.API.Version(ctx)
			return map[string]string{"version": version, "through": c.Site.APIServer.Name}, err
		})
	if unreached != nil || err != nil {
		return unreached, err
	}
	api := c.Site.API
	err = a.Add(ctx, archive.Item{Path: "cluster/readyz.txt", Source: "/readyz?verbose"}, maxItem,
		func(ctx context.Context, w io.Writer) (archive.Cut, error) {
			text, err := dump.Readiness(ctx, api)
			_, writeErr := io.WriteString(w, text)
			return archive.Whole, errors.Join(err, writeErr)
		})
	for _, r := range resources {
		if err != nil {
			return nil, err
		}
		err = c.values(ctx, a, r.Name, r.Path(), func(ctx context.Context, put func(map[string]any) error) error {
			err := dump.Objects(ctx, api, r, func(o map[string]any) error {
				prune(o)
				return put(o)
			})
			if errors.Is(err, dump.ErrNoResource) {
				return archive.ErrAbsent
			}
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(c.outlines(ctx, a, "secrets"), c.helm(ctx, a), c.outlines(ctx, a, "configmaps"),
		c.settings(ctx, a), c.record(ctx, a))
}

// reach finds a server whose API answers.
func (c *Collector) reach(ctx context.Context) error {
	err := c.Engine.ReachAPI(ctx, c.Site.Servers())
	if err == nil && c.Site.API == nil {
		err = site.ErrNoCluster
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	return nil
}

// values collects a list of the cluster's.
func (c *Collector) values(ctx context.Context, a *archive.Writer, name, source string,
	each func(context.Context, func(map[string]any) error) error) error {
	return a.Values(ctx, archive.Item{Path: "cluster/" + name + ".json", Source: source}, maxObjects,
		func(ctx context.Context, put func(map[string]any) error) error {
			ctx, cancel := context.WithTimeoutCause(ctx, c.ItemTimeout, fmt.Errorf("given up after %v", c.ItemTimeout))
			defer cancel()
			return each(ctx, put)
		})
}

// maxObjects bounds the objects of a kind, in bytes of JSON.
const maxObjects = 32 << 20

// outlines collects what there is of Secrets or ConfigMaps without their contents.
func (c *Collector) outlines(ctx context.Context, a *archive.Writer, resource string) error {
	return c.values(ctx, a, resource, "/api/v1/"+resource+" as a table, without contents",
		func(ctx context.Context, put func(map[string]any) error) error {
			return dump.Outlines(ctx, c.Site.API, resource, func(o dump.Outline) error {
				// Names of Secrets are no secrets, whatever they are called: under "object" they do not look like any.
				return put(map[string]any{"namespace": o.Namespace, "object": o.Name, "type": o.Type,
					"created": o.Created, "labels": o.Labels, "entries": o.Entries, "keys": o.Keys})
			})
		})
}

// helm collects the names and revisions of Helm's releases, which are in the labels of its Secrets (Helm v3 and v4).
func (c *Collector) helm(ctx context.Context, a *archive.Writer) error {
	return c.values(ctx, a, "helm", "labels of Helm's Secrets",
		func(ctx context.Context, put func(map[string]any) error) error {
			return dump.Outlines(ctx, c.Site.API, "secrets", func(o dump.Outline) error {
				if o.Labels["owner"] != "helm" {
					return nil
				}
				return put(map[string]any{"namespace": o.Namespace, "release": o.Labels["name"],
					"revision": o.Labels["version"], "status": o.Labels["status"], "created": o.Created})
			})
		})
}

// settings collects the ConfigMaps that are known to be harmless. They are masked all the same.
func (c *Collector) settings(ctx context.Context, a *archive.Writer) error {
	var errs []error
	for _, of := range harmlessConfigMaps {
		item := archive.Item{Path: "cluster/configmap-" + of[1] + ".json", Source: "ConfigMap " + of[0] + "/" + of[1]}
		errs = append(errs, a.AddJSON(ctx, item, func(ctx context.Context) (any, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, c.ItemTimeout, fmt.Errorf("given up after %v", c.ItemTimeout))
			defer cancel()
			data, err := c.Site.API.ConfigMap(ctx, of[0], of[1])
			if err == nil && data == nil {
				err = archive.ErrAbsent
			}
			if err != nil {
				return nil, err
			}
			return data, nil
		}))
	}
	return errors.Join(errs...)
}

// record collects what the cluster says of its releases: all of the record but locks and the trust file.
func (c *Collector) record(ctx context.Context, a *archive.Writer) error {
	item := archive.Item{Path: "cluster/releases.json", Source: "the record of releases"}
	return a.AddJSON(ctx, item, func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.ItemTimeout, fmt.Errorf("given up after %v", c.ItemTimeout))
		defer cancel()
		r, _, err := run.ReadRecord(ctx, c.Site.API)
		if err == nil && r == nil {
			err = archive.ErrAbsent
		}
		if err != nil {
			return nil, err
		}
		return ReleasesOf(r), nil
	})
}

// lastApplied is what kubectl apply keeps of what it was given, environments included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// prune takes out of an object what nobody needs and what may hold secrets that do not look like any: values of
// environments, wherever pods are described.
func prune(v any) {
	switch v := v.(type) {
	case map[string]any:
		if annotations, ok := v["annotations"].(map[string]any); ok {
			delete(annotations, lastApplied)
		}
		for key, one := range v {
			if list, ok := one.([]any); ok && key == "env" {
				maskValues(list)
			}
			prune(one)
		}
	case []any:
		for _, one := range v {
			prune(one)
		}
	}
}

// maskValues takes out the values of an environment that are not references.
func maskValues(env []any) {
	for _, one := range env {
		variable, ok := one.(map[string]any)
		if !ok {
			continue
		}
		if value, ok := variable["value"].(string); ok && strings.TrimSpace(value) != "" {
			variable["value"] = redact.Mark
		}
	}
}
