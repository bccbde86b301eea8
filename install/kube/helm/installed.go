package helm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Installed is a release that boxlift has made.
type Installed struct{ Namespace, Name string }

// pageSize bounds the Secrets of one answer, each of which may have 1 MiB.
const pageSize = 20

// List returns the releases in all namespaces whose newest revisions boxlift has made, by namespace and name. It looks
// at the labels of Helm's records alone.
func List(ctx context.Context, c *kube.Cluster) ([]Installed, error) {
	b, err := c.Bound(ctx)
	if err != nil {
		return nil, err
	}
	var found []Installed
	options := metav1.ListOptions{LabelSelector: "owner=helm,status!=superseded," + chartLabel, Limit: pageSize}
	for {
		page, err := b.Client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("%s: list releases: %w", c.Name, err)
		}
		for i := range page.Items {
			one := Installed{Namespace: printable.Line(page.Items[i].Namespace),
				Name: printable.Line(page.Items[i].Labels["name"])}
			if one.Name != "" && !slices.Contains(found, one) {
				found = append(found, one)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	slices.SortFunc(found, func(a, b Installed) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return found, nil
}
