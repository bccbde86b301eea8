package install

import (
	"context"
	"fmt"
	"io/fs"
)

// step is one thing that may have to be done on a host.
type step struct {
	title string
	// needed looks at the host and returns why the step is needed, or "" when all is as
	// it is to be. It changes nothing.
	needed func(context.Context) (reason string, err error)
	// run does it. Running it again after it was interrupted must be harmless.
	run func(context.Context) error
}

// runSteps goes through the steps of one phase on one host. In a dry run, steps are
// only looked at.
func (in *installer) runSteps(ctx context.Context, phase string, h *host, steps []step) error {
	for _, s := range steps {
		reason, err := s.needed(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		if reason == "" {
			continue
		}
		h.changes = append(h.changes, Change{s.title, reason})
		if in.DryRun {
			continue
		}
		if err := in.runStep(ctx, phase, h, s, reason); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	return nil
}

func (in *installer) runStep(ctx context.Context, phase string, h *host, s step, reason string) error {
	end, err := in.journal.Start(phase, h.name, s.title, reason)
	if err != nil {
		return err
	}
	in.Reporter.Message(fmt.Sprintf("%s: %s (%s)", h.name, s.title, reason))
	err = s.run(ctx)
	if endErr := end(err); err == nil {
		err = endErr
	}
	return err
}

// fileMode keeps permission bits.
func fileMode(mode uint32) fs.FileMode { return fs.FileMode(mode) & fs.ModePerm }
