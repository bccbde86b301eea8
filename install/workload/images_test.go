package workload

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/sitetest"
)

var (
	ones = strings.Repeat("1", 64)
	twos = strings.Repeat("2", 64)
)

func TestCarriedImage(t *testing.T) {
	const newK3s, oldK3s = "v1.34.4+k3s1", "v1.34.2+k3s1" // the one names digests
	for name, c := range map[string]struct {
		reference, k3s, err string
	}{
		"as it is":        {"docker.io/library/nginx:alpine", newK3s, ""},
		"a short name":    {"nginx:alpine", newK3s, ""},
		"with its digest": {"nginx:alpine@sha256:" + ones, newK3s, ""},
		"another digest":  {"nginx:alpine@sha256:" + twos, newK3s, "carries it with the digest sha256:" + ones},
		"no such digest":  {"nginx:alpine@sha256:" + ones, oldK3s, "no node would find it"},
		"another tag":     {"nginx:1.29", newK3s, "add `- {ref: docker.io/library/nginx:1.29}` to the images of the component own"},
		"another host":    {"registry.lan/library/nginx:alpine", newK3s, "it is not carried"},
		"no tag":          {"nginx", newK3s, "it is not carried"},
		"nonsense":        {"registry.lan/A b", newK3s, "could not parse reference"},
	} {
		s := sitetest.Carrying(t, "", c.k3s, "docker.io/library/nginx:alpine@sha256:"+ones)
		image, err := Images{Site: s, Component: "own"}.carried(c.reference)
		if c.err == "" && (err != nil || image.Name != "docker.io/library/nginx:alpine") || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, %v", name, image.Name, err)
		}
	}
}

// Objects that need a part of k3s are refused where it is off. LiteBoxd's need two of them.
func TestPartsOfK3s(t *testing.T) {
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{
		Images: manifests.Images{API: "r.lan/a:1", Gateway: "r.lan/g:1", Web: "r.lan/w:1", Helper: "r.lan/h:1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for disabled, want := range map[string]string{
		"servicelb": "", "traefik": "needs k3s' traefik", "local-storage": "PersistentVolumeClaim liteboxd-api-data needs k3s' local-storage",
	} {
		err := CheckParts(rendered.Objects(), []string{disabled}, "a patch")
		if want == "" && err != nil || want != "" && (!errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), want)) {
			t.Errorf("without %s: %v", disabled, err)
		}
	}
	plain := &unstructured.Unstructured{Object: map[string]any{"kind": "Ingress",
		"spec": map[string]any{"ingressClassName": 7}}}
	if part := neededPart(plain); part != "" {
		t.Errorf("an object of another form needs %s", part)
	}
}
