package site

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Sandboxes that ended by themselves are warned of, and kept for the record.
func TestSandboxesEnded(t *testing.T) {
	s := &Site{}
	s.SandboxesEnded("a", nil)
	s.SandboxesEnded("b", []string{"box/one", "box/two"})
	if diff := cmp.Diff([]string{"b: of the sandboxes that ran when its k3s was to change, these have ended: box/one, box/two"}, s.Warnings); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"box/one", "box/two"}, s.Ended); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
