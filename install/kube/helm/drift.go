package helm

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube"
)

// Drift says which objects of a release are missing from the cluster, or differ from
// what its newest revision that was rolled out has. It changes nothing. The error wraps
// ErrNoRevision when none was rolled out.
func Drift(ctx context.Context, c *kube.Cluster, namespace, name string) ([]string, error) {
	manifest, err := Manifest(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	drift, err := drift(ctx, c, string(manifest), kube.ReleaseName{Namespace: namespace, Name: name})
	if err != nil {
		return nil, fmt.Errorf("%s: compare objects of release %s/%s: %w", c.Name, namespace, name, err)
	}
	return drift, nil
}

// drift says which objects are missing from the cluster, or differ from what was rendered.
func drift(ctx context.Context, c *kube.Cluster, manifest string, o kube.ReleaseName) ([]string, error) {
	objects, err := decodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	compared, err := compare(ctx, c, objects, o)
	if err != nil {
		return nil, err
	}
	var reasons []string
	for i := range compared {
		if reason := compared[i].reason(); reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return reasons, nil
}
