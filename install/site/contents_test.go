package site

import (
	"testing"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/manifests"
)

func TestNamesDigests(t *testing.T) {
	for k3s, want := range map[string]bool{
		"v1.30.14+k3s1": false, "v1.32.10+k3s1": false, "v1.32.11+k3s1": true, "v1.33.13+k3s1": true,
		"v1.34.2+k3s1": false, "v1.34.3+k3s1": true, "v1.35.0+k3s3": true, "v1.36.4+k3s1": true, "v2.0.0": false, "": false,
	} {
		if got := NamesDigests(k3s); got != want {
			t.Errorf("%s: got %v", k3s, got)
		}
	}
}

// The manifests mark what LiteBoxd replaces with what install/kube looks for.
func TestRewrittenMark(t *testing.T) {
	if helm.RewrittenBy != manifests.RewrittenBy {
		t.Errorf("install/kube looks for %s, the manifests have %s", helm.RewrittenBy, manifests.RewrittenBy)
	}
}
