package host

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Service is what systemd says about a service, or another unit (systemctl show).
type Service struct {
	// Load is "loaded", "not-found" and the like, Active "active", "inactive", "failed", "activating" and the like.
	Load, Active string
	// Enabled reports whether the service starts with the host.
	Enabled bool
	// NeedsReload reports whether its files may have changed since systemd read them.
	NeedsReload bool
	// Result is why it ended last: "success", "exit-code" and the like.
	Result string
	// Restarts is how often systemd has started it again by itself; older versions of systemd do not say it.
	Restarts int
	// Idle reports whether systemd has no job for it.
	Idle bool
}

// IsReady reports whether the service runs. With a job left to do, what runs is what there was before a restart.
func (s Service) IsReady() bool { return s.Active == "active" && s.Idle }

// unitName is the whole name of a service, which is named without its ending, or of a timer, which is not.
func unitName(name string) string {
	if strings.HasSuffix(name, ".timer") {
		return name
	}
	return name + ".service"
}

// FindService asks systemd about a service, which is named without ".service", or about a timer.
func FindService(ctx context.Context, h Host, name string) (Service, error) {
	return FindUnit(ctx, h, unitName(name))
}

// FindUnit asks systemd about a unit of any type, which is named in full.
func FindUnit(ctx context.Context, h Host, name string) (Service, error) {
	const properties = "LoadState,ActiveState,UnitFileState,NeedDaemonReload,Result,NRestarts,Job"
	out, err := Root(ctx, h, "ask systemd about "+strings.TrimSuffix(name, ".service"), "systemctl", "show", "-p",
		properties, name)
	if err != nil {
		return Service{}, err
	}
	s := Service{Idle: true, NeedsReload: true}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = printable.Short(strings.TrimSpace(value), 100)
		switch key {
		case "LoadState":
			s.Load = value
		case "ActiveState":
			s.Active = value
		case "UnitFileState":
			s.Enabled = value == "enabled"
		case "NeedDaemonReload":
			s.NeedsReload = value != "no"
		case "Result":
			s.Result = value
		case "NRestarts":
			s.Restarts, _ = strconv.Atoi(value) // what is no number counts as none
		case "Job":
			s.Idle = value == "" || value == "0"
		}
	}
	return s, nil
}

// Restart enables a service, or a timer, in a state, and starts it again, without waiting for it.
func Restart(ctx context.Context, h Host, name string, s Service) error {
	// Enabling makes systemd read all its units again, so it is not done for nothing.
	const script = `set -e
[ "$2" = true ] || systemctl enable --quiet "$1"
systemctl reset-failed "$1" 2>/dev/null || :
systemctl restart --no-block "$1"`
	_, err := Root(ctx, h, "start "+name, "/bin/sh", "-c", script, "sh", unitName(name), strconv.FormatBool(s.Enabled))
	return err
}

// maxDropIns bounds how many files may have changed a unit.
const maxDropIns = 100

// DropIns are the files with which others have changed a service's unit.
func DropIns(ctx context.Context, h Host, name string) ([]string, error) {
	out, err := Root(ctx, h, "ask systemd about "+name, "systemctl", "show", "-p", "DropInPaths", "--value", name+
		".service")
	files := strings.Fields(string(out))
	if len(files) > maxDropIns {
		return nil, fmt.Errorf("ask systemd about %s: it has %d drop-ins, %d is the most", name, len(files), maxDropIns)
	}
	return files, err
}
