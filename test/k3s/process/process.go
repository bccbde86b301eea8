// Package process runs child processes that end with this one, however it ends.
package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Group is a set of children that are stopped together.
type Group struct {
	// Failed gets an error for each child that ends before Stop.
	Failed chan error

	mu       sync.Mutex
	children []*child
	stopping bool
}

type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// NewGroup makes an empty group.
func NewGroup() *Group { return &Group{Failed: make(chan error, 32)} }

// Start starts a child. Without an environment of its own it has this process',
// but for the service manager's socket, which is not the child's to use. Children written
// in Go collect garbage seldom.
func (g *Group) Start(name string, cmd *exec.Cmd) error {
	c := &child{name: name, cmd: cmd, done: make(chan struct{})}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	// Tests run many clusters on few cores, which have more memory than time. What the
	// environment says itself comes later, and wins.
	env := []string{"GOGC=400"}
	for _, variable := range cmd.Env {
		if !strings.HasPrefix(variable, "NOTIFY_SOCKET=") {
			env = append(env, variable)
		}
	}
	cmd.Env = env
	// The service manager ends only this process, and what it leaves behind
	// would hold ports and files when the service starts again.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes when the thread that started the child ends
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		close(c.done)
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.stopping {
			g.Failed <- fmt.Errorf("%s exited: %w", name, cmp.Or(err, errors.New("exit status 0")))
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.children = append(g.children, c)
	return nil
}

// Stop ends all children: it asks, and after a grace time kills.
func (g *Group) Stop(grace time.Duration) {
	g.mu.Lock()
	g.stopping = true
	children := g.children
	g.mu.Unlock()
	for _, c := range children {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended
	}
	end := time.After(grace)
	for _, c := range children {
		select {
		case <-c.done:
		case <-end:
			for _, c := range children {
				_ = c.cmd.Process.Kill()
			}
			<-c.done
		}
	}
}
