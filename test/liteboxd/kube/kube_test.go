package kube

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// A namespace is made where it is not there, once.
func TestEnsureNamespace(t *testing.T) {
	client := fake.NewClientset()
	for range 2 {
		if err := EnsureNamespace(t.Context(), client, "boxes"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), "boxes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// All that is missing is named, and asked for with its group and subresource.
func TestRequire(t *testing.T) {
	client := fake.NewClientset()
	var asked []string
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		a := review.Spec.ResourceAttributes
		asked = append(asked, strings.Join([]string{a.Namespace, a.Verb, a.Group, a.Resource, a.Subresource}, ":"))
		review.Status.Allowed = a.Verb == "list"
		return true, review, nil
	})
	err := Require(t.Context(), client, []Rights{
		{Resource: "nodes", Verbs: "get list"},
		{Namespace: "boxes", Resource: "pods/exec", Verbs: "create"},
		{Namespace: "boxes", Resource: "jobs.batch", Verbs: "list"},
	})
	if got, want := strings.Join(asked, " "), ":get::nodes: :list::nodes: boxes:create::pods:exec boxes:list:batch:jobs:"; got != want {
		t.Errorf("asked for %s, expected %s", got, want)
	}
	want := "the service account must not get nodes in the cluster\nthe service account must not create pods/exec in namespace boxes"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, expected %s", err, want)
	}
}
