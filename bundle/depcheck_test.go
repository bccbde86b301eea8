package bundle

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies keeps the packages, and with them every program that uses bundles, free
// of what it has no use for.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./build", "./rebuild", "./pins",
		"./extract").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(out))
	if !slices.Contains(all, "github.com/liteboxd/boxlift/bundle/ocitar") {
		t.Fatalf("this is not a list of dependencies: %v", all)
	}
	for _, name := range all {
		for _, heavy := range []string{
			"golang.org/x/crypto/ssh", "github.com/skeema/knownhosts", "github.com/pkg/sftp",
			"k8s.io/", "sigs.k8s.io/", "helm.sh/", "github.com/distribution/distribution/",
			"github.com/spf13/cobra", "testing",
			"github.com/liteboxd/boxlift/install", "github.com/liteboxd/boxlift/node",
			"github.com/liteboxd/boxlift/test",
		} {
			if name == heavy || strings.HasPrefix(name, strings.TrimSuffix(heavy, "/")+"/") {
				t.Errorf("bundle depends on %s", name)
			}
		}
	}
}
