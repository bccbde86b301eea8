package controller

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

func newTestController(t *testing.T) (*controller, *fake.Clientset) {
	t.Helper()
	settings, err := edge.ReadSettings(func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	client := fake.NewClientset()
	resources := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{policies: "CiliumNetworkPolicyList"})
	return &controller{settings, db, client, resources.Resource(policies).Namespace(settings.SandboxNamespace), time.Second}, client
}

func TestReconcile(t *testing.T) {
	c, _ := newTestController(t)
	now := time.Now()
	add := func(id string, domains ...string) store.Sandbox {
		t.Helper()
		b := store.Sandbox{ID: id, Status: "running", TokenCiphertext: []byte("sealed"), AllowedDomains: domains, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
		if err := c.store.AddSandbox(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	check := func(want ...string) {
		t.Helper()
		if _, err := c.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := c.policies.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range list.Items {
			got = append(got, p.GetName())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	gone := add("gone", "example.org")
	add("stays", "example.org", "*.example.com")
	add("free")
	// What others have put on a policy is gone with the next look; a policy of another name is left alone.
	for _, p := range []*unstructured.Unstructured{policy(gone), policy(store.Sandbox{})} {
		p.SetLabels(map[string]string{"of": "a site"})
		if p.GetName() == policyPrefix {
			p.SetName("a-site-s")
		}
		if _, err := c.policies.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check("a-site-s", "sandbox-egress-allowlist-gone", "sandbox-egress-allowlist-stays")
	if p, err := c.policies.Get(t.Context(), policyPrefix+"gone", metav1.GetOptions{}); err != nil || len(p.GetLabels()) > 0 {
		t.Errorf("a policy keeps its labels: %v, %v", p, err)
	}
	if err := c.store.SetSandboxStatus(t.Context(), gone, store.Deleted, "asked for"); err != nil {
		t.Fatal(err)
	}
	check("a-site-s", "sandbox-egress-allowlist-stays")
	check("a-site-s", "sandbox-egress-allowlist-stays")
}

// Without the right to get its namespace, or any of those on policies, the controller ends.
func TestRights(t *testing.T) {
	for _, denied := range []string{"", "namespaces", "get", "list", "watch", "create", "delete", "update", "patch"} {
		c, client := newTestController(t)
		client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
			review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = review.Spec.ResourceAttributes.Verb != denied
			return true, review, nil
		})
		client.PrependReactor("get", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) {
			return denied == "namespaces", nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
		})
		if err := c.prepare(t.Context()); (err == nil) != (denied == "") {
			t.Errorf("without %q: %v", denied, err)
		}
	}
}
