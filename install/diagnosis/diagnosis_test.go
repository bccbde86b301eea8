package diagnosis

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the page of the catalogue")

var taken = time.Date(2026, 11, 21, 10, 15, 0, 0, time.UTC)

// well is what was observed of a platform that is well: three servers and an agent.
func well() *Observation {
	o := &Observation{Version: Version, Cluster: "plant-7", Taken: taken, API: API{Answers: true, Version: "v1.36.4+k3s1"},
		Registries: []string{"10.0.0.11:5443"}}
	for i, name := range []string{"s1", "s2", "s3", "a1"} {
		h := Host{Name: fmt.Sprintf("10.0.0.1%d", i+1), Server: i < 3, Node: name, K3s: "v1.36.4+k3s1", Now: taken,
			Service: Service{Unit: "k3s", Load: "loaded", Active: "active", Result: "success"}}
		if h.Server {
			h.Etcd = Etcd{Member: true, Health: "true"}
		} else {
			h.Service.Unit = "k3s-agent"
		}
		o.Hosts = append(o.Hosts, h)
		o.Nodes = append(o.Nodes, Node{Name: name, Kubelet: "v1.36.4+k3s1", Conditions: []Condition{
			{Type: "Ready", Status: "True"}, {Type: "DiskPressure", Status: "False"}, {Type: "EtcdIsVoter", Status: "True"}}})
	}
	o.Certificates = []Certificate{{Host: "10.0.0.11", Path: "/var/lib/rancher/k3s/server/tls/serving-kube-apiserver.crt",
		NotAfter: taken.AddDate(1, 0, 0)}}
	return o
}

func check(name, host, detail string) func(*Observation) {
	return func(o *Observation) {
		o.Checks = append(o.Checks, Check{Check: name, Host: host, Subject: host, State: Failed, Detail: detail, Hint: "look there"})
	}
}

func finding(rule string) func(*Observation) {
	return func(o *Observation) {
		o.Findings = append(o.Findings, HostFinding{Host: "10.0.0.14", Check: rule, State: Failed, Found: "that", Needed: "this"})
	}
}

func said(host int, text string) func(*Observation) {
	return func(o *Observation) {
		o.Hosts[host].Journal = append(o.Hosts[host].Journal, Line{taken.Add(-time.Minute), text})
	}
}

func onNode(c Condition) func(*Observation) {
	return func(o *Observation) {
		i := slices.IndexFunc(o.Nodes[3].Conditions, func(has Condition) bool { return has.Type == c.Type })
		if i < 0 {
			o.Nodes[3].Conditions = append(o.Nodes[3].Conditions, c)
			return
		}
		o.Nodes[3].Conditions[i] = c
	}
}

func pod(p Pod) func(*Observation) {
	p.Namespace, p.Name = "demo", "web-0"
	return func(o *Observation) { o.Pods = append(o.Pods, p) }
}

func waiting(reason, message string) func(*Observation) {
	return pod(Pod{Node: "a1", Phase: "Pending", Containers: []Container{{Name: "main", Image: "10.0.0.11:5443/web:1", Waiting: reason,
		Message: message}}})
}

func event(kind, reason, message string) func(*Observation) {
	return func(o *Observation) {
		o.Events = append(o.Events, Event{Kind: kind, Namespace: "demo", Name: "web-0", Reason: reason, Message: message, Last: taken})
	}
}

func silent(o *Observation) { o.API = API{Error: "10.0.0.11: reach the API: given up after 20s"} }

// pulling is how containerd says that an image does not come from a registry.
func pulling(from, why string) string {
	return `failed to pull and unpack image "` + from + `/web:1": failed to resolve reference "` + from + `/web:1": ` + why
}

const dialed = `failed to do request: Head "https://10.0.0.11:5443/v2/web/manifests/1": dial tcp 10.0.0.11:5443: connect: connection refused`

// faults are ways in which each fault shows, with all that is found then.
var faults = []struct {
	name string
	make []func(*Observation)
	want string
}{
	{"well", nil, ""},
	{"a host is silent", []func(*Observation){func(o *Observation) { o.Hosts[3].Error = "host is unreachable: i/o timeout" }}, "host-unreachable"},
	{"a full disk", []func(*Observation){check("disk", "10.0.0.14", "2 % free")}, "disk-full"},
	{"no inodes", []func(*Observation){finding("inodes")}, "disk-full"},
	{"k3s says it", []func(*Observation){said(3, `E1121 10:12:07.412873 1 kubelet.go:1 write /var/lib/kubelet/x: no space left on device`)}, "disk-full"},
	{"read-only", []func(*Observation){finding("read-only")}, "read-only"},
	{"behind", []func(*Observation){check("clock", "10.0.0.14", "its clock is 3s behind that of 10.0.0.11")}, "clock-wrong"},
	{"chrony follows nobody", []func(*Observation){check("time", "10.0.0.14", "follows nobody")}, "clock-wrong"},
	{"not yet valid", []func(*Observation){said(3, `time="2018-01-01T00:11:50Z" level=error msg="CA cert validation failed: Get \"https://127.0.0.1:6444/cacerts\": `+
		`tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2018-01-01T00:11:50Z is before 2026-10-31T22:37:33Z"`)}, "clock-wrong"},
	{"ended", []func(*Observation){func(o *Observation) { o.Certificates[0].NotAfter = taken }}, "certificate-ended"},
	{"shown as ended", []func(*Observation){check("certificate", "10.0.0.11", "ended on 2026-11-19")}, "certificate-ended"},
	{"the port is closed", []func(*Observation){check("certificate", "10.0.0.11", "connect: connection refused")}, ""},
	{"the API's has ended", []func(*Observation){func(o *Observation) {
		o.API = API{Error: "Get \"https://127.0.0.1:6443/readyz\": x509: certificate has expired or is not yet valid: current time 2026-11-21T10:15:00Z is after 2026-11-20T00:00:00Z"}
	}}, "certificate-ended api-down<certificate-ended"},
	{"it ends soon", []func(*Observation){func(o *Observation) { o.Certificates[0].NotAfter = taken.Add(29 * 24 * time.Hour) }}, "certificate-ends-soon"},
	{"a port", []func(*Observation){finding("ports")}, "port-taken"},
	{"a port that stops k3s", []func(*Observation){func(o *Observation) {
		o.Hosts[3].Service = Service{Unit: "k3s-agent", Load: "loaded", Active: "activating", Result: "exit-code", Restarts: 5}
	}, said(3, `time="2026-11-21T10:12:07Z" level=fatal msg="Error: listen tcp 127.0.0.1:6444: bind: address already in use"`)}, "port-taken k3s-down<port-taken"},
	{"no way out", []func(*Observation){finding("default-route")}, "no-default-route"},
	{"another network's file", []func(*Observation){finding("cni")}, "foreign-kubernetes"},
	{"another kubelet", []func(*Observation){finding("kubernetes")}, "foreign-kubernetes"},
	{"another kernel", []func(*Observation){finding("kernel-options")}, "unfit-host"},
	{"a kernel that lacks little", []func(*Observation){finding("kernel-options"), func(o *Observation) { o.Findings[0].State = Warned }}, ""},
	{"etcd is full", []func(*Observation){func(o *Observation) { o.Hosts[0].Etcd = Etcd{Member: true, Health: "false", Reason: "ALARM NOSPACE"} }}, "datastore-full"},
	{"two of three are down", []func(*Observation){silent, func(o *Observation) {
		o.Nodes = nil
		o.Hosts[1].Service.Active, o.Hosts[2].Error = "failed", "host is unreachable"
		o.Hosts[0].Etcd = Etcd{Member: true, Health: "false", Reason: "RAFT NO LEADER"}
	}}, "host-unreachable quorum-lost<host-unreachable,k3s-down k3s-down<quorum-lost api-down<host-unreachable,quorum-lost,k3s-down"},
	{"they do not hear each other", []func(*Observation){silent, func(o *Observation) {
		for i := range o.Hosts[:3] {
			o.Hosts[i].Etcd = Etcd{Member: true, Health: "false", Reason: "RAFT NO LEADER"}
		}
	}}, "quorum-lost api-down<quorum-lost"},
	{"one of three is down", []func(*Observation){func(o *Observation) { o.Hosts[2].Service.Active = "inactive" }}, "k3s-down quorum-thin<k3s-down"},
	{"one learns", []func(*Observation){onNode(Condition{"EtcdIsVoter", "False", "MemberIsLearner", "node has not been promoted"})}, "quorum-thin"},
	{"k3s was stopped", []func(*Observation){func(o *Observation) { o.Hosts[3].Service.Active = "inactive" }}, "k3s-down"},
	{"k3s is not there", []func(*Observation){func(o *Observation) { o.Hosts[3].Service.Load, o.Hosts[3].Service.Active = "not-found", "inactive" }}, "k3s-down"},
	{"nobody answers", []func(*Observation){silent}, "api-down"},
	{"a kubelet is not heard", []func(*Observation){onNode(Condition{"Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."})}, "node-cut-off"},
	{"and its k3s is down", []func(*Observation){onNode(Condition{"Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."}),
		func(o *Observation) { o.Hosts[3].Service.Active = "failed" }, check("node", "10.0.0.14", "its node a1 is not Ready")}, "k3s-down node-not-ready<k3s-down"},
	{"no CNI", []func(*Observation){onNode(Condition{"Ready", "False", "KubeletNotReady", "container runtime network not ready: NetworkReady=false " +
		"reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"}), check("node", "10.0.0.14", "not Ready")},
		"pod-network node-not-ready<pod-network"},
	{"Cilium is not rolled out", []func(*Observation){check("cilium", "", "0 of 4 pods ready")}, "pod-network"},
	{"Cilium's socket", []func(*Observation){event("Pod", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for `+
		`sandbox "1": plugin type="cilium-cni" failed (add): unable to connect to Cilium agent`)}, "pod-network"},
	{"not registered", []func(*Observation){check("node", "10.0.0.14", "its node is not registered in the cluster")}, "node-not-ready"},
	{"its disk", []func(*Observation){onNode(Condition{"DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"})}, "disk-pressure"},
	{"its memory", []func(*Observation){onNode(Condition{"MemoryPressure", "True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"}),
		pod(Pod{Node: "a1", Phase: "Failed", Reason: "Evicted", Message: "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi."})},
		"memory-pressure pod-evicted<memory-pressure"},
	{"its processes", []func(*Observation){onNode(Condition{"PIDPressure", "True", "KubeletHasInsufficientPID", "kubelet has insufficient PID available"})}, "pid-pressure"},
	{"evicted", []func(*Observation){pod(Pod{Node: "a1", Phase: "Failed", Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage."})}, "pod-evicted"},
	{"OOMKilled", []func(*Observation){pod(Pod{Node: "a1", Phase: "Running", Containers: []Container{{Name: "main", Waiting: "CrashLoopBackOff", Ended: "OOMKilled", Code: 137, Restarts: 4}}})},
		"container-out-of-memory"},
	{"no room", []func(*Observation){pod(Pod{Phase: "Pending", Unscheduled: "Unschedulable: 0/4 nodes are available: 4 Insufficient memory."})}, "pod-unschedulable"},
	{"no registry answers", []func(*Observation){check("registry", "10.0.0.14", "0 of 1 registry answer")}, "registry-down"},
	{"a pull is not answered", []func(*Observation){waiting("ImagePullBackOff", `Back-off pulling image "10.0.0.11:5443/web:1": ErrImagePull: `+pulling("10.0.0.11:5443", dialed))}, "registry-down"},
	{"an older kubelet says it in an event", []func(*Observation){waiting("ImagePullBackOff", `Back-off pulling image "10.0.0.11:5443/web:1"`),
		event("Pod", "Failed", `Failed to pull image "10.0.0.11:5443/web:1": `+pulling("10.0.0.11:5443", dialed))}, "registry-down"},
	{"a login is refused", []func(*Observation){waiting("ErrImagePull", pulling("10.0.0.11:5443", "pull access denied, repository does not exist or may require authorization: "+
		"authorization failed: no basic auth credentials"))}, "image-refused"},
	{"not trusted", []func(*Observation){waiting("ErrImagePull", pulling("10.0.0.11:5443", "failed to do request: Head \"https://10.0.0.11:5443/v2/web/manifests/1\": "+
		"tls: failed to verify certificate: x509: certificate signed by unknown authority"))}, "image-refused"},
	{"not there", []func(*Observation){waiting("ErrImagePull", pulling("10.0.0.11:5443", "10.0.0.11:5443/web:1: not found"))}, "image-missing"},
	{"k3s asks the internet", []func(*Observation){waiting("ImagePullBackOff", pulling("docker.io/library", `failed to do request: Head `+
		`"https://registry-1.docker.io/v2/library/web/manifests/1": dial tcp: lookup registry-1.docker.io: no such host`))}, "image-missing"},
	{"pause is gone", []func(*Observation){event("Pod", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox image `+
		`"rancher/mirrored-pause:3.6": failed to pull image "rancher/mirrored-pause:3.6": dial tcp: lookup registry-1.docker.io: Try again`)}, "image-missing"},
	{"no names in pods", []func(*Observation){check("dns", "", "kubernetes.default.svc is not found: no answer")}, "cluster-dns"},
	{"no names on hosts", []func(*Observation){check("names", "10.0.0.14", "s1 is not found")}, "names"},
	{"no DNS server", []func(*Observation){check("nameserver", "10.0.0.14", "no answer")}, "names"},
	{"no volume", []func(*Observation){pod(Pod{Phase: "Pending", Unscheduled: "Unschedulable: 0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."}),
		event("PersistentVolumeClaim", "ProvisioningFailed", "failed to provision volume: create process timeout after 120 seconds")}, "volume"},
	{"crashes", []func(*Observation){pod(Pod{Node: "a1", Phase: "Running", Containers: []Container{{Name: "main", Waiting: "CrashLoopBackOff", Ended: "Error", Code: 1, Restarts: 9}}})}, "crash-loop"},
	{"LiteBoxd", []func(*Observation){check("deployment", "", "0 of 1 pods ready")}, "liteboxd"},
	{"another version", []func(*Observation){func(o *Observation) { o.Nodes[3].Kubelet, o.Hosts[3].K3s = "v1.35.9+k3s1", "v1.35.9+k3s1" }}, "version-mismatch"},
	{"not started since", []func(*Observation){func(o *Observation) { o.Hosts[3].K3s = "v1.37.0+k3s1" }}, "version-mismatch"},
	{"cordoned", []func(*Observation){func(o *Observation) { o.Nodes[3].Unschedulable = true }, func(o *Observation) {
		o.Checks = append(o.Checks, Check{Check: "node", Host: "10.0.0.14", State: Warned, Detail: "its node a1 is Ready, but cordoned"})
	}}, "node-cordoned"},
	{"a firewall", []func(*Observation){finding("firewall")}, "firewall"},
	{"no resolver", []func(*Observation){finding("resolv-conf")}, "resolvers"},
	{"swap", []func(*Observation){finding("swap")}, "swap"},
	{"little memory", []func(*Observation){finding("memory")}, "memory-short"},
	{"inotify", []func(*Observation){finding("inotify")}, "limits-low"},
	{"no backup", []func(*Observation){check("backup", "10.0.0.11", "the newest is 9 days old")}, "upkeep"},
	{"boxlift-node does not run", []func(*Observation){func(o *Observation) { o.Hosts[3].Untold = "Permission denied" }}, "host-untold"},
	{"a rule that nobody needs here", []func(*Observation){finding("seeding")}, ""},
}

func TestFaults(t *testing.T) {
	seen := map[string]bool{}
	for _, test := range faults {
		o := well()
		for _, change := range test.make {
			change(o)
		}
		var got []string
		for _, f := range Judge(o) {
			seen[f.ID] = true
			text := f.ID
			if f.FollowsFrom != nil {
				text += "<" + strings.Join(f.FollowsFrom, ",")
			}
			if !slices.Contains(got, text) {
				got = append(got, text)
			}
			if f.Symptom == "" || f.Cause == "" || len(f.Evidence) == 0 || f.Evidence[0] == "" || len(f.Remedy) == 0 {
				t.Errorf("%s: a part is missing: %+v", test.name, f)
			}
		}
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	for _, e := range Catalogue() {
		if _, err := os.Stat(recorded(e.ID)); !seen[e.ID] && err != nil {
			t.Errorf("no test shows %s", e.ID)
		}
	}
}

func recorded(id string) string { return filepath.Join("testdata", "recorded", id+".json") }

// What real programs have said is recognised, as what it is and without another cause before it.
func TestRecorded(t *testing.T) {
	found := 0
	for _, e := range Catalogue() {
		document, err := os.ReadFile(recorded(e.ID))
		if e.Proof != Recorded {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", e.ID, err)
			continue
		}
		found++
		o, err := Read(document)
		if err != nil {
			t.Errorf("%s: %v", e.ID, err)
			continue
		}
		findings := Judge(o)
		if len(findings) == 0 || findings[0].ID != e.ID || findings[0].FollowsFrom != nil {
			t.Errorf("%s: found %+v", e.ID, findings)
			continue
		}
		for _, f := range findings[1:] {
			if !slices.Contains(f.FollowsFrom, e.ID) {
				t.Errorf("%s: it does not explain %+v", e.ID, f)
			}
		}
	}
	files, err := filepath.Glob(recorded("*"))
	if err != nil || len(files) != found {
		t.Errorf("%d files, %d of them read: %v", len(files), found, err)
	}
}

// Every entry says all that it has to, and its remedies need nothing from outside.
func TestCatalogue(t *testing.T) {
	ids := map[string]bool{}
	for _, e := range Catalogue() {
		if ids[e.ID] {
			t.Errorf("%s is there twice", e.ID)
		}
		ids[e.ID] = true
	}
	for id := range sayings {
		if !ids[id] {
			t.Errorf("a saying is of %s, which there is not", id)
		}
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	outside := regexp.MustCompile(`https?://|\b(curl|wget|apt|apt-get|dnf|yum|zypper|docker|helm|git|pip)\b`)
	commands := 0
	for _, e := range Catalogue() {
		if e.Symptom == "" || e.Seen == "" || e.Cause == "" || len(e.Remedy) == 0 || e.recognize == nil ||
			e.Severity != Critical && e.Severity != Warning || e.Proof != Provoked && e.Proof != Recorded {
			t.Errorf("%s is not whole", e.ID)
		}
		for _, id := range e.Explains {
			if !ids[id] || id == e.ID {
				t.Errorf("%s explains %s", e.ID, id)
			}
		}
		own := 0
		for _, step := range e.Remedy {
			for _, command := range quoted.FindAllStringSubmatch(step, -1) {
				if own++; outside.MatchString(command[1]) {
					t.Errorf("%s: %q needs something from outside", e.ID, command[1])
				}
			}
		}
		if commands += own; own == 0 {
			t.Errorf("%s has no command", e.ID)
		}
	}
	if commands < 100 {
		t.Errorf("%d commands were found", commands)
	}
}

// The words in capitals of a remedy are what they stand for, where it is known.
func TestRemedy(t *testing.T) {
	o := well()
	waiting("ImagePullBackOff", "not found")(o)
	o.Hosts[3].Service.Active = "failed"
	want := map[string]string{IDK3sDown: "On 10.0.0.14: `journalctl -u k3s-agent -n 100` says why it ended.",
		IDImageMissing: "On the node's host: `k3s crictl images` shows what it has."}
	for _, f := range Judge(o) {
		if f.Remedy[0] != want[f.ID] {
			t.Errorf("%s: %q", f.ID, f.Remedy[0])
		}
		for _, step := range f.Remedy {
			if strings.Contains(step, "HOST") || strings.Contains(step, "UNIT") {
				t.Errorf("%s: %s", f.ID, step)
			}
		}
	}
}

// A line of a service that runs counts while it is new. Of one that does not run, its last words count.
func TestOldLines(t *testing.T) {
	for active, want := range map[string]bool{"active": false, "failed": true} {
		o := well()
		o.Hosts[3].Service.Active = active
		o.Hosts[3].Journal = []Line{{taken.Add(-time.Hour), "listen tcp :6443: bind: address already in use"}}
		got := slices.ContainsFunc(Judge(o), func(f Finding) bool { return f.ID == IDPortTaken })
		if got != want {
			t.Errorf("%s: %t", active, got)
		}
	}
}

func TestKeep(t *testing.T) {
	var journal []Line
	for i := range 100 {
		text := fmt.Sprint("line ", i)
		if i%10 == 0 {
			text += ": no space left on device"
		}
		journal = append(journal, Line{Text: text})
	}
	var got []string
	for _, l := range Keep(journal) {
		got = append(got, strings.Fields(l.Text)[1])
	}
	if diff := cmp.Diff("70: 80: 90: 95 96 97 98 99", strings.Join(got, " ")); diff != "" {
		t.Error(diff)
	}
	if Keep(nil) != nil {
		t.Error("there is something in nothing")
	}
}

// However many pods say the same, a finding stays small.
func TestManyPods(t *testing.T) {
	o := well()
	for i := range Most {
		o.Pods = append(o.Pods, Pod{Namespace: "demo", Name: fmt.Sprint("web-", i), Node: "a1", Phase: "Pending",
			Containers: []Container{{Image: "web:1", Waiting: "ErrImagePull", Message: strings.Repeat("x", MaxText)}}})
	}
	findings := Judge(o)
	if len(findings) != 1 || len(findings[0].Evidence) != maxEvidence+1 || findings[0].Evidence[maxEvidence] != "and 1995 more" {
		t.Fatalf("%d findings: %q", len(findings), findings[0].Evidence)
	}
	for _, line := range findings[0].Evidence {
		if len(line) > maxLine {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

func TestRead(t *testing.T) {
	document, err := well().Encode()
	if err != nil {
		t.Fatal(err)
	}
	o, err := Read(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(well(), o); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(map[string]any){
		"another version":  func(m map[string]any) { m["version"] = 2 },
		"an unknown field": func(m map[string]any) { m["more"] = true },
		"a long text":      func(m map[string]any) { m["cluster"] = strings.Repeat("x", 1<<16) },
		"a negative count": func(m map[string]any) {
			m["hosts"] = []any{map[string]any{"service": map[string]any{"restarts": -1}}}
		},
	} {
		var m map[string]any
		if err := json.Unmarshal(document, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(text); !errors.Is(err, ErrObservation) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "{}", "[]", string(document) + "{}", strings.Repeat(" ", MaxSize+1)} {
		if _, err := Read([]byte(text)); !errors.Is(err, ErrObservation) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// Whatever an observation says, what is read of it can be judged, and is fit to be shown.
func FuzzRead(f *testing.F) {
	document, err := well().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	for _, id := range slices.Sorted(maps.Keys(sayings)) {
		if document, err := os.ReadFile(recorded(id)); err == nil {
			f.Add(document)
		}
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		o, err := Read(document)
		if err != nil {
			return
		}
		for _, found := range Judge(o) {
			for _, line := range slices.Concat(found.Evidence, found.Remedy, []string{found.Host, found.Subject}) {
				if strings.ContainsAny(line, "\x1b\n\r\x00") {
					t.Errorf("not fit to be shown: %q", line)
				}
			}
		}
	})
}

// The page lists the catalogue.
func TestDocs(t *testing.T) {
	const name = "../../docs/doctor.md"
	const head = "## The catalogue\n\n"
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), head)
	if !found {
		t.Fatalf("%s has no %q", name, head)
	}
	was, after, found := strings.Cut(rest, "\n## ")
	if !found {
		t.Fatalf("%s: nothing follows the catalogue", name)
	}
	page := regexp.MustCompile(`docs/([a-z/-]+\.md(#[a-z-]+)?)`)
	var want strings.Builder
	want.WriteString("| fault | severity | shown by |\n|---|---|---|\n")
	for _, e := range Catalogue() {
		fmt.Fprintf(&want, "| [`%s`](#%[1]s) | %s | %s |\n", e.ID, e.Severity, e.Proof)
	}
	for _, e := range Catalogue() {
		fmt.Fprintf(&want, "\n### %s\n\n%s\n\n- Seen by: %s\n- Cause: %s\n", e.ID, e.Symptom, e.Seen, e.Cause)
		for i, step := range e.Remedy {
			fmt.Fprintf(&want, "- Remedy %d: %s\n", i+1, page.ReplaceAllString(step, "[docs/$1]($1)"))
		}
		for i, id := range e.Explains {
			if i == 0 {
				want.WriteString("- May be the cause of: ")
			} else {
				want.WriteString(", ")
			}
			fmt.Fprintf(&want, "[`%s`](#%[1]s)", id)
		}
		if e.Explains != nil {
			want.WriteString("\n")
		}
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+head+want.String()+"\n## "+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), was); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}
