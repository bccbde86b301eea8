// Package site is what a verb works on: what install.yaml and a bundle ask for, the hosts, and the cluster's API.
//
// A [Site] is made for one verb. Rooms read it; only the room that finds something out about a host or the cluster
// writes it there. It reaches hosts through their connections, each made once however many are reached through it,
// and the API through the connection of a server. Nothing here changes a host or the cluster, except that the
// helper is put on a host where it is asked for.
//
// What a run has to tell besides its steps is its [Outcome].
package site

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

var (
	// ErrHosts is wrapped by errors that say that at least one host failed.
	ErrHosts = fault.NewKind(fault.Host, "failed on some hosts")
	// ErrCluster is wrapped by errors of the cluster as a whole.
	ErrCluster = fault.NewKind(fault.Host, "the cluster cannot be brought to what was asked for")
	// ErrConfig is wrapped by errors that say that install.yaml and the bundle do not go
	// together.
	ErrConfig = fault.NewKind(fault.Input, "install.yaml does not fit the bundle")
	// ErrLock is wrapped by errors that say that a lock lacks images.
	ErrLock = fault.NewKind(fault.Input, "the lock is incomplete")
	// ErrRefused is wrapped by errors about what boxlift does not do. Nothing was changed.
	ErrRefused = fault.NewKind(fault.Input, "refused")
	// ErrDifferent says that a cluster is not what it is to be.
	ErrDifferent = fault.NewKind(fault.Different, "the cluster differs from what was asked for")
	// ErrNothingToResume says that there is no run to go on with.
	ErrNothingToResume = fault.NewKind(fault.Input, "nothing to go on with")
	// ErrChanged says that the run to go on with was one of something else.
	ErrChanged = fault.NewKind(fault.Input, "bundle or configuration changed since the run was broken off")
)

// Site is what a verb works on: what is asked for, and the hosts and the cluster that it is asked of.
type Site struct {
	Config    *config.Config
	Bundle    *bundle.Reader // nil for verbs that need none
	StatePath string
	Reporter  progress.Reporter
	Log       *slog.Logger

	Contents *bundle.Contents
	K3s      string // the version in the bundle
	Hosts    []*Host
	Conns    *Connections
	API      *kube.Cluster // nil until the servers are up
	// APIServer is the server that the API is reached through.
	APIServer *Host
	Meter     meter
	// Misfit is what errors about images that nobody carries wrap.
	Misfit error

	authority openedAuthority

	Outcome
}

// Outcome is what a run has to tell besides its steps.
type Outcome struct {
	warned   sync.Mutex // for warnings and ended: hosts are worked on at the same time
	Warnings []string
	Overview *Overview
	// Ended are the sandboxes that ended by themselves while an upgrade started k3s anew.
	Ended  []string
	Backup string // folder of the backup of LiteBoxd that the run has made
	// ClusterBackup is the file with the backup of the cluster that the run has made.
	ClusterBackup string
	Login         *Login // of LiteBoxd's first user, if it is to be shown
}

// Servers are the hosts that are servers, as install.yaml has them.
func (s *Site) Servers() []*Host { return s.Hosts[:len(s.Config.Cluster.Servers)] }

// Agents are the other hosts.
func (s *Site) Agents() []*Host { return s.Hosts[len(s.Config.Cluster.Servers):] }

// Short is as much of a digest as people compare.
func Short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// IsCalled reports whether a host goes by a name or address in install.yaml. Most hosts have
// no name there: "" is nobody's.
func IsCalled(h config.Host, name string) bool {
	return name != "" && (name == h.Host || name == h.Name || h.NodeIP.IsValid() && name == h.NodeIP.String())
}

// Version is that of a component in the bundle, or "".
func (s *Site) Version(component string) string {
	for _, c := range s.Contents.Describe() {
		if c.Name == component {
			return c.Version
		}
	}
	return ""
}

// AtOnce runs do on all hosts, as many at a time as the configuration allows.
func (s *Site) AtOnce(hosts []*Host, do func(*Host)) {
	slots := make(chan struct{}, s.Config.Runtime.Parallelism)
	done := make(chan struct{})
	for _, h := range hosts {
		s.Meter.Enter()
		go func() {
			defer func() {
				s.Meter.Leave()
				done <- struct{}{}
			}()
			slots <- struct{}{}
			defer func() { <-slots }()
			do(h)
		}()
	}
	_ = s.Meter.Wait(func() error {
		for range hosts {
			<-done
		}
		return nil
	})
}

// Warn notes something that does not stop the run, for the summary.
func (s *Site) Warn(format string, args ...any) {
	text := printable.Text(fmt.Sprintf(format, args...))
	s.warned.Lock()
	defer s.warned.Unlock()
	if !slices.Contains(s.Warnings, text) {
		s.Warnings = append(s.Warnings, text)
	}
}

// PlatformsText lists platforms for a message.
func PlatformsText(platforms []lock.Platform) string {
	names := make([]string, 0, len(platforms))
	for _, p := range platforms {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

// Note tells the operator at once what is not well and stops nothing.
func (s *Site) Note(format string, args ...any) {
	s.Reporter.Message("warning: " + printable.Text(fmt.Sprintf(format, args...)))
}

// SandboxesEnded tells of sandboxes that ended by themselves while a host was worked on.
func (s *Site) SandboxesEnded(host string, names []string) {
	if len(names) == 0 {
		return
	}
	s.Warn("%s: of the sandboxes that ran when its k3s was to change, these have ended: %s", host,
		strings.Join(names, ", "))
	s.warned.Lock()
	defer s.warned.Unlock()
	s.Ended = append(s.Ended, names...)
}

// OrUnknown is s, or "unknown" where that is empty.
func OrUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
