package install

import (
	"context"
	"fmt"
)

// step is one thing that may have to be done, on a host or to the cluster as a whole.
type step struct {
	title string
	// needed looks and returns why the step is needed, or "" when all is as it is to be.
	// It changes nothing.
	needed func(context.Context) (reason string, err error)
	// run does it. Running it again after it was interrupted must be harmless.
	run func(context.Context) error
	// follows says that the step is needed whenever one before it was. Only what does not
	// carry out steps asks it: needed sees what they have changed.
	follows bool
	// starts says that the step's service is started, by it or because of it.
	starts bool
	// alone says that no step follows from this one.
	alone bool
	// later gets what notes the step's end, when run only lines it up to be done together
	// with those of other hosts.
	later *func(error) error
}

// subject is what steps are about: a host, or the cluster as a whole, which has no name.
type subject struct {
	name    string
	changes []Change
}

// runSteps goes through the steps of one phase. Unless the run changes things, steps are
// only looked at.
func (en *Engine) runSteps(ctx context.Context, phase string, s *subject, steps []step) error {
	followed := false
	for _, step := range steps {
		reason, err := step.needed(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
		if reason == "" && step.follows && !en.changing() && followed {
			reason = "what it depends on changes"
		}
		if reason == "" {
			if en.journal != nil {
				en.journal.Unchanged(phase, s.name, step.title)
			}
			continue
		}
		s.changes = append(s.changes, Change{Phase: phase, Title: step.title, Reason: reason})
		followed = followed || !step.alone
		if !en.changing() {
			continue
		}
		if err := en.runStep(ctx, phase, s.name, step, reason); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	return nil
}

func (en *Engine) runStep(ctx context.Context, phase, name string, s step, reason string) error {
	if err := en.record.recordChange(ctx, phase); err != nil {
		return err
	}
	end, err := en.journal.Start(phase, name, s.title, reason)
	if err != nil {
		return err
	}
	if name == "" {
		name = "cluster"
	}
	en.site.Reporter.Message(fmt.Sprintf("%s: %s (%s)", name, s.title, reason))
	if s.later != nil {
		*s.later = end
		return s.run(ctx)
	}
	err = s.run(ctx)
	if endErr := end(err); err == nil {
		err = endErr
	}
	return err
}
