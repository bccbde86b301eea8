package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const version = "v1.34.4+k3s1"

// testHost is a host of a cluster in memory.
type testHost struct {
	*hosttest.Fake
	told *facts.Facts
	unit *hosttest.Unit
	// ends is when its certificates end.
	ends time.Time
	// serves is where connections from there lead, by address; nothing else answers. etcd is what its etcd says.
	serves map[string]func(context.Context) (net.Conn, error)
	etcd   string
}

func (m *testHost) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	if m.serves[address] == nil {
		return nil, fmt.Errorf("dial tcp %s: connect: connection refused", address)
	}
	return m.serves[address](ctx)
}

// platform is one that is well until a test changes it.
type platform struct {
	*Doctor
	machines []*testHost
	api      *kubetest.Memory
	// found is what came of it when pods look something up.
	found reach.State
	// unreached are hosts that do not answer.
	unreached map[string]bool
}

// oneServer and threeServers are install.yaml's whose hosts do not renew certificates.
const oneServer = `cluster:
  name: plant-7
  renewCertificates: false
  servers: [{host: 10.0.0.11, name: s1, password: pass-word}]
  agents: [{host: 10.0.0.12, name: s2, password: pass-word}]
`

const threeServers = `cluster:
  name: plant-7
  renewCertificates: false
  servers:
    - {host: 10.0.0.11, name: s1, password: pass-word}
    - {host: 10.0.0.12, name: s2, password: pass-word}
    - {host: 10.0.0.13, name: s3, password: pass-word}
`

// node is a Ready one.
func node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.KubeletVersion = version
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// rolledOut is a DaemonSet of Cilium's, which runs on all nodes.
func rolledOut(name string, nodes int) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	n := int32(nodes)
	d.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: n, UpdatedNumberScheduled: n, NumberReady: n, NumberAvailable: n}
	return d
}

func deployed(name string) *appsv1.Deployment {
	d := kubetest.Deployment(name, 1, "registry.lan/"+name+":1")
	d.Namespace = "kube-system"
	d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	return d
}

// newPlatform is a platform that is well.
func newPlatform(t *testing.T, text string) *platform {
	t.Helper()
	s := sitetest.Example(t, text)
	p := &platform{found: reach.OK, unreached: map[string]bool{}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.43.0.1"}, Ports: []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}}}}
	p.api = kubetest.NewMemory(t, service, rolledOut("cilium", len(s.Hosts)), rolledOut("cilium-envoy", len(s.Hosts)),
		deployed("cilium-operator"), deployed("coredns"))
	p.api.SetVersion(version)
	p.api.Kubelet(p.kubelet)
	hosts := map[string]host.Host{}
	for i, h := range s.Hosts {
		p.api.Put(t, node(h.Config.Name))
		m := p.newMachine(t, fmt.Sprintf("node-%d", i+1), h)
		p.machines = append(p.machines, m)
		hosts[h.Config.Host] = m
	}
	for _, m := range p.machines { // servers ask agents' kubelets
		for _, h := range s.Hosts {
			m.serves[net.JoinHostPort(h.Config.Host, "10250")] = p.dialAPI
		}
	}
	dial := sitetest.DialTo(hosts)
	s.Conns = site.NewConnections(s.Config, nil, func(ctx context.Context, h config.Host) (host.Host, error) {
		if p.unreached[h.Host] {
			return sitetest.DialTo(nil)(ctx, h)
		}
		return dial(ctx, h)
	})
	p.Doctor = rooms(t, s)
	return p
}

// rooms are those that a doctor needs.
func rooms(t *testing.T, s *site.Site) *Doctor {
	t.Helper()
	engine := &run.Engine{Site: s, Holds: run.NewHolds()}
	t.Cleanup(engine.Close)
	seeder := &seed.Seeder{Site: s, Engine: engine}
	record := &run.Record{Site: s, Engine: engine}
	engine.Record = record
	cluster := &k3s.Cluster{Site: s, Engine: engine, Record: record, Seeder: seeder}
	renewer := &certificates.Renewer{Site: s, Engine: engine, Cluster: cluster, Seeder: seeder}
	namer := &names.Namer{Site: s, Engine: engine, Cluster: cluster}
	return &Doctor{Site: s, Engine: engine, Cluster: cluster, Renewer: renewer, Inspector: &inspect.Inspector{
		Site: s, Engine: engine, Seeder: seeder, Cluster: cluster, Renewer: renewer, Namer: namer,
		Importer:   &images.Importer{Site: s, Engine: engine, Seeder: seeder},
		Deployer:   &liteboxd.Deployer{Site: s, Engine: engine, Cluster: cluster},
		Workloads:  &workload.Room{Site: s, Engine: engine, Cluster: cluster},
		Nameserver: &nameserver.Keeper{Site: s, Engine: engine, Namer: namer},
		Front:      &front.Keeper{Site: s, Engine: engine},
	}}
}

func (p *platform) dialAPI(ctx context.Context) (net.Conn, error) {
	return p.api.Dial(ctx, "tcp", apiAddress)
}

// apiAddress is what the kubeconfig of an API server in memory names.
const apiAddress = "192.0.2.1:6443"

func (p *platform) newMachine(t *testing.T, hostname string, h *site.Host) *testHost {
	t.Helper()
	m := &testHost{told: sitetest.Facts(hostname, h.Config.Host), ends: time.Now().AddDate(1, 0, 0), etcd: `{"health":"true","reason":""}`}
	m.Fake = sitetest.NewHost(t, hostname, nil)
	unit := site.Unit(h.Config.Role)
	m.told.K3s = facts.K3s{Path: site.K3sBinary, Version: version, Managed: true}
	m.told.Units = []facts.Unit{{Name: unit + ".service", LoadState: "loaded", ActiveState: "active"}}
	m.told.Cgroup.Version = 1 // which k3s before 1.35 runs on
	m.told.Sysctls = map[string]string{"fs.inotify.max_user_instances": "8192", "fs.inotify.max_user_watches": "524288"}
	m.unit = m.Unit(unit).Runs()
	m.WriteFile(t, site.HelperPath, "", 0o755)
	m.Program("journalctl", hosttest.Prints("-- No entries --\n"))
	m.Program("boxlift-node", func(_ context.Context, c *hosttest.Call) int {
		var answer any
		switch c.Args[0] {
		case "facts":
			answer = m.told
		case "certificates":
			answer = facts.CertificatesReport{Version: facts.CertificatesVersion, Certificates: []facts.Certificate{{
				Path: "/var/lib/rancher/k3s/agent/serving-kubelet.crt", Subject: "CN=" + hostname, NotBefore: time.Now().AddDate(0, 0, -1), NotAfter: m.ends}}}
		default:
			return 1
		}
		if json.NewEncoder(c.Stdout).Encode(answer) != nil {
			return 1
		}
		return 0
	})
	m.serves = map[string]func(context.Context) (net.Conn, error){"127.0.0.1:10250": p.dialAPI}
	if unit == "k3s" {
		m.WriteFile(t, site.K3sKubeconfig, string(p.api.Kubeconfig), 0o600)
		m.WriteFile(t, k3s.K3sDatabases+"/etcd/member/wal", "", 0o600)
		m.serves["127.0.0.1:6443"], m.serves[apiAddress] = p.dialAPI, p.dialAPI
		etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" {
				http.NotFound(w, r)
				return
			}
			if !strings.Contains(m.etcd, `"true"`) {
				w.WriteHeader(http.StatusServiceUnavailable) // as etcd does
			}
			_, _ = fmt.Fprintln(w, m.etcd) // the asker may have gone
		}))
		t.Cleanup(etcd.Close)
		m.serves[etcdHealth] = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", etcd.Listener.Addr().String())
		}
	}
	return m
}

// kubelet runs the pods of health, in which boxlift-node looks names up.
func (p *platform) kubelet(pod *corev1.Pod) string {
	pod.Spec.NodeName, pod.Status.Phase = "s2", corev1.PodSucceeded
	report := reach.ProbeReport{Version: reach.ProbeVersion}
	args := pod.Spec.Containers[0].Args
	for i := 3; i+1 < len(args); i += 2 {
		result := reach.ProbeResult{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeKind(strings.TrimPrefix(args[i], "-")),
			Target: args[i+1]}, State: p.found}
		if p.found == reach.OK && result.Kind == reach.ProbeName {
			result.Addresses = []netip.Addr{netip.MustParseAddr("10.43.0.1")}
		}
		report.Results = append(report.Results, result)
	}
	var out bytes.Buffer
	_ = json.NewEncoder(&out).Encode(report) // never fails
	return out.String()
}

// stops has k3s be down on a host, and everything that it serves.
func (p *platform) stops(i int) {
	m := p.machines[i]
	m.told.Units[0].ActiveState = "failed"
	m.Program("systemctl", hosttest.Prints("LoadState=loaded\nActiveState=failed\nResult=exit-code\nNRestarts=7\n"))
	m.serves = nil
}

// leaderless has the servers' etcd have no leader, so that no API is ready.
func (p *platform) leaderless() {
	for _, m := range p.machines {
		m.etcd = `{"health":"false","reason":"RAFT NO LEADER"}`
		delete(m.serves, apiAddress)
	}
}

// says is a journal of k3s with a line of now.
func says(line string) hosttest.Program {
	return hosttest.Prints(fmt.Sprintf("%d.000000 node-2 k3s[1234]: %s\n", time.Now().Unix(), line))
}

func (p *platform) onNode(t *testing.T, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
	t.Helper()
	n := node("s2")
	if kind == corev1.NodeReady {
		n.Status.Conditions = nil
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message})
	p.api.Put(t, n)
}

func (p *platform) pod(t *testing.T, status corev1.PodStatus) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web-0"}, Status: status}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "10.0.0.11:5443/web:1"}}
	if status.Conditions == nil {
		pod.Spec.NodeName = "s2"
	}
	p.api.Put(t, pod)
}

func waits(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: 3,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
}

func ended(reason string, code int32) corev1.PodStatus {
	s := waits("CrashLoopBackOff", "back-off 40s restarting failed container")
	s.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}
	return s
}

func unscheduled(message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}}
}

const sectioned = oneServer + "seeding: {mode: registry}\n"

const refusedPull = `failed to pull and unpack image "10.0.0.11:5443/web:1": failed to resolve reference "10.0.0.11:5443/web:1": `

// provoked are the faults that can be made on hosts and an API of tests, by the entry of the catalogue.
var provoked = map[string]struct {
	text string // install.yaml, "" for one server and an agent
	make func(*testing.T, *platform)
}{
	diagnosis.IDHostUnreachable: {"", func(_ *testing.T, p *platform) { p.unreached["10.0.0.12"] = true }},
	diagnosis.IDDiskFull: {"", func(_ *testing.T, p *platform) {
		for i := range p.machines[1].told.Mounts {
			p.machines[1].told.Mounts[i].Free = 1 << 30
		}
	}},
	diagnosis.IDReadOnly: {"", func(_ *testing.T, p *platform) {
		for i := range p.machines[1].told.Mounts {
			p.machines[1].told.Mounts[i].ReadOnly = true
		}
	}},
	diagnosis.IDClockWrong: {"", func(_ *testing.T, p *platform) {
		p.machines[1].Program("date", hosttest.Prints(fmt.Sprintf("%d\n", time.Now().Add(-time.Hour).Unix())))
	}},
	diagnosis.IDCertificateEnded: {"", func(_ *testing.T, p *platform) { p.machines[1].ends = time.Now().Add(-time.Hour) }},
	diagnosis.IDCertificateSoon:  {"", func(_ *testing.T, p *platform) { p.machines[1].ends = time.Now().AddDate(0, 0, 10) }},
	diagnosis.IDPortTaken: {"", func(_ *testing.T, p *platform) {
		p.machines[1].told.Ports = []facts.Port{{Protocol: "tcp", Address: "0.0.0.0", Port: 10250, Owner: facts.Process{Name: "nginx", PID: 77}}}
	}},
	diagnosis.IDNoDefaultRoute: {"", func(_ *testing.T, p *platform) {
		p.machines[1].told.Network.Routes = p.machines[1].told.Network.Routes[1:]
	}},
	diagnosis.IDForeign:   {"", func(_ *testing.T, p *platform) { p.machines[1].told.CNIConfigs = []string{"10-flannel.conflist"} }},
	diagnosis.IDUnfitHost: {"", func(_ *testing.T, p *platform) { p.machines[1].told.Kernel.Release = "4.19.0" }},
	diagnosis.IDDatastoreFull: {"", func(_ *testing.T, p *platform) {
		p.machines[0].etcd = `{"health":"false","reason":"ALARM NOSPACE"}`
	}},
	diagnosis.IDQuorumLost: {threeServers, func(_ *testing.T, p *platform) {
		p.leaderless()
		p.unreached["10.0.0.12"] = true
		p.stops(2)
	}},
	diagnosis.IDQuorumThin: {threeServers, func(_ *testing.T, p *platform) { p.stops(2) }},
	diagnosis.IDK3sDown: {"", func(_ *testing.T, p *platform) {
		p.stops(1)
		p.machines[1].Program("journalctl", says(`time="2026-11-21T10:12:07Z" level=fatal msg="--token is required"`))
	}},
	diagnosis.IDAPIDown: {"", func(_ *testing.T, p *platform) { delete(p.machines[0].serves, apiAddress) }},
	diagnosis.IDNodeCutOff: {"", func(t *testing.T, p *platform) {
		p.onNode(t, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
	}},
	diagnosis.IDNetworkNotReady: {"", func(t *testing.T, p *platform) {
		p.onNode(t, corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady")
	}},
	diagnosis.IDNodeNotReady: {"", func(t *testing.T, p *platform) { p.api.Remove(t, "/api/v1/nodes/s2") }},
	diagnosis.IDDiskPressure: {"", func(t *testing.T, p *platform) {
		p.onNode(t, corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure", "kubelet has disk pressure")
	}},
	diagnosis.IDMemoryPressure: {"", func(t *testing.T, p *platform) {
		p.onNode(t, corev1.NodeMemoryPressure, corev1.ConditionTrue, "KubeletHasInsufficientMemory", "")
	}},
	diagnosis.IDPIDPressure: {"", func(t *testing.T, p *platform) {
		p.onNode(t, corev1.NodePIDPressure, corev1.ConditionTrue, "KubeletHasInsufficientPID", "")
	}},
	diagnosis.IDEvicted: {"", func(t *testing.T, p *platform) {
		p.pod(t, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."})
	}},
	diagnosis.IDOutOfMemory:   {"", func(t *testing.T, p *platform) { p.pod(t, ended("OOMKilled", 137)) }},
	diagnosis.IDCrashLoop:     {"", func(t *testing.T, p *platform) { p.pod(t, ended("Error", 1)) }},
	diagnosis.IDUnschedulable: {"", func(t *testing.T, p *platform) { p.pod(t, unscheduled("0/2 nodes are available: 2 Insufficient cpu.")) }},
	diagnosis.IDRegistryDown: {sectioned, func(t *testing.T, p *platform) {
		p.pod(t, waits("ImagePullBackOff", refusedPull+`failed to do request: Head "https://10.0.0.11:5443/v2/": dial tcp 10.0.0.11:5443: connect: connection refused`))
	}},
	diagnosis.IDPullRefused: {sectioned, func(t *testing.T, p *platform) {
		p.pod(t, waits("ErrImagePull", refusedPull+"pull access denied: authorization failed: no basic auth credentials"))
	}},
	diagnosis.IDImageMissing: {"", func(t *testing.T, p *platform) {
		p.pod(t, waits("ImagePullBackOff", `Back-off pulling image "10.0.0.11:5443/web:1"`))
		p.api.Put(t, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web-0.1"}, Type: "Warning", Reason: "Failed",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: "web-0"}, LastTimestamp: metav1.Now(),
			Message: `Failed to pull image: dial tcp: lookup registry-1.docker.io: no such host`})
	}},
	diagnosis.IDUntold: {"", func(_ *testing.T, p *platform) {
		p.machines[1].Program("boxlift-node", hosttest.Fails(126, "Permission denied"))
	}},
	diagnosis.IDClusterDNS: {"", func(_ *testing.T, p *platform) { p.found = reach.Silent }},
	diagnosis.IDNames: {oneServer + "names: {hosts: {nas.lan: 10.0.0.99}}\n", func(_ *testing.T, p *platform) {
		p.machines[1].Program("getent", hosttest.Fails(2, ""))
	}},
	diagnosis.IDVolume: {"", func(t *testing.T, p *platform) {
		p.pod(t, unscheduled("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."))
	}},
	diagnosis.IDLiteBoxd: {oneServer + "liteboxd: {}\n", func(*testing.T, *platform) {}}, // it was never installed
	diagnosis.IDVersions: {"", func(t *testing.T, p *platform) {
		n := node("s2")
		n.Status.NodeInfo.KubeletVersion = "v1.37.1+k3s1"
		p.api.Put(t, n)
	}},
	diagnosis.IDCordoned: {"", func(t *testing.T, p *platform) {
		n := node("s2")
		n.Spec.Unschedulable = true
		p.api.Put(t, n)
	}},
	diagnosis.IDFirewall: {"", func(_ *testing.T, p *platform) {
		p.machines[1].told.Units = append(p.machines[1].told.Units, facts.Unit{Name: "firewalld.service", LoadState: "loaded", ActiveState: "active"})
	}},
	diagnosis.IDResolvers:   {"", func(_ *testing.T, p *platform) { p.machines[1].told.Network.Resolvers = []string{"127.0.0.53"} }},
	diagnosis.IDSwap:        {"", func(_ *testing.T, p *platform) { p.machines[1].told.Memory.Swap = 1 << 30 }},
	diagnosis.IDMemoryShort: {"", func(_ *testing.T, p *platform) { p.machines[1].told.Memory.Total = 1 << 30 }},
	diagnosis.IDLimitsLow:   {"", func(_ *testing.T, p *platform) { p.machines[1].told.Sysctls["fs.inotify.max_user_instances"] = "128" }},
	diagnosis.IDUpkeep:      {strings.Replace(oneServer, "  renewCertificates: false\n", "", 1), func(*testing.T, *platform) {}}, // there is no timer
}

// examined is what is found on a platform, which was not changed by that.
func examined(t *testing.T, p *platform) (*diagnosis.Observation, []diagnosis.Finding, error) {
	t.Helper()
	var before []string
	for _, m := range p.machines {
		before = append(before, m.Snapshot(t))
	}
	o, err := p.Observe(t.Context())
	if o == nil {
		t.Fatal(err)
	}
	for i, m := range p.machines {
		if diff := cmp.Diff(before[i], m.Snapshot(t)); diff != "" {
			t.Errorf("looking has changed %s: %s", m.Name(), diff)
		}
	}
	for _, c := range p.api.Changes() {
		if !strings.Contains(c, "/pods") {
			t.Errorf("looking has changed the cluster: %s", c)
		}
	}
	// What is judged elsewhere is the same.
	document, encodeErr := o.Encode()
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	read, readErr := diagnosis.Read(document)
	if readErr != nil {
		t.Fatalf("%v: %s", readErr, document)
	}
	findings := diagnosis.Judge(o)
	if diff := cmp.Diff(findings, diagnosis.Judge(read)); diff != "" {
		t.Errorf("read again, it is judged otherwise: %s", diff)
	}
	return o, findings, err
}

func TestWell(t *testing.T) {
	t.Parallel()
	for _, text := range []string{oneServer, threeServers} {
		o, findings, err := examined(t, newPlatform(t, text))
		if len(findings) > 0 || err != nil || len(o.Problems) > 0 {
			t.Errorf("found %+v, %v, not known %q", findings, err, o.Problems)
		}
		for _, h := range o.Hosts {
			if h.Node == "" || h.K3s != version || h.Service.Active != "active" || h.Server != (h.Etcd.Health == "true") || h.Now.IsZero() {
				t.Errorf("%+v", h)
			}
		}
		if len(o.Certificates) != len(o.Hosts) || len(o.Nodes) != len(o.Hosts) || o.API.Version != version {
			t.Errorf("%+v", o)
		}
	}
}

// Each fault that is provoked is found, and explained by nothing but what was provoked.
func TestProvoked(t *testing.T) {
	for _, e := range diagnosis.Catalogue() {
		test, ok := provoked[e.ID]
		if (e.Proof == diagnosis.Provoked) != ok {
			t.Errorf("%s is %s, and provoked here: %t", e.ID, e.Proof, ok)
		}
		if !ok {
			continue
		}
		t.Run(e.ID, func(t *testing.T) {
			t.Parallel() // some wait for an API that does not answer
			p := newPlatform(t, cmpOr(test.text, oneServer))
			test.make(t, p)
			_, findings, err := examined(t, p)
			i := slices.IndexFunc(findings, func(f diagnosis.Finding) bool { return f.ID == e.ID })
			if i < 0 {
				t.Fatalf("not found: %v, %+v", err, findings)
			}
			unreached := errors.Is(err, site.ErrHosts) || errors.Is(err, site.ErrCluster)
			if sick := Verdict(findings); err == nil && (sick != nil) != diagnosis.Sick(findings) || err != nil && !unreached {
				t.Errorf("%v, %v", err, sick)
			}
		})
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// With the majority gone, a host silent and one that fails, the cause comes first, and all hosts are told of.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, threeServers)
	provoked[diagnosis.IDQuorumLost].make(t, p)
	o, findings, err := examined(t, p)
	if !errors.Is(err, site.ErrHosts) || o.API.Answers {
		t.Errorf("%v, %+v", err, o.API)
	}
	var got []string
	for _, f := range findings {
		got = append(got, strings.TrimSpace(f.ID+" "+f.Host))
		if f.ID == diagnosis.IDQuorumLost {
			kubetest.Contains(t, strings.Join(f.Evidence, "\n"), "1 of 3 servers run, and etcd needs 2", "is not reached", "k3s is failed",
				"RAFT NO LEADER")
		}
	}
	want := []string{"host-unreachable s2 (10.0.0.12)", "quorum-lost", "k3s-down s3 (10.0.0.13)", "api-down"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What hosts print is bounded and fit to be shown, tokens are taken out of it, and what they do not tell is said.
func TestHostileHost(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, oneServer)
	m := p.machines[0]
	m.WriteFile(t, site.K3sTokenFile, "K10abc::server:verysecretword", 0o600)
	m.Program("journalctl", says("no space left on device \x1b[2J verysecretword "+strings.Repeat("x", 1<<16)))
	m.etcd = "\x1b[2J{" + strings.Repeat("x", 1<<16)
	p.machines[1].Program("journalctl", hosttest.Fails(1, "Failed to get journal fields: \x1b[2J"))
	p.machines[1].Program("boxlift-node", hosttest.Fails(126, "Permission denied"))
	o, findings, _ := examined(t, p)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "verysecretword") || strings.Contains(string(text), `\u001b`) {
		t.Errorf("not fit to be kept: %s", text)
	}
	var got []string
	for _, f := range findings {
		got = append(got, f.ID+" "+f.Host)
	}
	if diff := cmp.Diff([]string{"disk-full s1 (10.0.0.11)", "host-untold s2 (10.0.0.12)"}, got); diff != "" {
		t.Errorf("%s; of %+v", diff, o.Hosts)
	}
	kubetest.Contains(t, strings.Join(o.Problems, "\n"), "read the journal", "when its certificates end is not known")
	if o.Hosts[0].Etcd.Error == "" || len(o.Hosts[0].Etcd.Error) > diagnosis.MaxText {
		t.Errorf("%+v", o.Hosts[0].Etcd)
	}
}

// Ctrl-C ends the look with what it says.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, oneServer)
	pressed := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	p.machines[1].Program("journalctl", func(context.Context, *hosttest.Call) int {
		cancel(pressed)
		return 1
	})
	if o, err := p.Observe(ctx); o != nil || !errors.Is(err, pressed) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestParseJournal(t *testing.T) {
	got := parseJournal("1763719927.123456 node-1 k3s[1]: E1121 a: b\r\n-- No entries --\n1763719928.0 node-1 systemd[1]: k3s.service: x\n" +
		"NaN h p: x\n-1 h p: x\n1e300 h p: x\n\n")
	want := []diagnosis.Line{{Time: time.Unix(1763719927, 0).UTC(), Text: "E1121 a: b"},
		{Time: time.Unix(1763719928, 0).UTC(), Text: "k3s.service: x"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Every check of health belongs to an entry of the catalogue, and two have a place of their own.
func TestHealthIsCovered(t *testing.T) {
	for _, check := range inspect.HealthChecks() {
		if check == "host" || check == inspect.CheckAPI {
			continue
		}
		o := &diagnosis.Observation{API: diagnosis.API{Answers: true}, Checks: []diagnosis.Check{{Check: check, State: diagnosis.Failed,
			Detail: "ended on 2026-11-19"}}}
		if got := diagnosis.Judge(o); len(got) != 1 {
			t.Errorf("%s: %+v", check, got)
		}
	}
}
