package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The cluster's record of releases. It is written before the first change to a cluster whose
// API answers, and otherwise as soon as it does. A run that finds nothing to change leaves it
// alone, unless what it has found right is not what the record says.

const (
	// recordKind is the type of the Secret with the record.
	recordKind corev1.SecretType = "boxlift.dev/releases.v1"
	// recordCopies is the folder beside the state with a copy for each cluster.
	recordCopies = "releases"
	// RecordTimeout bounds each look at the record and each change of it.
	RecordTimeout = 10 * time.Second
	// recordTries is how often a change is tried that others get in the way of.
	recordTries = 5
)

// recorder is what a run has recorded of itself.
type recorder struct {
	sync.Mutex
	// Number is that of the run's release, 0 as long as there is none.
	Number int
	// begun is when it began: after a restore, its number may be another release's.
	begun time.Time
	state release.State
	// pending tells that something was changed while no API answered.
	pending bool
	// tried tells that it could not be written with the API that is triedWith, nil before the
	// servers are reached: it is not tried again with each step.
	tried     bool
	triedWith *kube.Cluster
	// failed is why the record could not be written the last time.
	failed error
}

// recordChange notes that a step is about to change something; prepares says that its phase only prepares hosts.
func (rec *Record) recordChange(ctx context.Context, prepares bool) error {
	if rec.Site.Bundle == nil || rec.NoRelease {
		return nil
	}
	state := release.Running
	if prepares {
		state = release.Created
	}
	rec.Recorder.Lock()
	defer rec.Recorder.Unlock()
	if rec.Recorder.Number != 0 && (rec.Recorder.state == state || state == release.Created) {
		return nil
	}
	return rec.recordState(ctx, state)
}

// RecordPending notes what was changed before the API answered.
func (rec *Record) RecordPending(ctx context.Context) error {
	rec.Recorder.Lock()
	defer rec.Recorder.Unlock()
	if !rec.Recorder.pending || rec.Site.API == nil {
		return nil
	}
	return rec.recordState(ctx, release.Running)
}

// recordState brings the run's release to a state, and begins the release with that. A
// cluster that cannot be written to is no reason to stop, for the run may be what mends it; a
// record that cannot be understood is.
func (rec *Record) recordState(ctx context.Context, state release.State) error {
	rec.Recorder.pending = true
	if rec.Recorder.tried && rec.Recorder.triedWith == rec.Site.API {
		return nil
	}
	err := rec.ChangeRecord(ctx, func(r *release.Record) error {
		if err := rec.beginRelease(r, state); err != nil {
			return err
		}
		r.Set(rec.Recorder.Number, state, "", time.Now())
		return nil
	})
	if errors.Is(err, release.ErrInvalid) {
		return fmt.Errorf("%w: %w", site.ErrRefused, &RecordError{err})
	}
	if errors.Is(err, site.ErrRefused) {
		return err
	}
	if err == nil {
		rec.Recorder.state, rec.Recorder.pending = state, false
		return nil
	}
	rec.Recorder.tried, rec.Recorder.triedWith = true, rec.Site.API
	if !errors.Is(err, site.ErrNoCluster) {
		rec.Recorder.failed = err
	}
	return nil
}

// beginRelease puts the run's release into a record that does not have it. That may be because a
// restore has brought the record back from before the run.
func (rec *Record) beginRelease(r *release.Record, state release.State) error {
	if one := r.Find(rec.Recorder.Number); one != nil && one.Started.Equal(rec.Recorder.begun) {
		return nil
	}
	if err := rec.refuseOlder(r); err != nil {
		return err
	}
	if err := rec.Admit(r); err != nil {
		return err
	}
	last := rec.Engine.Journal.State()
	run, text, err := rec.NewRelease(last.Verb, last.Command, state)
	if err != nil {
		return err
	}
	// A restore that was broken off may have done so before this run.
	if rec.Recorder.Number != 0 || RestoreBegan(last) {
		r.TakeBackUnfinished(run)
	}
	begun, err := r.Begin(run, text)
	if err == nil {
		rec.Recorder.Number, rec.Recorder.begun = begun.Number, begun.Started
		rec.KeepSoftware(r)
	}
	return err
}

// KeepSoftware keeps the list of software that the bundle was built with in a record that has none of it: "bundle scan"
// holds it against advisories when the bundle is no longer at hand. No run fails for want of it.
func (rec *Record) KeepSoftware(r *release.Record) {
	of := rec.Site.Bundle.Digest()
	if r.HasSoftware(of) {
		return
	}
	document, isThere, err := rec.Site.Bundle.SBOM()
	if err == nil && isThere {
		err = r.KeepSoftware(of, document)
	}
	if err != nil {
		rec.Site.Warn("the record does not keep the list of the bundle's software, so \"bundle scan\" of this release "+
			"needs the bundle: %v", err)
	}
}

// NewRelease is a run with the bundle as a release, and the text of its lock.
func (rec *Record) NewRelease(
	verb journal.Verb, command string, state release.State,
) (release.Release, []byte, error) {
	l, text, err := rec.Site.Bundle.Lock()
	if err != nil {
		return release.Release{}, nil, err
	}
	run := release.Release{
		State: state, Verb: verb, RollbackTo: rec.TakesBack, Command: command, Flags: recordedFlags(rec.Engine.Flags),
		Bundle: rec.Site.Bundle.Digest(), Serial: rec.Site.Bundle.Validity().Serial,
		Config:  rec.Site.Config.Fingerprint(),
		Boxlift: rec.Version, By: site.Operator(), Started: time.Now(), Components: []release.Component{},
	}
	if a := rec.Approval; a != nil {
		run.Signers, run.Trust = a.Signers, a.Version()
	}
	for _, c := range l.Components {
		run.Components = append(run.Components, release.Component{Name: c.Name, Version: c.Version})
	}
	return run, text, nil
}

// EndRelease notes how the run ended, and returns why it failed.
func (rec *Record) EndRelease(ctx context.Context, failed error) error {
	rec.Recorder.Lock()
	defer rec.Recorder.Unlock()
	// Also after Ctrl-C.
	ctx = context.WithoutCancel(ctx)
	if rec.Recorder.Number == 0 && !rec.Recorder.pending && (failed != nil || rec.isRecorded(ctx)) {
		rec.keepApproval(ctx)
		return failed
	}
	if rec.Recorder.tried = false; rec.Recorder.Number == 0 && rec.Site.API != nil {
		if err := rec.recordState(ctx, release.Running); err != nil {
			return errors.Join(failed, err)
		}
	}
	err := rec.Recorder.failed
	if rec.Recorder.Number != 0 {
		state, result := release.Succeeded, printable.Counted(rec.Engine.Summary().ChangeCount(), "change")
		if len(rec.Site.Ended) > 0 {
			result += "; these sandboxes ended meanwhile: " + strings.Join(rec.Site.Ended, ", ")
		}
		if failed != nil {
			state, result = release.Failed, failed.Error()
		}
		err = rec.ChangeRecord(ctx, func(r *release.Record) error {
			if err := rec.beginRelease(r, release.Running); err != nil {
				return err
			}
			r.Set(rec.Recorder.Number, state, result, time.Now())
			if failed == nil && rec.TakesBack > 0 {
				r.TakeBack(rec.TakesBack, rec.Recorder.Number)
			}
			return nil
		})
	}
	if err != nil {
		rec.Site.Warn("the cluster's record of releases could not be brought up to date: %v", err)
	}
	return failed
}

// Note leaves an entry in the record of work that makes no release, after its end. What could not be noted is told as a
// warning: the work is done.
func (rec *Record) Note(ctx context.Context, started time.Time, result string, failed error) {
	if failed != nil {
		result = failed.Error()
	}
	event := release.Event{
		Command: rec.Engine.Command, Boxlift: rec.Version, By: site.Operator(), Started: started, Ended: time.Now(),
		Failed: failed != nil, Result: result,
	}
	rec.Recorder.Lock()
	defer rec.Recorder.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RecordTimeout) // also after Ctrl-C
	defer cancel()
	var err error
	if rec.Site.API == nil {
		err = rec.Engine.ReachAPI(ctx, rec.Site.Servers())
	}
	if err == nil {
		err = rec.ChangeRecord(ctx, func(r *release.Record) error {
			r.Note(event)
			return nil
		})
	}
	if rec.NoRelease && errors.Is(err, site.ErrNoCluster) {
		return // the cluster is just being set up
	}
	if err != nil {
		rec.Site.Warn("the cluster's record could not be told of this: %v", err)
	}
}

// isRecorded reports whether the record knows what a run has found that had nothing to change.
// The run before may have died before it could say that it was done. A run that has not looked
// at everything says nothing about it.
func (rec *Record) isRecorded(ctx context.Context) bool {
	if rec.Site.API == nil || rec.Site.Bundle == nil || rec.Engine.Only != nil || rec.Engine.Scope != Everything {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
	defer cancel()
	_, r, _, err := rec.OpenRecord(ctx)
	if err != nil {
		return !errors.Is(err, release.ErrInvalid) // the next run looks again
	}
	newest := LastStanding(r)
	return newest != nil && newest.State == release.Succeeded && newest.Bundle == rec.Site.Bundle.Digest() &&
		newest.Config == rec.Site.Config.Fingerprint()
}

// ChangeRecord reads the record, changes it and writes it back, again when somebody else was
// faster, and keeps a copy beside the state.
func (rec *Record) ChangeRecord(ctx context.Context, change func(*release.Record) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RecordTimeout, fmt.Errorf("given up after %v", RecordTimeout))
	defer cancel()
	var errs []error
	for range recordTries {
		api, r, version, err := rec.OpenRecord(ctx)
		if err != nil {
			return err
		}
		if r == nil {
			r = release.New(rec.Site.Config.Cluster.Name)
		}
		r.Cluster = rec.Site.Config.Cluster.Name
		rec.keepNewest(r)
		number := rec.Recorder.Number
		if err := change(r); err != nil {
			return err
		}
		document, err := r.Encode()
		if err != nil {
			return err
		}
		_, err = api.ReplaceSecret(ctx, release.SecretNamespace, release.SecretName, recordKind,
			map[string][]byte{release.SecretKey: document}, version)
		if err == nil {
			return rec.CopyRecord(r)
		}
		rec.Recorder.Number = number
		if errs = append(errs, err); !errors.Is(err, kube.ErrConflict) {
			break
		}
	}
	return errs[len(errs)-1]
}

// CopyRecord keeps a copy beside the state.
func (rec *Record) CopyRecord(r *release.Record) error {
	path := rec.RecordCopy()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	if err := r.WriteFile(path); err != nil {
		return fmt.Errorf("keep a copy of the record of releases: %w", err)
	}
	return nil
}

// RecordCopy is the file beside the state with a copy of the record.
func (rec *Record) RecordCopy() string { return rec.Site.Beside(recordCopies) + ".json" }

// OpenRecord reads the record from the first server whose API gives it. It is nil when the
// cluster has none. The error wraps [site.ErrNoCluster] when there is no API to ask.
func (rec *Record) OpenRecord(ctx context.Context) (*kube.Cluster, *release.Record, string, error) {
	err := site.ErrNoCluster
	if rec.Site.API != nil {
		var r *release.Record
		var version string
		if r, version, err = ReadRecord(ctx, rec.Site.API); err == nil || errors.Is(err, release.ErrInvalid) {
			return rec.Site.API, r, version, err
		}
	}
	for _, h := range rec.Site.Servers() {
		if h.Conn == nil || !h.Member || h.Facts != nil && h.Facts.Unit(site.Unit(config.Server)+
			".service").ActiveState != "active" {
			continue
		}
		var api *kube.Cluster
		var r *release.Record
		var version string
		if api, err = rec.Site.APIThrough(ctx, h); err == nil {
			r, version, err = ReadRecord(ctx, api)
		}
		if err == nil || errors.Is(err, release.ErrInvalid) {
			return api, r, version, err
		}
		err = fault.OnHost(err, h.Name)
	}
	return nil, nil, "", err
}

// ReadRecord reads the record through an API; nil when the cluster has none.
func ReadRecord(ctx context.Context, api *kube.Cluster) (*release.Record, string, error) {
	data, version, err := api.VersionedSecret(ctx, release.SecretNamespace, release.SecretName)
	if err != nil || data == nil {
		return nil, "", err
	}
	r, err := release.Decode(data[release.SecretKey])
	return r, version, err
}

// RecordError says that the record cannot be understood.
type RecordError struct{ Err error }

func (e *RecordError) Error() string { return e.Err.Error() }

func (e *RecordError) Unwrap() error { return e.Err }

// Hint says where the record is, and what becomes of it when it is deleted.
func (*RecordError) Hint() string {
	return fmt.Sprintf("see it on a server with: k3s kubectl -n %s get secret %s -o go-template='{{index .data %q | "+
		"base64decode}}'; if it is lost, delete that Secret, and boxlift adopt makes another one",
		release.SecretNamespace, release.SecretName, release.SecretKey)
}

// CheckOwnBundle refuses to work on a part of a cluster with another bundle than the cluster's: hosts that join would
// have other images, and perhaps another version, than the rest, and no record would tell what a phase has brought.
func (rec *Record) CheckOwnBundle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RecordTimeout, fmt.Errorf("given up after %v", RecordTimeout))
	defer cancel()
	_, r, _, err := rec.OpenRecord(ctx)
	switch {
	case errors.Is(err, release.ErrInvalid):
		return fmt.Errorf("%w: %w", site.ErrRefused, &RecordError{err})
	case errors.Is(err, site.ErrNoCluster):
		return nil // which the servers' phase will tell
	case err != nil:
		return err
	}
	newest := LastStanding(r)
	switch {
	case newest == nil && rec.NoRelease:
		return nil // the cluster is just being set up
	case newest == nil:
		rec.Site.Warn("the cluster has no record of releases: whether the bundle is the one that it was installed " +
			"from is not known; boxlift adopt records it")
		return nil
	case newest.Bundle == rec.Site.Bundle.Digest():
		return nil
	case newest.State != release.Succeeded:
		return fmt.Errorf("%w: release %d of the cluster, of bundle %s, is %s, and this is bundle %s: finish that "+
			"release first with its bundle (boxlift install)",
			site.ErrRefused, newest.Number, site.Short(newest.Bundle.String()), newest.State,
			site.Short(rec.Site.Bundle.Digest().String()))
	}
	instead := "add hosts with the cluster's own bundle"
	if rec.NoRelease {
		instead = "run phases with the cluster's own bundle; boxlift upgrade takes the cluster to another one"
	}
	return fmt.Errorf("%w: the cluster runs release %d of bundle %s, and this is bundle %s: "+instead,
		site.ErrRefused, newest.Number, site.Short(newest.Bundle.String()), site.Short(rec.Site.Bundle.Digest().String()))
}

// LastStanding is the newest release that was not taken back.
func LastStanding(r *release.Record) *release.Release { return r.LastStanding() }
