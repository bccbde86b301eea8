package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// netns is a network namespace. It has no name in the file system: it is held
// by an open file, so that it goes away with the process that made it and
// with the processes in it, however they end.
type netns struct{ file *os.File }

func newNetns() (*netns, error) {
	var ns netns
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		var err error
		ns.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return err
	})
	if err != nil {
		return nil, err
	}
	return &ns, nil
}

// do runs fn on a thread that is in the namespace: sockets that fn makes
// belong to it. What fn starts in other goroutines does not.
func (ns *netns) do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// onOwnThread runs fn on a thread that ends with it, so that whatever fn does
// to the thread's namespaces touches nobody else.
func onOwnThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}

// path names the namespace for other processes, as long as this one lives.
func (ns *netns) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd())
}

// command is exec.CommandContext inside the namespace.
func (ns *netns) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns.path(), "--", name}, args...)...)
}

func (ns *netns) ip(ctx context.Context, args ...string) error {
	_, err := runCommand(ns.command(ctx, "ip", args...), nil)
	return err
}

// sysctl sets one of the namespace's own sysctls, below /proc/sys/net.
func (ns *netns) sysctl(ctx context.Context, name, value string) error {
	// A command, and not do: /proc/sys/net shows the network of the process
	// that reads it, which is not always that of the thread.
	_, err := runCommand(ns.command(ctx, "tee", "/proc/sys/"+name), []byte(value))
	return err
}

func (ns *netns) close() error { return ns.file.Close() }
