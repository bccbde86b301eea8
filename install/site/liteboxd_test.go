package site

import (
	"testing"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/manifests"
)

// The manifests mark what LiteBoxd replaces with what install/kube looks for.
func TestRewrittenMark(t *testing.T) {
	if helm.RewrittenBy != manifests.RewrittenBy {
		t.Errorf("install/kube looks for %s, the manifests have %s", helm.RewrittenBy, manifests.RewrittenBy)
	}
}
