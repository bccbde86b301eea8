package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The rules about versions.

// maxKubeletLag is how many minor versions a kubelet may be older than the API server
// (Kubernetes' version skew policy, since 1.28).
const maxKubeletLag = 3

// etcdSafe is the first patch of k3s 1.33 whose etcd is 3.5.26 or newer, from which alone
// etcd says that 3.6 may be reached: etcd issue 20793; k3s issues 13271 and 13485. k3s took
// it in with pull request 13493 of January 2026; the patch is the first after that.
const etcdSafe = 8

// firstEtcd36 is the first Kubernetes minor version whose k3s brings etcd 3.6.
const firstEtcd36 = 34

// firstCgroup2 is the first Kubernetes minor version whose kubelet refuses cgroup v1 (KEP-5573).
const firstCgroup2 = 35

// testedKubernetes are the first and the last minor version of Kubernetes 1.x that a Cilium
// 1.x is tested with end to end: Documentation/network/kubernetes/compatibility.rst of Cilium
// v1.18.14, v1.19.3 and v1.20.1 (the last as two projects quote it). Later tables are not known here; those of
// Cilium do not change within a release.
var testedKubernetes = map[int][2]int{18: {30, 33}, 19: {32, 35}, 20: {33, 36}}

// component is one that moves.
type component struct {
	name, title string
	from        []string // the versions that run, each once
	to          string
}

// components are those that run. A cluster may be halfway between two versions of
// Kubernetes.
func (j *judgement) components() []component {
	k3s := component{name: k3sComponent, title: "k3s", to: j.K3s}
	for _, n := range j.Cluster.Nodes {
		if !slices.Contains(k3s.from, n.Kubelet) {
			k3s.from = append(k3s.from, n.Kubelet)
		}
	}
	for _, version := range j.APIs {
		if !slices.Contains(k3s.from, version) {
			k3s.from = append(k3s.from, version)
		}
	}
	list := []component{k3s, {name: ciliumComponent, title: "Cilium", from: []string{j.Cluster.Cilium},
		to: j.Target.Cilium}}
	if j.Cluster.LiteBoxd != "" && j.Target.LiteBoxd != "" {
		list = append(list, component{name: liteboxdComponent, title: "LiteBoxd", from: []string{j.Cluster.LiteBoxd},
			to: j.Target.LiteBoxd})
	}
	for _, name := range slices.Sorted(maps.Keys(j.Workloads)) {
		if to := j.Others[name]; to != "" {
			list = append(list, component{name: name, title: name, from: j.Workloads[name], to: to})
		}
	}
	return list
}

// unreadable refuses a version that cannot be compared.
func (j *judgement) unreadable(name string, err error) {
	j.refuse(name, "boxlift adopt and boxlift status say which versions run", "which version it is cannot be told: %v",
		err)
}

// pair reads two versions, and says so when that cannot be done. Only one gate says it, so
// that it is said once.
func (j *judgement) pair(name, from, to string) (f, t version, ok bool) {
	f, err := parseVersion(from)
	if err == nil {
		t, err = parseVersion(to)
	}
	if err != nil && j.gate == Downgrade {
		j.unreadable(name, err)
	}
	return f, t, err == nil
}

func (j *judgement) downgrade() {
	for _, c := range j.components() {
		for _, from := range c.from {
			f, t, ok := j.pair(c.name, from, c.to)
			if !ok || t.compare(f) >= 0 {
				continue
			}
			switch {
			case !j.accept.Downgrade:
				way := "use a bundle with " + c.title + " " + from + " or newer"
				if c.name == liteboxdComponent {
					way += "; boxlift rollback liteboxd goes back to a revision that ran here"
				}
				j.refuse(c.name, way, "%s %s runs, and the bundle has the older %s", c.title, from, c.to)
			case c.name == k3sComponent && f.minors(t) != 0:
				j.refuse(c.name, "boxlift backup restore brings back a backup from before, with the bundle of that "+
					"release",
					"Kubernetes %s does not go back to %s: the API server has written what the older one cannot read",
					f.series(), t.series())
			default:
				j.add(Accepted, c.name, "the release that is gone back to ran it", "%s goes back from %s to %s",
					c.title, from, c.to)
			}
		}
	}
	if j.CiliumState != "" && !j.UnderWay {
		j.refuse(ciliumComponent, "boxlift install with the cluster's own bundle takes it up", "its Helm release is %s",
			j.CiliumState)
	}
}

func (j *judgement) upgradesFrom() {
	if j.accept.Downgrade {
		return
	}
	for _, c := range j.components() {
		ranges := j.UpgradesFrom[c.name]
		if ranges == nil {
			continue // the lock makes no claim
		}
		for _, from := range c.from {
			v, err := parseVersion(from)
			if err != nil || from == c.to {
				continue
			}
			if !slices.ContainsFunc(ranges, func(text string) bool { return inRange(v, text) }) {
				j.refuse(c.name, "go by bundles in between", "the lock lets %s %s be reached from %s, and %s runs",
					c.title, c.to, strings.Join(ranges, " or "), from)
			}
		}
	}
}

func (j *judgement) kubernetesMinor() {
	seen := make(map[string]bool)
	for _, n := range j.Cluster.Nodes {
		from, to, ok := j.pair(k3sComponent, n.Kubelet, j.K3s)
		if !ok || seen[n.Kubelet] || !n.Server {
			continue
		}
		seen[n.Kubelet] = true
		if from.major != to.major || from.minors(to) > 1 {
			j.refuse(k3sComponent, fmt.Sprintf("go by a bundle with Kubernetes %d.%d first", from.major, from.minor+1),
				"from Kubernetes %s to %s: Kubernetes goes by one minor version at a time", from.series(), to.series())
		}
	}
}

// drain makes sure that sandboxes end by nobody's will but the operator's.
func (j *judgement) drain() {
	moves := slices.ContainsFunc(j.Cluster.Nodes, func(n Node) bool { return !SameMinor(n.Kubelet, j.K3s) })
	switch {
	case !moves:
	case j.accept.Drain:
		j.add(Accepted, k3sComponent, "without --drain-nodes-and-end-their-sandboxes the sandboxes stay",
			"each node is drained before it gets %s, which ends the sandboxes on it", j.K3s)
	case j.RequiresDrain:
		j.refuse(k3sComponent, "let everybody finish, then give --drain-nodes-and-end-their-sandboxes",
			"the lock asks that nodes are drained before they get %s from another minor version, which ends the "+
				"sandboxes on them", j.K3s)
	}
}

// data makes sure that what has its data on one node alone does not stand still unasked: its pods have nowhere
// else to go while the node is drained.
func (j *judgement) data() {
	if !j.accept.Drain {
		return
	}
	for _, n := range j.Cluster.Nodes {
		if len(n.Holds) == 0 || SameMinor(n.Kubelet, j.K3s) {
			continue
		}
		outcome, way := Refused, "upgrade without "+drainFlag+
			", which leaves pods where they are; or let what uses the data be down "+
			"until the node is back: "+InterruptFlag+" "+n.Name
		if slices.Contains(j.accept.Interrupt, n.Name) {
			outcome, way = Accepted, "the data stays; what uses it is down until the node is back"
		}
		j.add(outcome, n.Name, way, "the node would be drained, and holds data that is on no other: %s",
			strings.Join(n.Holds, "; "))
	}
}

const (
	drainFlag = "--drain-nodes-and-end-their-sandboxes"
	// InterruptFlag names a node of [Accept.Interrupt].
	InterruptFlag = "--interrupt-what-has-its-data-on"
)

// kubeletSkew looks at every moment of the upgrade: servers go first, so the oldest kubelet
// has to get along with the newest API server.
func (j *judgement) kubeletSkew() {
	to, err := parseVersion(j.K3s)
	if err != nil {
		return
	}
	var oldest *version // API server
	for _, n := range j.Cluster.Nodes {
		if v, err := parseVersion(n.Kubelet); err == nil && n.Server && (oldest == nil || v.compare(*oldest) < 0) {
			oldest = &v
		}
	}
	for _, n := range j.Cluster.Nodes {
		v, err := parseVersion(n.Kubelet)
		if err != nil || oldest == nil {
			continue
		}
		switch {
		case oldest.minors(v) > 0 && !n.Server:
			j.refuse(n.Name, "bring the servers to "+v.series()+" first: boxlift install with the bundle that this "+
				"node was joined with", "its kubelet is %s, newer than the API server's %s", n.Kubelet, oldest.text)
		case oldest.minors(v) > 1:
			j.refuse(n.Name, "bring all servers to one version first", "its API server is %s, and another one is %s: "+
				"they may be one minor version apart", n.Kubelet, oldest.text)
		case v.minors(to) > maxKubeletLag:
			j.refuse(n.Name, fmt.Sprintf("bring the node to the servers' version first, or go by a bundle with "+
				"Kubernetes %d.%d", v.major, v.minor+maxKubeletLag),
				"its kubelet is %s: an API server of %s works with kubelets that are up to %d minor versions older",
				n.Kubelet, to.series(), maxKubeletLag)
		}
	}
}

func (j *judgement) etcd() {
	if !j.EmbeddedEtcd {
		return
	}
	to, err := parseVersion(j.K3s)
	if err != nil || to.major != 1 || to.minor < firstEtcd36 {
		return
	}
	for _, n := range j.Cluster.Nodes {
		v, err := parseVersion(n.Kubelet)
		if err != nil || !n.Server || v.major != 1 || v.minor >= firstEtcd36 {
			continue
		}
		if safeEtcd(v) {
			continue
		}
		j.refuse(n.Name, fmt.Sprintf("go by a bundle with k3s v1.33.%d or a newer patch of 1.33 first, whose etcd is "+
			"3.5.26 or newer", etcdSafe),
			"its k3s %s brings an etcd before 3.5.26, from which etcd 3.6 (k3s from v1.34.0 on) may come up with "+
				"members that are long gone", n.Kubelet)
	}
}

// safeEtcd reports whether etcd 3.6 may be reached from what a k3s before 1.34 brings.
func safeEtcd(k3s version) bool {
	return k3s.minor == firstEtcd36-1 && k3s.patch >= etcdSafe && k3s.pre == ""
}

func (j *judgement) cgroup() {
	to, err := parseVersion(j.K3s)
	if err != nil || to.major == 1 && to.minor < firstCgroup2 {
		return
	}
	for _, h := range j.Hosts {
		switch h.CgroupVersion {
		case 1:
			if h.CgroupV1Allowed {
				continue
			}
			j.refuse(h.Name, "boot the host with systemd.unified_cgroup_hierarchy=1 on the kernel's command line "+
				"first, "+
				"or set kubelet-arg: [fail-cgroupv1=false] in the host's k3s settings",
				"the host has cgroup v1, which the kubelet refuses from Kubernetes 1.%d on", firstCgroup2)
		case 0:
			if h.Error == "" {
				j.add(Warned, h.Name, "the upgrade looks at it before it changes anything", "which version of cgroup "+
					"the host has is not known; the kubelet refuses v1 from Kubernetes 1.%d on", firstCgroup2)
			}
		}
	}
}

func (j *judgement) ciliumMinor() {
	from, to, ok := j.pair(ciliumComponent, j.Cluster.Cilium, j.Target.Cilium)
	if ok && (from.major != to.major || from.minors(to) > 1 || from.minors(to) < -1) {
		next := from.minor + 1
		if from.minors(to) < 0 {
			next = from.minor - 1
		}
		j.refuse(ciliumComponent, fmt.Sprintf("go by a bundle with Cilium %d.%d first", from.major, next),
			"from Cilium %s to %s: Cilium is tested with steps of one minor version only", from.series(), to.series())
	}
}

func (j *judgement) ciliumKubernetes() {
	kubernetes, cilium, ok := j.pair("", j.K3s, j.Target.Cilium)
	if !ok {
		return
	}
	tested, known := testedKubernetes[cilium.minor]
	outcome, way := Refused, "use a bundle with another Cilium; --accept-untested-cilium goes on without upstream's "+
		"tests"
	if j.accept.UntestedCilium || j.UnderWay || j.accept.Downgrade {
		outcome, way = Accepted, "what does not work shows in boxlift health"
	}
	switch {
	case !known || cilium.major != 1 || kubernetes.major != 1:
		j.add(Warned, ciliumComponent, "compare it with the page on Kubernetes compatibility in Cilium's documentation",
			"which versions of Kubernetes Cilium %s is tested with is not known to this boxlift; the bundle has %s",
			cilium.series(), kubernetes.series())
	case kubernetes.minor < tested[0] || kubernetes.minor > tested[1]:
		j.add(outcome, ciliumComponent, way, "Cilium %s is tested with Kubernetes 1.%d to 1.%d, and the bundle has %s",
			cilium.series(), tested[0], tested[1], kubernetes.series())
	}
	j.meantime(kubernetes)
}

// meantime is while the servers run the new Kubernetes and the old Cilium.
func (j *judgement) meantime(kubernetes version) {
	cilium, err := parseVersion(j.Cluster.Cilium)
	if err != nil || cilium.major != 1 || j.Cluster.Cilium == j.Target.Cilium {
		return
	}
	if tested, known := testedKubernetes[cilium.minor]; known && kubernetes.minor > tested[1] {
		j.add(Warned, ciliumComponent, "go on to the end in one go", "until it is upgraded, after the servers, "+
			"Cilium %s works with Kubernetes %s, which it is not tested with", cilium.series(), kubernetes.series())
	}
}
