package upstream

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// TestMove moves components that users have written into: what they added stays, what is
// of the release moves, and no pin is lost of what stays the same.
func TestMove(t *testing.T) {
	contents := &lock.Contents{Images: []lock.ArchiveImage{{Ref: "a"}}}
	digest := lock.Image{}.Digest + "sha256:aa"
	for name, c := range map[string]struct {
		release   Published
		old, want lock.Component
		kept      []string
	}{
		"archives": {
			Published{Component: lock.Component{
				Name: K3s, Version: "v1.36.5+k3s1", UpgradesFrom: []string{">=1.35.0 <1.37.0"},
				Files: []lock.File{{Name: "k3s", Platform: "linux/arm64", URL: "u2", SHA256: "s2", Size: 2}, {Name: "install.sh", URL: "i2"}},
				Images: []lock.Image{
					{Archive: "new-amd64", Platform: "linux/amd64", SHA256: "b"}, {Archive: "new-arm64", Platform: "linux/arm64", SHA256: "same"},
				},
			}, ArchiveImages: []string{"docker.io/rancher/a:2"}},
			lock.Component{
				Name: K3s, Version: "v1.35.4+k3s1", Platforms: []lock.Platform{"linux/arm64/v8"}, UpgradesFrom: []string{">=1.34.0 <1.36.0"}, Line: 3,
				Files: []lock.File{{Name: "own.tar.gz", URL: "own"}, {Name: "k3s", Platform: "linux/arm64/v8", URL: "u1", SHA256: "s1", Size: 1}},
				Images: []lock.Image{
					{Archive: "old-arm64", Platform: "linux/arm64/v8", SHA256: "same", Size: 5, Contents: contents},
					{Archive: "old-amd64", Platform: "linux/amd64", SHA256: "a", Size: 4, Contents: contents},
				},
			},
			lock.Component{
				Name: K3s, Version: "v1.36.5+k3s1", Platforms: []lock.Platform{"linux/arm64/v8"}, UpgradesFrom: []string{">=1.35.0 <1.37.0"}, Line: 3,
				Files: []lock.File{{Name: "own.tar.gz", URL: "own"}, {Name: "k3s", Platform: "linux/arm64/v8", URL: "u2", SHA256: "s2", Size: 2}, {Name: "install.sh", URL: "i2"}},
				Images: []lock.Image{
					{Archive: "new-arm64", Platform: "linux/arm64/v8", SHA256: "same", Size: 5, Contents: contents},
					{Archive: "new-amd64", Platform: "linux/amd64", SHA256: "b"},
				},
			},
			[]string{"own.tar.gz"},
		},
		"images one by one": {
			Published{Component: lock.Component{
				Name: K3s, Version: "v1.36.5+k3s1", Images: []lock.Image{{Archive: "new", Platform: "linux/amd64", SHA256: "b"}},
			}, ArchiveImages: []string{"docker.io/rancher/a:2", "docker.io/rancher/b:1"}},
			lock.Component{Name: K3s, Version: "v1.36.4+k3s1", Images: []lock.Image{{Ref: "docker.io/rancher/a:1", Digest: digest}, {Ref: "docker.io/rancher/gone:1", Digest: digest}}},
			lock.Component{Name: K3s, Version: "v1.36.5+k3s1", Images: []lock.Image{{Ref: "docker.io/rancher/a:2"}, {Ref: "docker.io/rancher/gone:1", Digest: digest}, {Ref: "docker.io/rancher/b:1"}}},
			[]string{"docker.io/rancher/gone:1"},
		},
		"images of one's own": {
			Published{Component: lock.Component{
				Name: Cilium, Version: "1.20.2", UpgradesFrom: []string{">=1.19.0 <1.21.0"},
				Charts: []lock.Chart{{Name: "cilium", URL: "c2", SHA256: "d"}},
				Images: []lock.Image{{Ref: "quay.io/cilium/cilium:v1.20.2"}, {Ref: "quay.io/cilium/cilium-envoy:v1.37.5"}},
			}},
			lock.Component{
				Name: Cilium, Version: "1.20.0", UpgradesFrom: []string{"=1.20.0"},
				Charts: []lock.Chart{{Name: "other", URL: "o"}, {Name: "cilium", URL: "c1", SHA256: "c", Size: 3}},
				Images: []lock.Image{
					{Ref: "quay.io/cilium/hubble-relay:v1.20.0", Digest: digest}, {Ref: "quay.io/cilium/hubble-ui:v0.13.5", Digest: digest},
					{Ref: "quay.io/cilium/cilium:v1.20.0", Digest: digest}, {Ref: "quay.io/cilium/cilium-envoy:v1.37.5", Digest: digest},
				},
			},
			lock.Component{
				Name: Cilium, Version: "1.20.2", UpgradesFrom: []string{"=1.20.0"}, // somebody has thought about it
				Charts: []lock.Chart{{Name: "other", URL: "o"}, {Name: "cilium", URL: "c2", SHA256: "d"}},
				Images: []lock.Image{
					{Ref: "quay.io/cilium/hubble-relay:v1.20.2"}, {Ref: "quay.io/cilium/hubble-ui:v0.13.5", Digest: digest},
					{Ref: "quay.io/cilium/cilium:v1.20.2"}, {Ref: "quay.io/cilium/cilium-envoy:v1.37.5", Digest: digest},
				},
			},
			[]string{"other", "quay.io/cilium/hubble-ui:v0.13.5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			next, kept := c.release.Move(c.old)
			if diff := cmp.Diff(c.want, next); diff != "" {
				t.Errorf("component (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.kept, kept); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMoveTwoTags has another tag of one of the release's repositories before and behind the
// one that the release moves: which is which must not hang on the order.
func TestMoveTwoTags(t *testing.T) {
	const (
		envoy = "quay.io/cilium/cilium-envoy:"
		agent = "quay.io/cilium/cilium:"
	)
	mine, other := lock.Image{}.Digest+"sha256:aa", lock.Image{}.Digest+"sha256:bb"
	for name, c := range map[string]struct {
		release   []lock.Image
		old, want []lock.Image // in this order, and in the other one
		kept      []string
	}{
		"the release's is there already": {
			[]lock.Image{{Ref: envoy + "v1.37.5"}},
			[]lock.Image{{Ref: envoy + "v1.36.0", Digest: mine}, {Ref: envoy + "v1.37.5", Digest: other}},
			[]lock.Image{{Ref: envoy + "v1.36.0", Digest: mine}, {Ref: envoy + "v1.37.5", Digest: other}},
			[]string{envoy + "v1.36.0"},
		},
		"of the version": {
			[]lock.Image{{Ref: agent + "v1.20.2"}},
			[]lock.Image{{Ref: agent + "v1.19.5", Digest: mine}, {Ref: agent + "v1.20.0", Digest: other}},
			[]lock.Image{{Ref: agent + "v1.19.5", Digest: mine}, {Ref: agent + "v1.20.2"}},
			[]string{agent + "v1.19.5"},
		},
		"of the version, and the new one": {
			[]lock.Image{{Ref: agent + "v1.20.2"}},
			[]lock.Image{{Ref: agent + "v1.20.0", Digest: mine}, {Ref: agent + "v1.20.2", Digest: other}},
			[]lock.Image{{Ref: agent + "v1.20.0", Digest: mine}, {Ref: agent + "v1.20.2", Digest: other}},
			[]string{agent + "v1.20.0"},
		},
		"both of the release": {
			[]lock.Image{{Ref: envoy + "v1.38.0"}, {Ref: envoy + "v1.37.5"}},
			[]lock.Image{{Ref: envoy + "v1.36.0", Digest: mine}, {Ref: envoy + "v1.37.5", Digest: other}},
			[]lock.Image{{Ref: envoy + "v1.38.0"}, {Ref: envoy + "v1.37.5", Digest: other}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Published{Component: lock.Component{Name: Cilium, Version: "1.20.2", Images: c.release}}
			for range 2 {
				next, kept := r.Move(lock.Component{Name: Cilium, Version: "1.20.0", Images: c.old})
				if diff := cmp.Diff(c.want, next.Images); diff != "" {
					t.Errorf("images (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(c.kept, kept); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
				slices.Reverse(c.old)
				slices.Reverse(c.want)
			}
		})
	}
}
