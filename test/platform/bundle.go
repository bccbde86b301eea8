//go:build linux

package platform

import (
	_ "embed"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

var (
	// k3sScript is k3s, where VERSION is its version.
	//go:embed k3s.sh
	k3sScript string
	// installScript is its install.sh.
	//go:embed install.sh
	installScript string
	// ciliumChart is the template of all objects of Cilium.
	//go:embed cilium.yaml
	ciliumChart string
)

// Images of the bundles.
const (
	pause    = "docker.io/rancher/mirrored-pause:3.6"
	coredns  = "docker.io/rancher/mirrored-coredns:1.14"
	agent    = "quay.io/cilium/cilium:v1.20.0"
	operator = "quay.io/cilium/operator-generic:v1.20.0"
	envoy    = "quay.io/cilium/cilium-envoy:v1.37"
)

// broken is what a k3s has in it that does not start, before the names of hosts.
const broken = "# does not start on "

// Bundle makes a bundle with a version of k3s, which is open until the test ends. The k3s does not start on hosts of
// these names.
func Bundle(t testing.TB, k3s string, brokenOn ...string) *bundle.Reader {
	t.Helper()
	image := func(name string) smallbundle.Image {
		layer := smallbundle.Layer(t, map[string]string{"program": name + " for " + k3s})
		if strings.HasPrefix(name, "quay.io/") || name == pause { // the same in all bundles
			layer = smallbundle.Layer(t, map[string]string{"program": name})
		}
		return smallbundle.Image{Ref: name, Platforms: []smallbundle.Platform{{Name: "linux/amd64",
			Layers: [][]byte{layer}}, {Name: "linux/arm64", Layers: [][]byte{layer}}}}
	}
	program := strings.ReplaceAll(k3sScript, "VERSION", k3s)
	for _, host := range brokenOn {
		program += broken + host + "\n"
	}
	chart := kubetest.Chart(t, "1.20.0", map[string]string{
		"templates/all.yaml": strings.NewReplacer("AGENT", agent, "OPERATOR", operator, "ENVOY", envoy).Replace(ciliumChart),
	})
	path := filepath.Join(t.TempDir(), "platform.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{
		{
			Name: site.K3sComponent, Version: k3s, Images: []smallbundle.Image{image(pause), image(coredns)},
			Files: []smallbundle.File{
				{Name: site.K3sProgram, Platform: "linux/amd64", Content: program},
				{Name: site.K3sProgram, Platform: "linux/arm64", Content: program},
				{Name: site.InstallScript, Content: installScript},
			},
		},
		{
			Name: site.CiliumComponent, Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: string(chart)}},
			Images: []smallbundle.Image{image(agent), image(operator), image(envoy)},
		},
	}})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}
