package helm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"go.yaml.in/yaml/v3"
	helmkube "helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Change says what Apply would do to an object.
type Change string

// The changes.
const (
	// Create is for an object that the cluster has not.
	Create Change = "create"
	// Update is for one in which fields differ.
	Update Change = "update"
	// Remove is for one that earlier revisions have and this one has not.
	Remove Change = "remove"
	// Refused is for one that the cluster would not let be changed so, or of whose kind it
	// knows nothing.
	Refused Change = "refused"
)

// ObjectDiff is an object that Apply would change.
type ObjectDiff struct {
	Object kube.Object
	Change Change
	// Problem is what the cluster has against it, when Change is Refused.
	Problem string
	// Diff is a unified diff of YAML, from the object in the cluster to what the server would
	// make of it: with the server's defaults, without status and bookkeeping. Of Secrets it
	// has the keys only. It is what the objects say, with what is not printable replaced; ""
	// when the cluster refuses a change.
	Diff string
}

// Diff says what Apply would do to the objects of a release: those of the
// release in the order in which they were rendered, then those that would be removed; none
// when nothing would change. It judges as Differs does, and changes nothing. What a
// chart would look up in the cluster is taken for absent.
func Diff(ctx context.Context, c *kube.Cluster, r Release) ([]ObjectDiff, error) {
	failed := func(err error) error {
		return fmt.Errorf("%s: compare release %s/%s: %w", c.Name, r.Namespace, r.Name, err)
	}
	wanted, err := rendered(ctx, c, r)
	if err != nil {
		return nil, failed(err)
	}
	release := r.owner()
	compared, err := compare(ctx, c, wanted, release)
	if err != nil {
		return nil, failed(err)
	}
	var diffs []ObjectDiff
	wants := map[objectKey]bool{}
	for i := range compared {
		wants[keyOf(compared[i].rendered, release.Namespace)] = true
		d, err := compared[i].diff()
		if err != nil {
			return nil, failed(err)
		}
		if d != nil {
			diffs = append(diffs, *d)
		}
	}
	gone, err := removed(ctx, c, release, wants)
	if err != nil {
		return nil, failed(err)
	}
	return append(diffs, gone...), nil
}

// diff is nil when there is nothing to change.
func (c *comparison) diff() (*ObjectDiff, error) {
	d := &ObjectDiff{Object: c.object}
	var err error
	switch {
	case c.unknown || c.refused != nil:
		d.Change, d.Problem = Refused, c.reason()
	case c.is == nil:
		d.Change = Create
		d.Diff, err = unifiedDiff(c.object, nil, c.rendered)
	case len(c.paths) > 0:
		d.Change = Update
		d.Diff, err = unifiedDiff(c.object, c.is, c.want)
	default:
		return nil, nil
	}
	return d, err
}

// objectKey tells objects apart, also those of the same kind in two groups.
type objectKey struct {
	group  string
	object kube.Object
}

func keyOf(object *unstructured.Unstructured, namespace string) objectKey {
	kind := object.GroupVersionKind()
	// Where an object that is in no namespace names none, this one is as good as any.
	return objectKey{kind.Group, kube.Object{
		Kind: kind.Kind, Namespace: cmp.Or(object.GetNamespace(), namespace), Name: object.GetName(),
	}}
}

// removed are the objects that an upgrade would take away. Helm takes those of the last
// good revision; helmClient.Update adds those of later ones.
func removed(ctx context.Context, c *kube.Cluster, o kube.ReleaseName, wants map[objectKey]bool) ([]ObjectDiff, error) {
	h, err := bind(ctx, c, o.Namespace, o.Name, nil)
	if err != nil {
		return nil, err
	}
	defer h.close()
	revisions, err := h.revisions(o.Name)
	if err != nil {
		return nil, err
	}
	good := lastGood(revisions)
	seen := map[objectKey]bool{}
	var gone []ObjectDiff
	for _, r := range revisions {
		if good != nil && r.Version < good.Version {
			continue
		}
		objects, err := decodeManifest(r.Manifest)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			key := keyOf(object, o.Namespace)
			if wants[key] || seen[key] {
				continue
			}
			seen[key] = true
			d, err := removal(ctx, h.client.work, object, o, r == good)
			if err != nil {
				return nil, err
			}
			if d != nil {
				gone = append(gone, *d)
			}
		}
	}
	return gone, nil
}

// removal is nil when the object stays, or is not there.
func removal(
	ctx context.Context, c *kube.Cluster, object *unstructured.Unstructured, release kube.ReleaseName, good bool,
) (*ObjectDiff, error) {
	client, o, err := resourceOf(c, object, release.Namespace)
	if meta.IsNoMatchError(err) {
		return nil, nil // its kind has gone, and with it all of its objects
	} else if err != nil {
		return nil, err
	}
	is, err := client.Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if is.GetAnnotations()[helmkube.ResourcePolicyAnno] == helmkube.KeepPolicy || !good && !release.Owns(is) {
		return nil, nil
	}
	text, err := unifiedDiff(o, is, nil)
	return &ObjectDiff{Object: o, Change: Remove, Diff: text}, err
}

// unifiedDiff compares two states of an object; nil is one that does not exist.
func unifiedDiff(o kube.Object, is, want *unstructured.Unstructured) (string, error) {
	before, after := shown(is), shown(want)
	if isSecret(is) || isSecret(want) {
		for _, field := range []string{"data", "stringData"} {
			hide(before, after, field)
		}
	}
	from, err := yamlLines(before)
	if err != nil {
		return "", err
	}
	to, err := yamlLines(after)
	if err != nil {
		return "", err
	}
	name := printable.Line(o.String())
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: from, B: to, FromFile: name, ToFile: name, Context: 3,
	})
	if err != nil {
		return "", fmt.Errorf("compare two states of %s: %w", name, err)
	}
	return text, nil
}

// shown is what a diff has of an object.
func shown(object *unstructured.Unstructured) map[string]any {
	if object == nil {
		return nil
	}
	out := settled(object)
	for _, field := range []string{"uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(out, "metadata", field)
	}
	// kubectl's copy of the whole object, also of a Secret.
	unstructured.RemoveNestedField(out, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	return out
}

func isSecret(object *unstructured.Unstructured) bool {
	return object != nil && object.GetKind() == "Secret" && object.GroupVersionKind().Group == ""
}

// hide replaces the values below a field of a Secret. Only whether they differ is left.
func hide(before, after map[string]any, field string) {
	old, wasMap := before[field].(map[string]any)
	now, isMap := after[field].(map[string]any)
	for key := range union(old, now) {
		left, inOld := old[key]
		right, inNow := now[key]
		switch {
		case inOld && inNow && reflect.DeepEqual(left, right):
			old[key], now[key] = "***", "***"
			continue
		case inOld && inNow:
			old[key], now[key] = "*** (before)", "*** (after)"
		case inOld:
			old[key] = "***"
		default:
			now[key] = "***"
		}
	}
	// Of something else than a map, nothing is shown.
	if _, ok := before[field]; ok && !wasMap {
		before[field] = "***"
	}
	if _, ok := after[field]; ok && !isMap {
		after[field] = "***"
	}
}

// yamlLines are the lines of an object, each printable and with its line end.
func yamlLines(object map[string]any) ([]string, error) {
	if object == nil {
		return nil, nil
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(object); err != nil {
		return nil, fmt.Errorf("write an object as YAML: %w", err)
	}
	lines := slices.Collect(strings.Lines(text.String()))
	for i, line := range lines {
		lines[i] = printable.Line(strings.TrimSuffix(line, "\n")) + "\n"
	}
	return lines, nil
}

// rendered are the objects of a release as this cluster would get them.
func rendered(ctx context.Context, c *kube.Cluster, r Release) ([]*unstructured.Unstructured, error) {
	b, err := c.Bound(ctx)
	if err != nil {
		return nil, err
	}
	capabilities, err := capabilitiesOf(b)
	if err != nil {
		return nil, err
	}
	out, err := r.render(ctx, capabilities, false)
	if err != nil {
		return nil, err
	}
	return decodeManifest(out.Manifest)
}
