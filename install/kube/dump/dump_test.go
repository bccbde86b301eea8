package dump

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

func connect(t *testing.T, api kubetest.API) *kube.Cluster {
	t.Helper()
	c, err := kube.Connect(kube.Options{Name: "c", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestObjects(t *testing.T) {
	m := kubetest.NewMemory(t, kubetest.Labelled("b", nil), kubetest.Labelled("a", nil))
	c := connect(t, m.API)
	var names []string
	collect := func(o map[string]any) error {
		meta, _ := o["metadata"].(map[string]any)
		if meta["managedFields"] != nil {
			t.Errorf("%v", meta)
		}
		names = append(names, fmt.Sprint(meta["name"]))
		return nil
	}
	if err := Objects(t.Context(), c, Resource{Version: "v1", Name: "nodes"}, collect); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
		t.Error(diff)
	}
	full := errors.New("full")
	err := Objects(t.Context(), c, Resource{Version: "v1", Name: "nodes"}, func(map[string]any) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("who takes no more: %v", err)
	}
	unknown := Resource{Group: "cilium.io", Version: "v2", Name: "ciliumnodes"}
	if err := Objects(t.Context(), c, unknown, collect); !errors.Is(err, ErrNoResource) {
		t.Errorf("an unknown kind: %v", err)
	}
	if err := Objects(t.Context(), c, Resource{Version: "v1", Name: "secrets"}, collect); err == nil {
		t.Error("Secrets are read whole")
	}
}

// The next page is asked for until there is none.
func TestPages(t *testing.T) {
	m := kubetest.NewMemory(t)
	m.Answer("/api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		next, name := "more", "a"
		if r.URL.Query().Get("continue") == "more" {
			next, name = "", "b"
		}
		kubetest.Answer(t, w, "NodeList", map[string]any{"apiVersion": "v1", "metadata": map[string]any{"continue": next},
			"items": []any{map[string]any{"metadata": map[string]any{"name": name}}}})
	})
	n := 0
	count := func(map[string]any) error { n++; return nil }
	if err := Objects(t.Context(), connect(t, m.API), Resource{Version: "v1", Name: "nodes"}, count); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestOutlines(t *testing.T) {
	m := kubetest.NewMemory(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "put", Labels: map[string]string{"owner": "helm"}},
			Type: "a/type", Data: map[string][]byte{"k": []byte("canary")}})
	c := connect(t, m.API)
	if err := c.PutSecret(t.Context(), "x", "applied", map[string][]byte{"one": []byte("canary"), "two": nil}); err != nil {
		t.Fatal(err)
	}
	var got []Outline
	err := Outlines(t.Context(), c, "secrets", func(o Outline) error {
		if o.Created.IsZero() {
			t.Errorf("%+v", o)
		}
		o.Created = metav1.Time{}
		got = append(got, o)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Outline{
		{Namespace: "x", Name: "applied", Entries: 2, Keys: []string{"one", "two"}},
		{Namespace: "x", Name: "put", Type: "a/type", Labels: map[string]string{"owner": "helm"}, Entries: 1},
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A server that does not know tables, or sends what it likes, is not read.
func TestNoTable(t *testing.T) {
	for name, answer := range map[string]string{
		"a list":     `{"kind":"SecretList","apiVersion":"v1","items":[{"metadata":{"name":"s"},"data":{"k":"Y2FuYXJ5"}}]}`,
		"no JSON":    `<html>`,
		"no objects": `{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":[],"rows":[{"cells":["s"]}]}`,
	} {
		m := kubetest.NewMemory(t)
		m.Answer("/api/v1/secrets", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer)) // the caller may have gone
		})
		err := Outlines(t.Context(), connect(t, m.API), "secrets", func(o Outline) error {
			return fmt.Errorf("%s is handed on", o.Name)
		})
		if err == nil || strings.Contains(err.Error(), "handed on") || strings.Contains(err.Error(), "Y2Fu") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadiness(t *testing.T) {
	m := kubetest.NewMemory(t)
	c := connect(t, m.API)
	if text, err := Readiness(t.Context(), c); err != nil || text != "ok" {
		t.Errorf("%q, %v", text, err)
	}
	m.Answer("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("[-]etcd failed")) // the caller may have gone
	})
	if text, err := Readiness(t.Context(), c); err != nil || text != "[-]etcd failed" {
		t.Errorf("of one that is not: %q, %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Readiness(ctx, c); err == nil {
		t.Error("of one that does not answer")
	}
}
