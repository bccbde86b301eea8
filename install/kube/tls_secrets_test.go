package kube

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// Secrets are fetched page by page, those with certificates only, and their keys are not kept.
func TestTLSSecrets(t *testing.T) {
	secret := func(namespace, name string) corev1.Secret {
		return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": []byte("of " + name), "tls.key": []byte("a key")}}
	}
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/secrets" || q.Get("fieldSelector") != "type=kubernetes.io/tls" {
			t.Errorf("asked for %s", r.URL)
		}
		list := corev1.SecretList{Items: []corev1.Secret{secret("web", "b")}}
		if q.Get("continue") == "" {
			list = corev1.SecretList{ListMeta: metav1.ListMeta{Continue: "next"}, Items: []corev1.Secret{secret("web", "c"), secret("apps", "z")}}
		}
		kubetest.Answer(t, w, "SecretList", list)
	})
	found, err := TLSSecrets(kubetest.Within(t), c)
	want := []TLSSecret{{"apps", "z", []byte("of z")}, {"web", "b", []byte("of b")}, {"web", "c", []byte("of c")}}
	if diff := cmp.Diff(want, found); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}
