package remote

import (
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
)

// TestConform is against a real sshd.
func TestConform(t *testing.T) {
	hosttest.Conform(t, startServer(t, serverOptions{}).dial(t), t.TempDir())
}
