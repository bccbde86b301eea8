package helm

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/install/kube"
)

// RewrittenBy is the annotation of objects that a program of the release replaces as a whole whenever
// it starts, and with them Helm's marks and the annotation itself. They are compared without labels
// and annotations. Its value is the program's name.
const RewrittenBy = "boxlift.dev/rewritten-by"

// comparison is what applying an object again would come to.
type comparison struct {
	object   kube.Object
	rendered *unstructured.Unstructured
	// is and want are the object in the cluster, and what the server would make of it;
	// nil when there is none.
	is, want *unstructured.Unstructured
	// paths are the fields that would change.
	paths []string
	// unknown says that the cluster knows no such kind.
	unknown bool
	// refused is the server's answer when it would not let the object be changed so.
	refused error
}

// reason says in one line what is the matter, "" when nothing is.
func (c *comparison) reason() string {
	switch {
	case c.unknown:
		return c.object.String() + ": the cluster knows no such kind"
	case c.is == nil:
		return c.object.String() + " is missing"
	case c.refused != nil:
		return c.object.String() + " cannot be set to what was rendered: " + kube.Brief(c.refused.Error())
	case len(c.paths) > 0:
		return fmt.Sprintf("%s was changed: %s", c.object, strings.Join(c.paths[:min(3, len(c.paths))], ", "))
	}
	return ""
}

// compare looks at all objects of a release, in their order. It changes nothing.
func compare(
	ctx context.Context, c *kube.Cluster, objects []*unstructured.Unstructured, release kube.ReleaseName,
) ([]comparison, error) {
	// Discovery takes no context.
	b, err := c.Bound(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]comparison, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i, object := range objects {
		group.Go(func() (err error) {
			found[i], err = compareOne(ctx, b, object, release)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return found, nil
}

func decodeManifest(manifest string) ([]*unstructured.Unstructured, error) {
	documents := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	var objects []*unstructured.Unstructured
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err == nil { // each by itself: where one begins, is not the same to all readers
			err = lenient.Check(document)
		}
		object := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(document, &object.Object)
		}
		if err != nil {
			return nil, fmt.Errorf("read what was rendered: %w", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func compareOne(
	ctx context.Context, c *kube.Cluster, rendered *unstructured.Unstructured, release kube.ReleaseName,
) (comparison, error) {
	out := comparison{rendered: rendered}
	client, o, err := resourceOf(c, rendered, release.Namespace)
	out.object = o
	if meta.IsNoMatchError(err) {
		out.unknown = true
		return out, nil
	} else if err != nil {
		return out, err
	}
	// As Helm sends it, and under the name that Helm sends it: what an earlier revision had
	// and this one has not is taken away, too.
	object := rendered.DeepCopy()
	release.Mark(object)
	// Twice, because a controller may write between the two requests.
	for range 2 {
		out.is, err = client.Get(ctx, o.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			out.is = nil
			return out, nil
		} else if err != nil {
			return out, err
		}
		out.want, err = client.Apply(ctx, o.Name, object, metav1.ApplyOptions{
			FieldManager: kube.FieldManager, Force: true, DryRun: []string{metav1.DryRunAll},
		})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			out.want, out.refused = nil, err
			return out, nil
		} else if err != nil {
			return out, err
		}
		if rendered.GetAnnotations()[RewrittenBy] != "" {
			out.want.SetLabels(out.is.GetLabels())
			out.want.SetAnnotations(out.is.GetAnnotations())
		}
		if out.paths = changedPaths(settled(out.is), settled(out.want)); len(out.paths) == 0 {
			break
		}
	}
	return out, nil
}

// resourceOf returns a client for an object's kind, and the object's name, whose namespace is
// that of the release when it has none. The error is a meta.NoKindMatchError when the cluster
// knows no such kind.
func resourceOf(
	c *kube.Cluster, object *unstructured.Unstructured, namespace string,
) (dynamic.ResourceInterface, kube.Object, error) {
	kind := object.GroupVersionKind()
	o := kube.Object{Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName()}
	mapping, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, o, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		o.Namespace = ""
		return c.Dynamic.Resource(mapping.Resource), o, nil
	}
	o.Namespace = cmp.Or(o.Namespace, namespace)
	return c.Dynamic.Resource(mapping.Resource).Namespace(o.Namespace), o, nil
}

// settled leaves out what differs between any two writes.
func settled(object *unstructured.Unstructured) map[string]any {
	out := object.DeepCopy().Object
	delete(out, "status")
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(out, "metadata", field)
	}
	return out
}

// hint says what to do about a change that the server refuses.
func (c *comparison) hint() string {
	text := c.refused.Error()
	unchangeable := slices.ContainsFunc(
		[]string{"immutable", "updates to ", "may not change", "cannot change", "can not be"},
		func(words string) bool { return strings.Contains(text, words) })
	switch {
	case c.object.Kind == "PersistentVolumeClaim":
		return "a claim keeps its storage class, access modes and volume for good, and most classes its size: " +
			"set the value back to what the cluster has"
	case !unchangeable:
		return "correct the value, or set it back to what the cluster has"
	case slices.Contains(dataKinds, c.object.Kind):
		return "this cannot be changed in place: set it back to what the cluster has"
	}
	namespace := ""
	if c.object.Namespace != "" {
		namespace = " -n " + c.object.Namespace
	}
	return fmt.Sprintf("this cannot be changed in place: set it back to what the cluster has, or delete the "+
		"object, and the same command makes it anew: k3s kubectl%s delete %s %s",
		namespace, strings.ToLower(c.object.Kind), c.object.Name)
}
