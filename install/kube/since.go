package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// madeByPeople are the kinds of objects that people make, in the order in which they are told.
var madeByPeople = []struct {
	kind     string
	resource schema.GroupVersionResource
}{
	{"Namespace", schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}},
	{"PersistentVolumeClaim", schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}},
	{"Deployment", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}},
	{"StatefulSet", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}},
	{"DaemonSet", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}},
	{"CronJob", schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}},
	{"Job", schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}},
	{"Pod", schema.GroupVersionResource{Version: "v1", Resource: "pods"}},
	{"Service", schema.GroupVersionResource{Version: "v1", Resource: "services"}},
	{"Ingress", schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}},
	{"ConfigMap", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}},
	{"Secret", schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
}

// sincePage is how many objects are asked for at a time.
const sincePage = 500

// Exceptions are objects that are not of interest.
type Exceptions struct {
	// Namespaces are left out with all that is in them.
	Namespaces []string
	// Releases are Helm's, whose objects are left out.
	Releases []ReleaseName
}

func (e Exceptions) has(o metav1.Object) bool {
	return slices.Contains(e.Namespaces, o.GetNamespace()) ||
		slices.ContainsFunc(e.Releases, func(r ReleaseName) bool { return r.Owns(o) })
}

// CreatedSince lists the objects that were made at a time or after it: those of the kinds that
// people make, but for what Kubernetes, its controllers and Helm make by themselves, and what
// belongs to Kubernetes' own namespaces. Nothing but metadata is asked for: no Secret is read.
func (c *Cluster) CreatedSince(ctx context.Context, since time.Time, but Exceptions) ([]Object, error) {
	client, err := metadata.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: make API client: %w", c.Name, err)
	}
	var found []Object
	for _, k := range madeByPeople {
		o := metav1.ListOptions{Limit: sincePage}
		for {
			list, err := client.Resource(k.resource).List(ctx, o)
			if err != nil {
				return nil, fmt.Errorf("%s: list %s: %w", c.Name, k.resource.Resource, err)
			}
			for i := range list.Items {
				if one := &list.Items[i]; isNew(k.kind, one, since) && !but.has(one) {
					found = append(found, Object{Kind: k.kind, Namespace: one.Namespace, Name: one.Name})
				}
			}
			if o.Continue = list.Continue; o.Continue == "" {
				break
			}
		}
	}
	return found, nil
}

// isNew reports whether somebody has made an object at a time or after it. Objects know the second
// in which they were made.
func isNew(kind string, o metav1.Object, since time.Time) bool {
	switch {
	case o.GetCreationTimestamp().Time.Before(since.Truncate(time.Second)):
		return false
	case slices.Contains([]string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}, o.GetNamespace()):
		return false
	case metav1.GetControllerOf(o) != nil:
		return false
	case kind == "ConfigMap" && o.GetName() == "kube-root-ca.crt":
		return false
	case kind == "Secret" && strings.HasPrefix(o.GetName(), helmSecretPrefix):
		return false
	}
	return true
}

// helmSecretPrefix begins the names of the Secrets in which Helm keeps releases (Helm v3 and v4).
const helmSecretPrefix = "sh.helm.release.v1."
