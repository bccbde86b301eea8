package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const (
	version     = "v1.36.4+k3s1"
	boxSystem   = "liteboxd-system"
	boxSandbox  = "liteboxd-sandbox"
	boxesConfig = sitetest.ExampleConfig + "liteboxd: {}\n"
)

// platform is an examination of a server and an agent, which can be talked to, and of their cluster.
type platform struct {
	*examination
	fakes []*hosttest.Fake
	api   *kubetest.Memory
}

// aNode is a Ready node.
func aNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.KubeletVersion = version
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

// notReady says of a node what its kubelet says.
func notReady(message string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: message}
	}
}

// deployment is one that is rolled out.
func deployment(namespace, name, image string) *appsv1.Deployment {
	d := kubetest.Deployment(name, 1, image)
	d.Namespace = namespace
	d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	return d
}

// daemonSet is one that is rolled out on two nodes.
func daemonSet(namespace, name string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	d.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 2, NumberAvailable: 2}
	return d
}

// service is one with an address and a port.
func service(namespace, name, address string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{address}, Ports: []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP}}},
	}
}

// looked is a look at a platform that is well, as far as the API tells.
func looked(t *testing.T, text string) *platform {
	t.Helper()
	in := example(t, text, "k3s="+version, "cilium=1.20.0")
	in.site.K3s = version
	p := &platform{examination: &examination{inspector: in.inspector, factless: map[*site.Host]error{}}}
	for i, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		h.Conn, h.Hostname = f, fmt.Sprintf("host-%d", i)
		p.fakes = append(p.fakes, f)
	}
	p.api = kubetest.NewMemory(t, aNode("first"), aNode("host-1"), service("default", "kubernetes", "10.43.0.1", 443),
		daemonSet("kube-system", "cilium"), daemonSet("kube-system", "cilium-envoy"), deployment("kube-system", "cilium-operator", "x"),
		deployment("kube-system", "coredns", "registry.lan/coredns:1"))
	for _, name := range []string{"liteboxd-api", "liteboxd-gateway", "liteboxd-network-controller", "liteboxd-web"} {
		p.api.Put(t, deployment(boxSystem, name, "registry.lan/"+name+":v0.6.10"))
	}
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: p.api.Kubeconfig, Dial: p.api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	in.site.API = api
	p.refresh(t)
	return p
}

// refresh looks at the nodes again.
func (p *platform) refresh(t *testing.T) {
	t.Helper()
	var err error
	if p.nodes, err = p.inspector.Site.API.Nodes(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// noPodsLeft fails the test when a pod that was made to look is still there.
func (p *platform) noPodsLeft(t *testing.T) {
	t.Helper()
	pods, err := p.inspector.Site.API.Pods(t.Context(), "", "boxlift.dev/probe")
	if err != nil || len(pods) > 0 {
		t.Errorf("left are %v, %v", pods, err)
	}
	for _, c := range p.api.Changes() {
		if !strings.Contains(c, "/pods") {
			t.Errorf("the cluster was changed: %s", c)
		}
	}
}

// unavailable is an API server that has lost its etcd.
func unavailable(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "etcdserver: \x1b[31mno leader", http.StatusServiceUnavailable)
}

// senseless is one that answers with something else.
func senseless(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"kind":"List","items":[{]`)) // the caller may have gone
}

// none has no objects of a kind.
func none(kind string) http.HandlerFunc {
	group := map[bool]string{true: "apps/v1", false: "v1"}[kind == "DeploymentList"]
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"items":[]}`, kind, group) // the caller may have gone
	}
}

// prober stands in for boxlift-node in pods: what it finds is up to the test, and it keeps what it was asked for.
type prober struct {
	mu    sync.Mutex
	find  func(pod *corev1.Pod, t reach.ProbeTarget) reach.State
	asked []string
	pods  []*corev1.Pod
}

// targetsOf are the targets in the arguments of boxlift-node probe.
func targetsOf(args []string) (targets []reach.ProbeTarget) {
	for i := 3; i+1 < len(args); i += 2 {
		targets = append(targets, reach.ProbeTarget{Kind: reach.ProbeKind(strings.TrimPrefix(args[i], "-")), Target: args[i+1]})
	}
	return targets
}

// report is what boxlift-node prints.
func report(targets []reach.ProbeTarget, find func(reach.ProbeTarget) reach.State) string {
	r := reach.ProbeReport{Version: reach.ProbeVersion}
	for _, t := range targets {
		result := reach.ProbeResult{ProbeTarget: t, State: find(t)}
		if result.State == reach.OK && t.Kind == reach.ProbeHTTP {
			result.Status = http.StatusOK
		}
		r.Results = append(r.Results, result)
	}
	var out bytes.Buffer
	_ = json.NewEncoder(&out).Encode(r) // never fails
	return out.String()
}

// run is a kubelet.
func (p *prober) run(pod *corev1.Pod) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = append(p.pods, pod.DeepCopy())
	pod.Spec.NodeName, pod.Status.Phase = "host-1", corev1.PodSucceeded
	targets := targetsOf(pod.Spec.Containers[0].Args)
	for _, t := range targets {
		p.asked = append(p.asked, t.Target)
	}
	return report(targets, func(t reach.ProbeTarget) reach.State { return p.find(pod, t) })
}

// well finds names and the API, but for what a sandbox is kept from.
func well(pod *corev1.Pod, t reach.ProbeTarget) reach.State {
	if t.Kind != reach.ProbeName && pod.Namespace == boxSandbox {
		return reach.Silent
	}
	return reach.OK
}

// dialing is a host that reaches other addresses than it is told.
type dialing struct {
	machine.Host
	to map[string]string
}

func (d dialing) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, ok := d.to[address]
	if !ok {
		return nil, fmt.Errorf("connect to %s: connection refused", address)
	}
	return new(net.Dialer).DialContext(ctx, network, to)
}

// short are the states of checks with their subjects.
func short(checks []HealthCheck) string {
	var texts []string
	for _, c := range checks {
		texts = append(texts, strings.TrimSpace(c.Subject+" "+string(c.State)))
	}
	return strings.Join(texts, ", ")
}

// fit fails the test when checks are not fit for a terminal, or say nothing.
func fit(t *testing.T, checks []HealthCheck) {
	t.Helper()
	for _, c := range checks {
		if c.Detail == "" || len(c.Detail) > 4000 || strings.ContainsAny(c.Detail+c.Hint+c.Subject, "\x1b\x00") {
			t.Errorf("%s %s is %s: %.300q", c.Check, c.Subject, c.State, c.Detail)
		}
	}
}

// A node is looked at whether its host is in install.yaml or not.
func TestCheckNodes(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(*platform)
		want string
	}{
		{"well", func(*platform) {}, "first (10.0.0.11) ok, 10.0.0.12 ok"},
		{"not Ready", func(p *platform) {
			p.api.Put(t, aNode("host-1", notReady("\x1b[31mno CNI"+strings.Repeat("x", 1<<16))))
		}, "first (10.0.0.11) ok, 10.0.0.12 failed"},
		{"cordoned", func(p *platform) { p.api.Put(t, aNode("host-1", func(n *corev1.Node) { n.Spec.Unschedulable = true })) }, "first (10.0.0.11) ok, 10.0.0.12 warning"},
		{"it never reported", func(p *platform) {
			p.api.Put(t, aNode("first", func(n *corev1.Node) { n.Status = corev1.NodeStatus{} }))
		}, "first (10.0.0.11) failed, 10.0.0.12 ok"},
		{"another name", func(p *platform) { p.inspector.Site.Hosts[1].Hostname = "renamed" }, "first (10.0.0.11) ok, 10.0.0.12 failed"},
		{"one that install.yaml does not have", func(p *platform) { p.api.Put(t, aNode("spare")) }, "first (10.0.0.11) ok, 10.0.0.12 ok"},
		{"and that is down", func(p *platform) { p.api.Put(t, aNode("gone", notReady("x"))) }, "first (10.0.0.11) ok, 10.0.0.12 ok, gone warning"},
	} {
		p := looked(t, sitetest.ExampleConfig)
		test.make(p)
		p.refresh(t)
		checks := p.checkNodes(t.Context())
		if got := short(checks); got != test.want {
			t.Errorf("%s: %s", test.name, got)
		}
		verdict(t, checks...)
		fit(t, checks)
	}
}

// Workloads that are missing, late, scaled away, or of which the API says nothing, are told apart.
func TestCheckWorkloads(t *testing.T) {
	late := deployment("kube-system", "cilium-operator", "x")
	late.Status.ReadyReplicas, late.Status.AvailableReplicas = 0, 0
	none := deployment(boxSystem, "liteboxd-web", "x")
	none.Spec.Replicas = new(int32)
	const cilium = "DaemonSet kube-system/cilium ok, Deployment kube-system/cilium-operator ok, DaemonSet kube-system/cilium-envoy ok"
	const box = "Deployment liteboxd-system/liteboxd-api ok, Deployment liteboxd-system/liteboxd-gateway ok, " +
		"Deployment liteboxd-system/liteboxd-network-controller ok, Deployment liteboxd-system/liteboxd-web ok"
	for _, test := range []struct {
		name string
		make func(*platform)
		want string
	}{
		{"well", func(*platform) {}, cilium + "; " + box},
		{"late", func(p *platform) { p.api.Put(t, late) }, strings.Replace(cilium, "operator ok", "operator failed", 1) + "; " + box},
		{"scaled to none", func(p *platform) { p.api.Put(t, none) }, cilium + "; " + strings.Replace(box, "web ok", "web failed", 1)},
		{"a node more than it covers", func(p *platform) { p.api.Put(t, aNode("third")) }, strings.ReplaceAll(strings.Replace(cilium, "cilium ok", "cilium failed", 1), "envoy ok", "envoy failed") + "; " + box},
		{"no answer", func(p *platform) { p.api.Answer("/apis/apps/v1/namespaces/kube-system/daemonsets", unavailable) }, "failed; " + box},
		{"no sense", func(p *platform) { p.api.Answer("/apis/apps/v1/namespaces/"+boxSystem+"/deployments", senseless) }, cilium + "; failed"},
	} {
		p := looked(t, boxesConfig)
		test.make(p)
		ciliums, boxes := p.checkCilium(t.Context()), p.checkDeployments(t.Context())
		if got := short(ciliums) + "; " + short(boxes); got != test.want {
			t.Errorf("%s: %s", test.name, got)
		}
		fit(t, append(ciliums, boxes...))
	}
}

// Names are looked up from a pod on a node, which is gone after that, whatever it has printed.
func TestCheckDNS(t *testing.T) {
	target := `{"kind":"name","target":"kubernetes.default.svc"}`
	for _, test := range []struct {
		name   string
		config string
		make   func(*platform, *prober)
		log    *string
		want   string
		detail string
	}{
		{name: "well", want: "Deployment kube-system/coredns ok, from a pod ok"},
		{name: "no answer", make: func(_ *platform, r *prober) {
			r.find = func(*corev1.Pod, reach.ProbeTarget) reach.State { return reach.Silent }
		}, want: "Deployment kube-system/coredns ok, from a pod failed", detail: "kubernetes.default.svc is not found"},
		{name: "turned off", config: strings.Replace(sitetest.ExampleConfig, "--disable=traefik", "--disable=coredns", 1), want: "skipped"},
		{name: "no CoreDNS", make: func(p *platform, _ *prober) {
			p.api.Answer("/apis/apps/v1/namespaces/kube-system/deployments", none("DeploymentList"))
		}, want: "Deployment kube-system/coredns failed, from a pod failed", detail: "there is no Deployment kube-system/coredns"},
		{name: "no node for it", make: func(p *platform, _ *prober) {
			for _, h := range p.inspector.Site.Hosts {
				p.factless[h] = fmt.Errorf("no such file")
			}
		}, want: "Deployment kube-system/coredns ok, from a pod failed", detail: "no host has a Ready node and a boxlift-node that answers"},
		{name: "pods are refused", make: func(p *platform, _ *prober) {
			p.api.Answer("/api/v1/namespaces/kube-system/pods", func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "admission webhook \x1b[31mdenied", http.StatusForbidden)
			})
		}, want: "Deployment kube-system/coredns ok, from a pod failed", detail: "run boxlift-node in a pod"},
		{name: "it printed nothing", log: new(string), want: "Deployment kube-system/coredns ok, from a pod failed", detail: "read the answer of boxlift-node"},
		{name: "a result too few", log: text(`{"version":1,"results":[{` + target[1:len(target)-1] + `,"state":"ok"}]}` + "\n"), want: "Deployment kube-system/coredns ok, from a pod failed", detail: "with 1 results"},
		{name: "no results", log: text("\x1b[2Jpanic: \x00"), want: "Deployment kube-system/coredns ok, from a pod failed", detail: "read the answer of boxlift-node"},
		{name: "far too much", log: text(strings.Repeat("x", 1<<20)), want: "Deployment kube-system/coredns ok, from a pod failed", detail: "read the answer of boxlift-node"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.config == "" {
				test.config = sitetest.ExampleConfig
			}
			p, r := looked(t, test.config), &prober{find: well}
			p.api.Kubelet(func(pod *corev1.Pod) string {
				log := r.run(pod)
				if test.log != nil {
					return *test.log
				}
				return log
			})
			if test.make != nil {
				test.make(p, r)
			}
			checks := p.checkDNS(t.Context())
			if got := short(checks); got != test.want {
				t.Errorf("%s", got)
			}
			if last := checks[len(checks)-1]; !strings.Contains(last.Detail, test.detail) {
				t.Errorf("%q", last.Detail)
			}
			fit(t, checks)
			if known := p.fromPod.api != nil; known != (test.name == "well" || test.name == "no answer") {
				t.Errorf("that a pod reaches the API is known: %t", known)
			}
			for _, pod := range r.pods {
				c := pod.Spec.Containers[0]
				if c.Image != "registry.lan/coredns:1" || c.ImagePullPolicy != corev1.PullNever || pod.Spec.Volumes[0].HostPath.Path != site.HelperPath {
					t.Errorf("the pod is %+v", pod.Spec)
				}
			}
			if test.name != "pods are refused" {
				p.noPodsLeft(t)
			}
		})
	}
}

func text(s string) *string { return &s }

// A sandbox is compared with a pod that nothing forbids anything, and sends nothing out of the network unasked.
func TestCheckSandbox(t *testing.T) {
	open := func(*corev1.Pod, reach.ProbeTarget) reach.State { return reach.OK }
	for _, test := range []struct {
		name string
		only []string
		find func(*corev1.Pod, reach.ProbeTarget) reach.State
		make func(*platform)
		want string // DNS, API, internet
		pods int
	}{
		{name: "well", find: well, want: "ok, ok, skipped", pods: 1},
		{name: "well, and the internet is asked for", only: []string{checkSandboxNet}, find: well, want: "ok, ok, ok", pods: 2},
		{name: "names that come a moment late", find: func(pod *corev1.Pod, t reach.ProbeTarget) reach.State {
			if t.Kind == reach.ProbeName && pod.Spec.Containers[0].Args[2] == firstWait.String() {
				return reach.Silent
			}
			return well(pod, t)
		}, want: "ok, ok, skipped", pods: 2},
		{name: "no policies", find: open, want: "ok, failed, skipped", pods: 2},
		{name: "no policies, and the internet is asked for", only: []string{checkSandboxNet}, find: open, want: "ok, failed, skipped", pods: 2},
		{name: "policies that come a moment late", find: func(pod *corev1.Pod, t reach.ProbeTarget) reach.State {
			if pod.Spec.InitContainers[0].Args[2] == glance.String() {
				return reach.OK
			}
			return well(pod, t)
		}, want: "ok, ok, skipped", pods: 2},
		{name: "no web image", make: func(p *platform) {
			p.api.Answer("/apis/apps/v1/namespaces/"+boxSystem+"/deployments", unavailable)
		}, find: well, want: "failed, failed, failed"},
		{name: "no Service of the API", make: func(p *platform) {
			p.api.Answer("/api/v1/namespaces/default/services", none("ServiceList"))
		}, find: well, want: "failed, failed, failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, r := looked(t, boxesConfig), &prober{find: test.find}
			p.api.Kubelet(r.run)
			p.only = test.only
			p.fromPod.once.Do(func() { p.fromPod.api = &reach.ProbeResult{State: reach.OK} })
			if test.make != nil {
				test.make(p)
			}
			checks := p.checkSandbox(t.Context())
			if got := short(checks); got != test.want || len(r.pods) != test.pods {
				t.Errorf("%s, with %d pods: %+v", got, len(r.pods), checks)
			}
			fit(t, checks)
			if asked, want := slices.Contains(r.asked, internetTarget), test.want == "ok, ok, ok"; asked != want {
				t.Errorf("something was sent out of the network: %t", asked)
			}
			for i, pod := range r.pods {
				if pod.Namespace != boxSandbox || pod.Labels["app"] == "" || len(pod.Spec.InitContainers) != enforceLooks {
					t.Errorf("pod %d is %+v", i, pod)
				}
			}
			p.noPodsLeft(t)
		})
	}
}

// The way from the gateway is tried in the network of a gateway's own pod, on the host that has it.
func TestCheckGateway(t *testing.T) {
	gateway := func(change ...func(*corev1.Pod)) *corev1.Pod {
		g := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: boxSystem, Name: "gateway-1", UID: "0a-1b", Labels: map[string]string{"app": "liteboxd-gateway"}}}
		g.Spec.NodeName = "first"
		g.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range change {
			c(g)
		}
		return g
	}
	for _, test := range []struct {
		name string
		make func(*testing.T, *platform)
		want string
		text string
	}{
		{"well", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway())
			p.fakes[0].WriteFile(t, "/proc/17/cgroup", "0::/kubepods.slice/kubepods-pod0a_1b.slice/x\n", 0o644)
		}, "ok", "from gateway-1 on first to a pod in the place of a sandbox on host-1, port 80: answered with HTTP 200"},
		{"as cgroups of others have it", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway())
			p.fakes[0].WriteFile(t, "/proc/17/cgroup", "0::/kubepods/pod0a-1b/x\n", 0o644)
		}, "ok", "answered"},
		{"no gateway", func(*testing.T, *platform) {}, "failed", "no pod of the gateway is ready"},
		{"one that starts", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway(func(g *corev1.Pod) { g.Status.Conditions = nil }))
		}, "failed", "no pod of the gateway is ready"},
		{"on a host that was not reached", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway())
			p.inspector.Site.Hosts[0].Err = fmt.Errorf("no route")
		}, "failed", "runs on a host that was not reached: first (10.0.0.11)"},
		{"its process has gone", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway())
			p.fakes[0].WriteFile(t, "/proc/17/cgroup", "0::/init.scope\n", 0o644)
		}, "failed", "no process of the pod runs on this host"},
		{"an answer that is none", func(t *testing.T, p *platform) {
			p.api.Put(t, gateway())
			p.fakes[0].WriteFile(t, "/proc/17/cgroup", "0::/kubepods/pod0a-1b/x\n", 0o644)
			p.fakes[0].Program("nsenter", hosttest.Prints("\x1b[31m"+strings.Repeat("x", 1<<20)))
		}, "failed", "read the answer of boxlift-node"},
		{"no API", func(_ *testing.T, p *platform) { p.api.Answer("/api/v1/namespaces/"+boxSystem+"/pods", unavailable) }, "failed", "list pods"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := looked(t, boxesConfig)
			p.api.Kubelet(func(pod *corev1.Pod) string {
				pod.Spec.NodeName, pod.Status.Phase, pod.Status.PodIP = "host-1", corev1.PodRunning, "10.42.0.9"
				return ""
			})
			p.fakes[0].Program("nsenter", func(_ context.Context, c *hosttest.Call) int {
				if c.Args[0] != "--net=/proc/17/ns/net" || c.Args[2] != site.HelperPath {
					_, _ = fmt.Fprintf(c.Stderr, "nsenter: %q\n", c.Args)
					return 1
				}
				targets := targetsOf(c.Args[3:])
				_, _ = fmt.Fprint(c.Stdout, report(targets, func(t reach.ProbeTarget) reach.State {
					return map[bool]reach.State{true: reach.OK, false: reach.Failed}[t.Target == "http://10.42.0.9:80/"]
				}))
				return 0
			})
			test.make(t, p)
			checks := p.checkGateway(t.Context())
			if got := short(checks); got != test.want || !strings.Contains(checks[0].Detail, test.text) {
				t.Errorf("%+v", checks)
			}
			fit(t, checks)
			p.noPodsLeft(t)
		})
	}
}

// The API is found through a server that answers; one that answers with nonsense is not taken for one that is well.
func TestReach(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(*platform)
		want string
		text string
	}{
		{"well", func(*platform) {}, "ok", "answers, and is " + version},
		{"no server was reached", func(p *platform) { p.inspector.Site.Hosts[0].Err = fmt.Errorf("no route") }, "failed", "no server was reached"},
		{"no cluster", func(p *platform) { p.fakes[0].WriteFile(t, site.K3sKubeconfig, "", 0o600) }, "failed", "no k3s server runs yet"},
		{"a kubeconfig that is none", func(p *platform) { p.fakes[0].WriteFile(t, site.K3sKubeconfig, "\x1b[31m{", 0o600) }, "failed", "kubeconfig"},
		{"a kubeconfig that leads elsewhere", func(p *platform) {
			p.fakes[0].WriteFile(t, site.K3sKubeconfig, strings.Replace(string(p.api.Local), "https://", "http://", 1), 0o600)
		}, "failed", "leads to no https server"},
		{"no nodes", func(p *platform) { p.api.Answer("/api/v1/nodes", unavailable) }, "failed", "list nodes"},
		{"senseless nodes", func(p *platform) { p.api.Answer("/api/v1/nodes", senseless) }, "failed", "list nodes"},
		{"no version", func(p *platform) { p.api.Answer("/version", unavailable) }, "failed", "version"},
		{"a version that is none", func(p *platform) { p.api.Version = "\x1b[31m" + version + "\n" }, "ok", version},
	} {
		p := looked(t, sitetest.ExampleConfig)
		p.inspector.Site.API, p.nodes = nil, nil
		p.fakes[0].WriteFile(t, site.K3sKubeconfig, string(p.api.Local), 0o600)
		test.make(p)
		err := p.reach(t.Context())
		if got := short(p.checks); got != test.want || (err == nil) != (test.want == "ok") || !strings.Contains(p.checks[0].Detail, test.text) {
			t.Errorf("%s: %+v, %v", test.name, p.checks, err)
		}
		fit(t, p.checks)
		if err == nil && len(p.nodes) != 2 {
			t.Errorf("%s: %d nodes", test.name, len(p.nodes))
		}
	}
}

// The claim of LiteBoxd's data is looked up, and an API that does not answer is no claim that is gone.
func TestCheckVolume(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: boxSystem, Name: "liteboxd-api-data"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv\x1b[31m", corev1.ClaimBound
	deleted := claim.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	lost := claim.DeepCopy()
	lost.Status.Phase = corev1.ClaimLost
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv\x1b[31m"}}
	const path = "/api/v1/namespaces/" + boxSystem + "/persistentvolumeclaims/liteboxd-api-data"
	for _, test := range []struct {
		name  string
		claim *corev1.PersistentVolumeClaim
		fail  http.HandlerFunc
		want  string
		text  string
	}{
		{"bound", claim, nil, "liteboxd-api-data ok", "is Bound to pv"},
		{"deleted", deleted, nil, "liteboxd-api-data failed", "was deleted by somebody"},
		{"lost", lost, nil, "liteboxd-api-data failed", "is Lost"},
		{"none", nil, nil, "liteboxd-api-data failed", "does not exist"},
		{"no answer", claim, unavailable, "liteboxd-api-data failed", "currently unable to handle the request"},
		{"no sense", claim, senseless, "liteboxd-api-data failed", "get PersistentVolumeClaim"},
	} {
		p := looked(t, boxesConfig)
		p.api.Put(t, volume)
		if test.claim != nil {
			p.api.Put(t, test.claim)
		}
		p.api.Answer(path, test.fail)
		checks := p.checkVolume(t.Context())
		if got := short(checks); got != test.want || !strings.Contains(checks[0].Detail, test.text) {
			t.Errorf("%s: %+v", test.name, checks)
		}
		fit(t, checks)
	}
}

// Workloads of install.yaml are told from their releases, and their pods' objects from what these have rolled out.
func TestCheckSiteWorkloads(t *testing.T) {
	const manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: backend}\n"
	in := func(status string) func(*platform) {
		return func(p *platform) {
			p.api.Put(t, kubetest.HelmReleaseOf(t, "gov", "own", "1.0.0", status, 1, manifest))
		}
	}
	for _, test := range []struct {
		name, config string
		make         func(*platform)
		want         string
	}{
		{"none is listed", "", func(*platform) {}, "skipped"},
		{"not there", "workloads: [{name: own, namespace: gov}]\n", func(*platform) {}, "own failed"},
		{"broken off", "workloads: [{name: own, namespace: gov}]\n", in("pending-install"), "own failed"},
		{"without its pods", "workloads: [{name: own, namespace: gov}]\n", in("deployed"), "own ok, Deployment gov/backend failed"},
		{"well", "workloads: [{name: own, namespace: gov}]\n", func(p *platform) {
			in("deployed")(p)
			p.api.Put(t, deployment("gov", "backend", "x"))
		}, "own ok, Deployment gov/backend ok"},
	} {
		p := looked(t, boxesConfig+test.config)
		test.make(p)
		checks := p.checkSiteWorkloads(t.Context())
		if got := short(checks); got != test.want {
			t.Errorf("%s: %s", test.name, got)
		}
		fit(t, checks)
	}
}
