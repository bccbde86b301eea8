package diagnosis

import (
	"maps"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// sayings are what the journal of k3s has of faults, by the entry of the catalogue: words of k3s (v1.30 to v1.36:
// pkg/cluster, pkg/clientaccess, pkg/agent), of etcd 3.5 and 3.6 (server/etcdserver), of the kubelet, of Go's
// crypto/x509 and net, of the kernel, and of systemd.
var sayings = map[string]*lazyregexp.Regexp{
	IDCertificateEnded: lazyregexp.New(`certificate has expired or is not yet valid: current time \S+ is after `),
	IDClockWrong: lazyregexp.New(`certificate has expired or is not yet valid: current time \S+ is before |` +
		`prober found high clock drift`),
	IDDatastoreFull: lazyregexp.New(`etcdserver: mvcc: database space exceeded|database or disk is full`),
	IDDiskFull:      lazyregexp.New(`no space left on device`),
	IDDiskSlow:      lazyregexp.New(`slow fdatasync|leader failed to send out heartbeat on time`),
	IDJoinRefused: lazyregexp.New(`Node password rejected|token CA hash does not match|` +
		`duplicate node name found|etcd cluster join failed`),
	IDK3sKilled:      lazyregexp.New(`has been killed by the OOM killer|Failed with result 'oom-kill'`),
	IDLimitsLow:      lazyregexp.New(`too many open files|inotify_(init|add_watch)\S*: no space left`),
	IDNoDefaultRoute: lazyregexp.New(`no default routes found|unable to select an IP from default routes`),
	IDPortTaken:      lazyregexp.New(`bind: address already in use`),
	IDQuorumLost:     lazyregexp.New(`etcdserver: no leader|etcdserver: request timed out, possibly due to`),
	IDServersDiffer:  lazyregexp.New(`critical configuration value mismatch`),
	IDUnfitHost: lazyregexp.New(`failed to find \S+ cgroup|` +
		`kubelet is configured to not run on a host using cgroup v1`),
}

// fresh is how old a line may be of a service that runs: what is older was before that was mended.
const fresh = 15 * time.Minute

// How many lines are kept of each fault, and of the end of a journal.
const (
	keptOfEach = 3
	keptLast   = 5
)

// Keep picks of a journal the newest lines that name a fault of the catalogue, three of each, and the last five.
func Keep(journal []Line) []Line {
	keep := make(map[int]bool)
	for i := max(0, len(journal)-keptLast); i < len(journal); i++ {
		keep[i] = true
	}
	for _, saying := range sayings {
		left := keptOfEach
		for i := len(journal) - 1; i >= 0 && left > 0; i-- {
			if saying.MatchString(journal[i].Text) {
				keep[i] = true
				left--
			}
		}
	}
	var kept []Line
	for _, i := range slices.Sorted(maps.Keys(keep)) {
		kept = append(kept, journal[i])
	}
	return kept
}

// counts reports whether a line still says something of the host.
func (h *Host) counts(l Line) bool {
	return h.Service.Active != "active" || h.Now.IsZero() || h.Now.Sub(l.Time) <= fresh
}

// journal looks for what k3s says of an entry.
func journal(id string) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for i := range o.Hosts {
			h := &o.Hosts[i]
			for _, l := range slices.Backward(h.Journal) { // the newest is enough
				if h.counts(l) && sayings[id].MatchString(l.Text) {
					all = append(all, Evidence{Host: h.Name, Line: "journal of " + h.Service.Unit + ": " + l.Text})
					break
				}
			}
		}
		return all
	}
}
