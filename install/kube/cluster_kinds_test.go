package kube_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// A kind that something else brings is waited for, and only where that is asked for.
func TestLateKinds(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	const namespace = "latekinds"
	gadgets := schema.GroupVersionResource{Group: "late.boxlift.test", Version: "v1alpha1", Resource: "gadgets"}
	gadget := "apiVersion: late.boxlift.test/v1alpha1\nkind: Gadget\nmetadata: {name: one, namespace: " + namespace + "}\nspec: {}\n"
	r := helm.Release{Name: namespace, Namespace: "kube-system", Timeout: 3 * time.Second, LateKinds: true}
	var err error
	if r.Chart, err = helm.ChartOf(r.Name, "v1", []byte(namespaceOf(namespace)+"---\n"+gadget)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var told []string
	waits := func() {}
	apply := func() error {
		return helm.Apply(kubetest.Within(t), c.Cluster, r, func(s string) {
			told = append(told, s)
			if strings.Contains(s, "waiting for the kinds") {
				waits()
			}
		})
	}
	if err := apply(); err == nil {
		t.Fatal("an object of an unknown kind was applied")
	} else {
		kubetest.Contains(t, err.Error(), "the cluster does not know Gadget.late.boxlift.test", "given up after 3s")
	}
	if state, err := helm.Current(kubetest.Within(t), c.Cluster, r.Namespace, r.Name); err != nil || state != nil {
		t.Errorf("a release was begun: %+v, %v", state, err)
	}

	r.Timeout = time.Minute
	definition := strings.NewReplacer("traefik.io", "late.boxlift.test", "MiddlewareList", "GadgetList", "Middleware",
		"Gadget", "middleware", "gadget").Replace(middlewareDefinition)
	made := errors.New("it did not wait")
	waits = sync.OnceFunc(func() { made = c.make(context.Background(), definition) })
	if err := apply(); err != nil {
		t.Error(err)
	}
	if made != nil {
		t.Fatal(made)
	}
	kubetest.Contains(t, strings.Join(told, "\n"), "waiting for the kinds Gadget.late.boxlift.test")
	if _, err := c.Dynamic.Resource(gadgets).Namespace(namespace).Get(kubetest.Within(t), "one", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
