// Package release is the record of what was installed on a cluster: its releases, each with
// the bundle, the lock, the fingerprint of install.yaml, who, when, and what came of it.
//
// Contract: a [Record] is one JSON document. The cluster carries it in the Secret [SecretName] of kube-system, and the
// operator has a copy beside the state; this package knows the document, not where it is kept. Reading is strict and
// bounded: unknown fields, a format that is not known, numbers that do not increase and texts that are too long are
// errors, so that what is read is fit for a terminal and for decisions. A record holds no secrets. The newest trust
// file that the cluster was shown is in it, see [Record.KeepTrust]. Locks and lists of software are carried compressed,
// each once; when the document would be larger than a Secret may be, the lists go first, and then the locks.
package release

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// Where a cluster carries its record: the key SecretKey of a Secret in SecretNamespace.
const (
	SecretNamespace = "kube-system"
	SecretName      = "boxlift-releases"
	SecretKey       = "record.json"
)

const (
	// Format is the version of the document's form, of documents without a serial: whoever does not
	// know serials has to leave the others alone.
	Format = 1
	// SerialFormat is the version of the form of documents with a serial.
	SerialFormat = 2
	// AdoptedFormat is the version of the form of documents with adopted nodes, and perhaps a serial.
	AdoptedFormat = 3
	// VerbFormat is the version of the form of documents with events or with the verbs of releases, and perhaps all of
	// the others.
	VerbFormat = 4
	// TrustFormat is the version of the form of documents with a trust file or with the signers of releases, and
	// perhaps all of the others.
	TrustFormat = 5
	// SoftwareFormat is the version of the form of documents with lists of software, and perhaps all of the others.
	SoftwareFormat = 6
	// Kept is how many releases a record keeps. The newest that succeeded is kept besides.
	Kept = 10
	// KeptEvents is how many events a record keeps.
	KeptEvents = 50
	// MaxSize is the largest document, in bytes. A Secret may hold 1 MiB (Kubernetes
	// v1.36, MaxSecretSize).
	MaxSize = 1000 << 10
)

// Bounds on what a record says, in bytes, and on its lists.
const (
	maxText       = 512
	maxResult     = 4 << 10
	maxFlags      = 16 << 10 // those of a release together; an age recipient may take two thousand
	maxReleases   = 2 * Kept
	maxComponents = 256
	maxEvents     = 2 * KeptEvents
	maxAdopted    = 5000 // the most nodes that Kubernetes supports
	maxSigners    = trust.MaxSignatures
)

// State is how far a release has got.
type State string

// The states.
const (
	// Created releases have changed nothing of what runs yet.
	Created    State = "created"
	Running    State = "running"
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	RolledBack State = "rolled_back"
)

// Finished reports whether nothing more comes of a release by itself.
func (s State) Finished() bool { return s != Created && s != Running }

// Component is a component of a lock.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Release is one run that changed the cluster.
type Release struct {
	// Number counts from 1 and never repeats.
	Number int   `json:"number"`
	State  State `json:"state"`
	// Verb is what was done, RollbackTo the release that was gone back to, 0 for none. Command says so as it was run,
	// such as "install --only liteboxd".
	Verb       journal.Verb `json:"verb,omitempty"`
	RollbackTo int          `json:"rollbackTo,omitempty"`
	Command    string       `json:"command"`
	// Flags are those that it was run with and that mean the same on every machine, such as
	// "--batch-size=1": whoever goes on with it keeps to them.
	Flags []string `json:"flags,omitempty"`
	// Bundle is the bundle digest, Lock the digest of its lock.
	Bundle digest.Digest `json:"bundle"`
	Lock   digest.Digest `json:"lock"`
	// Serial is that of the bundle, 0 for none.
	Serial int64 `json:"serial,omitempty"`
	// Signers are those who counted when the bundle was judged by version Trust of the trust file, or by a key
	// when that is 0; none for a bundle whose signatures were not asked for.
	Signers    []approval.Signer `json:"signers,omitempty"`
	Trust      int64             `json:"trust,omitempty"`
	Components []Component       `json:"components"`
	// Config is the fingerprint of install.yaml (config.Config.Fingerprint).
	Config string `json:"config"`
	// Boxlift is the version of boxlift that did it, By the operator, as user@host.
	Boxlift string `json:"boxlift"`
	By      string `json:"by"`
	// Attempts is how often it was begun.
	Attempts int       `json:"attempts"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	// Result says in words what came of it.
	Result string `json:"result,omitempty"`
	// Backup is the name of the file with the backup that was made before, "" for none.
	Backup string `json:"backup,omitempty"`
}

// IsSame reports whether two releases are of the same verb, with the same bundle.
func (r *Release) IsSame(other *Release) bool {
	return r.Verb == other.Verb && r.RollbackTo == other.RollbackTo && r.Bundle == other.Bundle
}

// Version is that of a component, "" when there is none.
func (r *Release) Version(component string) string {
	for _, c := range r.Components {
		if c.Name == component {
			return c.Version
		}
	}
	return ""
}

// Adopted is a node whose k3s was there before boxlift, which keeps it as it is.
type Adopted struct {
	// Node is the name of the node, MachineID what its machine has in /etc/machine-id.
	Node      string `json:"node"`
	MachineID string `json:"machineID"`
}

// Event is work on a cluster that makes no release, such as the removal of a host.
type Event struct {
	// Command is what was run, such as "node remove".
	Command string `json:"command"`
	// Boxlift is the version of boxlift that did it, By the operator, as user@host.
	Boxlift string    `json:"boxlift"`
	By      string    `json:"by"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Failed reports whether it did not come to its end.
	Failed bool `json:"failed,omitempty"`
	// Result says in words what came of it.
	Result string `json:"result,omitempty"`
}

// Record is the releases of a cluster, the oldest first. The zero value has none; [New] makes
// one that can be written.
type Record struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	// Serial is the highest of all bundles that releases were of, those that failed, were taken
	// back or are no longer kept included; 0 for none.
	Serial   int64     `json:"serial,omitempty"`
	Releases []Release `json:"releases"`
	// Adopted are the nodes that were adopted, also those that have left the cluster since.
	Adopted []Adopted `json:"adopted,omitempty"`
	// Events are the last [KeptEvents], the oldest first.
	Events []Event `json:"events,omitempty"`
	// Trust is the trust file that the cluster keeps, of which only the newest version, compressed with gzip.
	Trust []byte `json:"trust,omitempty"`
	// Software are lists of what is in the bundles of the newest release and of the current one, compressed with gzip,
	// by bundle digest; of bundles that were built without one there is none.
	Software map[digest.Digest][]byte `json:"software,omitempty"`
	// Locks are those of the releases, compressed with gzip, by digest. Some may be missing:
	// see the package's contract.
	Locks map[digest.Digest][]byte `json:"locks"`
}

// ErrInvalid is wrapped by errors that say that a record cannot be used.
var ErrInvalid = fault.NewKind(fault.Input, "the record of releases cannot be used")

// ErrNoLock says that a record does not carry a lock.
var ErrNoLock = fault.NewKind(fault.Input, "the record does not carry the lock")

// New returns a record without releases.
func New(cluster string) *Record {
	return &Record{Format: Format, Cluster: cluster, Releases: []Release{}, Locks: map[digest.Digest][]byte{}}
}

// Newest is the last release, nil when there is none.
func (r *Record) Newest() *Release {
	if r == nil || len(r.Releases) == 0 {
		return nil
	}
	return &r.Releases[len(r.Releases)-1]
}

// Current is the last release that succeeded, which is what runs when no later one has
// changed it; nil when there is none.
func (r *Record) Current() *Release {
	if r == nil {
		return nil
	}
	for i := range slices.Backward(r.Releases) {
		if r.Releases[i].State == Succeeded {
			return &r.Releases[i]
		}
	}
	return nil
}

// LastStanding is the newest release that was not taken back; nil when there is none.
func (r *Record) LastStanding() *Release {
	if r == nil {
		return nil
	}
	for i := range slices.Backward(r.Releases) {
		if r.Releases[i].State != RolledBack {
			return &r.Releases[i]
		}
	}
	return nil
}

// IsOlder reports whether a bundle with this serial, 0 for none, is older than one that the cluster
// has had. The bundle of the last standing release is not, whatever its serial: the cluster was
// taken to it on purpose, or is on its way there.
func (r *Record) IsOlder(bundle digest.Digest, serial int64) bool {
	if r == nil || serial >= r.Serial {
		return false
	}
	standing := r.LastStanding()
	return standing == nil || standing.Bundle != bundle
}

// RaiseSerial makes the record's serial at least this one.
func (r *Record) RaiseSerial(serial int64) { r.Serial = max(r.Serial, serial) }

// Adopt notes that nodes were adopted, and reports whether that is news. What the record says of them otherwise is
// forgotten: a name and a machine are those of one node.
func (r *Record) Adopt(nodes ...Adopted) (isNews bool) {
	for _, n := range nodes {
		if r.HasAdopted(n) {
			continue
		}
		isNews = true
		r.Adopted = slices.DeleteFunc(r.Adopted, func(a Adopted) bool {
			return a.Node == n.Node ||
				a.MachineID == n.MachineID
		})
		r.Adopted = append(r.Adopted, n)
	}
	return isNews
}

// Note keeps an event, and forgets the oldest when there are too many.
func (r *Record) Note(e Event) {
	e.Started, e.Ended = e.Started.UTC().Truncate(time.Second), e.Ended.UTC().Truncate(time.Second)
	e.Command, e.Boxlift, e.By = fitText(e.Command, maxText), fitText(e.Boxlift, maxText), fitText(e.By, maxText)
	e.Result = fitText(e.Result, maxResult)
	r.Events = append(r.Events, e)
	r.Events = slices.Delete(r.Events, 0, max(0, len(r.Events)-KeptEvents))
}

// HasAdopted reports whether a node was adopted. One whose machine is not known was not.
func (r *Record) HasAdopted(n Adopted) bool {
	return r != nil && n.MachineID != "" && slices.Contains(r.Adopted, n)
}

// Find returns a release by its number, nil when the record does not have it.
func (r *Record) Find(number int) *Release {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Releases, func(one Release) bool { return one.Number == number })
	if i < 0 {
		return nil
	}
	return &r.Releases[i]
}

// Begin notes that a release begins, and returns it. lockText is the text of its lock. Of run
// the number, attempts and digest of the lock are set here. A run with the bundle,
// configuration and command of the newest release that has not succeeded goes on with that one;
// otherwise what was left unfinished counts as failed. A run that differs in its configuration
// alone keeps the backup that was made when the first of them began.
func (r *Record) Begin(run Release, lockText []byte) (*Release, error) {
	run.Lock = digest.FromBytes(lockText)
	if newest := r.Newest(); newest != nil && newest.goesOnWith(run) {
		run.Number, run.Attempts, run.Backup = newest.Number, newest.Attempts+1, newest.Backup
		r.Releases = r.Releases[:len(r.Releases)-1]
	} else {
		run.Number, run.Attempts = 1, 1
		if newest != nil {
			run.Number = newest.Number + 1
		}
		if newest.hasSameAim(run) {
			run.Backup = newest.Backup
		}
	}
	for i := range r.Releases {
		if old := &r.Releases[i]; !old.State.Finished() {
			old.State, old.Ended = Failed, run.Started
			old.Result = fmt.Sprintf("broken off; release %d followed", run.Number)
		}
	}
	r.Releases = append(r.Releases, run.fit())
	r.RaiseSerial(run.Serial)
	if err := r.addLock(run.Lock, lockText); err != nil {
		return nil, err
	}
	r.forget()
	return r.Newest(), nil
}

// goesOnWith reports whether a run is another attempt at a release.
func (r *Release) goesOnWith(run Release) bool {
	return r.hasSameAim(run) && r.Config == run.Config
}

// hasSameAim reports whether a run takes the cluster where a release, nil for none, was to and did
// not come: with another configuration, perhaps, so that what was backed up is the same.
func (r *Release) hasSameAim(run Release) bool {
	return r != nil && (r.State == Created || r.State == Running || r.State == Failed) &&
		r.IsSame(&run)
}

// Set gives a release a state and a result. A state that is the end of it gets the time.
func (r *Record) Set(number int, state State, result string, now time.Time) {
	one := r.Find(number)
	if one == nil {
		return
	}
	one.State, one.Result, one.Ended = state, result, time.Time{}
	if state.Finished() {
		one.Ended = now.UTC().Truncate(time.Second)
	}
	*one = one.fit()
}

// TakeBack notes that a run, which is a release of its own, has gone back to an earlier one:
// those in between no longer count.
func (r *Record) TakeBack(to, run int) {
	for i := range r.Releases {
		if one := &r.Releases[i]; one.Number > to && one.Number < run {
			one.State = RolledBack
		}
	}
}

// TakeBackUnfinished notes that the record itself was brought back with its cluster: what was
// not finished by then has come to nothing, but for an earlier attempt at the run that restores.
func (r *Record) TakeBackUnfinished(run Release) {
	for i := range r.Releases {
		if one := &r.Releases[i]; !one.State.Finished() && !one.goesOnWith(run) {
			r.Set(one.Number, RolledBack, "the cluster was restored to what it was before", run.Started)
		}
	}
}

// fit makes a release's own texts short enough and fit for a terminal.
func (r Release) fit() Release {
	r.Started = r.Started.UTC().Truncate(time.Second)
	r.Command, r.Boxlift, r.By = fitText(r.Command, maxText), fitText(r.Boxlift, maxText), fitText(r.By, maxText)
	r.Result, r.Backup = fitText(r.Result, maxResult), fitText(r.Backup, maxText)
	if checkFlags(r.Flags) != nil {
		r.Flags = nil // some of them, or half a flag, would be another run
	}
	return r
}

func fitText(text string, limit int) string {
	return printable.Clip(printable.Text(text), limit)
}

// forget drops the oldest releases, but never the current one, and the locks that no release
// names any more.
func (r *Record) forget() {
	for len(r.Releases) > Kept {
		drop := 0
		if current := r.Current(); current != nil && current.Number == r.Releases[0].Number {
			if len(r.Releases) == Kept+1 {
				break
			}
			drop = 1
		}
		r.Releases = slices.Delete(r.Releases, drop, drop+1)
	}
	for d := range r.Locks {
		if !slices.ContainsFunc(r.Releases, func(one Release) bool { return one.Lock == d }) {
			delete(r.Locks, d)
		}
	}
}

func (r *Record) addLock(d digest.Digest, text []byte) error {
	if len(text) > lock.MaxSize {
		return fmt.Errorf("record the lock: it has %d bytes, %d is the most", len(text), lock.MaxSize)
	}
	if r.Locks == nil {
		r.Locks = make(map[digest.Digest][]byte)
	}
	packed, err := pack(text)
	if err != nil {
		return err
	}
	r.Locks[d] = packed
	return nil
}

// pack compresses a text with gzip.
func pack(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unpack is the text that was packed, which has at most limit bytes.
func unpack(packed []byte, limit int) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(z, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return text, err
}

// Lock returns the lock of a release, and its text. The error wraps ErrNoLock when the record
// does not carry it, and ErrInvalid when it carries something else.
func (r *Record) Lock(one *Release) (*lock.Lock, []byte, error) {
	packed, ok := r.Locks[one.Lock]
	if !ok {
		return nil, nil, fmt.Errorf("release %d: %w %s", one.Number, ErrNoLock, one.Lock)
	}
	invalid := func(err error) error { return fmt.Errorf("%w: lock of release %d: %w", ErrInvalid, one.Number, err) }
	text, err := unpack(packed, lock.MaxSize)
	if err == nil && digest.FromBytes(text) != one.Lock {
		err = errors.New("its digest is another one")
	}
	if err != nil {
		return nil, nil, invalid(err)
	}
	l, err := lock.Parse("versions.lock", text)
	if err != nil {
		return nil, nil, invalid(err)
	}
	return l, text, nil
}

// Encode returns the document. What makes it too large goes: first lists of software, then locks, those of the
// oldest releases before others.
func (r *Record) Encode() ([]byte, error) {
	r.forgetSoftware()
	r.Format = r.form()
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for {
		document, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("write the record of releases: %w", err)
		}
		if len(document) <= MaxSize {
			return document, nil
		}
		isLess := r.forgetOldest(r.Software, func(one *Release) digest.Digest { return one.Bundle }) ||
			r.forgetOldest(r.Locks, func(one *Release) digest.Digest { return one.Lock })
		if r.Format = r.form(); !isLess {
			return nil, fmt.Errorf("%w: it has %d bytes, %d is the most", ErrInvalid, len(document), MaxSize)
		}
	}
}

// form is the oldest format that says all of it.
func (r *Record) form() int {
	switch {
	case len(r.Software) > 0:
		return SoftwareFormat
	case r.Trust != nil || slices.ContainsFunc(r.Releases, func(one Release) bool { return one.Signers != nil }):
		return TrustFormat
	case len(r.Events) > 0 || slices.ContainsFunc(r.Releases, func(one Release) bool { return one.Verb != "" }):
		return VerbFormat
	case len(r.Adopted) > 0:
		return AdoptedFormat
	case r.Serial != 0:
		return SerialFormat
	}
	return Format
}

// forgetOldest drops one of what releases have, that of the current release last, and reports whether there was one.
func (r *Record) forgetOldest(all map[digest.Digest][]byte, of func(*Release) digest.Digest) bool {
	var kept digest.Digest
	if current := r.Current(); current != nil {
		kept = of(current)
	}
	for i := range r.Releases {
		d := of(&r.Releases[i])
		if _, ok := all[d]; ok && d != kept {
			delete(all, d)
			return true
		}
	}
	dropped := len(all) > 0
	clear(all)
	return dropped
}

// Decode reads a document. The error wraps ErrInvalid.
func Decode(document []byte) (*Record, error) {
	r, err := decode(document)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return r, nil
}

func decode(document []byte) (*Record, error) {
	if len(document) > MaxSize {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(document), MaxSize)
	}
	var form struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(document, &form); err != nil {
		return nil, err
	}
	if form.Format < Format || form.Format > SoftwareFormat {
		return nil, fmt.Errorf("it has format %d, and this boxlift knows the formats %d to %d: "+
			"use the boxlift that wrote it, or a newer one", form.Format, Format, SoftwareFormat)
	}
	var r Record
	if err := wire.DecodeStrictly(document, MaxSize, &r); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for i := range r.Releases {
		if one := &r.Releases[i]; r.Format < VerbFormat {
			one.Verb, one.RollbackTo = journal.OfCommand(one.Command)
		}
	}
	return &r, nil
}

var fingerprintPattern = lazyregexp.New(`^[0-9a-f]{64}$`)

// check finds what no record says.
func (r *Record) check() error {
	if len(r.Releases) > maxReleases || len(r.Locks) > maxReleases {
		return fmt.Errorf("it has %d releases and %d locks, %d are the most", len(r.Releases), len(r.Locks),
			maxReleases)
	}
	if err := checkText(r.Cluster, maxText); err != nil {
		return err
	}
	if r.Serial < 0 || r.Serial > lock.MaxSerial || r.Format != r.form() {
		return fmt.Errorf("its serial is %d, it has %d adopted nodes and %d events, and its format is %d",
			r.Serial, len(r.Adopted), len(r.Events), r.Format)
	}
	if _, err := r.KeptTrust(); err != nil {
		return err
	}
	if err := r.checkSoftware(); err != nil {
		return err
	}
	if len(r.Adopted) > maxAdopted {
		return fmt.Errorf("it has %d adopted nodes, %d are the most", len(r.Adopted), maxAdopted)
	}
	for _, a := range r.Adopted {
		if a.Node == "" || a.MachineID == "" {
			return fmt.Errorf("it has the adopted node %.80q on the machine %.80q", a.Node, a.MachineID)
		}
		if err := errors.Join(checkText(a.Node, maxText), checkText(a.MachineID, maxText)); err != nil {
			return err
		}
	}
	for d := range r.Locks {
		if err := d.Validate(); err != nil {
			return err
		}
	}
	if len(r.Events) > maxEvents {
		return fmt.Errorf("it has %d events, %d are the most", len(r.Events), maxEvents)
	}
	for _, e := range r.Events {
		if err := e.check(); err != nil {
			return fmt.Errorf("the event of %v: %w", e.Started, err)
		}
	}
	last := 0
	for i := range r.Releases {
		one := &r.Releases[i]
		if one.Number <= last {
			return fmt.Errorf("release %d comes after release %d", one.Number, last)
		}
		last = one.Number
		if one.Serial < 0 || one.Serial > r.Serial {
			return fmt.Errorf("release %d: its serial is %d, and the highest %d", one.Number, one.Serial, r.Serial)
		}
		if err := one.check(); err != nil {
			return fmt.Errorf("release %d: %w", one.Number, err)
		}
	}
	return nil
}

func (e *Event) check() error {
	if e.Command == "" || e.Started.IsZero() || e.Ended.Before(e.Started) {
		return fmt.Errorf("%.80q began then and ended at %v", e.Command, e.Ended)
	}
	for _, text := range []string{e.Command, e.Boxlift, e.By} {
		if err := checkText(text, maxText); err != nil {
			return err
		}
	}
	return checkText(e.Result, maxResult)
}

func (r *Release) check() error {
	if !slices.Contains([]State{Created, Running, Succeeded, Failed, RolledBack}, r.State) {
		return fmt.Errorf("its state is %.40q", r.State)
	}
	for _, d := range []digest.Digest{r.Bundle, r.Lock} {
		if err := d.Validate(); err != nil {
			return err
		}
	}
	if !fingerprintPattern.MatchString(r.Config) {
		return fmt.Errorf("the fingerprint of its configuration is %.80q", r.Config)
	}
	if r.Attempts < 1 || r.Started.IsZero() {
		return fmt.Errorf("it was begun %d times, first at %v", r.Attempts, r.Started)
	}
	if len(r.Components) > maxComponents {
		return fmt.Errorf("it has %d components, %d are the most", len(r.Components), maxComponents)
	}
	if err := checkFlags(r.Flags); err != nil {
		return err
	}
	if r.RollbackTo < 0 || (r.RollbackTo > 0) != (r.Verb == journal.Rollback) {
		return fmt.Errorf("it goes back to release %d, and its verb is %.40q", r.RollbackTo, r.Verb)
	}
	if len(r.Signers) > maxSigners || r.Trust < 0 {
		return fmt.Errorf("it has %d signers, by version %d of the trust file", len(r.Signers), r.Trust)
	}
	for _, s := range r.Signers {
		if err := errors.Join(checkText(s.Name, maxText), checkText(s.Key, maxText)); err != nil {
			return err
		}
	}
	texts := []string{string(r.Verb), r.Command, r.Boxlift, r.By, r.Backup}
	for _, c := range r.Components {
		texts = append(texts, c.Name, c.Version)
	}
	for _, text := range texts {
		if err := checkText(text, maxText); err != nil {
			return err
		}
	}
	return checkText(r.Result, maxResult)
}

func checkFlags(flags []string) error {
	size := 0
	for _, text := range flags {
		if err := checkText(text, maxFlags); err != nil {
			return err
		}
		size += len(text) + 1
	}
	if size > maxFlags {
		return fmt.Errorf("its flags have more than %d bytes", maxFlags)
	}
	return nil
}

func checkText(text string, limit int) error {
	if text != fitText(text, limit) {
		return fmt.Errorf("the text %.80q is longer than %d bytes, or not fit for a terminal", text, limit)
	}
	return nil
}

// ReadFile reads a copy. There is none when the record is nil.
func ReadFile(path string) (*Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no copy is no error, and no record
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	document, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	r, err := Decode(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// WriteFile writes a copy, whole or not at all, that only its owner can read. The folder must
// exist.
func (r *Record) WriteFile(path string) error {
	document, err := r.Encode()
	if err != nil {
		return err
	}
	return ownfile.Replace(path, document, 0o600)
}
