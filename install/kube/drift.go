package kube

import (
	"context"
	"fmt"
)

// ReleaseDrift says which objects of a release are missing from the cluster, or differ from
// what its newest revision that was rolled out has. It changes nothing. The error wraps
// ErrNoRevision when none was rolled out.
func (c *Cluster) ReleaseDrift(ctx context.Context, namespace, name string) ([]string, error) {
	manifest, err := c.ReleaseManifest(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	drift, err := c.drift(ctx, string(manifest), owner{namespace, name})
	if err != nil {
		return nil, fmt.Errorf("%s: compare objects of release %s/%s: %w", c.name, namespace, name, err)
	}
	return drift, nil
}
