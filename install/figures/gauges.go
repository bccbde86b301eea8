package figures

import (
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/metrics"
	"github.com/liteboxd/boxlift/node/backups"
)

// page collects gauges of one cluster.
type page struct {
	cluster string
	gauges  []metrics.Gauge
}

// labels are names and values after that of the cluster.
func (p *page) labels(pairs ...string) [][2]string {
	all := [][2]string{{"cluster", p.cluster}}
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, [2]string{pair[0], pair[1]})
	}
	return all
}

// add adds a gauge without samples, for those that follow.
func (p *page) add(name, help string) *metrics.Gauge {
	p.gauges = append(p.gauges, metrics.Gauge{Name: name, Help: help})
	return &p.gauges[len(p.gauges)-1]
}

// one adds a gauge of the cluster as a whole, without a sample where there is nothing to tell.
func (p *page) one(name, help string, isThere bool, value func() float64, pairs ...string) {
	g := p.add(name, help)
	if isThere {
		g.Samples = []metrics.Sample{{Labels: p.labels(pairs...), Value: value()}}
	}
}

// each adds a gauge with a sample for each of several things that value tells of.
func each[T any](p *page, name, help string, all []T, labels func(T) []string, value func(T) (float64, bool)) {
	g := p.add(name, help)
	for _, one := range all {
		if v, has := value(one); has {
			g.Samples = append(g.Samples, metrics.Sample{Labels: p.labels(labels(one)...), Value: v})
		}
	}
}

// Gauges are all figures, in the order of docs/metrics.md.
func (f *Figures) Gauges() []metrics.Gauge {
	p := &page{cluster: f.Cluster}
	always := func(v float64) func() float64 { return func() float64 { return v } }
	p.one("boxlift_build_info", "The version of boxlift that has looked; always 1.", true, always(1), "version",
		f.Boxlift)
	p.one("boxlift_metrics_timestamp_seconds", "When boxlift had looked at everything.", true, always(seconds(f.Ended)))
	p.one("boxlift_metrics_duration_seconds", "How long that took.", true, always(f.Ended.Sub(f.Began).Seconds()))
	f.addNodes(p)
	f.addHosts(p)
	f.addReleases(p)
	f.addBackups(p)
	health, ends := f.Health, f.Certificates
	if health == nil {
		health = &inspect.Health{Cluster: f.Cluster}
	}
	if ends == nil {
		ends = &certificates.Certificates{Cluster: f.Cluster}
	}
	return slices.Concat(p.gauges, health.Gauges(f.Ended), ends.Gauges())
}

// seconds are those since 1970.
func seconds(t time.Time) float64 { return float64(t.Unix()) }

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (f *Figures) addNodes(p *page) {
	p.one("boxlift_api_up", "1 where the API of a server has answered, 0 where none has.", true,
		func() float64 { return truth(f.IsReached) })
	name := func(n kube.Node) []string { return []string{"node", n.Name} }
	each(p, "boxlift_node_info", "A node of the cluster, with the versions that it says it runs; always 1.", f.Nodes,
		func(n kube.Node) []string {
			role := config.Agent
			if n.Server {
				role = config.Server
			}
			return []string{"node", n.Name, "role", string(role), "kubelet", n.Kubelet,
				"container_runtime", n.ContainerRuntime, "architecture", n.Architecture}
		}, func(kube.Node) (float64, bool) { return 1, true })
	each(p, "boxlift_node_ready", "1 where the node is ready, 0 where it is not.", f.Nodes, name,
		func(n kube.Node) (float64, bool) { return truth(n.Ready), true })
	each(p, "boxlift_node_unschedulable", "1 where the node is cordoned, 0 where it is not.", f.Nodes, name,
		func(n kube.Node) (float64, bool) { return truth(n.Unschedulable), true })
	current := f.Record.Current()
	each(p, "boxlift_node_version_differs",
		"1 where the node's k3s is of another version than that of the release that runs, 0 where it is the same.",
		f.Nodes, name,
		func(n kube.Node) (float64, bool) {
			if current == nil || current.Version(site.K3sComponent) == "" {
				return 0, false
			}
			return truth(n.Kubelet != current.Version(site.K3sComponent)), true
		})
}

func (f *Figures) addHosts(p *page) {
	name := func(h Host) []string { return []string{"host", h.Name} }
	told := func(value func(Host) float64) func(Host) (float64, bool) {
		return func(h Host) (float64, bool) {
			if h.Facts == nil {
				return 0, false
			}
			return value(h), true
		}
	}
	each(p, "boxlift_host_up", "1 where the host of install.yaml was logged in to, 0 where it was not.", f.Hosts, name,
		func(h Host) (float64, bool) { return truth(h.IsReached), true })
	each(p, "boxlift_host_info", "What the host is; always 1.", f.Hosts, func(h Host) []string {
		if h.Facts == nil {
			return nil
		}
		return []string{"host", h.Name, "os", h.Facts.OS.Pretty, "kernel", h.Facts.Kernel.Release,
			"architecture", h.Facts.Architecture, "k3s", h.Facts.K3s.Version}
	}, told(func(Host) float64 { return 1 }))
	each(p, "boxlift_host_clock_offset_seconds", "How far the host's clock is ahead of that of the machine boxlift runs on.",
		f.Hosts, name, told(func(h Host) float64 { return h.ClockOffset.Seconds() }))
	each(p, "boxlift_host_cpus", "How many CPUs the host has.", f.Hosts, name,
		told(func(h Host) float64 { return float64(h.Facts.CPUs) }))
	load := p.add("boxlift_host_load", "The host's load average over so many minutes.")
	for _, h := range f.Hosts {
		for i, v := range h.Load {
			load.Samples = append(load.Samples, metrics.Sample{
				Labels: p.labels("host", h.Name, "minutes", []string{"1", "5", "15"}[i]), Value: v})
		}
	}
	each(p, "boxlift_host_memory_size_bytes", "The host's memory.", f.Hosts, name,
		told(func(h Host) float64 { return float64(h.Facts.Memory.Total) }))
	each(p, "boxlift_host_memory_available_bytes", "What of it can be had without swapping.", f.Hosts, name,
		told(func(h Host) float64 { return float64(h.Facts.Memory.Available) }))
	disks := f.filesystems()
	on := func(d filesystem) []string { return []string{"host", d.host, "mountpoint", d.mountPoint} }
	each(p, "boxlift_host_filesystem_size_bytes", "A filesystem that boxlift and k3s write to.", disks, on,
		func(d filesystem) (float64, bool) { return float64(d.total), true })
	each(p, "boxlift_host_filesystem_available_bytes", "What of it others than root may still write.", disks, on,
		func(d filesystem) (float64, bool) { return float64(d.free), true })
}

// filesystem is one of a host.
type filesystem struct {
	host, mountPoint string
	total, free      int64
}

// filesystems are those of all hosts, each once, however many paths are on it.
func (f *Figures) filesystems() []filesystem {
	var all []filesystem
	for _, h := range f.Hosts {
		if h.Facts == nil {
			continue
		}
		for _, m := range h.Facts.Mounts {
			isKnown := slices.ContainsFunc(all, func(d filesystem) bool {
				return d.host == h.Name && d.mountPoint == m.MountPoint
			})
			if m.MountPoint != "" && m.Total > 0 && !isKnown {
				all = append(all, filesystem{h.Name, m.MountPoint, m.Total, m.Free})
			}
		}
	}
	return all
}

func (f *Figures) addReleases(p *page) {
	current, standing := f.Record.Current(), f.Record.LastStanding()
	var serial float64
	if f.Record != nil {
		serial = float64(f.Record.Serial)
	}
	p.one("boxlift_release_number", "The release of the cluster's record that runs.", current != nil,
		func() float64 { return float64(current.Number) })
	p.one("boxlift_release_timestamp_seconds", "When that release was done.", current != nil,
		func() float64 { return seconds(current.Ended) })
	p.one("boxlift_release_serial", "The highest serial of a bundle that the cluster has had, 0 for none.",
		f.Record != nil, func() float64 { return serial })
	p.one("boxlift_release_unfinished",
		"1 where a later release than the one that runs was begun and has not succeeded, 0 where none was.", standing != nil,
		func() float64 { return truth(standing.State != release.Succeeded) })
	var components []release.Component
	if current != nil {
		components = current.Components
	}
	each(p, "boxlift_release_component_info", "A component of the release that runs; always 1.", components,
		func(c release.Component) []string { return []string{"component", c.Name, "version", c.Version} },
		func(release.Component) (float64, bool) { return 1, true })
}

// backup is what a server has of its own backups.
type backup struct {
	server string
	status *backups.Status
}

// target is a place that a server carries backups to.
type target struct {
	server string
	backups.TargetStatus
}

func (f *Figures) addBackups(p *page) {
	var all []backup
	var targets []target
	for _, one := range f.Backups {
		all = append(all, backup{one.Server, one.Status})
		for _, t := range one.Status.Targets {
			targets = append(targets, target{one.Server, t})
		}
	}
	server := func(b backup) []string { return []string{"server", b.server} }
	newest := func(value func(*backups.Kept) float64) func(backup) (float64, bool) {
		return func(b backup) (float64, bool) {
			k := b.status.Newest()
			if k == nil {
				return 0, false
			}
			return value(k), true
		}
	}
	each(p, "boxlift_backups", "How many backups the server has of those that it makes by itself.", all, server,
		func(b backup) (float64, bool) { return float64(len(b.status.Backups)), true })
	each(p, "boxlift_backup_failed", "1 where the server's last round made no backup, 0 where it did.", all, server,
		func(b backup) (float64, bool) { return truth(b.status.Error != ""), true })
	each(p, "boxlift_backup_timestamp_seconds", "What the server's newest proven backup is of.", all, server,
		newest(func(k *backups.Kept) float64 { return seconds(k.Time) }))
	each(p, "boxlift_backup_proven_timestamp_seconds", "When that backup was last read back and was still the same.",
		all, server,
		newest(func(k *backups.Kept) float64 { return seconds(k.Proven) }))
	each(p, "boxlift_backup_size_bytes", "The size of that backup.", all, server,
		newest(func(k *backups.Kept) float64 { return float64(k.Bytes) }))
	each(p, "boxlift_backup_target_timestamp_seconds",
		"What the server's newest backup is of in a place that it carries them to.", targets,
		func(t target) []string { return []string{"server", t.server, "target", t.Name} },
		func(t target) (float64, bool) { return seconds(t.Newest), !t.Newest.IsZero() })
}
