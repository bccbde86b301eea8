package setup

import (
	"context"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// A service is started again when what it runs with is not what it was last started with: a
// file on the host holds the fingerprint of that.

// Restarting lets a step that is carried out have its service started again, for which started
// is the file that says what it was last started with. Comparing fingerprints is not enough:
// others may have started the service with what the step now puts right.
func Restarting(h *site.Host, started string, s run.Step) run.Step {
	run := s.Run
	s.Starts = true
	s.Run = func(ctx context.Context) error {
		if err := ForgetStarted(ctx, h, started); err != nil {
			return err
		}
		return run(ctx)
	}
	return s
}

// ForgetStarted notes that a service has to be started again, for which started is the file that says what it was last
// started with.
func ForgetStarted(ctx context.Context, h *site.Host, started string) error {
	if h.Adopted != nil && started == site.StartedFile {
		return h.Put(ctx, started, 0o600, []byte(ChangedMark+"\n"))
	}
	_, err := h.Root(ctx, "forget what was started", "rm", "-f", started)
	return err
}

// StartingReason says why steps will start their service, or start it again; "" when they will not.
func StartingReason(ctx context.Context, steps []run.Step) (string, error) {
	for _, s := range steps {
		if !s.Starts {
			continue
		}
		if reason, err := s.Needed(ctx); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

// StartReason says why a service has to be started, or started again. The file called started
// has the fingerprint of what it was last started with, and fingerprint computes that of what
// there is now.
func StartReason(ctx context.Context, h *site.Host, service, started string,
	fingerprint func(context.Context) (string, error)) (string, error) {
	state, err := machine.FindService(ctx, h.Conn, service)
	if err != nil {
		return "", err
	}
	if state.Active != "active" {
		return "the service is " + site.OrUnknown(state.Active), nil
	}
	if !state.Enabled {
		return "the service does not start with the host", nil
	}
	want, err := fingerprint(ctx)
	if err != nil {
		return "", err
	}
	have, err := h.Read(ctx, started)
	neverStarted := have == "" && h.Adopted != nil && started == site.StartedFile // by boxlift
	if err != nil || have == want || neverStarted {
		return "", err
	}
	return "its program, unit or config changed since it was started", nil
}
