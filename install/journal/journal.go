// Package journal keeps state.json: what was done on which host, when, from which
// inputs, and with what result.
//
// Contract: the file is written atomically with mode 0600 at every change, so that it
// is whole after a crash at any moment. It holds no secrets. While a [Journal] is open
// no other process can open it.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Version is the version of the file's form.
const Version = 2

// maxSize bounds what is read.
const maxSize = 16 << 20

// maxError bounds what is kept of one error, in bytes: it may quote what a host said,
// and the file must stay below maxSize to be read again.
const maxError = 4 << 10

// Result is how a step or run ended.
type Result string

// The results. A step or run that was going on when boxlift died stays "running".
const (
	Running Result = "running"
	Done    Result = "done"
	Failed  Result = "failed"
	// Unchanged is the result of a step that was not needed.
	Unchanged Result = "unchanged"
)

// Run says what a run works on.
type Run struct {
	// Command is the command that was given, such as "install", for people; Verb says what it is.
	Command string `json:"command"`
	Verb    Verb   `json:"verb"`
	// RollbackTo is the release that a [Rollback] goes back to, 0 for other verbs.
	RollbackTo int    `json:"rollbackTo,omitempty"`
	Cluster    string `json:"cluster"`
	// Bundle is the bundle digest, Config the fingerprint of install.yaml. A run without a
	// bundle has no digest.
	Bundle string `json:"bundle,omitempty"`
	Config string `json:"config"`
	// BundleFile and ConfigFile are absolute paths, but for a ConfigFile of --local, where there is none.
	BundleFile string `json:"bundleFile,omitempty"`
	ConfigFile string `json:"configFile"`
	// BackupFile is the absolute path of the backup that the run brings the cluster back from.
	BackupFile string `json:"backupFile,omitempty"`
	// Plan is what the run goes through. Which steps a phase consists of is known when it
	// has looked at its hosts: then they are in State.Steps.
	Plan []Planned `json:"plan,omitempty"`
	// Flags are those of the command that say how it goes about its work and what it leaves,
	// such as "--batch-size=1": a run that goes on keeps to them. Paths in them are absolute.
	Flags []string `json:"flags,omitempty"`
	// Left are the hosts that earlier runs have left behind: their nodes were deleted, and k3s is
	// still on them.
	Left []Left `json:"left,omitempty"`
}

// Verb is what a run does.
type Verb string

// The verbs. Those of an earlier boxlift that are not known here are "".
const (
	Install            Verb = "install"
	InstallLiteBoxd    Verb = "install-liteboxd" // on a cluster that is there
	InstallCluster     Verb = "install-cluster"  // without LiteBoxd
	AddNodes           Verb = "add-nodes"
	Adopt              Verb = "adopt"
	Upgrade            Verb = "upgrade"
	Rollback           Verb = "rollback" // to an earlier release, in place
	Restore            Verb = "restore"
	Remove             Verb = "remove"
	RotateCertificates Verb = "rotate-certificates"
	RotateTokens       Verb = "rotate-tokens"
	RollbackLiteBoxd   Verb = "rollback-liteboxd"
	Confirm            Verb = "confirm"
	KeepTrust          Verb = "keep-trust"
	MoveLiteBoxd       Verb = "move-liteboxd"
	RestoreLiteBoxd    Verb = "restore-liteboxd" // its database alone
	ConfirmMove        Verb = "confirm-move"
	RunPhase           Verb = "run-phase" // of an installation, alone
	RemoveWorkload     Verb = "remove-workload"
	RollbackWorkload   Verb = "rollback-workload"
)

// OfCommand is the verb of a command as versions before 2 of the state, and before 4 of the cluster's record, have it,
// and the release that it goes back to, 0 for none.
func OfCommand(command string) (verb Verb, rollbackTo int) {
	if n, err := fmt.Sscanf(command, "rollback --to %d", &rollbackTo); n == 1 && err == nil {
		return Rollback, rollbackTo
	}
	return map[string]Verb{
		"install": Install, "install --only liteboxd": InstallLiteBoxd, "install --skip liteboxd": InstallCluster,
		"node add": AddNodes, "adopt": Adopt, "upgrade": Upgrade,
		"backup restore": Restore, "install --restore": Restore, "node remove": Remove,
		"certs rotate": RotateCertificates, "token rotate": RotateTokens, "rollback liteboxd": RollbackLiteBoxd,
		"upgrade confirm": Confirm,
	}[command], 0
}

// IsUpgrade reports whether the verb takes a cluster from one bundle to another in place.
func (v Verb) IsUpgrade() bool { return v == Upgrade || v == Rollback }

// Left is a host whose node was deleted and from which k3s was not uninstalled.
type Left struct {
	// Host is what the steps of its removal call it, Address where it is logged in to.
	Host    string `json:"host"`
	Address string `json:"address"`
	Node    string `json:"node"`
}

// Planned is one phase of a run, with the hosts that it works on.
type Planned struct {
	Phase string   `json:"phase"`
	Hosts []string `json:"hosts"`
}

// State is the content of state.json.
type State struct {
	Version int `json:"version"`
	Run
	Result  Result    `json:"result"`
	Error   string    `json:"error,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Resumed is how often the run was gone on with.
	Resumed int `json:"resumed,omitempty"`
	// Steps are those of the run, in the order in which they were first looked at.
	Steps []Step `json:"steps"`
	// Took are runs that came to their end, the last one of each sort.
	Took []Took `json:"took,omitempty"`
}

// Unfinished reports whether there was a run that has not ended well.
func (s State) Unfinished() bool { return s.Version != 0 && s.Result != Done }

// Step is one thing that was done, or tried, or found to need nothing.
type Step struct {
	Phase string `json:"phase"`
	// Host is empty for steps of the cluster as a whole.
	Host string `json:"host,omitempty"`
	// ID says which step of the phase it is, Title so for people.
	ID     string `json:"id"`
	Title  string `json:"title"`
	Reason string `json:"reason,omitempty"`
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`
	// Attempts is how often the step was begun.
	Attempts int       `json:"attempts,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	// Leaves is what is left behind when the step was done, or begun, and nothing came after it; nil for nothing. Takes
	// tells that the step takes away what another one has left behind on the host.
	Leaves *Left `json:"leaves,omitempty"`
	Takes  bool  `json:"takes,omitempty"`
}

// ErrLocked says that another process works with the same state.
var ErrLocked = fault.NewKind(fault.Input, "another boxlift is working with this state")

// ErrInvalid is wrapped by errors that say that a state cannot be used.
var ErrInvalid = fault.NewKind(fault.Input, "the state cannot be used")

// Journal is an open state.json. Its methods may be called by several goroutines.
type Journal struct {
	path string
	lock *flock.Flock
	now  func() time.Time

	mu    sync.Mutex
	state State
	// kind is how the run stands to the one before, "" where that is not known, see kindOf.
	kind RunKind
}

// Open opens or begins the state at path, and keeps others away from it by a lock on
// path.lock.
func Open(path string) (*Journal, error) {
	lock, locked, err := ownfile.Lock(path+".lock", 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state %s: %w", path, err)
	}
	if !locked {
		_ = lock.Close()
		return nil, fmt.Errorf("lock the state %s: %w", path, ErrLocked)
	}
	j := &Journal{path: path, lock: lock, now: time.Now}
	if err := j.read(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return j, nil
}

func (j *Journal) read() error {
	info, err := os.Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	if info.Size() > maxSize {
		return fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, j.path, maxSize)
	}
	content, err := os.ReadFile(j.path)
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	var form struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(content, &form) == nil && form.Version > Version {
		return fault.WithHint(
			fmt.Errorf("%w: %s has version %d, this boxlift knows version %d", ErrInvalid, j.path, form.Version,
				Version),
			"a later boxlift has written it: use that one, as it may have begun something that is not at its end; "+
				"or move the file away, and boxlift finds out from the hosts what is there")
	}
	if err := json.Unmarshal(content, &j.state); err != nil {
		return fmt.Errorf("%w: %s is damaged: %w: move it away, and boxlift finds out from the hosts what is there",
			ErrInvalid, j.path, err)
	}
	switch j.state.Version {
	case Version:
		return nil
	case 1:
		j.state.fromVersion1()
		return nil
	}
	return fmt.Errorf("%w: %s has version %d, this boxlift knows the versions 1 to %d", ErrInvalid, j.path,
		j.state.Version, Version)
}

// State returns a copy of what is known.
func (j *Journal) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.state
	s.Steps = slices.Clone(s.Steps)
	return s
}

// Begin starts a run; the steps of the last one are forgotten.
func (j *Journal) Begin(r Run) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kind = j.state.kindOf(r)
	j.state = State{Version: Version, Run: r, Result: Running, Started: j.now().UTC(), Steps: []Step{},
		Took: j.state.Took}
	return j.write()
}

// Resume goes on with the last run, whose steps are kept, by the flags that hold from now on.
func (j *Journal) Resume(flags []string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Result, j.state.Error, j.state.Ended = Running, "", time.Time{}
	j.state.Flags, j.kind = flags, ""
	j.state.Resumed++
	return j.write()
}

// End ends the run.
func (j *Journal) End(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Result, j.state.Error, j.state.Ended = resultOf(err), textOf(err), j.now().UTC()
	return j.write()
}

// Start notes that a step begins; the function that it returns notes its end. Of the step what it is and why it is
// needed are taken.
func (j *Journal) Start(begun Step) (end func(error) error, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.step(begun)
	s := &j.state.Steps[i]
	begun.Result, begun.Attempts, begun.Started = Running, s.Attempts+1, j.now().UTC()
	*s = begun
	end = func(err error) error {
		j.mu.Lock()
		defer j.mu.Unlock()
		s := &j.state.Steps[i]
		s.Result, s.Error, s.Ended = resultOf(err), textOf(err), j.now().UTC()
		return j.write()
	}
	return end, j.write()
}

// Unchanged notes that a step needs nothing. It is written with the next change.
func (j *Journal) Unchanged(looked Step) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.state.Steps[j.step(looked)]
	switch s.Result {
	case "":
		s.Result = Unchanged
	case Running, Failed:
		// An earlier attempt did it all the same.
		s.Result, s.Error = Done, ""
	}
}

// step finds a step, or adds it.
func (j *Journal) step(wanted Step) int {
	i := slices.IndexFunc(j.state.Steps, func(s Step) bool {
		return s.Phase == wanted.Phase && s.Host == wanted.Host && s.ID == wanted.ID
	})
	if i < 0 {
		i = len(j.state.Steps)
		j.state.Steps = append(j.state.Steps, wanted)
	}
	return i
}

// textOf is as much of an error as is kept.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return printable.Clip(err.Error(), maxError)
}

func resultOf(err error) Result {
	if err != nil {
		return Failed
	}
	return Done
}

func (j *Journal) write() error {
	content, err := json.MarshalIndent(j.state, "", "  ")
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := ownfile.Replace(j.path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}

// Close lets others work with the state.
func (j *Journal) Close() error { return j.lock.Close() }

// Read returns the state at path without keeping others away from it. There is none yet
// when its Version is 0.
func Read(path string) (State, error) {
	j := &Journal{path: path}
	err := j.read()
	return j.state, err
}
