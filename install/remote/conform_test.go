package remote

import (
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
)

// TestConform is against a real sshd, with SFTP and without.
func TestConform(t *testing.T) {
	for way, options := range ways {
		t.Run(way, func(t *testing.T) {
			hosttest.Conform(t, startServer(t, options).dialWay(t, way), t.TempDir())
		})
	}
}
