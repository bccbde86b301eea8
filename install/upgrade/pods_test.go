package upgrade

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// aPod is a ready pod on the agent.
func aPod(namespace, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)}}
	p.Spec.NodeName = "host-1"
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(p)
	}
	return p
}

// unavailable is an API server that has lost its etcd.
func unavailable(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "etcdserver: \x1b[31mno leader", http.StatusServiceUnavailable)
}

// Pods that are ready on the node are those that have to be ready again, and sandboxes among them must not have been
// started anew.
func TestNotePods(t *testing.T) {
	m, _, api := toMove(t)
	box := m.upgrader.Site.Config.LiteBoxd.NamespaceSandbox
	labelled := func(labels ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = map[string]string{}
			for i := 0; i < len(labels); i += 2 {
				p.Labels[labels[i]] = labels[i+1]
			}
		}
	}
	api.Put(t,
		aPod("shop", "web"),
		aPod("shop", "starts", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		aPod("shop", "elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "first" }),
		aPod("shop", "no-sandbox", labelled("app", liteboxd.SandboxApp)),
		aPod(box, "of-a-user", labelled("app", liteboxd.SandboxApp), func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 2}, {RestartCount: 1}}
		}),
		aPod(box, "of-boxlift", labelled("app", liteboxd.SandboxApp, probe.Label, "true")),
		aPod(box, "other", labelled("app", "other")),
	)
	var k kept
	if err := m.notePods(t.Context(), &k); err != nil {
		t.Fatal(err)
	}
	want := []keptPod{
		{Namespace: box, Name: "of-a-user", UID: "uid-of-of-a-user", Restarts: 3, Sandbox: true},
		{Namespace: box, Name: "of-boxlift", UID: "uid-of-of-boxlift"},
		{Namespace: box, Name: "other", UID: "uid-of-other"},
		{Namespace: "shop", Name: "no-sandbox", UID: "uid-of-no-sandbox"},
		{Namespace: "shop", Name: "web", UID: "uid-of-web"},
	}
	slices.SortFunc(k.Pods, func(a, b keptPod) int { return strings.Compare(a.Namespace+a.Name, b.Namespace+b.Name) })
	slices.SortFunc(want, func(a, b keptPod) int { return strings.Compare(a.Namespace+a.Name, b.Namespace+b.Name) })
	if diff := cmp.Diff(want, k.Pods); diff != "" || k.Cordoned || m.host.Node != "host-1" {
		t.Errorf("cordoned %t, on %s, -want +got:\n%s", k.Cordoned, m.host.Node, diff)
	}
	for _, path := range []string{"/api/v1/nodes", "/api/v1/pods"} {
		api.Answer(path, unavailable)
		if err := m.keep(t.Context()); err == nil || m.before != nil {
			t.Errorf("%s is not answered, and the host is moved: %v", path, err)
		}
		api.Answer(path, nil)
	}
	// Of a node that is not registered, and where no server answers, nothing is known, and nothing waited for.
	for name, change := range map[string]func(){
		"not registered": func() { m.host.Hostname, m.host.Config.Host = "host-9", "10.0.0.99" },
		"no API":         func() { m.upgrader.Site.API = nil },
	} {
		change()
		k := kept{}
		if err := m.notePods(t.Context(), &k); err != nil || k.Pods != nil || k.Cordoned {
			t.Errorf("%s: %+v, %v", name, k, err)
		}
	}
}

// A sandbox that was lost is told once: a run that goes on does not wait for it any more.
func TestLostSandboxesAreToldOnce(t *testing.T) {
	m, f, api := toMove(t)
	lost, well := keptPod{Namespace: "box", Name: "lost", UID: "uid-of-lost", Sandbox: true}, keptPod{Namespace: "shop", Name: "web", UID: "uid-of-web"}
	m.before = &kept{Format: k3s.KeptFormat, Bundle: digest.FromString("x"), K3s: oldK3s, Pods: []keptPod{lost, well}}
	api.Put(t, aPod("box", "lost", func(p *corev1.Pod) { p.UID = "another" }), aPod("shop", "web"))
	f.WriteFile(t, k3s.KeptFile, "{}", 0o600)
	err := m.awaitPods(t.Context())
	if err == nil || err.Error() != "the sandbox box/lost was replaced by another pod" {
		t.Fatal(err)
	}
	found, err := readKept(t.Context(), m.host)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]keptPod{well}, found.Pods); diff != "" || found.K3s != oldK3s {
		t.Errorf("the host keeps %+v", found)
	}
	if waiting, ended, err := m.judgePods(t.Context()); waiting != "" || ended != nil || err != nil {
		t.Errorf("%q, %q, %v", waiting, ended, err)
	}
	// Where that cannot be noted, both are told.
	m.before.Pods = []keptPod{lost}
	f.BreakAfter(0)
	if err := m.awaitPods(t.Context()); err == nil || !strings.Contains(err.Error(), "replaced") || !strings.Contains(err.Error(), "connection lost") {
		t.Errorf("%v", err)
	}
}

// An API that does not answer is waited for, and says so fit for a terminal.
func TestJudgePodsWaits(t *testing.T) {
	m, _, api := toMove(t)
	m.before = &kept{Pods: []keptPod{{Namespace: "shop", Name: "web", UID: "uid-of-web"}}}
	api.Answer("/api/v1/pods", unavailable)
	waiting, _, err := m.judgePods(t.Context())
	if !strings.HasPrefix(waiting, "the API does not answer: ") || strings.Contains(waiting, "\x1b") || err != nil {
		t.Errorf("%q, %v", waiting, err)
	}
	api.Answer("/api/v1/pods", nil)
	api.Put(t, aPod("shop", "web", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }))
	if waiting, _, err := m.judgePods(t.Context()); waiting != "not ready again: shop/web" || err != nil {
		t.Errorf("%q, %v", waiting, err)
	}
}

// What draining did is taken back, on the node and in what the host keeps, once.
func TestUncordon(t *testing.T) {
	for _, isEarlier := range []bool{false, true} {
		m, f, api := toMove(t)
		n := aNode("host-1", newK3s)
		n.Spec.Unschedulable = true
		api.Put(t, n)
		k := &kept{Format: k3s.KeptFormat, Bundle: digest.FromString("x"), K3s: oldK3s, Drained: true, Pods: []keptPod{}}
		f.WriteFile(t, k3s.KeptFile, "{}", 0o600)
		m.drained = true
		if m.earlier = k; !isEarlier {
			m.before, m.earlier = k, nil
		}
		api.Answer("/api/v1/nodes/host-1", unavailable)
		if err := m.letPods(t.Context()); err == nil || !strings.Contains(err.Error(), "let pods come to the node host-1 again") || !m.drained {
			t.Errorf("drained %t, %v", m.drained, err)
		}
		api.Answer("/api/v1/nodes/host-1", nil)
		f.BreakAfter(0) // before it is noted
		if err := m.uncordon(t.Context()); err == nil || !m.drained {
			t.Errorf("drained %t, %v", m.drained, err)
		}
		f.BreakAfter(-1)
		for range 2 {
			if err := m.letPods(t.Context()); err != nil || m.drained {
				t.Errorf("drained %t, %v", m.drained, err)
			}
		}
		found, err := readKept(t.Context(), m.host)
		if err != nil || found.Drained || found.K3s != oldK3s {
			t.Errorf("the host keeps %+v, %v", found, err)
		}
		if diff := cmp.Diff([]string{"PUT /api/v1/nodes/host-1"}, api.Changes()); diff != "" {
			t.Error(diff)
		}
	}
}

// While the kubelet of a version that calls its pods unready is started again, Services keep sending to them, and no
// longer. Nothing else changes, and an API that does not do it holds nothing up.
func TestKeepEndpoints(t *testing.T) {
	const service = "/api/v1/namespaces/shop/services/web"
	for _, test := range []struct {
		name    string
		k3s     string
		change  func(*move, *kubetest.Memory)
		changes int
	}{
		{"an old kubelet", "v1.34.4+k3s1", func(*move, *kubetest.Memory) {}, 2},
		{"a new one", newK3s, func(*move, *kubetest.Memory) {}, 0},
		{"k3s is left alone", "v1.34.4+k3s1", func(m *move, _ *kubetest.Memory) { m.moves = false }, 0},
		{"no API", "v1.34.4+k3s1", func(m *move, _ *kubetest.Memory) { m.upgrader.Site.API = nil }, 0},
		{"an API that does not answer", "v1.34.4+k3s1", func(_ *move, api *kubetest.Memory) {
			api.Answer("/apis/discovery.k8s.io/v1/endpointslices", unavailable)
		}, 0},
		{"a Service that cannot be changed", "v1.34.4+k3s1", func(_ *move, api *kubetest.Memory) { api.Answer(service, unavailable) }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _, api := toMove(t)
			node := "host-1"
			api.Put(t,
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}},
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "c"}}},
				&discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
					Endpoints:  []discoveryv1.Endpoint{{NodeName: &node}},
				})
			m.moves, m.upgrader.Site.K3s = true, test.k3s
			test.change(m, api)
			end := m.keepEndpoints(t.Context())
			during := api.Changes()
			end()
			after := api.Changes()
			if len(after) != test.changes || len(during) != test.changes/2 || slices.ContainsFunc(after, func(c string) bool { return c != "PUT "+service }) {
				t.Errorf("during it: %q, in all: %q", during, after)
			}
		})
	}
}

// A node has to say by itself that it is back only where nothing else tells.
func TestNoteReport(t *testing.T) {
	reported := metav1.NewTime(time.Unix(1000, 0))
	for _, test := range []struct {
		name     string
		replaces bool
		state    string
		want     bool
	}{{"the same program", false, "active", true}, {"another program", true, "active", false}, {"it comes up already", false, "activating", false}, {"it is down", false, "inactive", false}} {
		m, f, api := toMove(t)
		n := aNode("host-1", newK3s)
		n.Status.Conditions[0].LastHeartbeatTime = reported
		api.Put(t, n)
		f.Program("systemctl", hosttest.Prints("ActiveState="+test.state+"\n"))
		m.replaces = test.replaces
		if err := m.notePods(t.Context(), &kept{}); err != nil || !m.reported.IsZero() != test.want {
			t.Errorf("%s: %v, %v", test.name, m.reported, err)
		}
	}
}

// Which failures an upgrade tolerates, and how many agents it works on at a time.
func TestBatches(t *testing.T) {
	m, _, _ := toMove(t)
	u := m.upgrader
	u.Site.Config.Runtime.Parallelism = 7
	for size, want := range map[int]int{0: 7, 1: 1, 50: 50} {
		if got := u.batchSize(Batches{Size: size}); got != want {
			t.Errorf("batches of %d: %d", size, got)
		}
	}
	for _, test := range []struct {
		done           bool
		failed, allows int
		want           bool
	}{{true, 0, 0, true}, {true, 1, 1, true}, {true, 1, 0, false}, {false, 0, 0, false}, {false, 1, 5, false}} {
		u.Upgrade = &Upgrading{Settings: Settings{Batches: Batches{MaxFailures: test.allows}}, agentsDone: test.done}
		u.Site.Agents()[0].Err = nil
		if test.failed > 0 {
			u.Site.Agents()[0].Err = errors.New("x")
		}
		u.Site.Servers()[0].Err = errors.New("a server is no agent")
		if got := u.ToleratesFailures(); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}

// Nothing but an upgrade that asks for it, over a minor version, with another program, drains a node.
func TestDrains(t *testing.T) {
	for bits := range 16 {
		m, _, _ := toMove(t)
		m.upgrader.Upgrade.Accept.Drain, m.upgrader.Cluster.Crossing.Minor, m.replaces = bits&1 != 0, bits&2 != 0, bits&4 != 0
		if bits&8 == 0 {
			m.upgrader.Site.API = nil
		}
		if got := m.drains(); got != (bits == 15) {
			t.Errorf("%04b: %t", bits, got)
		}
	}
	server := &move{host: &site.Host{Config: config.Host{Role: config.Server}}}
	if files := fmt.Sprint(server.keptFiles()); strings.Contains(files, "agent.service") {
		t.Errorf("a server keeps %s", files)
	}
}
