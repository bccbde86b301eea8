// Package edge is what the stand-ins for LiteBoxd's programs have in common where they meet
// the cluster: settings from the environment, log lines, probes, and the way in which a
// server drains.
package edge

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Release says which release a program is. Images of different releases differ in this
// alone.
type Release struct {
	Version string `json:"version"` // "v0.6.10"
	// Schema is how far the database is migrated; later releases migrate further.
	Schema int `json:"schema"`
	// NeverReady is the reason for which this release's API never becomes ready; empty in
	// releases that work.
	NeverReady string `json:"neverReady,omitempty"`
}

// ReadRelease reads release.json from the program's folder.
func ReadRelease() (Release, error) {
	program, err := os.Executable()
	if err != nil {
		return Release{}, fmt.Errorf("find the program's folder: %w", err)
	}
	name := filepath.Join(filepath.Dir(program), "release.json")
	data, err := os.ReadFile(name)
	if err != nil {
		return Release{}, fmt.Errorf("read which release this is: %w", err)
	}
	var r Release
	if err := json.Unmarshal(data, &r); err != nil {
		return Release{}, fmt.Errorf("read %s: %w", name, err)
	}
	return r, nil
}

// Settings is what all programs of the control plane read from the environment.
type Settings struct {
	DataDir          string
	Kubeconfig       string // empty: the pod's service account
	SandboxNamespace string
	ControlNamespace string
	ShutdownTimeout  time.Duration
	Log              *slog.Logger
	// Getenv is where further settings come from.
	Getenv func(string) string
}

// ReadSettings reads the common settings. Log lines go to stdout.
func ReadSettings(getenv func(string) string, stdout io.Writer) (*Settings, error) {
	s := &Settings{
		DataDir:          or(getenv("DATA_DIR"), "./data"),
		Kubeconfig:       getenv("KUBECONFIG"),
		SandboxNamespace: or(getenv("SANDBOX_NAMESPACE"), "liteboxd-sandbox"),
		ControlNamespace: or(getenv("CONTROL_NAMESPACE"), "liteboxd-system"),
		Getenv:           getenv,
	}
	var err error
	if s.ShutdownTimeout, err = s.Duration("SHUTDOWN_TIMEOUT", 30*time.Second); err != nil {
		return nil, err
	}
	s.Log, err = logger(getenv, stdout)
	return s, err
}

func logger(getenv func(string) string, stdout io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	if level := getenv("LOG_LEVEL"); level != "" {
		var l slog.Level
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("read LOG_LEVEL: %w", err)
		}
		options.Level = l
	}
	if getenv("LOG_FORMAT") == "text" {
		return slog.New(slog.NewTextHandler(stdout, options)), nil
	}
	return slog.New(slog.NewJSONHandler(stdout, options)), nil
}

// String reads a setting that has a default.
func (s *Settings) String(name, otherwise string) string { return or(s.Getenv(name), otherwise) }

// Duration reads a positive duration such as 120s.
func (s *Settings) Duration(name string, otherwise time.Duration) (time.Duration, error) {
	text := s.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("read %s: %q is not a positive duration", name, text)
	}
	return d, nil
}

// Number reads a whole number that is at least 1.
func (s *Settings) Number(name string, otherwise int) (int, error) {
	text := s.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("read %s: %q is not a positive number", name, text)
	}
	return n, nil
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
