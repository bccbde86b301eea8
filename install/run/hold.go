package run

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/hold"
)

// Holds are the hosts that a run keeps other runs away from, whichever operator's machine
// and state those work with.
type Holds struct {
	run string
	// over is closed when the run lets go of its hosts; all waits for what that takes.
	over chan struct{}
	all  sync.WaitGroup
}

// NewHolds are those of a run that holds no host yet.
func NewHolds() *Holds { return &Holds{run: rand.Text(), over: make(chan struct{})} }

const (
	// busyWait is how long a host that another run holds is asked again: that a run was
	// killed, the host learns a moment later.
	busyWait     = 3 * time.Second
	busyInterval = 300 * time.Millisecond
	// releaseWait is how long the hosts may take to be let go.
	releaseWait = 3 * time.Second
)

// Hold keeps other runs away from a host until this one ends, however it ends. A run that only looks is in nobody's
// way.
func (en *Engine) Hold(ctx context.Context, h *site.Host) error {
	if !en.acts {
		return nil
	}
	for begin := time.Now(); ; {
		err := en.tryHold(ctx, h)
		var other *hold.HeldError
		switch {
		case err == nil:
			h.Held = true
			return nil
		case !errors.As(err, &other):
			return fmt.Errorf("hold the host: %w", err)
		case other.By.Run == en.Holds.run:
			return nil // install.yaml has it twice, which preflight tells
		case time.Since(begin) > busyWait:
			return &BusyError{other}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(busyInterval):
		}
	}
}

// tryHold starts what holds a host, and ends with its connection. The end of ctx does not
// end it: what the run does after that is not for others to see either.
func (en *Engine) tryHold(ctx context.Context, h *site.Host) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	p, err := h.Conn.Start(life, machine.Command{Title: "hold the host", Args: []string{site.HelperPath, "hold"},
		Root: true})
	if err != nil {
		stop()
		end(nil)
		return err
	}
	asked := make(chan error, 1)
	go func() { asked <- hold.Ask(p.Stdin, p.Stdout, en.Holds.holder()) }()
	select {
	case err = <-asked:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(site.LookTimeout):
		err = fmt.Errorf("boxlift-node has not answered after %v", site.LookTimeout)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cause := err                                       // which the end of the process may replace meanwhile
		time.AfterFunc(releaseWait, func() { end(cause) }) // what lies may not end either
		var other *hold.HeldError
		if waitErr := p.Wait(); waitErr != nil && !errors.As(err, &other) {
			err = waitErr // it says more than the end of the stream
		}
		end(nil)
		return err
	}
	en.Holds.all.Go(func() {
		defer end(nil)
		en.Holds.keep(p)
	})
	return nil
}

// keep gives signs of life until the run is over.
func (h *Holds) keep(p *machine.Process) {
	ticker := time.NewTicker(hold.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if _, err := p.Stdin.Write([]byte("\n")); err != nil {
				return // the host has gone, which others notice
			}
		case <-h.over:
			_ = p.Stdin.Close() // fails when it has ended by itself
			_ = p.Wait()        // nothing depends on how it ends
			return
		}
	}
}

// release lets go of all hosts. One that does not answer any more lets go by itself.
func (h *Holds) release() {
	close(h.over)
	done := make(chan struct{})
	go func() {
		h.all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(releaseWait):
	}
}

// holder is how this run is called on hosts.
func (h *Holds) holder() hold.Holder {
	return hold.Holder{Run: h.run, Name: fmt.Sprintf("%s, process %d", site.Operator(), os.Getpid())}
}

// BusyError says that another run works on a host.
type BusyError struct{ *hold.HeldError }

func (e *BusyError) Unwrap() error { return e.HeldError }

// Hint says how to go on.
func (*BusyError) Hint() string {
	return "wait for it to end, or end it, and run the command again; a run that lost its connection lets go after " +
		"two minutes"
}

// CheckHelper makes sure that the helper is there: this command puts nothing on hosts.
func (en *Engine) CheckHelper(ctx context.Context, h *site.Host) error {
	_, err := h.Root(ctx, "look for boxlift-node", "test", "-x", site.HelperPath)
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == 1 {
		return errNoHelper
	}
	return err
}

var errNoHelper = errors.New("there is no " + site.HelperPath + ": boxlift install brings it")
