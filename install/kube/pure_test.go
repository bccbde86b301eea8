package kube

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const kubeconfigForm = `apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {server: %q, certificate-authority-data: %s}
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
preferences: {}
users:
- name: default
  user: {token: t0ken}
`

// answering is an API server of a few answers, and a cluster that is connected to it, whatever
// address its kubeconfig names.
func answering(t *testing.T, handler http.HandlerFunc) *Cluster {
	t.Helper()
	srv := httptest.NewTLSServer(handler)
	t.Cleanup(srv.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	c, err := Connect(Options{
		Name: "pure", Kubeconfig: fmt.Appendf(nil, kubeconfigForm, "https://192.0.2.1:6443", base64.StdEncoding.EncodeToString(ca)),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "192.0.2.1:6443" {
				return nil, fmt.Errorf("dialled %s", address)
			}
			return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The environment's proxy, read once in the life of a process, is one that does not work.
func TestConnectAsksNoProxy(t *testing.T) {
	const child = "BOXLIFT_TEST_KUBE_PROXY"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(within(t), os.Args[0], "-test.run=^TestConnectAsksNoProxy$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1", "HTTPS_PROXY=http://127.0.0.1:1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		contains(t, string(out), "--- PASS: TestConnectAsksNoProxy")
		return
	}
	proxy, err := http.ProxyFromEnvironment(httptest.NewRequest(http.MethodGet, "https://192.0.2.1:6443/", nil))
	if err != nil || proxy == nil {
		t.Fatalf("proxy %v: %v", proxy, err)
	}
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "Bearer t0ken" {
			http.Error(w, "not you", http.StatusForbidden)
		}
	})
	if err := c.WaitReady(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReadySaysWhatWasAnswered(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "[-]etcd failed: \x1b[31mreason withheld", http.StatusInternalServerError)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := c.WaitReady(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	contains(t, explained(err), "pure: the API is not ready after ", "[-]etcd failed: \uFFFD[31mreason withheld", "journalctl -u k3s")

	pressed := errors.New("somebody pressed Ctrl-C")
	cancelled, stop := context.WithCancelCause(t.Context())
	stop(pressed)
	if err := c.WaitReady(cancelled); !errors.Is(err, pressed) {
		t.Errorf("error %v, want %v", err, pressed)
	}
}

func TestBoundRequestsEndWithTheContext(t *testing.T) {
	arrived := make(chan struct{}, 1)
	c := answering(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	pressed := errors.New("somebody pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	b, err := c.bound(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-arrived
		cancel(pressed)
	}()
	if _, err := b.client.Discovery().ServerVersion(); err == nil {
		t.Fatal("an answer came")
	}
	if _, err := b.client.Discovery().ServerVersion(); !errors.Is(err, pressed) {
		t.Errorf("error %v, want %v", err, pressed)
	}
}

func TestParseKubeconfig(t *testing.T) {
	good := fmt.Sprintf(kubeconfigForm, "https://127.0.0.1:6443", "Y2E=")
	a, err := parseKubeconfig([]byte(good))
	if err != nil || a.server != "https://127.0.0.1:6443" || string(a.ca) != "ca" || a.token != "t0ken" {
		t.Fatalf("%+v: %v", a, err)
	}
	for name, c := range map[string]struct{ old, with, want string }{
		"a program to be run":    {"{token: t0ken}", "{exec: {command: /bin/sh}}", "unknown"},
		"a file to be read":      {"{token: t0ken}", "{tokenFile: /etc/shadow}", "unknown"},
		"certificate unchecked":  {"{server:", "{insecure-skip-tls-verify: true, server:", "unknown"},
		"a proxy":                {"{server:", "{proxy-url: http://evil, server:", "unknown"},
		"no TLS":                 {"https://127.0.0.1", "http://127.0.0.1", "no https server"},
		"no CA":                  {"Y2E=", `""`, "no certificate-authority-data"},
		"not base64":             {"Y2E=", "t0p-secret", "not a YAML file"},
		"no way in":              {"{token: t0ken}", "{token: ''}", "neither client certificate"},
		"no current context":     {"current-context: default", "current-context: other", "no https server"},
		"another kind":           {"kind: Config", "kind: Secret", `kind is "Secret"`},
		"two documents":          {"{token: t0ken}\n", "{token: t0ken}\n---\n{}\n", "more than one YAML document"},
		"not YAML":               {"apiVersion", "\t", "not a YAML file"},
		"a password in the text": {"t0ken}", "t0ken, password: s3cret}", "unknown"},
	} {
		text := strings.Replace(good, c.old, c.with, 1)
		_, err := parseKubeconfig([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		contains(t, err.Error(), c.want)
		for _, secret := range []string{"t0ken", "t0p-secret", "s3cret"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error has a secret: %v", name, err)
			}
		}
	}
	if _, err := parseKubeconfig(bytes.Repeat([]byte("a"), maxKubeconfig+1)); err == nil {
		t.Error("too long, and accepted")
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add(fmt.Appendf(nil, kubeconfigForm, "https://127.0.0.1:6443", "Y2E="))
	f.Add([]byte("{kind: Config, apiVersion: v1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseKubeconfig(data)
		if err == nil && (!strings.HasPrefix(strings.ToLower(a.server), "https://") || len(a.ca) == 0) {
			t.Errorf("accepted %+v", a)
		}
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("control characters in %q", err)
		}
	})
}

func node(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, f := range change {
		f(&n)
	}
	return n
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: effect})
	}
}

func TestDaemonSetRollout(t *testing.T) {
	one, two := node("n1"), node("n2")
	nodes := []corev1.Node{one, two}
	status := func(desired, updated, ready, available int32) appsv1.DaemonSetStatus {
		return appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberReady: ready, NumberAvailable: available}
	}
	for name, c := range map[string]struct {
		nodes  []corev1.Node
		status appsv1.DaemonSetStatus
		change func(*appsv1.DaemonSet)
		want   string
		done   bool
	}{
		"done":                  {nodes, status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"none is ready":         {nodes, status(2, 2, 0, 0), nil, "0 of 2 pods ready", false},
		"old ones":              {nodes, status(2, 1, 2, 2), nil, "1 of 2 pods updated", false},
		"only just ready":       {nodes, status(2, 2, 2, 1), nil, "1 of 2 pods available", false},
		"a node that came late": {append(nodes, node("n3")), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"no nodes":              {nil, status(0, 0, 0, 0), nil, "no node is registered", false},
		"not observed":          {nodes, status(2, 2, 2, 2), func(d *appsv1.DaemonSet) { d.Generation = 3 }, unseen, false},
		"for one node":          {nodes, status(1, 1, 1, 1), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = one.Labels }, "1 of 1 pods ready", true},
		"a taint":               {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"a taint that is tolerated": {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Value: "v"}}
		}, "covers 2 of 3 nodes", false},
		"all taints are tolerated": {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoExecute))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}}
		}, "covers 2 of 3 nodes", false},
		"a node that is not ready":      {append(nodes, node("n3", tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute))), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"no network, host network":      {append(nodes, node("n3", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.HostNetwork = true }, "covers 2 of 3 nodes", false},
		"no network":                    {append(nodes, node("n3", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"a taint that is only a wish":   {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectPreferNoSchedule))), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"old ones that are meant to be": {nodes, status(2, 0, 2, 2), func(d *appsv1.DaemonSet) { d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType }, "2 of 2 pods ready", true},
	} {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: c.status}
		if c.change != nil {
			c.change(d)
		}
		if r := daemonSetRollout(d, c.nodes); r.State != c.want || r.Done != c.done {
			t.Errorf("%s: %q, done %v; want %q, %v", name, r.State, r.Done, c.want, c.done)
		}
	}
}

func TestDeploymentRollout(t *testing.T) {
	apart := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector},
		}}}
	}
	status := func(all, updated, ready, available int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: all, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: available}
	}
	one := []corev1.Node{node("n1")}
	two := []corev1.Node{node("n1"), node("n2", tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule))}
	for name, c := range map[string]struct {
		nodes  []corev1.Node
		status appsv1.DeploymentStatus
		change func(*appsv1.Deployment)
		want   string
		done   bool
	}{
		"done":                                {one, status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"one of two":                          {one, status(2, 2, 1, 1), nil, "1 of 2 pods ready", false},
		"one of two, and there is one node":   {one, status(2, 2, 1, 1), apart, "1 of 1 pods ready", true},
		"one of two, and there are two nodes": {two, status(2, 2, 1, 1), apart, "1 of 2 pods ready", false},
		"none of two":                         {one, status(2, 2, 0, 0), apart, "0 of 1 pods ready", false},
		"old ones":                            {one, status(3, 2, 3, 3), nil, "1 old pods are still there", false},
		"not observed":                        {one, status(2, 2, 2, 2), func(d *appsv1.Deployment) { d.Generation = 2 }, unseen, false},
	} {
		d := deployment("d", 2)
		d.Generation, d.Status = 1, c.status
		if c.change != nil {
			c.change(d)
		}
		if r := deploymentRollout(d, c.nodes); r.State != c.want || r.Done != c.done {
			t.Errorf("%s: %q, done %v; want %q, %v", name, r.State, r.Done, c.want, c.done)
		}
	}
}

func TestStatefulSetRollout(t *testing.T) {
	partition := int32(1)
	for name, c := range map[string]struct {
		strategy appsv1.StatefulSetUpdateStrategy
		updated  int32
		want     string
	}{
		"done":      {appsv1.StatefulSetUpdateStrategy{}, 1, "1 of 1 pods ready"},
		"old":       {appsv1.StatefulSetUpdateStrategy{}, 0, "0 of 1 pods updated"},
		"partition": {appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}, 0, "1 of 1 pods ready"},
	} {
		s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{UpdateStrategy: c.strategy}, Status: appsv1.StatefulSetStatus{UpdatedReplicas: c.updated, ReadyReplicas: 1, AvailableReplicas: 1}}
		if r := statefulSetRollout(s); r.State != c.want || r.Done != strings.HasSuffix(c.want, "ready") {
			t.Errorf("%s: %q, done %v; want %q", name, r.State, r.Done, c.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 5, 0, 0, time.FixedZone("", 3600))
	r := Release{Chart: []byte("chart"), Values: map[string]any{"port": 6444, "a": map[string]any{"b": []string{"x"}}}}
	// As Helm's records have them.
	same := map[string]any{"port": 6444.0, "a": map[string]any{"b": []any{"x"}}}
	revision := func(version int, status common.Status, label string, values map[string]any) *release.Release {
		return &release.Release{
			Version: version, Config: values, Labels: map[string]string{chartLabel: label},
			Chart: &chart.Chart{Metadata: &chart.Metadata{Version: "1.18.6"}},
			Info:  &release.Info{Status: status, LastDeployed: at, Description: "because\nof this"},
		}
	}
	back := revision(3, common.StatusDeployed, r.digest(), nil)
	back.Info.RollbackRevision = 1
	for name, c := range map[string]struct {
		revisions []*release.Release
		version   string
		want      string
	}{
		"none":         {nil, "1.18.6", "not installed"},
		"same":         {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), same)}, "1.18.6", ""},
		"pending":      {[]*release.Release{revision(2, common.StatusPendingUpgrade, r.digest(), same)}, "1.18.6", "revision 2 is pending-upgrade since 2026-11-21 08:05 UTC: it was broken off"},
		"failed":       {[]*release.Release{revision(2, common.StatusFailed, r.digest(), same)}, "1.18.6", "revision 2 failed at 2026-11-21 08:05 UTC: because of this"},
		"uninstalled":  {[]*release.Release{revision(2, common.StatusUninstalled, r.digest(), same)}, "1.18.6", "revision 2 is uninstalled since 2026-11-21 08:05 UTC"},
		"newer":        {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), same)}, "1.18.12", "chart 1.18.6 -> 1.18.12"},
		"contents":     {[]*release.Release{revision(1, common.StatusDeployed, "other", same)}, "1.18.6", "chart 1.18.6 has other contents"},
		"of others":    {[]*release.Release{revision(1, common.StatusDeployed, "", same)}, "1.18.6", "was not installed by boxlift"},
		"values":       {[]*release.Release{revision(1, common.StatusDeployed, r.digest(), map[string]any{"port": 6444.0, "c": 1})}, "1.18.6", "values changed: a, c"},
		"rolled back":  {[]*release.Release{revision(1, common.StatusSuperseded, r.digest(), nil), revision(2, common.StatusFailed, "", nil), back}, "1.18.12", "chart 1.18.6 -> 1.18.12, values changed: a, port (rolled back at 2026-11-21 08:05 UTC; before that: because of this)"},
		"last of many": {[]*release.Release{revision(1, common.StatusFailed, "", nil), revision(2, common.StatusDeployed, r.digest(), same)}, "1.18.6", ""},
	} {
		if got := differs(c.revisions, r, &chart.Chart{Metadata: &chart.Metadata{Version: c.version}}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What a kubelet or another part of the cluster has ended is told from what ends by itself.
func TestPodEndedBy(t *testing.T) {
	tests := []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"it runs", corev1.PodStatus{Phase: corev1.PodRunning}, ""},
		{"it failed by itself", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}}}, ""},
		{"the kubelet says why", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, "Evicted"},
		{"a condition says why", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Reason: "PodFailed"}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}}, "DeletionByTaintManager"},
		{"it is no longer to end", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "PreemptionByScheduler"}}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := newPod(&corev1.Pod{Status: test.status}).Reason; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestForbids(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	budget := func(name, app string, allowed int32) policyv1.PodDisruptionBudget {
		return policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 2}}
	}
	for name, c := range map[string]struct {
		budgets []policyv1.PodDisruptionBudget
		want    string
	}{
		"none":          {nil, ""},
		"another's":     {[]policyv1.PodDisruptionBudget{budget("b", "db", 0)}, ""},
		"allows":        {[]policyv1.PodDisruptionBudget{budget("b", "web", 1)}, ""},
		"forbids":       {[]policyv1.PodDisruptionBudget{budget("b", "web", 0)}, "PodDisruptionBudget b does not let go: it allows 0 disruptions, with 1 pods healthy and 2 needed"},
		"more than one": {[]policyv1.PodDisruptionBudget{budget("b", "web", 1), budget("c", "web", 1)}, "more than one PodDisruptionBudget covers, which Kubernetes does not support: b, c"},
	} {
		if got := forbids(c.budgets, pod); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTroubles(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "i:1"}},
			Containers:     []corev1.Container{{Name: "pull", Image: "p:1"}, {Name: "loop", Image: "l:1"}, {Name: "soon", Image: "s:1"}, {Name: "fine", Image: "f:1"}, {Name: "again", Image: "a:1"}, {Name: "late", Image: "t:1"}},
		},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", State: ended(3, "Error")}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "pull", State: waiting("ImagePullBackOff", `Back-off pulling image "p:1"`)},
				{Name: "loop", State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: ended(137, "OOMKilled"), RestartCount: 4},
				{Name: "soon", State: waiting("ContainerCreating", "")},
				{Name: "fine", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Ready: true},
				{Name: "again", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: ended(1, "Error"), RestartCount: 1},
				{Name: "late", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}},
			},
		},
	}
	var got []string
	for _, trouble := range troubles(pod) {
		got = append(got, fmt.Sprint(trouble.crashes, trouble.unready, " ", trouble.text))
	}
	want := []string{
		"true false container init (image i:1) has ended: exit code 3",
		`false false container pull (image p:1) waits: ImagePullBackOff: Back-off pulling image "p:1"`,
		"true false container loop (image l:1) crashes: CrashLoopBackOff: exit code 137 (OOMKilled), started 4 times again",
		"true false container again (image a:1) runs again after it had ended: exit code 1, started 1 times again",
		"false true container late (image t:1) runs for 0s and is not ready",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("troubles (-want +got):\n%s", diff)
	}
}

func TestEventTexts(t *testing.T) {
	now := time.Now()
	event := func(kind, reason, message string, ago time.Duration) corev1.Event {
		return corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	var events []corev1.Event
	for i := range 4 {
		events = append(events, event("Normal", fmt.Sprint("N", i), "n", time.Duration(i)*time.Hour))
	}
	events = append(events, event("Warning", "Old", "w", 9*time.Hour), event("Warning", "New", "w", 8*time.Hour), event("Warning", "New", "w", 10*time.Hour))
	sortEvents(events)
	var reasons []string
	for _, text := range eventTexts(events) {
		reasons = append(reasons, strings.Fields(text)[2])
	}
	if diff := cmp.Diff([]string{"New", "Old", "N0", "N1", "N2"}, reasons); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Whatever an object says, an explanation stays small and does nothing to a terminal.
func TestExplanationIsBounded(t *testing.T) {
	hostile := strings.Repeat("\x1b[2J\u202e evil\r\n", 1000)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			var list corev1.PodList
			for i := range 5 {
				p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Status: corev1.PodStatus{Message: hostile}}
				for range 40 {
					p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "X", Status: "False", Message: hostile})
				}
				list.Items = append(list.Items, p)
			}
			answer(t, w, "PodList", list)
		case strings.HasSuffix(r.URL.Path, "/events"):
			answer(t, w, "EventList", corev1.EventList{Items: []corev1.Event{{Type: hostile, Reason: hostile, Message: hostile}}})
		case strings.HasSuffix(r.URL.Path, "/nodes"):
			answer(t, w, "NodeList", corev1.NodeList{})
		default:
			answer(t, w, "DaemonSet", appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{}}})
		}
	})
	text := c.Explain(within(t), Object{DaemonSet, "default", "x"})
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != explainLines {
		t.Errorf("%d lines, want %d", len(lines), explainLines)
	}
	for _, line := range lines {
		if n := len([]rune(strings.TrimLeft(line, " "))); n > maxBrief {
			t.Errorf("a line of %d characters", n)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) || r == '\u202e' }) {
			t.Errorf("not printable: %q", line)
		}
	}
}

func answer(t *testing.T, w http.ResponseWriter, kind string, object any) {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Error(err)
	}
	group := "v1"
	if kind == "DaemonSet" || kind == "Deployment" {
		group = "apps/v1"
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Error(err)
	}
	fields["kind"], fields["apiVersion"] = kind, group
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(fields); err != nil {
		t.Error(err)
	}
}

func TestRender(t *testing.T) {
	r := Release{Name: "demo", Namespace: "demo", Values: map[string]any{"image": "registry.test/b:2@sha256:00"}, Chart: chartOf(t, "1.0.0", map[string]string{
		"templates/main.yaml": workloadTemplate("Deployment", "demo", "", "{{ .Values.image }}"),
		"templates/hook.yaml": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\nspec: {template: {spec: {initContainers: [{image: registry.test/a:1}]}}}\n",
		"crds/own.yaml":       "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: own}\n",
		"Chart.yaml":          "apiVersion: v2\nname: demo\nversion: 1.0.0\nkubeVersion: '>=1.30.0-0'\n",
	})}
	manifest, err := RenderRelease(t.Context(), r, "v1.34.4+k3s1")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(manifest), "kind: CustomResourceDefinition", "kind: Job", "kind: Deployment")
	images, err := Images(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"registry.test/a:1", "registry.test/b:2@sha256:00"}, images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if _, err := RenderRelease(t.Context(), r, "v1.29.0"); err == nil {
		t.Error("rendered for a Kubernetes that the chart does not want")
	}
	for name, bad := range map[string]Release{
		"not a chart": {Name: "demo", Namespace: "demo", Chart: []byte("not a chart")},
		"no name":     {Namespace: "demo", Chart: r.Chart},
		"no value":    {Name: "demo", Namespace: "demo", Chart: r.Chart, Values: map[string]any{"x": map[any]any{1: 2}}},
	} {
		if _, err := RenderRelease(t.Context(), bad, "v1.34.4"); err == nil {
			t.Errorf("%s: rendered", name)
		}
	}
}

func FuzzImages(f *testing.F) {
	f.Add([]byte("spec: {containers: [{image: a}], initContainers: [{image: b}]}\n---\n[{containers: 1}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		images, err := Images(data)
		if err != nil {
			return
		}
		for i := 1; i < len(images); i++ {
			if images[i-1] >= images[i] {
				t.Errorf("not sorted, or twice: %q", images)
			}
		}
	})
}

// The libraries' own logs are turned off when the first cluster is connected.
func TestSilence(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Warning", `299 - "old"`) })
	_, versionErr := c.Version(within(t))
	os.Stderr = stderr
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if versionErr == nil {
		t.Error("an empty answer is a version")
	}
	if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
		t.Errorf("on standard error: %q, %v", text, err)
	}
}
