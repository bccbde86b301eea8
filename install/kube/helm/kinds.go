package helm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liteboxd/boxlift/install/kube"
)

// awaitKinds waits until the cluster knows the kinds of all objects of a release that asks
// for it.
func awaitKinds(ctx context.Context, c *kube.Cluster, r Release, report func(string)) error {
	if !r.LateKinds {
		return nil
	}
	objects, err := rendered(ctx, c, r)
	if err != nil {
		return err
	}
	var kinds []schema.GroupVersionKind
	for _, o := range objects {
		if kind := o.GroupVersionKind(); !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("given up after %v", r.Timeout))
	defer cancel()
	tell := kube.OnChange(report)
	return c.Waiting(func() error {
		var unknown []string
		var err error
		if kube.Poll(ctx, kube.PollInterval, func() bool {
			if unknown, err = unknownKinds(c, kinds); len(unknown) > 0 {
				tell("waiting for the kinds " + strings.Join(unknown, ", "))
			}
			return err == nil && len(unknown) == 0
		}) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the cluster does not know %s", strings.Join(unknown, ", "))
		}
		return c.Fail(fmt.Errorf("apply release %s/%s: %w: %w", r.Namespace, r.Name, context.Cause(ctx), err),
			"see on a server what has become of what defines them: "+
				"k3s kubectl get crds; k3s kubectl -n kube-system get pods,jobs")
	})
}

// unknownKinds asks anew, and lists those of kinds that the cluster does not know.
func unknownKinds(c *kube.Cluster, kinds []schema.GroupVersionKind) ([]string, error) {
	var unknown []string
	var errs []error
	for _, kind := range kinds {
		_, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
		switch {
		case meta.IsNoMatchError(err):
			unknown = append(unknown, kind.GroupKind().String())
		case err != nil:
			errs = append(errs, err)
		}
	}
	if len(unknown)+len(errs) > 0 {
		c.Mapper.Reset()
	}
	return unknown, errors.Join(errs...)
}
