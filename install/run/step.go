package run

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Step is one thing that may have to be done, on a host or to the cluster as a whole.
type Step struct {
	// ID says which step of its phase, and of its host, it is; Title says so to people.
	ID, Title string
	// Needed looks and returns why the step is needed, or "" when all is as it is to be.
	// It changes nothing.
	Needed func(context.Context) (reason string, err error)
	// Run does it. Running it again after it was interrupted must be harmless.
	Run func(context.Context) error
	// Proves says that the step changes nothing: it waits for what is on its way, keeps others away, or tries out
	// whether all is as it is to be. Who acts does it each time, off the record. To who looks, what Needed says is a
	// difference and no change, unless a step before it changes something; Needed may be nil.
	Proves bool
	// Follows says that the step is needed whenever one before it was. Only who looks asks it: Needed sees what they
	// have changed.
	Follows bool
	// Starts says that the step's service is started, by it or because of it.
	Starts bool
	// Alone says that no step follows from this one.
	Alone bool
	// Unrecorded says that what the step changes makes no release of the run: it is nothing of what a bundle brings,
	// and the record is told of it in another way.
	Unrecorded bool
	// Later gets what notes the step's end, when run only lines it up to be done together
	// with those of other hosts.
	Later *func(error) error
	// Leaves is what is left behind where nothing comes after the step, nil for nothing; Takes says that the step takes
	// away what another one has left behind on the host.
	Leaves *journal.Left
	Takes  bool
}

// entry is the step in the journal.
func (s *Step) entry(phase, host, reason string) journal.Step {
	return journal.Step{Phase: phase, Host: host, ID: s.ID, Title: s.Title, Reason: reason, Leaves: s.Leaves,
		Takes: s.Takes}
}

// RunSteps goes through the steps of one phase: it looks at them, and, where the run acts, carries out those that are
// needed.
func (en *Engine) RunSteps(ctx context.Context, phase string, s *site.Subject, steps []Step) error {
	followed := false
	for _, step := range steps {
		if step.Proves {
			if err := en.prove(ctx, s, step, followed); err != nil {
				return err
			}
			continue
		}
		reason, err := step.Needed(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.Title, err)
		}
		if reason == "" && step.Follows && !en.acts && followed {
			reason = "what it depends on changes"
		}
		if reason == "" {
			if en.Journal != nil {
				en.Journal.Unchanged(step.entry(phase, s.Name, ""))
			}
			continue
		}
		s.Changes = append(s.Changes, site.Change{Phase: phase, ID: step.ID, Title: step.Title, Reason: reason})
		followed = followed || !step.Alone
		if !en.acts {
			continue
		}
		if err := en.runStep(ctx, phase, s.Name, step, reason); err != nil {
			return fmt.Errorf("%s: %w", step.Title, err)
		}
	}
	return nil
}

// prove does what changes nothing, or says what it would wait for in vain.
func (en *Engine) prove(ctx context.Context, s *site.Subject, step Step, changes bool) error {
	if en.acts {
		return step.titled(step.Run(ctx))
	}
	if step.Needed == nil || changes {
		return nil
	}
	difference, err := step.Needed(ctx)
	if difference != "" {
		s.Differences = append(s.Differences, difference)
	}
	return step.titled(err)
}

// titled says of which step an error is. What waits names itself.
func (s *Step) titled(err error) error {
	if err == nil || s.Title == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.Title, err)
}

func (en *Engine) runStep(ctx context.Context, phase, name string, s Step, reason string) error {
	if !s.Unrecorded {
		if err := en.Record.recordChange(ctx, en.prepares); err != nil {
			return err
		}
	}
	noted, err := en.Journal.Start(s.entry(phase, name, reason))
	if err != nil {
		return err
	}
	ended := progress.Step(en.Site.Reporter, name, s.Title, reason)
	end := func(err error) error {
		ended()
		return noted(err)
	}
	if s.Later != nil {
		*s.Later = end
		return s.Run(ctx)
	}
	err = s.Run(ctx)
	if endErr := end(err); err == nil {
		err = endErr
	}
	return err
}
