package recovery

import (
	"os"
	"testing"

	"github.com/liteboxd/boxlift/install/kube/helm"
)

func TestMain(m *testing.M) {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	os.Exit(m.Run())
}
