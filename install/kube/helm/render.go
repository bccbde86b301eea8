package helm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/action"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Render returns what a first installation of r would send to a cluster of a
// Kubernetes version such as "v1.34.4+k3s1": YAML documents, hooks and custom resource
// definitions included. It uses no network.
func Render(ctx context.Context, r Release, kubernetes string) ([]byte, error) {
	version, err := chartcommon.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, fmt.Errorf("release %s/%s: Kubernetes version %q: %w", r.Namespace, r.Name, kubernetes, err)
	}
	rendered, err := r.render(ctx, capabilities{version: version}, true)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	out.WriteString(rendered.Manifest)
	for _, hook := range rendered.Hooks {
		fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	return []byte(out.String()), nil
}

// DefaultText returns the text that a release's chart has for one of its values, as long as
// nobody sets that; "" when it is not there, or is no text.
func DefaultText(r Release, path ...string) (string, error) {
	wanted, err := r.load()
	if err != nil {
		return "", err
	}
	text, _, _ := unstructured.NestedString(wanted.Values, path...)
	return text, nil
}

// capabilities are what charts ask about a cluster.
type capabilities struct {
	version *chartcommon.KubeVersion
	apis    chartcommon.VersionSet
}

// capabilities asks the cluster. It must be bound to a context.
func capabilitiesOf(c *kube.Cluster) (capabilities, error) {
	info, err := c.Discovery.ServerVersion()
	if err != nil {
		return capabilities{}, fmt.Errorf("ask for the API's version: %w", err)
	}
	version, err := chartcommon.ParseKubeVersion(info.GitVersion)
	if err != nil {
		return capabilities{}, fmt.Errorf("the API's version %q: %w", kube.Brief(info.GitVersion), err)
	}
	apis, err := action.GetVersionSet(c.Discovery)
	if err != nil {
		return capabilities{}, err
	}
	slices.Sort(apis) // Helm has them in another order each time
	return capabilities{version, apis}, nil
}

// render makes the first revision of a release, without a cluster, in a process of its own, or knows it from before.
func (r Release) render(ctx context.Context, on capabilities, definitions bool) (*rendition, error) {
	return r.renderBounded(ctx, on, definitions, renderBounds{renderMemory, renderTime})
}

func (r Release) renderBounded(
	ctx context.Context, on capabilities, definitions bool, bounds renderBounds,
) (*rendition, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	values, err := yaml.Marshal(r.Values)
	if err != nil {
		return nil, fmt.Errorf("release %s/%s: values: %w", r.Namespace, r.Name, err)
	}
	asked := rendering{
		Bounds: bounds, Name: r.Name, Namespace: r.Namespace, Chart: r.Chart, Values: values,
		Version: *on.version, APIs: on.apis, Definitions: definitions,
	}
	known, key, err := asked.known()
	if known != nil || err != nil {
		return known, err
	}
	wanted, err := r.load()
	if err != nil {
		return nil, err
	}
	out, err := asked.process(ctx)
	if err != nil {
		chart := printable.Line(wanted.Metadata.Name + " " + wanted.Metadata.Version)
		return nil, fmt.Errorf("release %s/%s: render chart %s: %w", r.Namespace, r.Name, chart, err)
	}
	keep(key, out)
	return out, nil
}

// What charts make is printed in a process of bounded memory, and read in this one; what a release has made before
// comes from the cluster. Helm, and decodeManifest as well, take the last one of a key that is there several times.
var lenient = outsideyaml.Reader{MaxSize: maxRendered, MaxNodes: maxRenderedNodes, AnyKeys: true}
