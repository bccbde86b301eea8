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
func (rec *Record) recordChange(ctx context.Context, phase string) error {
	if rec.site.Bundle == nil {
		return nil
	}
	state := release.Running
	if isPreparing(phase) {
		state = release.Created
	}
	rec.recorder.Lock()
	defer rec.recorder.Unlock()
	if rec.recorder.number != 0 && (rec.recorder.state == state || state == release.Created) {
		return nil
	}
	return rec.recordState(ctx, state)
}

// recordPending notes what was changed before the API answered.
func (rec *Record) recordPending(ctx context.Context) error {
	rec.recorder.Lock()
	defer rec.recorder.Unlock()
	if !rec.recorder.pending || rec.site.api == nil {
		return nil
	}
	return rec.recordState(ctx, release.Running)
}

// recordState brings the run's release to a state, and begins the release with that. A
// cluster that cannot be written to is no reason to stop, for the run may be what mends it; a
// record that cannot be understood is.
func (rec *Record) recordState(ctx context.Context, state release.State) error {
	rec.recorder.pending = true
	if rec.recorder.tried && rec.recorder.triedWith == rec.site.api {
		return nil
	}
	err := rec.changeRecord(ctx, func(r *release.Record) error {
		if err := rec.beginRelease(r, state); err != nil {
			return err
		}
		r.Set(rec.recorder.number, state, "", time.Now())
		return nil
	})
	if errors.Is(err, release.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrRefused, &recordError{err})
	}
	if errors.As(err, new(*olderBundleError)) {
		return err
	}
	if err == nil {
		rec.recorder.state, rec.recorder.pending = state, false
		return nil
	}
	rec.recorder.tried, rec.recorder.triedWith = true, rec.site.api
	if !errors.Is(err, errNoCluster) {
		rec.recorder.failed = err
	}
	return nil
}

// beginRelease puts the run's release into a record that does not have it. That may be because a
// restore has brought the record back from before the run.
func (rec *Record) beginRelease(r *release.Record, state release.State) error {
	if rec.recorder.number != 0 && r.Find(rec.recorder.number) != nil {
		return nil
	}
	if err := rec.refuseOlder(r); err != nil {
		return err
	}
	last := rec.engine.journal.State()
	run, text, err := rec.newRelease(last.Command, state)
	if err != nil {
		return err
	}
	// A restore that was broken off may have done so before this run.
	if rec.recorder.number != 0 || restoreBegan(last) {
		r.TakeBackUnfinished(run)
	}
	begun, err := r.Begin(run, text)
	if err == nil {
		rec.recorder.number = begun.Number
	}
	return err
}

// newRelease is a run with the bundle as a release, and the text of its lock.
func (rec *Record) newRelease(command string, state release.State) (release.Release, []byte, error) {
	l, text, err := rec.site.Bundle.Lock()
	if err != nil {
		return release.Release{}, nil, err
	}
	run := release.Release{
		State: state, Command: command, Flags: recordedFlags(rec.engine.Flags),
		Bundle: rec.site.Bundle.Digest(), Serial: rec.site.Bundle.Validity().Serial, Config: rec.site.Config.Fingerprint(),
		Boxlift: rec.Version, By: operator(), Started: time.Now(), Components: []release.Component{},
	}
	for _, c := range l.Components {
		run.Components = append(run.Components, release.Component{Name: c.Name, Version: c.Version})
	}
	return run, text, nil
}

// endRelease notes how the run ended, and returns why it failed.
func (rec *Record) endRelease(ctx context.Context, failed error) error {
	rec.recorder.Lock()
	defer rec.recorder.Unlock()
	// Also after Ctrl-C.
	ctx = context.WithoutCancel(ctx)
	if rec.recorder.number == 0 && !rec.recorder.pending && (failed != nil || rec.isRecorded(ctx)) {
		return failed
	}
	if rec.recorder.tried = false; rec.recorder.number == 0 && rec.site.api != nil {
		if err := rec.recordState(ctx, release.Running); err != nil {
			return errors.Join(failed, err)
		}
	}
	err := rec.recorder.failed
	if rec.recorder.number != 0 {
		state, result := release.Succeeded, counted(rec.engine.summary().ChangeCount(), "change")
		if len(rec.site.ended) > 0 {
			result += "; these sandboxes ended meanwhile: " + strings.Join(rec.site.ended, ", ")
		}
		if failed != nil {
			state, result = release.Failed, failed.Error()
		}
		err = rec.changeRecord(ctx, func(r *release.Record) error {
			if err := rec.beginRelease(r, release.Running); err != nil {
				return err
			}
			r.Set(rec.recorder.number, state, result, time.Now())
			if failed == nil && rec.takesBack > 0 {
				r.TakeBack(rec.takesBack, rec.recorder.number)
			}
			return nil
		})
	}
	if err != nil {
		rec.site.warn("the cluster's record of releases could not be brought up to date: %v", err)
	}
	return failed
}

// isRecorded tells whether the record knows what a run has found that had nothing to change.
// The run before may have died before it could say that it was done. A run that has not looked
// at everything says nothing about it.
func (rec *Record) isRecorded(ctx context.Context) bool {
	if rec.site.api == nil || rec.site.Bundle == nil || rec.engine.Only != nil || rec.engine.Scope != Everything {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	_, r, _, err := rec.openRecord(ctx)
	if err != nil {
		return !errors.Is(err, release.ErrInvalid) // the next run looks again
	}
	newest := lastStanding(r)
	return newest != nil && newest.State == release.Succeeded && newest.Bundle == rec.site.Bundle.Digest() && newest.Config == rec.site.Config.Fingerprint()
}

// changeRecord reads the record, changes it and writes it back, again when somebody else was
// faster, and keeps a copy beside the state.
func (rec *Record) changeRecord(ctx context.Context, change func(*release.Record) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("given up after %v", recordTimeout))
	defer cancel()
	var errs []error
	for range recordTries {
		api, r, version, err := rec.openRecord(ctx)
		if err != nil {
			return err
		}
		if r == nil {
			r = release.New(rec.site.Config.Cluster.Name)
		}
		r.Cluster = rec.site.Config.Cluster.Name
		rec.keepSerial(r)
		number := rec.recorder.number
		if err := change(r); err != nil {
			return err
		}
		document, err := r.Encode()
		if err != nil {
			return err
		}
		_, err = api.ReplaceSecret(ctx, release.SecretNamespace, release.SecretName, recordKind, map[string][]byte{release.SecretKey: document}, version)
		if err == nil {
			return rec.copyRecord(r)
		}
		rec.recorder.number = number
		if errs = append(errs, err); !errors.Is(err, kube.ErrConflict) {
			break
		}
	}
	return errs[len(errs)-1]
}

// copyRecord keeps a copy beside the state.
func (rec *Record) copyRecord(r *release.Record) error {
	path := rec.recordCopy()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	if err := r.WriteFile(path); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	return nil
}

func (rec *Record) recordCopy() string { return rec.site.beside(recordCopies) + ".json" }

// openRecord reads the record from the first server whose API gives it. It is nil when the
// cluster has none. The error wraps errNoCluster when there is no API to ask.
func (rec *Record) openRecord(ctx context.Context) (*kube.Cluster, *release.Record, string, error) {
	if rec.site.api != nil {
		r, version, err := readRecord(ctx, rec.site.api)
		if err == nil || errors.Is(err, release.ErrInvalid) {
			return rec.site.api, r, version, err
		}
	}
	err := errNoCluster
	for _, h := range rec.site.servers() {
		if h.conn == nil || !h.member || h.facts != nil && h.facts.Unit(unit(config.Server)+".service").ActiveState != "active" {
			continue
		}
		var api *kube.Cluster
		var r *release.Record
		var version string
		if api, err = rec.site.apiThrough(ctx, h); err == nil {
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
type recordError struct{ err error }

func (e *recordError) Error() string { return e.err.Error() }

func (e *recordError) Unwrap() error { return e.err }

func (*recordError) Hint() string {
	return fmt.Sprintf("see it on a server with: k3s kubectl -n %s get secret %s -o go-template='{{index .data %q | base64decode}}'; if it is lost, delete that Secret, and boxlift adopt makes another one",
		release.SecretNamespace, release.SecretName, release.SecretKey)
}

// checkOwnBundle refuses to join hosts with another bundle than the cluster's: they would have
// other images, and perhaps another version, than the rest.
func (rec *Record) checkOwnBundle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("given up after %v", recordTimeout))
	defer cancel()
	_, r, _, err := rec.openRecord(ctx)
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
		rec.site.warn("the cluster has no record of releases: whether the bundle is the one that it was installed from is not known; boxlift adopt records it")
		return nil
	case newest.Bundle == rec.site.Bundle.Digest():
		return nil
	case newest.State != release.Succeeded:
		return fmt.Errorf("%w: release %d of the cluster, of bundle %s, is %s, and this is bundle %s: finish that release first with its bundle (boxlift install)",
			ErrRefused, newest.Number, short(newest.Bundle.String()), newest.State, short(rec.site.Bundle.Digest().String()))
	}
	return fmt.Errorf("%w: the cluster runs release %d of bundle %s, and this is bundle %s: add hosts with the cluster's own bundle",
		ErrRefused, newest.Number, short(newest.Bundle.String()), short(rec.site.Bundle.Digest().String()))
}

// lastStanding is the newest release that was not taken back.
func lastStanding(r *release.Record) *release.Release { return r.LastStanding() }
