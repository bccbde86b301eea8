package kube_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// Several writers of one Secret: each change is made once, and none is lost.
func TestReplaceSecret(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	const namespace, name, kind = "kube-system", "boxlift-test-record", corev1.SecretType("boxlift.dev/test")
	t.Cleanup(func() {
		if err := c.Client.CoreV1().Secrets(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	if data, version, err := c.VersionedSecret(ctx, namespace, name); data != nil || version != "" || err != nil {
		t.Fatalf("before there is one: %v, %q, %v", data, version, err)
	}
	if _, err := c.ReplaceSecret(ctx, namespace, name, kind, nil, "1"); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("replace what was deleted: %v", err)
	}
	first, err := c.ReplaceSecret(ctx, namespace, name, kind, map[string][]byte{"a": []byte("1"), "b": []byte("2")}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReplaceSecret(ctx, namespace, name, kind, nil, ""); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("make what is there: %v", err)
	}
	second, err := c.ReplaceSecret(ctx, namespace, name, kind, map[string][]byte{"a": []byte("3")}, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReplaceSecret(ctx, namespace, name, kind, nil, first); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("replace what was changed: %v", err)
	}
	data, version, err := c.VersionedSecret(ctx, namespace, name)
	if diff := cmp.Diff(map[string][]byte{"a": []byte("3")}, data); diff != "" || version != second || err != nil {
		t.Errorf("version %q, %v, -want +got:\n%s", version, err, diff)
	}
	s, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || s.Type != kind || s.Labels[kube.ManagedByLabel] != "boxlift" {
		t.Errorf("%v, type %s, labels %v", err, s.Type, s.Labels)
	}

	const writers, each = 4, 3
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for done := 0; done < each; {
				data, version, err := c.VersionedSecret(ctx, namespace, name)
				if err == nil {
					_, err = c.ReplaceSecret(ctx, namespace, name, kind,
						map[string][]byte{"a": append(data["a"], 'x')}, version)
				}
				switch {
				case err == nil:
					done++
				case !errors.Is(err, kube.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if data, _, err := c.VersionedSecret(ctx, namespace, name); string(data["a"]) != "3"+strings.Repeat("x", writers*each) {
		t.Errorf("%q, %v", data["a"], err)
	}
}
