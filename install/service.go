package install

import (
	"context"

	machine "github.com/liteboxd/boxlift/install/host"
)

// A service is started again when what it runs with is not what it was last started with: a
// file on the host holds the fingerprint of that.

// restarting lets a step that is carried out have its service started again, for which started
// is the file that says what it was last started with. Comparing fingerprints is not enough:
// others may have started the service with what the step now puts right.
func restarting(h *host, started string, s step) step {
	run := s.run
	s.starts = true
	s.run = func(ctx context.Context) error {
		if err := forgetStarted(ctx, h, started); err != nil {
			return err
		}
		return run(ctx)
	}
	return s
}

// forgetStarted notes that a service has to be started again, for which started is the file that says what it was last
// started with.
func forgetStarted(ctx context.Context, h *host, started string) error {
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
func startReason(ctx context.Context, h *host, service, started string, fingerprint func(context.Context) (string, error)) (string, error) {
	state, err := machine.FindService(ctx, h.conn, service)
	if err != nil {
		return "", err
	}
	if state.Active != "active" {
		return "the service is " + orUnknown(state.Active), nil
	}
	if !state.Enabled {
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

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
