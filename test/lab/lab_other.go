//go:build !linux

package lab

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"syscall"
)

// Elsewhere than on Linux, Missing gives the reason and nothing below is
// reached; it is here so that tests which use the package compile.

var errNotLinux = errors.New("labs need Linux")

type netns struct{}

func newNetns() (*netns, error)                             { return nil, errNotLinux }
func (*netns) do(func() error) error                        { return errNotLinux }
func (*netns) path() string                                 { return "" }
func (*netns) ip(context.Context, ...string) error          { return errNotLinux }
func (*netns) sysctl(context.Context, string, string) error { return errNotLinux }
func (*netns) close() error                                 { return nil }
func (*netns) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, name, args...)
}

type leakCounter struct{}

func newLeakCounter(*netns, string, netip.Prefix) (*leakCounter, error) { return nil, errNotLinux }
func (*leakCounter) read() (uint64, string, error)                      { return 0, "", errNotLinux }
func (*leakCounter) reset() error                                       { return errNotLinux }
func (*leakCounter) close() error                                       { return nil }

func onOwnThread(fn func() error) error { return fn() }

func guestProcess() *syscall.SysProcAttr { return nil }
