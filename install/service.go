package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// A service is started again when what it runs with is not what it was last started with: a
// file on the host holds the fingerprint of that.

// restarting lets a step that is carried out have its service started again, for which started
// is the file that says what it was last started with. Comparing fingerprints is not enough:
// others may have started the service with what the step now puts right.
func (h *host) restarting(started string, s step) step {
	run := s.run
	s.starts = true
	s.run = func(ctx context.Context) error {
		if err := h.forgetStarted(ctx, started); err != nil {
			return err
		}
		return run(ctx)
	}
	return s
}

// forgetStarted notes that a service has to be started again, for which started is the file that says what it was last
// started with.
func (h *host) forgetStarted(ctx context.Context, started string) error {
	if h.adopted != nil && started == startedFile {
		return h.put(ctx, started, 0o600, []byte(changedMark+"\n"))
	}
	_, err := h.root(ctx, "forget what was started", "rm", "-f", started)
	return err
}

// startingReason says why steps will start their service, or start it again; "" when they will not.
func startingReason(ctx context.Context, steps []step) (string, error) {
	for _, s := range steps {
		if !s.starts {
			continue
		}
		if reason, err := s.needed(ctx); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

// startReason says why a service has to be started, or started again. The file called started
// has the fingerprint of what it was last started with, and fingerprint computes that of what
// there is now.
func (h *host) startReason(ctx context.Context, service, started string, fingerprint func(context.Context) (string, error)) (string, error) {
	state, err := h.serviceState(ctx, service)
	if err != nil {
		return "", err
	}
	if state["ActiveState"] != "active" {
		return "the service is " + orUnknown(state["ActiveState"]), nil
	}
	if state["UnitFileState"] != "enabled" {
		return "the service does not start with the host", nil
	}
	want, err := fingerprint(ctx)
	if err != nil {
		return "", err
	}
	have, err := h.read(ctx, started)
	neverStarted := have == "" && h.adopted != nil && started == startedFile // by boxlift
	if err != nil || have == want || neverStarted {
		return "", err
	}
	return "its program, unit or config changed since it was started", nil
}

// restart enables a service in a state, and starts it again, without waiting for it.
func (h *host) restart(ctx context.Context, service string, state map[string]string) error {
	// Enabling makes systemd read all its units again, so it is not done for nothing.
	const script = `set -e
[ "$2" = enabled ] || systemctl enable --quiet "$1"
systemctl reset-failed "$1" 2>/dev/null || :
systemctl restart --no-block "$1"`
	_, err := h.root(ctx, "start "+service, "/bin/sh", "-c", script, "sh", service+".service", state["UnitFileState"])
	return err
}

// serviceState asks systemd about a service.
func (h *host) serviceState(ctx context.Context, service string) (map[string]string, error) {
	out, err := h.root(ctx, "ask systemd about "+service, "systemctl", "show", "-p", "LoadState,ActiveState,UnitFileState,NeedDaemonReload,Result,NRestarts,Job", service+".service")
	if err != nil {
		return nil, err
	}
	state := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		state[key] = printable.Short(strings.TrimSpace(value), 100)
	}
	return state, nil
}

// isReady tells whether a service runs. With a job left to do, what runs is what there was
// before a restart.
func isReady(state map[string]string) bool { return state["ActiveState"] == "active" && isIdle(state) }

// isIdle tells whether systemd has no job for a service.
func isIdle(state map[string]string) bool { return state["Job"] == "" || state["Job"] == "0" }

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// restarts is how often systemd has started a service again by itself. Older versions
// of systemd do not say it.
func restarts(state map[string]string) int {
	n, _ := strconv.Atoi(state["NRestarts"])
	return n
}

// dropIns are the files with which others have changed a unit.
func (h *host) dropIns(ctx context.Context, service string) ([]string, error) {
	out, err := h.root(ctx, "ask systemd about "+service, "systemctl", "show", "-p", "DropInPaths", "--value", service+".service")
	files := strings.Fields(string(out))
	if len(files) > maxDropIns {
		return nil, fmt.Errorf("ask systemd about %s: it has %d drop-ins, %d is the most", service, len(files), maxDropIns)
	}
	return files, err
}

const maxDropIns = 100

// fingerprint sums up the contents of files on the host, and which of them are there.
func (h *host) fingerprint(ctx context.Context, files ...string) (string, error) {
	digests, err := h.digests(ctx, files...)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %s\n", f, digests[f])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
