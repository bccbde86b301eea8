package hosttest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Unit is a service of a fake's systemd. Its methods may be called while commands run.
type Unit struct {
	host  *Fake
	name  string
	state unitState
	// start is what starting does.
	start func(*Fake) error
}

// unitState is what systemctl show tells. systemd knows a unit by its file: one that is not there is "not-found".
type unitState struct {
	active, result string
	enabled        bool
	stale          bool // its file changed since systemd read it
	restarts       int
	dropIns        []string
	starts         int
}

// Unit returns a service, named without ".service", and makes it be there if it was not: inactive and not enabled. Its
// file is the host's affair.
func (f *Fake) Unit(name string) *Unit {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.units[name]
	if u == nil {
		u = &Unit{host: f, name: name, state: unitState{active: "inactive", result: "success"}}
		f.units[name] = u
	}
	return u
}

// Runs lets the unit be active and enabled.
func (u *Unit) Runs() *Unit {
	return u.set(func(s *unitState) { s.active, s.enabled = "active", true })
}

// Stale lets systemd have read an older file.
func (u *Unit) Stale() *Unit { return u.set(func(s *unitState) { s.stale = true }) }

// DropIns lets others have changed the unit with files.
func (u *Unit) DropIns(files ...string) *Unit { return u.set(func(s *unitState) { s.dropIns = files }) }

// OnStart is called whenever the unit is to start. An error lets it fail.
func (u *Unit) OnStart(start func(*Fake) error) *Unit {
	u.host.mu.Lock()
	defer u.host.mu.Unlock()
	u.start = start
	return u
}

// Starts is how often the unit was started.
func (u *Unit) Starts() int {
	u.host.mu.Lock()
	defer u.host.mu.Unlock()
	return u.state.starts
}

// Active is the unit's ActiveState.
func (u *Unit) Active() string {
	u.host.mu.Lock()
	defer u.host.mu.Unlock()
	return u.state.active
}

func (u *Unit) set(change func(*unitState)) *Unit {
	u.host.mu.Lock()
	defer u.host.mu.Unlock()
	change(&u.state)
	return u
}

// systemctl is systemd's command, as far as boxlift uses it.
func systemctl(_ context.Context, c *Call) int {
	var command, properties string
	var units []string
	var onlyValue, now, quiet bool
	for i := 0; i < len(c.Args); i++ {
		switch arg := c.Args[i]; {
		case arg == "-p" && i+1 < len(c.Args):
			i++
			properties = c.Args[i]
		case arg == "--value":
			onlyValue = true
		case arg == "--now":
			now = true
		case arg == "--quiet":
			quiet = true
		case strings.HasPrefix(arg, "-"): // --no-block: everything is done at once here
		case command == "":
			command = arg
		default:
			units = append(units, strings.TrimSuffix(arg, ".service"))
		}
	}
	if command == "daemon-reload" {
		c.Host.mu.Lock()
		defer c.Host.mu.Unlock()
		for _, u := range c.Host.units {
			u.state.stale = false
		}
		return 0
	}
	code := 0
	for _, name := range units {
		code = max(code, c.control(command, name, properties, onlyValue, now, quiet))
	}
	return code
}

// control does one thing to one unit.
func (c *Call) control(command, name, properties string, onlyValue, now, quiet bool) int {
	c.Host.mu.Lock()
	u := c.Host.units[name]
	c.Host.mu.Unlock()
	if command == "show" {
		for property := range strings.SplitSeq(properties, ",") {
			value := u.property(property)
			if !onlyValue {
				value = property + "=" + value
			}
			_, _ = fmt.Fprintln(c.Stdout, value) // the caller may have gone
		}
		return 0
	}
	if u == nil {
		_, _ = fmt.Fprintf(c.Stderr, "Unit %s.service not loaded.\n", name)
		return 5
	}
	switch command {
	case "is-active":
		if !quiet {
			_, _ = fmt.Fprintln(c.Stdout, u.Active())
		}
		if u.Active() != "active" {
			return 3
		}
	case "enable", "disable":
		u.set(func(s *unitState) { s.enabled = command == "enable" })
		if now && command == "enable" {
			return u.startNow()
		}
		if now {
			u.set(func(s *unitState) { s.active = "inactive" })
		}
	case "stop":
		u.set(func(s *unitState) { s.active = "inactive" })
	case "start", "restart":
		if command == "restart" || u.Active() != "active" {
			return u.startNow()
		}
	case "reset-failed":
		u.set(func(s *unitState) { s.restarts, s.result = 0, "success" })
	default:
		_, _ = fmt.Fprintf(c.Stderr, "Unknown command verb %s.\n", command)
		return 1
	}
	return 0
}

// startNow starts the unit, without the lock: what starts may ask for units itself.
func (u *Unit) startNow() int {
	u.host.mu.Lock()
	start := u.start
	u.host.mu.Unlock()
	var err error
	if start != nil {
		err = start(u.host)
	}
	u.set(func(s *unitState) {
		s.starts++
		if s.active, s.result = "active", "success"; err != nil {
			s.active, s.result = "failed", "exit-code"
		}
	})
	return 0 // as with --no-block, the job's end is not waited for
}

// property is what systemctl show says of a unit, nil for one that is not there.
func (u *Unit) property(name string) string {
	if u == nil {
		return map[string]string{
			"LoadState": "not-found", "ActiveState": "inactive", "NeedDaemonReload": "no", "Result": "success",
			"NRestarts": "0", "Job": "0",
		}[name]
	}
	u.host.mu.Lock()
	defer u.host.mu.Unlock()
	switch s := u.state; name {
	case "LoadState":
		return "loaded"
	case "ActiveState":
		return s.active
	case "UnitFileState":
		if s.enabled {
			return "enabled"
		}
		return "disabled"
	case "NeedDaemonReload":
		if s.stale {
			return "yes"
		}
		return "no"
	case "Result":
		return s.result
	case "NRestarts":
		return strconv.Itoa(s.restarts)
	case "Job":
		return "0"
	case "DropInPaths":
		return strings.Join(slices.Sorted(slices.Values(s.dropIns)), " ")
	}
	return ""
}
