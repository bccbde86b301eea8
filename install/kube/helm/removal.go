package helm

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"helm.sh/helm/v4/pkg/action"
	helmkube "helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/install/kube"
)

// keptKinds are the kinds of objects that a removal leaves where they are: data goes with them, or the objects of
// others. Secrets are not among them: what a chart renders it renders again.
var keptKinds = slices.DeleteFunc(slices.Clone(dataKinds), func(kind string) bool { return kind == "Secret" })

// Removal says how a release is removed.
type Removal struct {
	// WithData removes claims, volumes, namespaces and definitions of custom resources too, with all that is in them,
	// also where the chart would have them kept. Without it they stay, and a release of the same name takes them over
	// again.
	WithData bool
	// Timeout bounds the wait for the objects to be gone, and for each hook; 10 minutes when it is 0.
	Timeout time.Duration
}

// Kept lists the objects of a release that a removal without data leaves, as the newest revision has them. The error
// wraps ErrNoRevision when there is no such release.
func Kept(ctx context.Context, c *kube.Cluster, namespace, name string) ([]kube.Object, error) {
	revisions, err := revisions(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	if len(revisions) == 0 {
		return nil, noTarget(c, namespace, name, fmt.Errorf("%w: it is not installed", ErrNoRevision))
	}
	objects, err := decodeManifest(revisions[len(revisions)-1].Manifest)
	if err != nil {
		return nil, err
	}
	var kept []kube.Object
	for _, o := range objects {
		if slices.Contains(keptKinds, o.GetKind()) || isKept(o) {
			kept = append(kept, kube.Object{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()})
		}
	}
	return kept, nil
}

// Uninstall removes a release's objects and then its revisions, and waits until they are gone. Its namespace stays. Once
// more after it was broken off, it goes on; of a release that is not there, there is nothing to do. report is told of
// what is done; nil is nobody.
func Uninstall(ctx context.Context, c *kube.Cluster, namespace, name string, o Removal, report func(string)) error {
	if report == nil {
		report = func(string) {}
	}
	if o.Timeout <= 0 {
		o.Timeout = releaseTimeout
	}
	h, err := bind(ctx, c, namespace, name, report)
	if err != nil {
		return err
	}
	defer h.close()
	revisions, err := h.revisions(name)
	if err != nil {
		return fmt.Errorf("%s: read release %s/%s: %w", c.Name, namespace, name, err)
	}
	if len(revisions) == 0 {
		return nil
	}
	last := revisions[len(revisions)-1]
	doing := fmt.Sprintf("remove release %s/%s, chart %s", namespace, name, chartVersion(last))
	owner := kube.ReleaseName{Namespace: namespace, Name: name}
	// Helm goes by what the revision says, and not by the objects in the cluster.
	if err := h.setPolicy(last, !o.WithData); err != nil {
		return releaseError(ctx, c, owner, doing, err, nothingChanged)
	}
	report(fmt.Sprintf("removing %s %s", name, chartVersion(last)))
	un := action.NewUninstall(h.config)
	un.Timeout, un.WaitStrategy, un.DeletionPropagation = o.Timeout, helmkube.HookOnlyStrategy, "foreground"
	if _, err := un.Run(name); err != nil {
		after := "the same command goes on from here"
		if left, readErr := h.revisions(name); readErr == nil && len(left) == 0 {
			// Helm forgets a release whose objects were all asked to go.
			after = "its release is forgotten: what is left goes by itself, unless a finalizer holds it"
		}
		return releaseError(ctx, c, owner, doing, err, after)
	}
	return nil
}

// What Helm goes by when it removes a release: objects with this annotation stay.
const (
	policyAnnotation = "helm.sh/resource-policy"
	keepPolicy       = "keep"
)

// setPolicy has the newest revision say that its data is kept, or that it is not, whatever its chart says of that.
func (h *binding) setPolicy(last *release.Release, keep bool) error {
	objects, err := decodeManifest(last.Manifest)
	if err != nil {
		return err
	}
	changed := false
	var manifest bytes.Buffer
	for _, o := range objects {
		if slices.Contains(keptKinds, o.GetKind()) && isKept(o) != keep {
			annotations := maps.Clone(o.GetAnnotations())
			if annotations == nil {
				annotations = make(map[string]string)
			}
			if annotations[policyAnnotation] = keepPolicy; !keep {
				delete(annotations, policyAnnotation)
			}
			o.SetAnnotations(annotations)
			changed = true
		}
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		manifest.WriteString("---\n")
		manifest.Write(data)
	}
	if !changed {
		return nil
	}
	last.Manifest = manifest.String()
	if err := h.config.Releases.Update(last); err != nil {
		return fmt.Errorf("note which objects are kept: %w", err)
	}
	return nil
}

// isKept reports whether an object's own annotation keeps it.
func isKept(o *unstructured.Unstructured) bool {
	return o.GetAnnotations()[policyAnnotation] == keepPolicy
}
