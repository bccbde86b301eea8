package workload

import (
	"testing"

	"github.com/liteboxd/boxlift/install/kube/helm"
)

// A claim is found among objects, and among those that a StatefulSet makes of its templates.
func TestHasClaim(t *testing.T) {
	objects, err := helm.DecodeManifest([]byte(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  volumeClaimTemplates: [{metadata: {name: files}}, {}, 1]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: bare}
`))
	if err != nil {
		t.Fatal(err)
	}
	for claim, want := range map[string]bool{
		"data": true, "files-store-0": true, "files-store-12": true, "files-store-": false, "files-store-x": false, "files-store": false, "store": false,
		"files-bare-0": false, "": false,
	} {
		if got := hasClaim(objects, claim); got != want {
			t.Errorf("%q: %t", claim, got)
		}
	}
}
