package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/spelling"
)

// Phase is one of those that an installation goes through.
type Phase struct {
	Name string `json:"phase"`
	Does string `json:"does"`
}

// Phases are those of an installation, in their order.
func Phases() []Phase {
	var all []Phase
	for _, p := range newRooms(Options{}).installPhases() {
		all = append(all, Phase{Name: p.Name, Does: p.Does})
	}
	return all
}

// CheckPhase refuses what is no phase of an installation, and what a dry run shows nothing of.
func CheckPhase(name string, dryRun bool) error {
	_, err := newRooms(Options{}).singlePhase(name, dryRun)
	return err
}

// RunPhase goes through one phase of an installation, after preflight, without which nothing is known of the hosts.
// What the phase builds on has to be there, and the bundle has to be the one that the cluster was made from, if it was
// made. The run is noted in the state and, where there is a cluster, in its record; the release is for [Install] to
// record.
func RunPhase(ctx context.Context, o Options, name string) (*run.Summary, error) {
	if o.Command == "" {
		o.Command = "phase run " + name
	}
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Verb, in.record.NoRelease = journal.RunPhase, true
	phases, err := in.singlePhase(name, o.DryRun)
	if err != nil {
		return nil, err
	}
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	in.deployer.WarnOfManifests()
	return in.unrecorded(ctx, phases, o.DryRun)
}

// singlePhase is preflight, and one phase after it.
func (in *installation) singlePhase(name string, dryRun bool) ([]run.Phase, error) {
	all := in.installPhases()
	i := slices.IndexFunc(all, func(p run.Phase) bool { return p.Name == name })
	if i < 0 {
		return nil, unknownPhase(name, all)
	}
	phase := all[i]
	switch {
	case i == 0:
		return all[:1], nil
	case phase.Ahead && dryRun:
		return nil, fault.Usage.Errorf("a dry run shows nothing of the phase %s: what it would do is shown by the phases "+
			"after it", name)
	}
	looks := []func(context.Context) error{phase.Look}
	if phase.Needs != nil {
		looks = slices.Insert(looks, 0, phase.Needs)
	}
	if has := phase.If; has != nil {
		looks = slices.Insert(looks, 0, func(context.Context) error {
			if !has() {
				return fmt.Errorf("%w: an installation by this install.yaml has no phase %s", site.ErrRefused, name)
			}
			return nil
		})
	}
	phase.Look, phase.If = inOrder(looks...), nil
	phase.Gate, phase.Ahead = true, false
	return []run.Phase{all[0], phase}, nil
}

func unknownPhase(name string, all []run.Phase) error {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	guess := ""
	if c := spelling.Closest(name, names, 2); c != "" {
		guess = ", did you mean " + c + "?"
	}
	return fault.WithHint(fault.Usage.Errorf("there is no phase %.40q%s", name, guess),
		"the phases are "+strings.Join(names, ", "))
}

// requireAPI refuses to go on without a server that answers. It waits for none.
func (in *installation) requireAPI(ctx context.Context) error {
	api, _, err := in.engine.Answering(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if api == nil {
		return fault.WithHint(fmt.Errorf("%w: no API answers: %w", site.ErrRefused, errors.Join(site.ErrNoCluster, err)),
			"boxlift phase run servers brings it up")
	}
	return in.engine.ReachAPI(ctx, in.site.Servers())
}

// requireNetwork refuses to go on where no pod could start.
func (in *installation) requireNetwork(ctx context.Context) error {
	installed, err := in.network.IsInstalled(ctx)
	if err == nil && !installed {
		err = fault.WithHint(fmt.Errorf("%w: the cluster has no Cilium, so that no pod starts", site.ErrRefused),
			"boxlift phase run network installs it")
	}
	return err
}

// unrecorded goes through the phases of a verb that makes no release, or says what they would do. The summary is nil
// when nothing was begun.
func (in *installation) unrecorded(ctx context.Context, phases []run.Phase, dryRun bool) (*run.Summary, error) {
	started := time.Now()
	if dryRun {
		if err := in.engine.Recall(); err != nil {
			return nil, err
		}
		err := in.engine.Look(ctx, phases)
		return in.engine.Summary(), err
	}
	err := in.recorded(nil, func() error {
		err := in.engine.Apply(ctx, phases)
		if n := in.engine.Summary().ChangeCount(); n > 0 {
			in.record.Note(ctx, started, printable.Counted(n, "change"), err)
		}
		return err
	})
	if in.engine.Phases == nil {
		return nil, err // it did not get as far as doing anything
	}
	return in.engine.Summary(), err
}
