// Package gate judges whether a cluster may go from the versions that it runs to those of
// another bundle, before anything of it is touched.
//
// Contract: [Judge] is a function of its arguments alone. It goes through a fixed list of
// gates and says of each what came of it, also of those that are passed. A finding that
// refuses names the reason and the way forward. Some things an operator may take upon
// himself, by name ([Accept]): then the finding says that it was accepted. [Path] proposes
// the steps when the way is too far for one.
//
// The rules are upstream's: those of Kubernetes for versions that differ between parts of a
// cluster, of k3s for upgrades, of etcd and of Cilium, each with its source where it is
// written down below; and the lock's own upgradesFrom.
package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// Gate is the name of a gate.
type Gate string

// The gates, in the order in which they are judged.
const (
	Record           Gate = "record"
	Hosts            Gate = "hosts"
	Nodes            Gate = "nodes"
	Drift            Gate = "drift"
	Platforms        Gate = "platforms"
	Preflight        Gate = "preflight"
	Serial           Gate = "serial"
	Trust            Gate = "trust"
	Downgrade        Gate = "downgrade"
	UpgradesFrom     Gate = "upgrades-from"
	KubernetesMinor  Gate = "kubernetes-minor"
	KubeletSkew      Gate = "kubelet-skew"
	Etcd             Gate = "etcd"
	Cgroup           Gate = "cgroup"
	Drain            Gate = "drain"
	Data             Gate = "data"
	CiliumMinor      Gate = "cilium-minor"
	CiliumKubernetes Gate = "cilium-kubernetes"
	Volume           Gate = "volume"
)

// Description says what a gate is for.
type Description struct {
	Gate  Gate
	Wants string

	judge func(*judgement)
}

// Gates are all gates in their order, with what each of them wants.
func Gates() []Description {
	return []Description{
		{Record, "the last release is finished, and the cluster's record knows it", (*judgement).record},
		{Hosts, "every host is reached, and every node is in install.yaml", (*judgement).hosts},
		{Nodes, "every node is Ready", (*judgement).nodes},
		{Drift, "nothing has been changed since the last release", (*judgement).drift},
		{Platforms, "the bundle is for the platforms of all hosts", (*judgement).platforms},
		{Preflight, "the hosts have what the new bundle needs, with the old one beside it", (*judgement).preflight},
		{Serial, "the bundle is no older than those that the cluster has had", (*judgement).serial},
		{Trust, "the bundle is good by the trust file that the cluster keeps, if it keeps one", (*judgement).trust},
		{Downgrade, "no component goes back to an older version", (*judgement).downgrade},
		{UpgradesFrom, "the lock allows the step", (*judgement).upgradesFrom},
		{KubernetesMinor, "no minor version of Kubernetes is skipped", (*judgement).kubernetesMinor},
		{KubeletSkew, "no kubelet is newer than the API server, or too old for it", (*judgement).kubeletSkew},
		{Etcd, "embedded etcd may go to the new version", (*judgement).etcd},
		{Cgroup, "the kubelet runs with the hosts' control groups", (*judgement).cgroup},
		{Drain, "nodes are drained where the lock asks for it", (*judgement).drain},
		{Data, "no node is drained that holds data which is on no other node", (*judgement).data},
		{CiliumMinor, "Cilium goes by one minor version at a time", (*judgement).ciliumMinor},
		{CiliumKubernetes, "Cilium is tested with the new Kubernetes", (*judgement).ciliumKubernetes},
		{Volume, "LiteBoxd's data volume is healthy", (*judgement).volume},
	}
}

// Outcome is what came of a gate.
type Outcome string

// The outcomes.
const (
	Passed Outcome = "passed"
	// Warned lets the upgrade go on, and says what somebody should know.
	Warned Outcome = "warning"
	// Accepted would have refused, had it not been accepted by name.
	Accepted Outcome = "accepted"
	Refused  Outcome = "refused"
)

// Finding is what one gate has to say.
type Finding struct {
	Gate    Gate    `json:"gate"`
	Outcome Outcome `json:"outcome"`
	// Subject is the host, node or component that it is about; "" is the cluster.
	Subject string `json:"subject,omitempty"`
	// Reason says what was found, Way how to go on.
	Reason string `json:"reason"`
	Way    string `json:"way,omitempty"`
}

// IsRefused reports whether a finding refuses the upgrade.
func IsRefused(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Outcome == Refused })
}

// Cluster is what runs. Texts are fit for a terminal.
type Cluster struct {
	// Record is why the cluster's record does not allow an upgrade, with the way forward in
	// RecordWay; "" when it does.
	Record, RecordWay string
	// Untrusted is why the bundle is not good by the trust file that the cluster keeps, with the way forward in
	// UntrustedWay; "" when it is.
	Untrusted, UntrustedWay string
	// Unrecorded tells that there is no record at all.
	Unrecorded bool
	Nodes      []Node
	// Hosts are those of install.yaml.
	Hosts []Host
	// APIs are the versions of the API servers, which may be ahead of the nodes': a kubelet tells
	// its own when it is up.
	APIs []string
	// EmbeddedEtcd tells that the servers run etcd, and not SQLite.
	EmbeddedEtcd bool
	// Cilium is the version of the chart, CiliumState what Helm says of it when that is not
	// deployed.
	Cilium, CiliumState string
	// LiteBoxd is the version that runs, "" for none.
	LiteBoxd string
	// Workloads are the versions of the workloads of install.yaml that run, by component.
	Workloads map[string][]string
	// Volume is what is wrong with LiteBoxd's data volume, "" for nothing.
	Volume, VolumeWay string
	// Drift is what of the cluster as a whole was changed since the last release.
	Drift []string
	// Serial is the highest of the bundles that the cluster has had, 0 for none, and Standing tells
	// that the target is the bundle which it was last taken to.
	Serial   int64
	Standing bool
	// UnderWay tells that an upgrade to this very bundle has begun and not ended: what is not
	// Ready, and what differs, is what it goes on with.
	UnderWay bool
}

// Node is a node of the cluster.
type Node struct {
	Name    string
	Server  bool
	Kubelet string // its version
	Ready   bool
	Reason  string // why it is not Ready
	// Holds is the data that is on no other node: what uses it waits while the node is drained.
	Holds []string
	// Listed tells that a host of install.yaml is this node.
	Listed bool
}

// Host is a host of install.yaml.
type Host struct {
	Name string
	// Error is why it could not be looked at.
	Error    string
	Platform lock.Platform // "" when it is not known
	// Node is the name of its node, "" for none.
	Node string
	// CgroupVersion is 1 or 2, 0 when it is not known.
	CgroupVersion int
	// CgroupV1Allowed tells that the settings of its k3s have the kubelet run with version 1.
	CgroupV1Allowed bool
	// Drift is what was changed since k3s was last started by boxlift.
	Drift []string
	// Preflight are the errors that it has with the new bundle, Unjudged tells that nobody
	// could say.
	Preflight []Trouble
	Unjudged  string
}

// Trouble is something that is wrong, and how to mend it.
type Trouble struct{ Found, Way string }

// Target is what a cluster is to become.
type Target struct {
	K3s, Cilium, LiteBoxd string // versions; LiteBoxd's is "" when the bundle has none
	// Others are the versions of the other components, those of workloads among them.
	Others       map[string]string
	UpgradesFrom map[string][]string
	Platforms    []lock.Platform
	// RequiresDrain is what the lock says of k3s.
	RequiresDrain bool
	// Serial is the lock's, 0 for none.
	Serial int64
}

// The components of a lock that gates know.
const (
	k3sComponent      = "k3s"
	ciliumComponent   = "cilium"
	liteboxdComponent = "liteboxd"
)

// TargetOf is what a lock asks for.
func TargetOf(l *lock.Lock) Target {
	t := Target{UpgradesFrom: make(map[string][]string), Others: make(map[string]string), Platforms: l.Platforms,
		Serial: l.Serial}
	for _, c := range l.Components {
		switch c.Name {
		case k3sComponent:
			t.K3s, t.RequiresDrain = c.Version, c.RequiresDrain
		case ciliumComponent:
			t.Cilium = c.Version
		case liteboxdComponent:
			t.LiteBoxd = c.Version
		default:
			t.Others[c.Name] = c.Version
		}
		if c.UpgradesFrom != nil {
			t.UpgradesFrom[c.Name] = c.UpgradesFrom
		}
	}
	return t
}

// Accept is what an operator takes upon himself.
type Accept struct {
	// Drift lets the upgrade overwrite what was changed since the last release.
	Drift bool
	// UntestedCilium lets Cilium run with a Kubernetes that it is not tested with.
	UntestedCilium bool
	// Downgrade lets components go back within their minor versions, whatever the lock says
	// of where it may be reached from: a rollback to a release that ran here.
	Downgrade bool
	// OlderBundle lets the bundle be older than one that the cluster has had.
	OlderBundle bool
	// Drain empties each node before it gets another minor version of Kubernetes, which ends
	// the sandboxes on it.
	Drain bool
	// Interrupt are the nodes that are drained although what has its data there is down meanwhile.
	Interrupt []string
}

// judgement is one cluster in front of the gates.
type judgement struct {
	Cluster
	Target
	accept   Accept
	gate     Gate
	findings []Finding
}

func (j *judgement) add(outcome Outcome, subject, way, format string, args ...any) {
	j.findings = append(j.findings, Finding{Gate: j.gate, Outcome: outcome, Subject: subject,
		Reason: fmt.Sprintf(format, args...), Way: way})
}

func (j *judgement) refuse(subject, way, format string, args ...any) {
	j.add(Refused, subject, way, format, args...)
}

// Judge goes through all gates. Every gate has at least one finding.
func Judge(c Cluster, t Target, a Accept) []Finding {
	j := &judgement{Cluster: c, Target: t, accept: a}
	for _, g := range Gates() {
		j.gate = g.Gate
		before := len(j.findings)
		if g.judge(j); len(j.findings) == before {
			j.add(Passed, "", "", "%s", g.Wants)
		}
	}
	return j.findings
}

func (j *judgement) record() {
	switch {
	case j.Record != "":
		j.refuse("", j.RecordWay, "%s", j.Record)
	case j.Unrecorded:
		j.refuse("", "run boxlift adopt with the bundle that the cluster was installed from",
			"the cluster has no record of what was installed")
	}
}

func (j *judgement) hosts() {
	for _, h := range j.Hosts {
		switch {
		case h.Error != "":
			j.refuse(h.Name, "mend that; a host that is gone for good is removed with boxlift node remove", "%s",
				h.Error)
		case h.Node == "":
			j.refuse(h.Name, "join it with the cluster's own bundle first: boxlift node add; or take it out of "+
				"install.yaml", "it has no node in the cluster")
		}
	}
	for _, n := range j.Cluster.Nodes {
		if !n.Listed {
			way := "add its host to install.yaml, or remove the node with boxlift node remove"
			if !n.Ready {
				way = "if its host is gone for good: boxlift node remove --hosts " + n.Name +
					" --forget-unreachable-host; else bring it back, and add it to install.yaml or remove its node"
			}
			j.refuse(n.Name, way, "the node is in the cluster and not in install.yaml: it would stay behind")
		}
	}
}

func (j *judgement) nodes() {
	outcome := Refused
	if j.UnderWay {
		outcome = Warned
	}
	for _, n := range j.Cluster.Nodes {
		if !n.Ready {
			way := "mend that first: boxlift health says more"
			if !n.Listed {
				way = "the gate " + string(Hosts) + " says how to get rid of it"
			}
			j.add(outcome, n.Name, way, "the node is not Ready: %s", n.Reason)
		}
	}
}

func (j *judgement) drift() {
	outcome, way := Refused, "boxlift install with the cluster's own bundle sets it back; --accept-drift lets the "+
		"upgrade overwrite it"
	switch {
	case j.accept.Drift:
		outcome, way = Accepted, "the upgrade overwrites it"
	case j.UnderWay:
		outcome, way = Warned, "the upgrade that has begun goes on with it"
	}
	for _, h := range j.Hosts {
		for _, text := range h.Drift {
			j.add(outcome, h.Name, way, "%s", text)
		}
	}
	for _, text := range j.Cluster.Drift {
		j.add(outcome, "", way, "%s", text)
	}
}

func (j *judgement) platforms() {
	for _, h := range j.Hosts {
		if h.Platform != "" && !slices.ContainsFunc(j.Target.Platforms, h.Platform.Match) {
			j.refuse(h.Name, "build the bundle from a lock that lists "+string(h.Platform),
				"the host is %s, and the bundle is for %s", h.Platform, joined(j.Target.Platforms))
		}
	}
}

func joined(platforms []lock.Platform) string {
	texts := make([]string, 0, len(platforms))
	for _, p := range platforms {
		texts = append(texts, string(p))
	}
	return strings.Join(texts, ", ")
}

func (j *judgement) preflight() {
	for _, h := range j.Hosts {
		for _, t := range h.Preflight {
			j.refuse(h.Name, t.Way, "%s", t.Found)
		}
		if h.Unjudged != "" {
			j.add(Warned, h.Name, "the upgrade judges it before it changes anything", "%s", h.Unjudged)
		}
	}
}

func (j *judgement) serial() {
	if j.Standing || j.Target.Serial >= j.Cluster.Serial {
		return
	}
	outcome, way := Refused, "take the newest bundle that was built; --accept-older-bundle goes on with this one"
	switch {
	case j.accept.Downgrade:
		outcome, way = Accepted, "the release that is gone back to ran it"
	case j.accept.OlderBundle:
		outcome, way = Accepted, "the record keeps the higher serial"
	}
	j.add(outcome, "", way, "%s", OlderText(j.Target.Serial, j.Cluster.Serial))
}

func (j *judgement) trust() {
	if j.Untrusted != "" {
		j.refuse("", j.UntrustedWay, "%s", j.Untrusted)
	}
}

// OlderText says that a bundle with a serial, 0 for none, is older than one that a cluster has had.
func OlderText(serial, highest int64) string {
	has := "no serial"
	if serial != 0 {
		has = fmt.Sprintf("the serial %d", serial)
	}
	return fmt.Sprintf("the bundle has %s, and the cluster has had one with the serial %d: it is older", has, highest)
}

func (j *judgement) volume() {
	if j.Cluster.Volume != "" {
		j.refuse("liteboxd", j.VolumeWay, "%s", j.Cluster.Volume)
	}
}
