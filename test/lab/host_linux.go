package lab

import "syscall"

// guestProcess makes a host's processes independent of the terminal, so that
// an interrupt there does not stop them before Close does, and lets them die
// with the thread that starts them.
func guestProcess() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
