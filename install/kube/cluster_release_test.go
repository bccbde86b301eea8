package kube_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// demo is a release of its own namespace, which goes when the test ends.
func (c *testCluster) demo(t *testing.T, values map[string]any) helm.Release {
	t.Helper()
	namespace := "demo-" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "/", "-"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return helm.Release{Name: "demo", Namespace: namespace, Chart: demoChart(t, "1.0.0"), Values: values, Timeout: time.Minute}
}

func (c *testCluster) differs(t *testing.T, r helm.Release) string {
	t.Helper()
	reason, err := helm.Differs(kubetest.Within(t), c.Cluster, r)
	if err != nil {
		t.Fatal(err)
	}
	return reason
}

func (c *testCluster) apply(t *testing.T, r helm.Release) {
	t.Helper()
	if err := helm.Apply(kubetest.Within(t), c.Cluster, r, func(text string) { t.Log(text) }); err != nil {
		t.Fatal(kubetest.Explained(err))
	}
	if reason := c.differs(t, r); reason != "" {
		t.Fatalf("just applied, and it differs: %s", reason)
	}
}

func (c *testCluster) state(t *testing.T, r helm.Release) *helm.State {
	t.Helper()
	s, err := helm.Current(kubetest.Within(t), c.Cluster, r.Namespace, r.Name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *testCluster) image(t *testing.T, r helm.Release) string {
	t.Helper()
	d, err := c.Client.AppsV1().Deployments(r.Namespace).Get(kubetest.Within(t), "demo", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0].Image
}

func TestRelease(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx := kubetest.Within(t)
	r := c.demo(t, map[string]any{"text": "one", "nested": map[string]any{"secret": "s3cret-value"}})
	if s := c.state(t, r); s != nil {
		t.Errorf("before it is installed, its state is %+v", s)
	}
	if got := c.differs(t, r); got != "not installed" {
		t.Errorf("reason %q", got)
	}
	c.apply(t, r)
	rollouts, err := c.Rollouts(ctx, r.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, rollout := range rollouts {
		states = append(states, rollout.String())
	}
	if want := []string{"DaemonSet " + r.Namespace + "/demo-agent: 2 of 2 pods ready", "Deployment " + r.Namespace + "/demo: 1 of 1 pods ready"}; !slices.Equal(states, want) {
		t.Errorf("rolled out are %q, want %q", states, want)
	}
	if want := []string{toolImage}; !slices.Equal(rollouts[0].Images, want) {
		t.Errorf("images %q, want %q", rollouts[0].Images, want)
	}

	// Values.
	r.Values = map[string]any{"text": "two", "nested": map[string]any{"secret": "another-s3cret"}}
	if got := c.differs(t, r); got != "values changed: nested.secret, text" {
		t.Errorf("reason %q", got)
	}
	c.apply(t, r)
	config, err := c.Client.CoreV1().ConfigMaps(r.Namespace).Get(ctx, "demo", metav1.GetOptions{})
	if err != nil || config.Data["text"] != "two" {
		t.Errorf("the ConfigMap has %v: %v", config.Data, err)
	}

	// Another chart.
	r.Chart = demoChart(t, "1.1.0")
	if got := c.differs(t, r); got != "chart 1.0.0 -> 1.1.0" {
		t.Errorf("reason %q", got)
	}
	c.apply(t, r)
	r.Chart = kubetest.Chart(t, "1.1.0", map[string]string{"templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: only}\n"})
	if got := c.differs(t, r); got != "chart 1.1.0 has other contents" {
		t.Errorf("reason %q", got)
	}

	// What somebody else does in the cluster.
	r.Chart = demoChart(t, "1.1.0")
	scale := []byte(`{"spec":{"replicas":0}}`)
	if _, err := c.Client.AppsV1().Deployments(r.Namespace).Patch(ctx, "demo", types.MergePatchType, scale, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.AppsV1().DaemonSets(r.Namespace).Delete(ctx, "demo-agent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got := c.differs(t, r)
	kubetest.Contains(t, got, "DaemonSet "+r.Namespace+"/demo-agent is missing",
		"Deployment "+r.Namespace+"/demo was changed: spec.replicas")
	c.apply(t, r)
	if s := c.state(t, r); s.Status != "deployed" || s.Revision != 4 || s.ChartVersion != "1.1.0" || s.Chart != "demo" || s.Values["text"] != "two" {
		t.Errorf("state %+v", s)
	}
}

func TestUpgradeRollsBack(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := c.demo(t, map[string]any{"text": "good"})
	c.apply(t, r)

	bad := r
	bad.Chart = demoChart(t, "2.0.0")
	bad.Values = map[string]any{"agentImage": noImage, "extra": true}
	bad.Timeout = 8 * time.Second
	var told []string
	err := helm.Apply(kubetest.Within(t), c.Cluster, bad, func(text string) { told = append(told, text) })
	if err == nil {
		t.Fatal("an upgrade to an image that does not exist succeeded")
	}
	t.Log(kubetest.Explained(err))
	kubetest.Contains(t, err.Error(), "test: upgrade release "+r.Namespace+"/demo from chart 1.0.0 to 2.0.0",
		"DaemonSet "+r.Namespace+"/demo-agent", noImage, "rolled back to revision 1, chart 1.0.0")
	kubetest.Contains(t, kubetest.Explained(err), "event Warning Failed", "container main (image "+noImage+") waits: ")
	if !slices.ContainsFunc(told, func(text string) bool { return strings.Contains(text, "rolling back to revision 1") }) {
		t.Errorf("told %q", told)
	}
	if s := c.state(t, r); s.Status != "deployed" || s.Revision != 3 || s.ChartVersion != "1.0.0" {
		t.Errorf("state %+v", s)
	}
	if _, err := c.Client.CoreV1().ConfigMaps(r.Namespace).Get(kubetest.Within(t), "extra", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what only the failed revision had is still there: %v", err)
	}
	if got := c.differs(t, r); got != "" {
		t.Errorf("after the rollback the old release differs: %s", got)
	}
	kubetest.Contains(t, c.differs(t, bad), "chart 1.0.0 -> 2.0.0", "values changed: ", "rolled back at ",
		"not rolled out after")
}

// The upgrade cannot even be rendered: nothing has happened.
func TestUpgradeThatIsRefused(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := c.demo(t, nil)
	c.apply(t, r)
	bad := r
	bad.Chart = kubetest.Chart(t, "3.0.0", map[string]string{"templates/x.yaml": `{{ fail "not like this" }}`})
	err := helm.Apply(kubetest.Within(t), c.Cluster, bad, nil)
	if err == nil {
		t.Fatal("a chart that refuses was installed")
	}
	kubetest.Contains(t, err.Error(), "not like this", "nothing was changed")
	if got := c.differs(t, r); got != "" {
		t.Errorf("the old release differs: %s", got)
	}
}

// A first installation stays as it is, and the next one mends it.
func TestInstallThatFails(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	bad := c.demo(t, map[string]any{"image": noImage, "extra": true})
	bad.Timeout = 4 * time.Second
	err := helm.Apply(kubetest.Within(t), c.Cluster, bad, nil)
	if err == nil {
		t.Fatal("an image that does not exist was installed")
	}
	kubetest.Contains(t, err.Error(), "install release "+bad.Namespace+"/demo, chart 1.0.0: not rolled out after ",
		"Deployment "+bad.Namespace+"/demo: ")
	kubetest.Contains(t, c.differs(t, bad), "revision 1 failed at ", "not rolled out")
	good := bad
	good.Values, good.Timeout = nil, time.Minute
	c.apply(t, good)
	if _, err := c.Client.CoreV1().ConfigMaps(good.Namespace).Get(kubetest.Within(t), "extra", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what only the failed revision had is still there: %v", err)
	}
}

func TestKilled(t *testing.T) {
	c := cluster(t)
	for name, test := range map[string]struct {
		installed bool     // an earlier revision
		when      []string // what it says, one after the other
		status    string
		timeout   time.Duration
	}{
		"install":  {false, []string{"pods ready"}, "pending-install", time.Minute},
		"upgrade":  {true, []string{"pods updated"}, "pending-upgrade", time.Minute},
		"rollback": {true, []string{"rolling back", "DaemonSet"}, "pending-rollback", 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.demo(t, nil)
			if test.installed {
				c.apply(t, r)
			}
			broken := r
			broken.Values = map[string]any{"agentImage": noImage, "extra": true}
			broken.Timeout = test.timeout
			c.kill(t, broken, test.when)
			state := c.state(t, r)
			t.Logf("the victim left %+v", state)
			if state.Status != test.status {
				t.Errorf("the victim left status %s, want %s", state.Status, test.status)
			}
			kubetest.Contains(t, c.differs(t, r), "is "+test.status+" since ")
			// Other values than the victim's: what only its revision had must go.
			c.apply(t, r)
			if got := c.image(t, r); got != toolImage {
				t.Errorf("image %s", got)
			}
			if _, err := c.Client.CoreV1().ConfigMaps(r.Namespace).Get(kubetest.Within(t), "extra", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("what only the broken-off revision had is still there: %v", err)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := c.demo(t, nil)
	c.apply(t, r)
	bad := r
	bad.Values = map[string]any{"image": noImage}
	ctx, cancel := context.WithCancelCause(kubetest.Within(t))
	pressed := errors.New("somebody pressed Ctrl-C")
	err := helm.Apply(ctx, c.Cluster, bad, func(text string) {
		if strings.Contains(text, "Deployment") {
			cancel(pressed)
		}
	})
	if !errors.Is(err, pressed) {
		t.Fatalf("error %v, want %v", err, pressed)
	}
	kubetest.Contains(t, err.Error(), "broken off; the same command goes on from here")
	if s := c.state(t, r); s.Status != "failed" || s.Revision != 2 {
		t.Errorf("state %+v", s)
	}
	c.apply(t, r)
}

// Each workload that is not rolled out is named, also one that does not exist.
func TestWaitRolloutsThatNeverEnd(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := c.demo(t, map[string]any{"image": noImage})
	r.Timeout = time.Second
	if err := helm.Apply(kubetest.Within(t), c.Cluster, r, nil); err == nil {
		t.Fatal("installed")
	}
	if err := wait.Rollouts(kubetest.Within(t), c.Cluster, r.Namespace, []kube.Workload{{Kind: kube.DaemonSet, Name: "demo-agent"}}, nil); err != nil {
		t.Fatal(kubetest.Explained(err))
	}
	ctx, cancel := context.WithTimeout(kubetest.Within(t), time.Second)
	defer cancel()
	err := wait.Rollouts(ctx, c.Cluster, r.Namespace, []kube.Workload{{Kind: kube.DaemonSet, Name: "demo-agent"}, {Kind: kube.Deployment, Name: "demo"}, {Kind: kube.StatefulSet, Name: "none"}}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	kubetest.Contains(t, err.Error(), "test: not rolled out after ",
		"Deployment "+r.Namespace+"/demo: 0 of 1 pods ready", "StatefulSet "+r.Namespace+"/none: does not exist")
	kubetest.Contains(t, kubetest.Explained(err), "k3s kubectl -n "+r.Namespace+" describe deployment demo")
}

func TestExplainCrash(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx := kubetest.Within(t)
	r := c.demo(t, nil)
	if err := c.makeNamespace(ctx, r.Namespace); err != nil {
		t.Fatal(err)
	}
	d := crashing("crash", "get", "http://127.0.0.1:1/")
	if _, err := c.Client.AppsV1().Deployments(r.Namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A program that ends at once is ready until then, each time it is started.
	o := kube.Object{Kind: kube.Deployment, Namespace: r.Namespace, Name: "crash"}
	want := []string{
		"Deployment " + r.Namespace + "/crash: 0 of 1 pods ready", "condition Available is False",
		"container main (image " + toolImage + ")", "exit code 1", "log: netcheck:", "connection refused", "event ",
	}
	var text string
	if !kube.Poll(ctx, kube.PollInterval, func() bool {
		text = explain.Object(ctx, c.Cluster, o)
		return !slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(text, part) })
	}) {
		kubetest.Contains(t, text, want...)
		t.Fatal("the crash was never explained")
	}
	t.Log(text)
}

func crashing(name string, args ...string) *appsv1.Deployment {
	d := kubetest.Deployment(name, 1, toolImage)
	d.Spec.Template.Spec.Containers[0].Args = args
	return d
}
