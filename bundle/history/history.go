// Package history is what a site says of its cluster's releases: which bundles the cluster has had, as a document that
// goes to where bundles are built.
//
// Contract: it is JSON of at most [MaxSize] bytes. It comes from the cluster's record of releases, and leaves out what
// is the site's own: who did it, with which flags and configuration, and what was said of failures. So it has no
// secrets. Reading is strict and bounded: unknown fields, repeated ones and other spellings are refused, white space
// may differ, and all texts are fit for a terminal. Who says it is proven by a signature beside it, or not at all.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The values of apiVersion and kind.
const (
	APIVersion = "boxlift.dev/v1"
	Kind       = "History"
)

// Bounds.
const (
	// MaxSize is that of a document in bytes.
	MaxSize = 1 << 20
	// maxReleases and maxComponents are more than a record has.
	maxReleases   = 64
	maxComponents = 256
	maxText       = 512
	maxName       = 253
	maxValues     = maxReleases*(maxComponents*2+16) + 16
)

// ErrInvalid is wrapped by errors that say that a document is not in this form.
var ErrInvalid = fault.NewKind(fault.Input, "invalid history")

// History is what a cluster has had.
type History struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// Written is when it was written, by the clock of the machine that did, in UTC and whole seconds.
	Written time.Time `json:"written"`
	// Serial is the highest serial of a bundle that the cluster has had, also in releases that are not listed; 0 for
	// none.
	Serial int64 `json:"serial,omitempty"`
	// Trust is the number of the version of the trust file that the cluster keeps; 0 for none.
	Trust int64 `json:"trust,omitempty"`
	// Releases are those that are on record, the oldest first. Of two documents about a cluster, the one whose last
	// release has the higher number is newer, whatever clocks say.
	Releases []Release `json:"releases"`
}

// Release is one run that changed the cluster.
type Release struct {
	// Number counts from 1 and never repeats.
	Number int `json:"number"`
	// State is how far it has got: created, running, succeeded, failed, rolled_back.
	State string `json:"state"`
	// Bundle is the bundle digest, Serial that of the bundle, 0 for none.
	Bundle     digest.Digest `json:"bundle"`
	Serial     int64         `json:"serial,omitempty"`
	Components []Component   `json:"components"`
	// Started and Ended are in UTC and whole seconds; Ended is zero as long as it goes on.
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

// Component is a component of the bundle's lock.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Encode returns the document.
func (h *History) Encode() ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	content, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if content = append(content, '\n'); len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has %d bytes, %d is the most", ErrInvalid, len(content), MaxSize)
	}
	return content, nil
}

// Parse reads what Encode wrote. Errors wrap [ErrInvalid].
func Parse(content []byte) (*History, error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxSize)
	}
	var form struct{ APIVersion, Kind string }
	if err := boundedjson.Unmarshal(content, &form, maxValues); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	// What is of another version is told so, whatever fields it has.
	if err := checkForm(form.APIVersion, form.Kind); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var h History
	if err := boundedjson.UnmarshalExact(content, &h, maxValues); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return &h, nil
}

func checkForm(apiVersion, kind string) error {
	if apiVersion != APIVersion || kind != Kind {
		return fmt.Errorf("apiVersion %.40q and kind %.40q, expected %s and %s", apiVersion, kind, APIVersion, Kind)
	}
	return nil
}

var state = lazyregexp.New(`^[a-z_]{1,32}$`)

func (h *History) check() error {
	if err := checkForm(h.APIVersion, h.Kind); err != nil {
		return err
	}
	if err := checkText("cluster", h.Cluster, maxName); err != nil {
		return err
	}
	switch {
	case !isPlain(h.Written):
		return errors.New("written: it is missing, or not in UTC and whole seconds")
	case h.Serial < 0 || h.Serial > lock.MaxSerial:
		return fmt.Errorf("the serial is %d", h.Serial)
	case h.Trust < 0 || h.Trust > lock.MaxSerial:
		return fmt.Errorf("the version of the trust file is %d", h.Trust)
	case h.Releases == nil, len(h.Releases) > maxReleases:
		return fmt.Errorf("it has %d releases, expected a list of at most %d", len(h.Releases), maxReleases)
	}
	last := 0
	for i := range h.Releases {
		r := &h.Releases[i]
		if r.Number <= last {
			return fmt.Errorf("release %d comes after release %d", r.Number, last)
		}
		last = r.Number
		if err := r.check(h.Serial); err != nil {
			return fmt.Errorf("release %d: %w", r.Number, err)
		}
	}
	return nil
}

func (r *Release) check(highest int64) error {
	switch {
	case !state.MatchString(r.State):
		return fmt.Errorf("the state is %.40q", r.State)
	case r.Bundle.Validate() != nil || r.Bundle.Algorithm() != digest.SHA256:
		return fmt.Errorf("the bundle %.80q is not a sha256 digest", string(r.Bundle))
	case r.Serial < 0 || r.Serial > highest:
		return fmt.Errorf("its serial is %d, and the highest %d", r.Serial, highest)
	case r.Components == nil, len(r.Components) > maxComponents:
		return fmt.Errorf("it has %d components, expected a list of at most %d", len(r.Components), maxComponents)
	case !isPlain(r.Started) || !r.Ended.IsZero() && !isPlain(r.Ended):
		return errors.New("a time is missing, or not in UTC and whole seconds")
	}
	for _, c := range r.Components {
		if err := errors.Join(checkText("component", c.Name, maxText), checkText("version", c.Version, maxText)); err != nil {
			return err
		}
	}
	return nil
}

// isPlain reports whether a time is one that JSON has a single spelling for here.
func isPlain(t time.Time) bool {
	return !t.IsZero() && t.Location() == time.UTC && t.Equal(t.Truncate(time.Second)) && t.Year() > 0 && t.Year() < 10000
}

func checkText(what, text string, most int) error {
	if text == "" || len(text) > most || printable.Line(text) != text {
		return fmt.Errorf("%s: %.80q has not 1 to %d bytes that are fit for one line of a terminal", what, text, most)
	}
	return nil
}
