package diagnosis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// look finds in an observation what shows a fault.
type look func(*Observation) []Evidence

// either is what any of several shows.
func either(looks ...look) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, l := range looks {
			all = append(all, l(o)...)
		}
		return all
	}
}

// checks are those of health by these names that did not come out well, and for which which holds; nil is all.
func checks(which func(*Observation, Check) bool, names ...string) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, c := range o.Checks {
			if !slices.Contains(names, c.Check) || which != nil && !which(o, c) {
				continue
			}
			e := Evidence{Host: c.Host, Line: c.Detail, Hint: c.Hint}
			if c.Subject != "" && c.Subject != c.Host {
				e.Line = c.Subject + ": " + c.Detail
			}
			if c.State == Warned {
				e.Severity = Warning
			}
			all = append(all, e)
		}
		return all
	}
}

// findings are those of preflight's rules by these names. A warning of theirs is one here.
func findings(names ...string) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, f := range o.Findings {
			if !slices.Contains(names, f.Check) {
				continue
			}
			e := Evidence{Host: f.Host, Line: f.Found + "; needed: " + f.Needed, Hint: f.Hint}
			if f.State == Warned {
				e.Severity = Warning
			}
			all = append(all, e)
		}
		return all
	}
}

// stopping are those findings of preflight's rules that are no warnings.
func stopping(names ...string) look {
	return func(o *Observation) []Evidence {
		return slices.DeleteFunc(findings(names...)(o), func(e Evidence) bool { return e.Severity == Warning })
	}
}

// noted finds the hosts of which there is something to read: why they were not reached, for instance.
func noted(read func(Host) string) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, h := range o.Hosts {
			if line := read(h); line != "" {
				all = append(all, Evidence{Host: h.Name, Line: line})
			}
		}
		return all
	}
}

// serviceDown finds k3s that does not run on hosts that were reached.
func serviceDown(o *Observation) []Evidence {
	var all []Evidence
	for i := range o.Hosts {
		h := &o.Hosts[i]
		s := h.Service
		if h.Error != "" || s.Load == "" || s.Active == "active" {
			continue
		}
		e := Evidence{Host: h.Name, Line: fmt.Sprintf("%s is %s", s.Unit, s.Active)}
		switch {
		case s.Load == "not-found":
			e.Line = s.Unit + " is not installed"
		case s.Restarts > 0:
			e.Line += fmt.Sprintf(", and was started %d times again", s.Restarts)
		case s.Active == "activating":
			e.Severity = Warning // it has not failed yet
		}
		if s.Result != "" && s.Result != "success" {
			e.Line += " (" + s.Result + ")"
		}
		all = append(all, e)
		if said := h.lastWords(); said != "" {
			all = append(all, Evidence{Host: h.Name, Severity: e.Severity, Line: "journal of " + s.Unit + ": " + said})
		}
	}
	return all
}

// lastWords is why k3s ended, as far as it has said it: logrus and klog mark what ends a program.
func (h *Host) lastWords() string {
	for _, l := range slices.Backward(h.Journal) {
		if strings.Contains(l.Text, "level=fatal") || strings.HasPrefix(l.Text, "F") && strings.Contains(l.Text, "]") {
			return l.Text
		}
	}
	if len(h.Journal) == 0 {
		return ""
	}
	return h.Journal[len(h.Journal)-1].Text
}

// noLeader is what etcd says of its health without a majority (etcd 3.5 and 3.6, etcdhttp/health.go), noSpace that its
// quota is used up.
const (
	noLeader = "RAFT NO LEADER"
	noSpace  = "ALARM NOSPACE"
)

// quorum is how etcd's majority is.
type quorum struct {
	servers int
	// down say which servers do not run etcd, or cannot be looked at; leaderless those that do and have no leader.
	down, leaderless []string
}

// majority looks at the servers; of a cluster without etcd it is empty.
func (o *Observation) majority() quorum {
	var q quorum
	etcd := false
	for i := range o.Hosts {
		h := &o.Hosts[i]
		if !h.Server {
			continue
		}
		q.servers++
		etcd = etcd || h.Etcd.Member
		switch {
		case h.Error != "":
			q.down = append(q.down, h.Name+" is not reached: "+h.Error)
		case h.Service.Load != "" && h.Service.Active != "active":
			q.down = append(q.down, fmt.Sprintf("%s: %s is %s", h.Name, h.Service.Unit, h.Service.Active))
		case h.Etcd.Error != "":
			q.down = append(q.down, h.Name+": its etcd does not answer: "+h.Etcd.Error)
		case h.Etcd.Reason == noLeader:
			q.leaderless = append(q.leaderless, h.Name+": its etcd says "+noLeader)
		}
	}
	if !etcd && q.servers < 2 {
		return quorum{}
	}
	return q
}

// quorumLost finds that too few members of etcd are left. Of what can be seen while the API answers, nothing shows it.
func quorumLost(o *Observation) []Evidence {
	q := o.majority()
	needed := q.servers/2 + 1
	if o.API.Answers || q.servers < 2 || q.leaderless == nil && q.servers-len(q.down) >= needed {
		return nil
	}
	all := []Evidence{{Line: fmt.Sprintf("%d of %d servers run, and etcd needs %d", q.servers-len(q.down), q.servers,
		needed)}}
	for _, text := range slices.Concat(q.down, q.leaderless) {
		all = append(all, Evidence{Line: text})
	}
	for _, e := range journal(IDQuorumLost)(o) {
		all = append(all, Evidence{Line: e.Host + ": " + e.Line})
	}
	return all
}

// quorumThin finds that the next failure of a server would be one too many.
func quorumThin(o *Observation) []Evidence {
	if !o.API.Answers {
		return nil
	}
	var all []Evidence
	q := o.majority()
	if q.servers > 1 && len(q.down) > 0 {
		all = append(all, Evidence{Line: fmt.Sprintf("%d of %d servers run, and etcd needs %d", q.servers-len(q.down),
			q.servers, q.servers/2+1)})
		for _, text := range q.down {
			all = append(all, Evidence{Line: text})
		}
	}
	for _, n := range o.Nodes {
		// k3s' own condition (pkg/etcd): a learner, or one that is no member any more, does not count.
		if c := n.Condition("EtcdIsVoter"); c.Status == "False" {
			all = append(all, Evidence{Line: fmt.Sprintf("node %s has no vote in etcd: %s: %s", n.Name, c.Reason,
				c.Message)})
		}
	}
	return all
}

func datastoreFull(o *Observation) []Evidence {
	var all []Evidence
	for _, h := range o.Hosts {
		if h.Etcd.Reason == noSpace {
			all = append(all, Evidence{Host: h.Name, Line: "its etcd says " + noSpace})
		}
	}
	return all
}

func apiDown(o *Observation) []Evidence {
	if o.API.Answers {
		return nil
	}
	return []Evidence{{Line: o.API.Error}}
}

// apiSays is what the API's failure says of another fault.
func apiSays(id string) look {
	return func(o *Observation) []Evidence {
		if o.API.Answers || !sayings[id].MatchString(o.API.Error) {
			return nil
		}
		return []Evidence{{Line: o.API.Error}}
	}
}

// ended are certificates that have ended.
func ended(o *Observation) []Evidence {
	return certificates(o, func(left time.Duration) bool { return left <= 0 }, "ended on ")
}

// soon is when a certificate ends soon: health warns from then on as well.
const soon = 30 * 24 * time.Hour

func endsSoon(o *Observation) []Evidence {
	return certificates(o, func(left time.Duration) bool { return left > 0 && left < soon }, "ends on ")
}

func certificates(o *Observation, which func(time.Duration) bool, text string) []Evidence {
	var all []Evidence
	for _, c := range o.Certificates {
		if which(c.NotAfter.Sub(o.Taken)) {
			day := c.NotAfter.UTC().Format(time.DateOnly)
			all = append(all, Evidence{Host: c.Host, Line: c.Path + " " + text + day})
		}
	}
	return all
}

// shownEnded holds for the certificates that health has seen shown and that have ended.
func shownEnded(_ *Observation, c Check) bool { return strings.HasPrefix(c.Detail, "ended on ") }

// condition finds nodes that say so of themselves.
func condition(kind string) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, n := range o.Nodes {
			if c := n.Condition(kind); c.Status == "True" {
				line := fmt.Sprintf("node %s has %s: %s: %s", n.Name, kind, c.Reason, c.Message)
				all = append(all, ofNode(o, n, line))
			}
		}
		return all
	}
}

// ofNode is evidence of a node, whose host install.yaml may not have.
func ofNode(o *Observation, n Node, line string) Evidence {
	e := Evidence{Host: o.hostOf(n.Name), Line: line, Values: map[string]string{"NODE": n.Name}}
	if e.Host == "" {
		e.Subject = "node " + n.Name
	}
	return e
}

// noNetwork is how a kubelet and containerd say that no pod network is there.
var noNetwork = lazyregexp.New(`(?i)NetworkPluginNotReady|network plugin is not ready|cni plugin not initialized|` +
	`plugin type="cilium-cni"|unable to connect to Cilium`)

func networkNotReady(o *Observation) []Evidence {
	var all []Evidence
	for _, n := range o.Nodes {
		if c := n.Condition("Ready"); c.Status != "True" && noNetwork.MatchString(c.Message) {
			all = append(all, ofNode(o, n, fmt.Sprintf("node %s: %s: %s", n.Name, c.Reason, c.Message)))
		}
	}
	for _, e := range o.Events {
		if e.Reason == "FailedCreatePodSandBox" && noNetwork.MatchString(e.Message) {
			all = append(all, Evidence{Line: fmt.Sprintf("pod %s/%s: %s", e.Namespace, e.Name, e.Message)})
		}
	}
	return all
}

// cutOff finds nodes whose kubelet runs and is not heard.
func cutOff(o *Observation) []Evidence {
	var all []Evidence
	for _, n := range o.Nodes {
		h := o.host(o.hostOf(n.Name))
		c := n.Condition("Ready")
		if c.Status == "Unknown" && h != nil && h.Error == "" && h.Service.Active == "active" {
			all = append(all, ofNode(o, n, fmt.Sprintf("%s runs on the host, and the cluster says of node %s: %s: %s",
				h.Service.Unit, n.Name, c.Reason, c.Message)))
		}
	}
	return all
}

func cordoned(o *Observation) []Evidence {
	var all []Evidence
	for _, n := range o.Nodes {
		if n.Unschedulable {
			all = append(all, ofNode(o, n, "node "+n.Name+" is cordoned"))
		}
	}
	return all
}

// notCordoned holds for a check of a node that says more than that the node is cordoned.
func notCordoned(o *Observation, c Check) bool {
	if c.State == Failed {
		return true
	}
	return !slices.ContainsFunc(o.Nodes, func(n Node) bool { return n.Unschedulable && o.hostOf(n.Name) == c.Host })
}

// versions finds nodes and hosts that run something else than the others.
func versions(o *Observation) []Evidence {
	var all []Evidence
	differ := slices.ContainsFunc(o.Nodes, func(n Node) bool { return n.Kubelet != o.Nodes[0].Kubelet })
	for _, n := range o.Nodes {
		if differ {
			e := Evidence{Line: fmt.Sprintf("node %s runs %s", n.Name, n.Kubelet)}
			// A kubelet may be older than the API server, never newer (Kubernetes' version skew policy).
			if newer(n.Kubelet, o.API.Version) {
				e.Line += ", which is newer than the API, " + o.API.Version
			} else {
				e.Severity = Warning
			}
			all = append(all, e)
		}
		if h := o.host(o.hostOf(n.Name)); h != nil && h.K3s != "" && n.Kubelet != "" && h.K3s != n.Kubelet {
			all = append(all, Evidence{Severity: Warning, Line: fmt.Sprintf("%s has k3s %s, and what runs there is %s",
				h.Name, h.K3s, n.Kubelet)})
		}
	}
	return all
}

// newer reports whether a version is of a newer minor than another; what is no version is not.
func newer(a, b string) bool {
	majorA, minorA, okA := minor(a)
	majorB, minorB, okB := minor(b)
	return okA && okB && (majorA > majorB || majorA == majorB && minorA > minorB)
}

func minor(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err == nil && err2 == nil
}
