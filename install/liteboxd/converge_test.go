package liteboxd

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
)

// Pods of LiteBoxd that leave a node that is down are not waited for.
func TestPodsBeside(t *testing.T) {
	pods := []kube.Pod{{Name: "a", Node: "worker"}, {Name: "b", Node: "dead"}, {Name: "c"}}
	want := []kube.Pod{{Name: "a", Node: "worker"}, {Name: "c"}}
	if diff := cmp.Diff(want, podsBeside([]kube.Node{{Name: "dead"}}, pods)); diff != "" {
		t.Error(diff)
	}
}
