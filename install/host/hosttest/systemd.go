package hosttest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Unit is a service of a fake's systemd, or a timer, which starts nothing: no time passes there. Its methods may be
// called while commands run.
type Unit struct {
	host  *Fake
	name  string
	state unitState
	// start is what starting does.
	start func(*Fake) error
}

// Services are what services with files do, see [Fake.Systemd].
type Services struct {
	// Start is called whenever one is to start. An error lets it fail.
	Start func(f *Fake, unit string) error
	// Stop is called whenever one that is active ends.
	Stop func(f *Fake, unit string)
}

// Systemd has the host's systemd go by the files in /etc/systemd/system, as it does: it knows a unit when somebody asks
// for one that has a file, learns of another file at daemon-reload, and forgets then what has no file and does not run.
func (f *Fake) Systemd(s Services) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services = &s
}

// unitFile is the digest of a unit's file, "" for none.
func (f *Fake) unitFile(name string) string {
	if !strings.HasSuffix(name, ".timer") {
		name += ".service"
	}
	content, err := os.ReadFile(f.path("/etc/systemd/system/" + name))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// find is a unit that there is, nil for none.
func (f *Fake) find(name string) *Unit {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.units[name]
	if f.services == nil {
		return u
	}
	file := f.unitFile(name)
	if u == nil && file != "" {
		u = &Unit{host: f, name: name, state: unitState{active: "inactive", result: "success", file: file}}
		f.units[name] = u
	}
	if u != nil && u.state.file != "" {
		u.state.stale = u.state.file != file
	}
	return u
}

// reload has systemd read all files again.
func (f *Fake) reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, u := range f.units {
		u.state.stale = false
		if u.state.file == "" {
			continue
		}
		if file := f.unitFile(name); file != "" {
			u.state.file = file
		} else if u.state.active != "active" {
			delete(f.units, name)
		}
	}
}

// stop ends what runs.
func (u *Unit) stop() {
	u.host.mu.Lock()
	services, was := u.host.services, u.state.active
	u.host.mu.Unlock()
	if was == "active" && services != nil && services.Stop != nil && !strings.HasSuffix(u.name, ".timer") {
		services.Stop(u.host, u.name)
	}
	u.set(func(s *unitState) { s.active = "inactive" })
}

// unitState is what systemctl show tells. systemd knows a unit by its file: one that is not there is "not-found".
type unitState struct {
	active, result string
	enabled        bool
	stale          bool // its file changed since systemd read it
	restarts       int
	dropIns        []string
	starts         int
	shows          int // until it is active, see Starting
	// file is the digest of its file when systemd read it, "" for a unit that the test has made.
	file string
}

// Unit returns a service, named without ".service", or a timer, named with ".timer", and makes it be there if it was
// not: inactive and not enabled. Its file is the host's affair.
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

// Starting lets the unit be at its start, as one is that tells systemd itself when it is ready, until systemctl show
// was asked about it so many times; with 0, for good. Then it is active.
func (u *Unit) Starting(shows int) *Unit {
	return u.set(func(s *unitState) { s.active, s.enabled, s.shows = "activating", true, shows })
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
		c.Host.reload()
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
	u := c.Host.find(name)
	if command == "show" {
		for property := range strings.SplitSeq(properties, ",") {
			value := u.property(property)
			if !onlyValue {
				value = property + "=" + value
			}
			_, _ = fmt.Fprintln(c.Stdout, value) // the caller may have gone
		}
		if u != nil {
			u.set(shown)
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
			u.stop()
		}
	case "stop":
		u.stop()
	case "start", "restart":
		if command == "restart" {
			u.stop()
		}
		if u.Active() != "active" {
			return u.startNow()
		}
	case "reload": // what it reads again is the test's affair
	case "reset-failed":
		u.set(func(s *unitState) { s.restarts, s.result = 0, "success" })
	default:
		_, _ = fmt.Fprintf(c.Stderr, "Unknown command verb %s.\n", command)
		return 1
	}
	return 0
}

// shown brings a unit that is at its start nearer to its end.
func shown(s *unitState) {
	if s.shows == 0 {
		return
	}
	if s.shows--; s.shows == 0 {
		s.active = "active"
	}
}

// startNow starts the unit, without the lock: what starts may ask for units itself.
func (u *Unit) startNow() int {
	u.host.mu.Lock()
	start, services := u.start, u.host.services
	u.host.mu.Unlock()
	var err error
	switch {
	case start != nil:
		err = start(u.host)
	case services != nil && services.Start != nil && !strings.HasSuffix(u.name, ".timer"):
		err = services.Start(u.host, u.name)
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
	case "ExecStart":
		return execStart(u.host.path("/etc/systemd/system/" + u.name + ".service"))
	case "DropInPaths":
		return strings.Join(slices.Sorted(slices.Values(s.dropIns)), " ")
	}
	return ""
}

// execStart is what systemd says of the command in a unit's file, "" where there is none.
func execStart(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			program, _, _ := strings.Cut(command, " ")
			return "{ path=" + program + " ; argv[]=" + command + " ; ignore_errors=no ; pid=7 }"
		}
	}
	return ""
}
