package site

import (
	"fmt"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/node/wire"
)

const (
	K3sComponent  = "k3s"
	K3sProgram    = "k3s"
	InstallScript = "install.sh"
)

func PackName(p bundle.Pack) string { return wire.PackName(p.Component, p.Index) }

// StoredPath is where a file of the bundle lies on a host. The digest in the name lets
// files of several bundles lie beside each other.
func StoredPath(f bundle.File) string {
	return wire.FilesDir + "/files/" + f.Name + "-" + f.Digest.Encoded()[:12]
}

// K3sFile finds one of k3s' files for a host.
func (s *Site) K3sFile(name string, platform lock.Platform) (bundle.File, error) {
	f, ok := s.Contents.File(K3sComponent, name, platform)
	if !ok {
		return bundle.File{}, fmt.Errorf("the bundle's component %s has no file %s for %s: add it to the lock", K3sComponent, name, platform)
	}
	return f, nil
}
