package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// What people have made since a time is told, page by page, and nothing of what comes by itself.
func TestCreatedSince(t *testing.T) {
	since := time.Date(2026, 3, 4, 5, 6, 7, 500, time.UTC)
	object := func(namespace, name string, after time.Duration, change ...func(*metav1.ObjectMeta)) metav1.PartialObjectMetadata {
		o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(since.Truncate(time.Second).Add(after))}}
		for _, c := range change {
			c(&o.ObjectMeta)
		}
		return o
	}
	controlled := func(o *metav1.ObjectMeta) {
		yes := true
		o.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &yes}}
	}
	deployed := func(o *metav1.ObjectMeta) { ReleaseName{"kube-system", "liteboxd"}.Mark(o) }
	pages := map[string][][]metav1.PartialObjectMetadata{
		"/api/v1/namespaces":        {{object("", "default", -time.Hour), object("", "new", 0), object("", "kube-later", time.Hour)}},
		"/apis/apps/v1/deployments": {{object("new", "web", time.Minute), object("liteboxd-system", "liteboxd-api", time.Minute, deployed), object("kube-system", "traefik", time.Minute)}},
		"/api/v1/pods":              {{object("new", "web-1", time.Minute, controlled), object("new", "alone", time.Minute), object("boxes", "box", time.Minute)}},
		"/api/v1/configmaps": {
			{object("new", "kube-root-ca.crt", time.Minute), object("new", "before", -time.Second)},
			{object("new", "settings", time.Minute)},
		},
		"/api/v1/secrets": {{object("new", "sh.helm.release.v1.web.v1", time.Minute), object("new", "login", time.Minute)}},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			t.Errorf("%s: more than metadata is asked for: %s", r.URL, r.Header.Get("Accept"))
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		all := pages[r.URL.Path]
		if next := r.URL.Query().Get("continue"); next != "" {
			all = all[1:]
		}
		if len(all) > 1 {
			list.Continue = "more"
		}
		if len(all) > 0 {
			list.Items = all[0]
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	c := &Cluster{Name: "s1", Config: &rest.Config{Host: api.URL}}
	got, err := c.CreatedSince(t.Context(), since, Exceptions{Namespaces: []string{"boxes"}, Releases: []ReleaseName{{"kube-system", "liteboxd"}}})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, o := range got {
		texts = append(texts, o.String())
	}
	want := []string{"Namespace new", "Namespace kube-later", "Deployment new/web", "Pod new/alone", "ConfigMap new/settings", "Secret new/login"}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
