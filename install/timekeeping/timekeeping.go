// Package timekeeping gives hosts the same time: those that install.yaml names serve it by chrony, and all others
// follow them.
//
// Contract: chronyd runs by a configuration of boxlift's, which a drop-in names to the distribution's unit. Files of
// the distribution are neither used nor changed, so that no host asks public time servers; it asks the hosts that serve
// time, and these each other and what install.yaml names as upstream. A configuration gets its name once chronyd has
// found it to be one. Before anything comes after it, a host goes by that time: a clock that is off by more than a
// second is set. A host that cannot set its clock, as a container, only has it watched; one that is off then is an
// error. What the host's chrony did before is noted there ([KeptFile]) before anything is changed, and given back when
// install.yaml has no such section any more, or the host leaves.
package timekeeping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	// Phase is the name of the phase that gives hosts their time.
	Phase = "time"
	// Package is the distribution's package that it takes.
	Package = "chrony"
	// service is the distribution's unit.
	service = "chrony"
)

// ErrClock is wrapped by errors that say that a host does not go by the time of those who serve it.
var ErrClock = fault.NewKind(fault.Host, "the host's clock")

// Keeper keeps the time of hosts.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine
}

// Keep has all hosts keep time as install.yaml says, or gives back what boxlift has changed where it says nothing.
// Those who serve come first, one after the other, so that each takes the time from the one before; a host that has not
// told what it is like is left out.
func (k *Keeper) Keep(ctx context.Context) error {
	if k.Site.Config.Time == nil {
		return k.Engine.EachHost(ctx, k.Site.Hosts, func(ctx context.Context, h *site.Host) error {
			return k.Engine.RunSteps(ctx, Phase, &h.Subject, []run.Step{k.TakeAway(h.Conn)})
		})
	}
	var serving, following []*site.Host
	for _, h := range k.Site.Hosts {
		if h.Config.ServesTime {
			serving = append(serving, h)
		} else {
			following = append(following, h)
		}
	}
	var failed error
	for _, h := range serving {
		if err := k.Engine.EachHost(ctx, []*site.Host{h}, k.keep); err != nil {
			if ctx.Err() != nil || !k.Engine.GoesOn(err) {
				return err
			}
			failed = cmp.Or(failed, err)
		}
	}
	return cmp.Or(failed, k.Engine.EachHost(ctx, following, k.keep))
}

func (k *Keeper) keep(ctx context.Context, h *site.Host) error {
	if h.Facts == nil {
		return nil
	}
	steps, err := k.steps(ctx, h)
	if err != nil {
		return err
	}
	return k.Engine.RunSteps(ctx, Phase, &h.Subject, steps)
}

// settime is the capability to set the clock, as a bit (capabilities(7), CAP_SYS_TIME).
const settime = 1 << 25

// isFixed reports whether a host cannot set its clock: its first process may not, and no other can then.
func isFixed(ctx context.Context, h machine.Host) (bool, error) {
	const script = `[ ! -r /proc/1/status ] || sed -n 's/^CapBnd:[[:space:]]*//p' /proc/1/status`
	out, err := machine.Root(ctx, h, "ask whether the clock can be set", "/bin/sh", "-c", script)
	text := strings.TrimSpace(string(out))
	if err != nil || text == "" {
		return false, err
	}
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return false, fault.OnHost(fmt.Errorf("%w: ask whether it can be set: found %q, expected a set of capabilities",
			ErrClock, printable.Short(text, 40)), h.Name())
	}
	return set&settime == 0, nil
}

// await asks chronyd until the host goes by the time, or for awaitTime at most. Of those who serve, it asks a while
// longer for one that follows what is upstream of them.
func (k *Keeper) await(ctx context.Context, h *site.Host, p *plan) error {
	limit := min(max(k.Site.Config.Runtime.CommandTimeout, time.Second), awaitTime)
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errWaited)
	defer cancel()
	return k.Site.Meter.Wait(func() error {
		for last := "chronyd does not answer"; ; {
			m, err := Measure(ctx, h.Conn)
			var exit *machine.ExitError
			switch {
			case errors.As(err, &exit):
				last = "chronyd does not answer"
			case err != nil && ctx.Err() == nil:
				return err
			case err != nil: // it was too late for that
			case p.difference(m) != "":
				last = p.difference(m)
			case !m.Own || len(p.upstream) == 0:
				return nil
			default:
				last = ""
			}
			if last == "" && (ctx.Err() != nil || time.Since(begun) >= upstreamTime) {
				k.Site.Warn("%s: none of time.upstream answers (%s): until one does, the host serves the time of "+
					"its own clock", h.Name, strings.Join(p.upstream, ", "))
				return nil
			}
			select {
			case <-ctx.Done():
				switch {
				case !errors.Is(context.Cause(ctx), errWaited):
					return context.Cause(ctx)
				case last != "":
					return notFollowing(last, limit)
				}
			case <-time.After(time.Second):
			}
		}
	})
}

// awaitTime is how long a host may take until it goes by the time of others: some seconds; newer chronys wait for five
// minutes before they serve a time of their own.
const awaitTime = 7 * time.Minute

// upstreamTime is how long a host that serves time waits for those that it follows: some seconds, too. Without them it
// serves its own.
const upstreamTime = 30 * time.Second

var errWaited = errors.New("it was waited for in vain")

func notFollowing(difference string, limit time.Duration) error {
	return fault.WithHint(fmt.Errorf("%w: after %v, %s", ErrClock, limit, difference), "see on the host: chronyc -n "+
		"sources; the servers of time have to be reached on UDP port 123, and to run: chronyc serverstats there counts "+
		"what they are asked")
}

// difference says what is missing until a host goes by the time that it is to, "" for nothing.
func (p *plan) difference(m *Measurement) string {
	switch {
	case !m.Synchronized:
		return "chrony has no time to go by"
	case m.Own && !p.serves:
		return "chrony goes by the host's own clock"
	}
	return ""
}

// off says how far a clock is from the time when that is too far, "" otherwise.
func off(m *Measurement) string {
	if m.Offset.Abs() <= stepFrom*time.Second {
		return ""
	}
	side := "ahead of"
	if m.Offset < 0 {
		side = "behind"
	}
	return fmt.Sprintf("the clock is %v %s the time", m.Offset.Abs().Round(time.Millisecond), side)
}
