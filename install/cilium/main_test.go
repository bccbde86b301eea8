package cilium

import (
	"os"
	"testing"

	"github.com/liteboxd/boxlift/install/kube"
)

func TestMain(m *testing.M) {
	if kube.RendersChart() {
		os.Exit(kube.RenderChart())
	}
	os.Exit(m.Run())
}
