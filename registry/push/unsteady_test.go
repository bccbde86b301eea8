package push

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/registry/rewrite"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/target"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// TestUnsteadyMedium pushes a bundle that gives other bytes once it was verified. The registry
// never gets anything else, nor is anything tried again.
func TestUnsteadyMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1",
		Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: [][]byte{[]byte("a layer")}},
			{Name: "linux/arm64", Layers: [][]byte{[]byte("another layer")}},
		}}},
	}}})
	s := target.Start(t, target.Options{})
	project := 0
	unsteady.Check(t, path, func(ctx context.Context, r *bundle.Reader) (string, error) {
		project++
		s.Forget()
		o := optionsFor(t, s, func(o *Options) {
			o.Bundle, o.Platforms = r, []lock.Platform{"linux/amd64"} // of which the registry wants another index
			o.Rewrites = rules(t, rewrite.Rule{Registry: "*", Match: "^(.*)$", Replace: fmt.Sprintf("plant-%d/$1", project)})
		})
		result, err := pushWith(ctx, o, impatient)
		if err != nil {
			puts := make(map[string]int)
			for _, request := range s.Requests() {
				if request.Method == "PUT" {
					puts[request.Query]++
				}
			}
			for query, n := range puts {
				if n > 1 && strings.Contains(query, "digest=") {
					t.Errorf("%s was tried %d times: %v", query, n, err)
				}
			}
			return "", err
		}
		var b strings.Builder
		for _, image := range result.Images {
			fmt.Fprintln(&b, image.Digest, image.TargetDigest, image.State)
		}
		return b.String(), nil
	})
}
