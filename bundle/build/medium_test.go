package build_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// listed describes a bundle with software in it.
func listed(t *testing.T, script string) smallbundle.Bundle {
	layer := smallbundle.Layer(t, map[string]string{
		"etc/os-release":      "ID=debian\nVERSION_ID=12\n",
		"var/lib/dpkg/status": "Package: tar\nStatus: install ok installed\nVersion: 1.34\nArchitecture: amd64\n\n",
	})
	return smallbundle.Bundle{Components: []smallbundle.Component{
		{
			Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: script}},
			Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
				{Name: "linux/amd64", Layers: [][]byte{layer}},
				{Name: "linux/arm64", Layers: [][]byte{[]byte("no layer")}},
			}}},
		},
		{Name: "cilium", Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "a chart"}}},
	}}
}

// listSoftware is what `bundle build --sbom` lists with.
func listSoftware(ctx context.Context, r *bundle.Reader) ([]byte, error) {
	document, err := sbom.Make(ctx, r, sbom.Options{Version: "v0.0.0-test"})
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = sbom.Write(&text, document)
	return text.Bytes(), err
}

// TestUnsteadyOlderBundle builds with an older bundle that gives other bytes once it was verified. What it does not
// supply would be fetched, and there is nobody to fetch it from: so a build fails, or makes what it makes otherwise.
func TestUnsteadyOlderBundle(t *testing.T) {
	dir := t.TempDir()
	old, next := filepath.Join(dir, "old.tar"), filepath.Join(dir, "next.tar")
	smallbundle.Write(t, old, listed(t, "#!/bin/sh\n"))
	whole := listed(t, "#!/bin/sh\nexit 1\n")
	smallbundle.Write(t, next, whole)
	// All that the next bundle has and the older one has not.
	whole.Components[0].Images, whole.Components[1].Charts = nil, nil
	fresh := bundletest.OpenNew(t, whole)

	again := func(t *testing.T, r *bundle.Reader) plan.Options {
		o := smallbundle.PlanOptions(t, bundletest.MustOpen(t, old))
		o.Reuse = []*bundle.Reader{r}
		return o
	}
	since := func(t *testing.T, r *bundle.Reader) plan.Options {
		o := smallbundle.PlanOptions(t, bundletest.MustOpen(t, next))
		o.Since, o.Reuse = &plan.Base{}, []*bundle.Reader{fresh, r}
		o.Since.AddBundle(r)
		return o
	}
	for name, test := range map[string]struct {
		options func(*testing.T, *bundle.Reader) plan.Options
		list    func(context.Context, *bundle.Reader) ([]byte, error)
	}{
		"reuse":                   {again, nil},
		"reuse, with a list":      {again, listSoftware},
		"delta since":             {since, nil},
		"delta since with a list": {since, listSoftware},
	} {
		t.Run(name, func(t *testing.T) {
			unsteady.Check(t, old, func(ctx context.Context, r *bundle.Reader) (string, error) {
				o := test.options(t, r)
				o.SBOM = test.list
				o.Sources = &plan.SourceCheck{Components: []string{"cilium"}, Check: func(_ context.Context, all []workload.Source) error {
					if len(all) != 1 || string(all[0].Content) != "a chart" {
						t.Errorf("%v is checked", all)
					}
					return nil
				}}
				planned, err := plan.New(ctx, o)
				if err != nil {
					return "", err
				}
				path := filepath.Join(t.TempDir(), "b.tar")
				if _, err := build.Write(ctx, planned, build.Options{Path: path}); err != nil {
					bundletest.NoFile(t, path)
					return "", err
				}
				return digest.FromBytes(bundletest.MustRead(t, path)).String(), nil
			})
		})
	}
}
