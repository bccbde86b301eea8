//go:build !linux

package upstream

import (
	"net"
	"time"
)

// drain gives the kernel a moment.
func drain(*net.TCPConn) error {
	time.Sleep(20 * time.Millisecond)
	return nil
}
