package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
)

// The cluster's record of releases. It is written before the first change to a cluster whose
// API answers, and otherwise as soon as it does. A run that finds nothing to change leaves it
// alone, unless what it has found right is not what the record says.

const (
	// recordKind is the type of the Secret with the record.
	recordKind corev1.SecretType = "boxlift.dev/releases.v1"
	// recordCopies is the folder beside the state with a copy for each cluster.
	recordCopies = "releases"
	// recordTimeout bounds each look at the record and each change of it.
	recordTimeout = 10 * time.Second
	// recordTries is how often a change is tried that others get in the way of.
	recordTries = 5
)

// recorder is what a run has recorded of itself.
type recorder struct {
	sync.Mutex
	// number is that of the run's release, 0 as long as there is none.
	number int
	state  release.State
	// pending tells that something was changed while no API answered.
	pending bool
	// tried tells that it could not be written with the API that is triedWith, nil before the
	// servers are reached: it is not tried again with each step.
	tried     bool
	triedWith *kube.Cluster
	// failed is why the record could not be written the last time.
	failed error
}

// isPreparing tells whether a phase changes nothing of what runs.
func isPreparing(phase string) bool {
	return slices.Contains([]string{"backup", "ship", "registry", "import"}, phase)
}

// recordChange notes that a step of a phase is about to change something.
func (in *installer) recordChange(ctx context.Context, phase string) error {
	if in.Bundle == nil {
		return nil
	}
	state := release.Running
	if isPreparing(phase) {
		state = release.Created
	}
	in.recorder.Lock()
	defer in.recorder.Unlock()
	if in.recorder.number != 0 && (in.recorder.state == state || state == release.Created) {
		return nil
	}
	return in.recordState(ctx, state)
}

// recordPending notes what was changed before the API answered.
func (in *installer) recordPending(ctx context.Context) error {
	in.recorder.Lock()
	defer in.recorder.Unlock()
	if !in.recorder.pending || in.api == nil {
		return nil
	}
	return in.recordState(ctx, release.Running)
}

// recordState brings the run's release to a state, and begins the release with that. A
// cluster that cannot be written to is no reason to stop, for the run may be what mends it; a
// record that cannot be understood is.
func (in *installer) recordState(ctx context.Context, state release.State) error {
	in.recorder.pending = true
	if in.recorder.tried && in.recorder.triedWith == in.api {
		return nil
	}
	err := in.changeRecord(ctx, func(r *release.Record) error {
		if err := in.beginRelease(r, state); err != nil {
			return err
		}
		r.Set(in.recorder.number, state, "", time.Now())
		return nil
	})
	if errors.Is(err, release.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrRefused, &recordError{err})
	}
	if errors.As(err, new(*olderBundleError)) {
		return err
	}
	if err == nil {
		in.recorder.state, in.recorder.pending = state, false
		return nil
	}
	in.recorder.tried, in.recorder.triedWith = true, in.api
	if !errors.Is(err, errNoCluster) {
		in.recorder.failed = err
	}
	return nil
}

// beginRelease puts the run's release into a record that does not have it. That may be because a
// restore has brought the record back from before the run.
func (in *installer) beginRelease(r *release.Record, state release.State) error {
	if in.recorder.number != 0 && r.Find(in.recorder.number) != nil {
		return nil
	}
	if err := in.refuseOlder(r); err != nil {
		return err
	}
	last := in.journal.State()
	run, text, err := in.newRelease(last.Command, state)
	if err != nil {
		return err
	}
	// A restore that was broken off may have done so before this run.
	if in.recorder.number != 0 || restoreBegan(last) {
		r.TakeBackUnfinished(run)
	}
	begun, err := r.Begin(run, text)
	if err == nil {
		in.recorder.number = begun.Number
	}
	return err
}

// newRelease is a run with the bundle as a release, and the text of its lock.
func (in *installer) newRelease(command string, state release.State) (release.Release, []byte, error) {
	l, text, err := in.Bundle.Lock()
	if err != nil {
		return release.Release{}, nil, err
	}
	run := release.Release{
		State: state, Command: command, Flags: recordedFlags(in.Flags),
		Bundle: in.Bundle.Digest(), Serial: in.Bundle.Validity().Serial, Config: in.Config.Fingerprint(),
		Boxlift: in.Version, By: operator(), Started: time.Now(), Components: []release.Component{},
	}
	for _, c := range l.Components {
		run.Components = append(run.Components, release.Component{Name: c.Name, Version: c.Version})
	}
	return run, text, nil
}

// endRelease notes how the run ended, and returns why it failed.
func (in *installer) endRelease(ctx context.Context, failed error) error {
	in.recorder.Lock()
	defer in.recorder.Unlock()
	// Also after Ctrl-C.
	ctx = context.WithoutCancel(ctx)
	if in.recorder.number == 0 && !in.recorder.pending && (failed != nil || in.isRecorded(ctx)) {
		return failed
	}
	if in.recorder.tried = false; in.recorder.number == 0 && in.api != nil {
		if err := in.recordState(ctx, release.Running); err != nil {
			return errors.Join(failed, err)
		}
	}
	err := in.recorder.failed
	if in.recorder.number != 0 {
		state, result := release.Succeeded, counted(in.summary().ChangeCount(), "change")
		if len(in.ended) > 0 {
			result += "; these sandboxes ended meanwhile: " + strings.Join(in.ended, ", ")
		}
		if failed != nil {
			state, result = release.Failed, failed.Error()
		}
		err = in.changeRecord(ctx, func(r *release.Record) error {
			if err := in.beginRelease(r, release.Running); err != nil {
				return err
			}
			r.Set(in.recorder.number, state, result, time.Now())
			if failed == nil && in.takesBack > 0 {
				r.TakeBack(in.takesBack, in.recorder.number)
			}
			return nil
		})
	}
	if err != nil {
		in.warn("the cluster's record of releases could not be brought up to date: %v", err)
	}
	return failed
}

// isRecorded tells whether the record knows what a run has found that had nothing to change.
// The run before may have died before it could say that it was done. A run that has not looked
// at everything says nothing about it.
func (in *installer) isRecorded(ctx context.Context) bool {
	if in.api == nil || in.Bundle == nil || in.Only != nil || in.Scope != Everything {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	_, r, _, err := in.openRecord(ctx)
	if err != nil {
		return !errors.Is(err, release.ErrInvalid) // the next run looks again
	}
	newest := lastStanding(r)
	return newest != nil && newest.State == release.Succeeded && newest.Bundle == in.Bundle.Digest() && newest.Config == in.Config.Fingerprint()
}

// changeRecord reads the record, changes it and writes it back, again when somebody else was
// faster, and keeps a copy beside the state.
func (in *installer) changeRecord(ctx context.Context, change func(*release.Record) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("given up after %v", recordTimeout))
	defer cancel()
	var errs []error
	for range recordTries {
		api, r, version, err := in.openRecord(ctx)
		if err != nil {
			return err
		}
		if r == nil {
			r = release.New(in.Config.Cluster.Name)
		}
		r.Cluster = in.Config.Cluster.Name
		in.keepSerial(r)
		number := in.recorder.number
		if err := change(r); err != nil {
			return err
		}
		document, err := r.Encode()
		if err != nil {
			return err
		}
		_, err = api.ReplaceSecret(ctx, release.SecretNamespace, release.SecretName, recordKind, map[string][]byte{release.SecretKey: document}, version)
		if err == nil {
			return in.copyRecord(r)
		}
		in.recorder.number = number
		if errs = append(errs, err); !errors.Is(err, kube.ErrConflict) {
			break
		}
	}
	return errs[len(errs)-1]
}

// copyRecord keeps a copy beside the state.
func (in *installer) copyRecord(r *release.Record) error {
	path := in.recordCopy()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	if err := r.WriteFile(path); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	return nil
}

func (in *installer) recordCopy() string { return in.beside(recordCopies) + ".json" }

// openRecord reads the record from the first server whose API gives it. It is nil when the
// cluster has none. The error wraps errNoCluster when there is no API to ask.
func (in *installer) openRecord(ctx context.Context) (*kube.Cluster, *release.Record, string, error) {
	if in.api != nil {
		r, version, err := readRecord(ctx, in.api)
		if err == nil || errors.Is(err, release.ErrInvalid) {
			return in.api, r, version, err
		}
	}
	err := errNoCluster
	for _, h := range in.servers() {
		if h.conn == nil || !h.member || h.facts != nil && h.facts.Unit(unit(config.Server)+".service").ActiveState != "active" {
			continue
		}
		var api *kube.Cluster
		var r *release.Record
		var version string
		if api, err = in.apiThrough(ctx, h); err == nil {
			r, version, err = readRecord(ctx, api)
		}
		if err == nil || errors.Is(err, release.ErrInvalid) {
			return api, r, version, err
		}
		err = fmt.Errorf("%s: %w", h.name, err)
	}
	return nil, nil, "", err
}

// readRecord reads the record through an API; nil when the cluster has none.
func readRecord(ctx context.Context, api *kube.Cluster) (*release.Record, string, error) {
	data, version, err := api.VersionedSecret(ctx, release.SecretNamespace, release.SecretName)
	if err != nil || data == nil {
		return nil, "", err
	}
	r, err := release.Decode(data[release.SecretKey])
	return r, version, err
}

// recordError says that the record cannot be understood.
type recordError struct{ error }

func (e *recordError) Unwrap() error { return e.error }

func (*recordError) Hint() string {
	return fmt.Sprintf("see it on a server with: k3s kubectl -n %s get secret %s -o go-template='{{index .data %q | base64decode}}'; if it is lost, delete that Secret, and boxlift adopt makes another one",
		release.SecretNamespace, release.SecretName, release.SecretKey)
}

// checkOwnBundle refuses to join hosts with another bundle than the cluster's: they would have
// other images, and perhaps another version, than the rest.
func (in *installer) checkOwnBundle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("given up after %v", recordTimeout))
	defer cancel()
	_, r, _, err := in.openRecord(ctx)
	switch {
	case errors.Is(err, release.ErrInvalid):
		return fmt.Errorf("%w: %w", ErrRefused, &recordError{err})
	case errors.Is(err, errNoCluster):
		return nil // which the servers' phase will tell
	case err != nil:
		return err
	}
	newest := lastStanding(r)
	switch {
	case newest == nil:
		in.warn("the cluster has no record of releases: whether the bundle is the one that it was installed from is not known; boxlift adopt records it")
		return nil
	case newest.Bundle == in.Bundle.Digest():
		return nil
	case newest.State != release.Succeeded:
		return fmt.Errorf("%w: release %d of the cluster, of bundle %s, is %s, and this is bundle %s: finish that release first with its bundle (boxlift install)",
			ErrRefused, newest.Number, short(newest.Bundle.String()), newest.State, short(in.Bundle.Digest().String()))
	}
	return fmt.Errorf("%w: the cluster runs release %d of bundle %s, and this is bundle %s: add hosts with the cluster's own bundle",
		ErrRefused, newest.Number, short(newest.Bundle.String()), short(in.Bundle.Digest().String()))
}

// lastStanding is the newest release that was not taken back.
func lastStanding(r *release.Record) *release.Release { return r.LastStanding() }
