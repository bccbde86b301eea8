package gate

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Step is one upgrade of several.
type Step struct {
	// Bundle is the name of the bundle that the step goes to, "" for one that is still to be
	// built or found.
	Bundle string `json:"bundle,omitempty"`
	K3s    string `json:"k3s"`
	Cilium string `json:"cilium"`
}

// Path proposes upgrades that lead from what runs to the target, the target last, when the
// versions do not allow it in one. It is nil when they do, and when no way leads there.
func Path(c Cluster, t Target) []Step {
	here, cilium, ok := c.oldest()
	to, err := parseVersion(t.K3s)
	end, endErr := parseVersion(t.Cilium)
	if !ok || err != nil || endErr != nil || to.major != 1 || end.major != 1 || to.minor < here.minor ||
		end.minor < cilium.minor ||
		to.minor-here.minor > maxSteps || end.minor-cilium.minor > maxSteps {
		return nil
	}
	var steps []Step
	for _, p := range shortest(point{here.minor, cilium.minor}, point{to.minor, end.minor}) {
		steps = append(steps, Step{K3s: seriesOf(p.kubernetes, c.EmbeddedEtcd && to.minor >= firstEtcd36),
			Cilium: fmt.Sprintf("1.%d", p.cilium)})
	}
	if c.EmbeddedEtcd && here.minor < firstEtcd36 && to.minor >= firstEtcd36 && !safeEtcd(here) &&
		here.minor == firstEtcd36-1 {
		// The patch comes first, with nothing else moving.
		steps = append([]Step{{K3s: seriesOf(here.minor, true), Cilium: fmt.Sprintf("1.%d", cilium.minor)}}, steps...)
	}
	if len(steps) < 2 {
		return nil
	}
	steps[len(steps)-1] = Step{K3s: t.K3s, Cilium: t.Cilium}
	return steps
}

// maxSteps bounds how far a proposal looks, in minor versions.
const maxSteps = 50

// oldest are the versions that a way has to begin with.
func (c *Cluster) oldest() (kubernetes, cilium version, ok bool) {
	for i, n := range c.Nodes {
		v, err := parseVersion(n.Kubelet)
		if err != nil {
			return kubernetes, cilium, false
		}
		if i == 0 || v.compare(kubernetes) < 0 {
			kubernetes = v
		}
	}
	cilium, err := parseVersion(c.Cilium)
	return kubernetes, cilium, err == nil && len(c.Nodes) > 0 && kubernetes.major == 1 && cilium.major == 1
}

// seriesOf is what a step asks of k3s.
func seriesOf(minor int, towardsEtcd36 bool) string {
	if minor == firstEtcd36-1 && towardsEtcd36 {
		return fmt.Sprintf("v1.%d.%d or a newer patch of 1.%[1]d", minor, etcdSafe)
	}
	return fmt.Sprintf("1.%d", minor)
}

// point is a pair of minor versions.
type point struct{ kubernetes, cilium int }

// untestedCost makes a way that is tested everywhere better than any that is shorter.
const untestedCost = 10 * maxSteps

// shortest is the way with the fewest steps among those with the fewest pairs that upstream
// does not test, without its start. Each step moves both by one minor version at most.
func shortest(from, to point) []point {
	type best struct {
		cost int
		from point
	}
	known := map[point]best{from: {}}
	for k := from.kubernetes; k <= to.kubernetes; k++ {
		for c := from.cilium; c <= to.cilium; c++ {
			here := point{k, c}
			if here == from {
				continue
			}
			found := best{cost: math.MaxInt}
			for _, before := range []point{{k - 1, c - 1}, {k - 1, c}, {k, c - 1}} {
				b, ok := known[before]
				if !ok {
					continue
				}
				if cost := b.cost + 1 + here.untested(); cost < found.cost {
					found = best{cost, before}
				}
			}
			known[here] = found
		}
	}
	way := []point{to}
	for here := known[to].from; to != from && here != from; here = known[here].from {
		way = append(way, here)
	}
	slices.Reverse(way)
	return way
}

func (p point) untested() int {
	if tested, known := testedKubernetes[p.cilium]; known && (p.kubernetes < tested[0] || p.kubernetes > tested[1]) {
		return untestedCost
	}
	return 0
}

// Candidate is a bundle that an upgrade may go by.
type Candidate struct {
	Name string
	Target
}

// versionGates are those that a way by other bundles can pass.
var versionGates = []Gate{Downgrade, UpgradesFrom, KubernetesMinor, KubeletSkew, Etcd, CiliumMinor, CiliumKubernetes}

// Via finds the shortest way from what runs to a target by bundles that are there, the
// target last. It is nil when they do not make one.
func Via(c Cluster, to Candidate, between []Candidate, a Accept) []Step {
	all := append([]Candidate{to}, between...)
	type reached struct {
		Cluster
		way []Step
	}
	seen := make([]bool, len(all))
	for queue := []reached{{Cluster: c}}; len(queue) > 0; queue = queue[1:] {
		here := queue[0]
		for i, next := range all {
			if seen[i] || !allowed(here.Cluster, next.Target, a) {
				continue
			}
			seen[i] = true
			way := append(slices.Clone(here.way), Step{Bundle: next.Name, K3s: next.K3s, Cilium: next.Target.Cilium})
			if i == 0 {
				return way
			}
			queue = append(queue, reached{here.at(next.Target), way})
		}
	}
	return nil
}

// allowed reports whether the versions allow a step.
func allowed(c Cluster, t Target, a Accept) bool {
	return !slices.ContainsFunc(Judge(c, t, a), func(f Finding) bool {
		return f.Outcome == Refused && slices.Contains(versionGates, f.Gate)
	})
}

// at is the cluster once it has become a target.
func (c Cluster) at(t Target) Cluster {
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		c.Nodes[i].Kubelet = t.K3s
	}
	c.APIs, c.Cilium, c.CiliumState = nil, t.Cilium, ""
	if c.LiteBoxd != "" && t.LiteBoxd != "" {
		c.LiteBoxd = t.LiteBoxd
	}
	c.Workloads = maps.Clone(c.Workloads)
	for name := range c.Workloads {
		if to := t.Others[name]; to != "" {
			c.Workloads[name] = []string{to}
		}
	}
	return c
}
