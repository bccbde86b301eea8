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
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// Version is the version of the file's form.
const Version = 1

// maxSize bounds what is read.
const maxSize = 16 << 20

// maxError bounds what is kept of one error, in bytes: it may quote what a host said,
// and the file must stay below maxSize to be read again.
const maxError = 4 << 10

// Result is how a step or run ended.
type Result string

// The results. A step that was running when boxlift died stays "running".
const (
	Running Result = "running"
	Done    Result = "done"
	Failed  Result = "failed"
)

// State is the content of state.json.
type State struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	// Bundle is the bundle digest, Config the fingerprint of install.yaml, both of the
	// last run.
	Bundle  string    `json:"bundle"`
	Config  string    `json:"config"`
	Result  Result    `json:"result"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Steps are those of the last run, in the order in which they began.
	Steps []Step `json:"steps"`
}

// Step is one thing that was done, or tried.
type Step struct {
	Phase string `json:"phase"`
	// Host is empty for steps of the cluster as a whole.
	Host    string    `json:"host,omitempty"`
	Title   string    `json:"title"`
	Reason  string    `json:"reason"`
	Result  Result    `json:"result"`
	Error   string    `json:"error,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

// ErrLocked says that another process works with the same state.
var ErrLocked = errors.New("another boxlift is working with this state")

// Journal is an open state.json. Its methods may be called by several goroutines.
type Journal struct {
	path string
	lock *flock.Flock
	now  func() time.Time

	mu    sync.Mutex
	state State
}

// Open opens or begins the state at path, and keeps others away from it by a lock on
// path.lock.
func Open(path string) (*Journal, error) {
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock the state %s: %w", path, err)
	}
	if !locked {
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
		return fmt.Errorf("read the state: %s is larger than %d bytes", j.path, maxSize)
	}
	content, err := os.ReadFile(j.path)
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	if err := json.Unmarshal(content, &j.state); err != nil {
		return fmt.Errorf("read the state: %s is damaged: %w: move it away, and boxlift finds out from the hosts what is there", j.path, err)
	}
	if j.state.Version != Version {
		return fmt.Errorf("read the state: %s has version %d, this boxlift knows version %d", j.path, j.state.Version, Version)
	}
	return nil
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
func (j *Journal) Begin(cluster, bundle, config string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state = State{Version: Version, Cluster: cluster, Bundle: bundle, Config: config, Result: Running, Started: j.now().UTC(), Steps: []Step{}}
	return j.write()
}

// End ends the run.
func (j *Journal) End(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Result, j.state.Ended = resultOf(err), j.now().UTC()
	return j.write()
}

// Start notes that a step begins; the function that it returns notes its end.
func (j *Journal) Start(phase, host, title, reason string) (end func(error) error, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := len(j.state.Steps)
	j.state.Steps = append(j.state.Steps, Step{Phase: phase, Host: host, Title: title, Reason: reason, Result: Running, Started: j.now().UTC()})
	end = func(err error) error {
		j.mu.Lock()
		defer j.mu.Unlock()
		s := &j.state.Steps[i]
		s.Result, s.Ended = resultOf(err), j.now().UTC()
		if err != nil {
			s.Error = err.Error()
			if len(s.Error) > maxError {
				s.Error = strings.ToValidUTF8(s.Error[:maxError], "") + "…"
			}
		}
		return j.write()
	}
	return end, j.write()
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
	if err := renameio.WriteFile(j.path, append(content, '\n'), 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}

// Close lets others work with the state.
func (j *Journal) Close() error { return j.lock.Close() }
