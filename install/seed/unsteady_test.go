package seed

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// TestUnsteadyMedium has an installation read what it applies and what it ships from a bundle
// that gives other bytes once it was verified.
func TestUnsteadyMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{
		{Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}}},
		{Name: site.CiliumComponent, Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "a chart"}}},
		{
			Name: LiteBoxdComponent, Version: "1.0.0",
			Files: []smallbundle.File{{Name: bundle.ManifestsFile, Content: "manifests"}},
		},
	}})
	opened := func(r *bundle.Reader) (*installation, error) {
		in := example(t, sitetest.ExampleConfig)
		in.site.Bundle = r
		var err error
		in.site.Contents, err = r.Contents()
		return in, err
	}
	for name, read := range map[string]func(*installation, bundle.File) ([]byte, error){
		"applied": func(in *installation, f bundle.File) ([]byte, error) { return in.site.ReadFile(f, site.MaxChart) },
		"shipped": func(in *installation, f bundle.File) ([]byte, error) {
			r, err := in.seeder.openBlob(f.Digest, 0)
			if err != nil {
				return nil, err
			}
			content := make([]byte, f.Size) // as it is sent: who knows the size does not ask for the end
			_, err = io.ReadFull(r, content)
			return content, err
		},
		"shipped to its end": func(in *installation, f bundle.File) ([]byte, error) {
			r, err := in.seeder.openBlob(f.Digest, f.Size/2)
			if err != nil {
				return nil, err
			}
			return io.ReadAll(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			unsteady.Check(t, path, func(_ context.Context, r *bundle.Reader) (string, error) {
				in, err := opened(r)
				if err != nil {
					return "", err
				}
				all := ""
				for _, f := range in.site.Contents.Files {
					content, err := read(in, f)
					if err != nil {
						return "", err
					}
					all += fmt.Sprintf("%s %s: %s\n", f.Component, f.Name, content)
				}
				return all, nil
			})
		})
	}
}
