package site_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// TestUnsteadyMedium places boxlift-node from a bundle that gives other bytes once it was verified. The host runs it as
// root: it gets the one that the bundle names, or keeps what it had, and the bundle is blamed, not the host.
func TestUnsteadyMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{
		{Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}}},
	}})
	unsteady.Check(t, path, func(ctx context.Context, r *bundle.Reader) (string, error) {
		fake := hosttest.New(t, "node-1")
		fake.WriteFile(t, site.HelperPath, "of the last run", 0o755)
		h := &site.Host{Conn: fake, Identity: site.Identity{Platform: "linux/arm64"}}
		contents, err := r.Contents()
		if err != nil {
			return "", err
		}
		if err := h.PlaceHelper(ctx, r, contents); err != nil {
			if !errors.Is(err, bundle.ErrInvalid) {
				t.Errorf("the bundle is not blamed: %v", err)
			}
			if left := fake.ReadFile(t, site.HelperPath); left != "of the last run" || h.Helper != "" {
				t.Errorf("the host has %q, and the run takes it for %q", left, h.Helper)
			}
			return "", err
		}
		return h.Helper + ": " + fake.ReadFile(t, site.HelperPath), nil
	})
}
