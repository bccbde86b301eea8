package local

import (
	"errors"
	"os"
	"testing"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
)

func TestConform(t *testing.T) { hosttest.Conform(t, New("this machine"), t.TempDir()) }

// TestRoot needs root for what needs root.
func TestRoot(t *testing.T) {
	result, err := New("this machine").Run(t.Context(), host.Command{Args: []string{"id", "-u"}, Root: true})
	if os.Geteuid() != 0 {
		if !errors.Is(err, ErrNotRoot) {
			t.Errorf("error %v, want %v", err, ErrNotRoot)
		}
		return
	}
	if err != nil || string(result.Stdout) != "0\n" {
		t.Errorf("id -u printed %q, %v", result.Stdout, err)
	}
}
