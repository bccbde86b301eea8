//go:build linux

package platform

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/liteboxd/boxlift/install/kube/helm"
)

func TestMain(m *testing.M) {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	debug.SetGCPercent(400) // many small platforms, one after the other
	os.Exit(m.Run())
}
