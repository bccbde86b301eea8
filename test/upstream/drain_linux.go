package upstream

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// drain waits until the other side's kernel has everything that was written, or a few
// seconds. What a program on that side has not read by then, it still can.
func drain(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	for range 500 {
		left := 0
		if err := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
			return err
		}
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}
