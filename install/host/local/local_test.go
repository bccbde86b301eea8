package local

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/test/need"
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

// The machine's address is one of its own, that others can reach; without a default route there is none.
func TestAddress(t *testing.T) {
	address := New("this machine").Address(t.Context())
	if !address.IsValid() {
		need.LeaveOut(t, "the machine has no default route")
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	if address.IsLoopback() || !slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == address
	}) {
		t.Errorf("%s is none of %v", address, own)
	}
}
