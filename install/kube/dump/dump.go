// Package dump reads all objects of a kind for somebody who is to look at them elsewhere.
//
// Contract: that of package kube; nothing is changed. Objects are handed on page by page, so that not all of them are
// in memory. What is in Secrets never leaves the server.
package dump

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrNoResource says that the API server knows no objects of a kind.
var ErrNoResource = fault.NewKind(fault.Host, "the API has no such objects")

// page is how many objects are asked for at a time.
const page = 200

// Resource names the objects of a kind, as the API does: group ("" for the core), version, and plural name.
type Resource struct{ Group, Version, Name string }

// Path is where the API has them.
func (r Resource) Path() string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Name
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Name
}

// Objects hands on all objects of a kind, as the API has them, without what says who has written which field. Not all
// of them are in memory at a time. The error wraps [ErrNoResource] when the server knows no such objects; others are
// those of the API, or what do returned. Secrets are refused: see [Outlines].
func Objects(ctx context.Context, c *kube.Cluster, r Resource, do func(map[string]any) error) error {
	if r.Group == "" && r.Name == "secrets" {
		return fault.Failure.Errorf("%s: Secrets are not read whole", c.Name)
	}
	client := c.Dynamic.Resource(schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name})
	o := metav1.ListOptions{Limit: page}
	for {
		list, err := client.List(ctx, o)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: list %s: %w", c.Name, r.Path(), ErrNoResource)
		}
		if err != nil {
			return fmt.Errorf("%s: list %s: %w", c.Name, r.Path(), err)
		}
		for i := range list.Items {
			unstructured.RemoveNestedField(list.Items[i].Object, "metadata", "managedFields")
			if err := do(list.Items[i].Object); err != nil {
				return err
			}
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// Outline is what there is to say of a Secret or a ConfigMap without what is in it.
type Outline struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Type      string            `json:"type,omitempty"` // of a Secret
	Created   metav1.Time       `json:"created"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Entries is how many it has, -1 where the server does not say it.
	Entries int `json:"entries"`
	// Keys are the names of the entries, as far as it is known who has written them.
	Keys []string `json:"keys,omitempty"`
}

// Outlines hands on what there is of Secrets ("secrets") or ConfigMaps ("configmaps"). Their contents never leave the
// server: they are asked for as a table with the objects' metadata, and a server that answers with anything else is
// an error.
func Outlines(ctx context.Context, c *kube.Cluster, resource string, do func(Outline) error) error {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	next := ""
	for {
		answer, err := c.Client.CoreV1().RESTClient().Get().Resource(resource).SetHeader("Accept", table).
			Param("includeObject", string(metav1.IncludeMetadata)).Param("limit", strconv.Itoa(page)).
			Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return fmt.Errorf("%s: list %s without their contents: %w", c.Name, resource, err)
		}
		var rows metav1.Table
		if err := json.Unmarshal(answer, &rows); err != nil || rows.Kind != "Table" {
			return fault.Host.Errorf("%s: list %s without their contents: the API did not answer with a table", c.Name,
				resource)
		}
		for _, row := range rows.Rows {
			one, err := newOutline(rows.ColumnDefinitions, row)
			if err != nil {
				return fmt.Errorf("%s: list %s without their contents: %w", c.Name, resource, err)
			}
			if err := do(one); err != nil {
				return err
			}
		}
		if next = rows.Continue; next == "" {
			return nil
		}
	}
}

func newOutline(columns []metav1.TableColumnDefinition, row metav1.TableRow) (Outline, error) {
	o := Outline{Entries: -1}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(row.Object.Raw, &object); err != nil {
		return o, fmt.Errorf("read a row: %w", err)
	}
	o.Namespace, o.Name, o.Labels, o.Created = object.Namespace, object.Name, object.Labels, object.CreationTimestamp
	for i, column := range columns {
		if i >= len(row.Cells) {
			break
		}
		switch cell := row.Cells[i].(type) {
		case string:
			if column.Name == "Type" {
				o.Type = cell
			}
		case int64:
			if column.Name == "Data" {
				o.Entries = int(cell)
			}
		case float64: // as encoding/json has numbers
			if column.Name == "Data" {
				o.Entries = int(cell)
			}
		}
	}
	o.Keys = writtenKeys(object.ManagedFields)
	return o, nil
}

// writtenKeys are the entries of a Secret or a ConfigMap that somebody is known to have written, sorted.
func writtenKeys(managers []metav1.ManagedFieldsEntry) []string {
	keys := make(map[string]bool)
	for _, m := range managers {
		var fields struct {
			Data       map[string]any `json:"f:data"`
			BinaryData map[string]any `json:"f:binaryData"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for _, part := range []map[string]any{fields.Data, fields.BinaryData} {
			for key := range part {
				if name, ok := strings.CutPrefix(key, "f:"); ok {
					keys[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// Readiness is what the API server says of each of its parts, also when it is not ready.
func Readiness(ctx context.Context, c *kube.Cluster) (string, error) {
	answer, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").Do(ctx).Raw()
	if err != nil && len(answer) == 0 {
		return "", fmt.Errorf("%s: ask whether the API is ready: %w", c.Name, err)
	}
	return string(answer), nil
}
