package kube

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A kind that something else brings is waited for, and only where that is asked for.
func TestLateKinds(t *testing.T) {
	c := cluster(t)
	const namespace = "latekinds"
	gadgets := schema.GroupVersionResource{Group: "late.boxlift.test", Version: "v1alpha1", Resource: "gadgets"}
	gadget := "apiVersion: late.boxlift.test/v1alpha1\nkind: Gadget\nmetadata: {name: one, namespace: " + namespace + "}\nspec: {}\n"
	r := Release{Name: namespace, Namespace: "kube-system", Timeout: 3 * time.Second, LateKinds: true}
	var err error
	if r.Chart, err = ChartOf(r.Name, "v1", []byte(namespaceOf(namespace)+"---\n"+gadget)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var told []string
	waits := func() {}
	apply := func() error {
		return c.ApplyRelease(within(t), r, func(s string) {
			told = append(told, s)
			if strings.Contains(s, "waiting for the kinds") {
				waits()
			}
		})
	}
	if err := apply(); err == nil {
		t.Fatal("an object of an unknown kind was applied")
	} else {
		contains(t, err.Error(), "the cluster does not know Gadget.late.boxlift.test", "given up after 3s")
	}
	if state, err := c.ReleaseState(within(t), r.Namespace, r.Name); err != nil || state != nil {
		t.Errorf("a release was begun: %+v, %v", state, err)
	}

	r.Timeout = time.Minute
	definition := strings.NewReplacer("traefik.io", "late.boxlift.test", "MiddlewareList", "GadgetList", "Middleware", "Gadget", "middleware", "gadget").Replace(middlewareDefinition)
	objects, err := decodeManifest(definition)
	if err != nil {
		t.Fatal(err)
	}
	made := errors.New("it did not wait")
	waits = sync.OnceFunc(func() {
		client, _, err := c.resource(objects[0], "")
		if err == nil {
			_, err = client.Create(context.Background(), objects[0], metav1.CreateOptions{})
		}
		made = err
	})
	if err := apply(); err != nil {
		t.Error(err)
	}
	if made != nil {
		t.Fatal(made)
	}
	contains(t, strings.Join(told, "\n"), "waiting for the kinds Gadget.late.boxlift.test")
	if _, err := c.dynamic.Resource(gadgets).Namespace(namespace).Get(within(t), "one", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
