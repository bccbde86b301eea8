// Package figures gathers what there is to count of a site, as gauges for Prometheus.
//
// Contract: it changes nothing but that health's pods come and go. What cannot be seen has no sample, and keeps nothing
// else from being gathered; [Figures.Gauges] has all gauges in any case, so that who watches one can tell that nothing
// has it. docs/metrics.md lists them, and a test compares.
package figures

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
)

// Figures are what was seen of a site.
type Figures struct {
	Cluster string
	// Boxlift is the version of boxlift that has looked.
	Boxlift string
	// Began and Ended are when it looked.
	Began, Ended time.Time
	Hosts        []Host
	// Nodes and Record are those that the API has told; IsReached reports whether it was asked with success.
	IsReached bool
	Nodes     []kube.Node
	Record    *release.Record
	// Backups are those that servers make by themselves, of servers that told.
	Backups      []schedule.OnServer
	Health       *inspect.Health
	Certificates *certificates.Certificates
}

// Host is a host of install.yaml.
type Host struct {
	Name string
	// IsReached reports whether it was logged in to.
	IsReached bool
	// Facts are nil of a host that has told none.
	Facts *facts.Facts
	// ClockOffset is how far its clock is ahead of the operator's.
	ClockOffset time.Duration
	// Load are its load averages over 1, 5 and 15 minutes; nil where they were not told.
	Load []float64
}

// Gatherer looks at a site.
type Gatherer struct {
	Site      *site.Site
	Engine    *run.Engine
	Renewer   *certificates.Renewer
	Inspector *inspect.Inspector
	// Boxlift is the version of boxlift that looks.
	Boxlift string
}

// timeOfEach is how long a question to a host or to the API may take.
const timeOfEach = 30 * time.Second

// Gather looks at a site. Only names checks of health, nil all of them; see [inspect.Inspector.Health]. The error is
// that of hosts or of a cluster that could not be reached; the figures are complete then as well, and nil only when
// ctx has ended. What is not well, and is seen, is no error: figures say it.
func (g *Gatherer) Gather(ctx context.Context, only []string) (*Figures, error) {
	f := &Figures{Cluster: g.Site.Config.Cluster.Name, Boxlift: g.Boxlift, Began: time.Now()}
	var err error
	if f.Health, err = g.Inspector.Health(ctx, only); f.Health == nil {
		return nil, err
	}
	looked := g.Engine.Look(ctx, []run.Phase{{Name: "metrics", Look: func(ctx context.Context) error {
		g.addCluster(ctx, f)
		g.addHosts(ctx, f)
		var unread error
		f.Certificates, unread = g.Renewer.Check(ctx, nil)
		return notDifferent(unread)
	}}})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f.Ended = time.Now()
	if err = notDifferent(err); err == nil {
		err = notDifferent(looked)
	}
	return f, err
}

// notDifferent is an error, but for those that say of something that was seen that it is not well.
func notDifferent(err error) error {
	if fault.ClassOf(err) == fault.Different {
		return nil
	}
	return err
}

// addCluster asks the API, where it was reached.
func (g *Gatherer) addCluster(ctx context.Context, f *Figures) {
	if g.Site.API == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeOfEach, fmt.Errorf("given up after %v", timeOfEach))
	defer cancel()
	nodes, err := g.Site.API.Nodes(ctx)
	if err != nil {
		return // health has said why
	}
	f.IsReached, f.Nodes = true, nodes
	// A record that cannot be read has no figures, which is seen.
	if f.Record, _, err = run.ReadRecord(ctx, g.Site.API); err != nil {
		f.Record = nil
	}
}

// addHosts asks the hosts that health has reached.
func (g *Gatherer) addHosts(ctx context.Context, f *Figures) {
	f.Hosts = make([]Host, len(g.Site.Hosts))
	g.Site.AtOnce(g.Site.Hosts, func(h *site.Host) {
		ctx, cancel := context.WithTimeoutCause(ctx, timeOfEach, fmt.Errorf("given up after %v", timeOfEach))
		defer cancel()
		one := Host{Name: h.Name, IsReached: h.Err == nil && h.Conn != nil}
		if one.IsReached {
			one.Facts, one.ClockOffset = h.Facts, h.Offset
			if text, err := h.Read(ctx, "/proc/loadavg"); err == nil {
				one.Load = parseLoad(text)
			}
		}
		f.Hosts[slices.Index(g.Site.Hosts, h)] = one
	})
	if g.Site.Config.Backups == nil {
		return
	}
	servers := g.Site.Servers()
	all := make([]schedule.OnServer, len(servers))
	g.Site.AtOnce(servers, func(h *site.Host) {
		if h.Err != nil || h.Conn == nil {
			return
		}
		ctx, cancel := context.WithTimeoutCause(ctx, timeOfEach, fmt.Errorf("given up after %v", timeOfEach))
		defer cancel()
		if status, err := schedule.Read(ctx, h); err == nil && status != nil {
			all[slices.Index(servers, h)] = schedule.OnServer{Server: h.Name, Status: status}
		}
	})
	f.Backups = slices.DeleteFunc(all, func(one schedule.OnServer) bool { return one.Status == nil })
}

// parseLoad reads /proc/loadavg (proc_loadavg(5)): three averages, and more after them. It is nil for anything else.
func parseLoad(text string) []float64 {
	const averages, longest = 3, 200
	fields := strings.Fields(text[:min(len(text), longest)])
	if len(fields) < averages {
		return nil
	}
	load := make([]float64, averages)
	for i := range load {
		n, err := strconv.ParseFloat(fields[i], 64)
		if err != nil || n < 0 || math.IsNaN(n) || math.IsInf(n, 1) {
			return nil
		}
		load[i] = n
	}
	return load
}
