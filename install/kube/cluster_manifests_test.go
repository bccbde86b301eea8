package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// site is a release in kube-system whose objects lie in two namespaces of its own.
type site struct {
	*testCluster
	helm.Release
	a, b string // the namespaces
}

var middlewares = schema.GroupVersionResource{Group: "traefik.io", Version: "v1alpha1", Resource: "middlewares"}

const middlewareDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: middlewares.traefik.io}
spec:
  group: traefik.io
  names: {kind: Middleware, listKind: MiddlewareList, plural: middlewares, singular: middleware}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// newSite makes what the cluster has before: the kind Middleware, and a storage class with a
// volume for the claim.
func newSite(t *testing.T, c *testCluster) *site {
	t.Helper()
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	s := &site{testCluster: c, a: name + "-a", b: name + "-b"}
	s.Release = helm.Release{Name: name, Namespace: "kube-system", Timeout: time.Minute}
	ctx := kubetest.Within(t)
	s.create(ctx, t, middlewareDefinition)
	s.create(ctx, t, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: later}\nprovisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n")
	s.create(ctx, t, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: later
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: %s, name: data}
  hostPath: {path: /var/lib/site/%[1]s, type: DirectoryOrCreate}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[3]s]}]}]}}
`, name, s.a, agent))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		core := c.Client.CoreV1()
		gone := errors.Join(core.Namespaces().Delete(ctx, s.a, metav1.DeleteOptions{}),
			core.PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}))
		if err := core.Namespaces().Delete(ctx, s.b, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			gone = errors.Join(gone, err)
		}
		if gone != nil {
			t.Error(gone)
		}
	})
	return s
}

// create makes an object of a cluster, unless an earlier test has.
func (s *site) create(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	if err := s.make(ctx, text); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if !strings.Contains(text, "kind: CustomResourceDefinition") {
		return
	}
	if !kube.Poll(ctx, kube.PollInterval, func() bool {
		_, err := s.Dynamic.Resource(middlewares).List(ctx, metav1.ListOptions{})
		return err == nil
	}) {
		t.Fatal("the kind is not known")
	}
}

// of returns the release with this version and these objects.
func (s *site) of(t *testing.T, version string, objects ...string) helm.Release {
	t.Helper()
	r := s.Release
	var err error
	if r.Chart, err = helm.ChartOf(r.Name, version, []byte(strings.Join(objects, "---\n"))); err != nil {
		t.Fatal(err)
	}
	return r
}

const keep = `annotations: {helm.sh/resource-policy: keep}`

func namespaceOf(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, %s}\n", name, keep)
}

func claimOf(namespace, size string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: %s, %s}\nspec: {accessModes: [ReadWriteOnce], storageClassName: later, resources: {requests: {storage: %s}}}\n", namespace, keep, size)
}

func configOf(namespace, name, text string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {text: %q}\n",
		name, namespace, text)
}

func middlewareOf(namespace string, attempts int) string {
	return fmt.Sprintf("apiVersion: traefik.io/v1alpha1\nkind: Middleware\nmetadata: {name: retry, namespace: %s}\nspec: {retry: {attempts: %d}}\n", namespace, attempts)
}

// webOf is a Deployment that mounts the claim.
func webOf(namespace, image string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: 1
  progressDeadlineSeconds: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %q, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`, namespace, image)
}

// otherOf is a Deployment without a volume.
func otherOf(namespace, image string) string {
	return strings.Replace(kubetest.Workload("Deployment", "other", "progressDeadlineSeconds: 5", image),
		"{name: other}", "{name: other, namespace: "+namespace+"}", 1)
}

func (s *site) diff(t *testing.T, r helm.Release) []helm.ObjectDiff {
	t.Helper()
	diffs, err := helm.Diff(kubetest.Within(t), s.Cluster, r)
	if err != nil {
		t.Fatal(err)
	}
	return diffs
}

func changesOf(diffs []helm.ObjectDiff) []string {
	var texts []string
	for _, d := range diffs {
		texts = append(texts, string(d.Change)+" "+d.Object.String())
	}
	return texts
}

func (s *site) wantChanges(t *testing.T, r helm.Release, want ...string) []helm.ObjectDiff {
	t.Helper()
	diffs := s.diff(t, r)
	if diff := cmp.Diff(want, changesOf(diffs)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	return diffs
}

func TestReleaseOfManifests(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster(t))
	ctx := kubetest.Within(t)
	const template = "{{ .Values.notOurs }} {{ end }}"
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: " + s.a + "}\nstringData: {password: hunter2, user: admin}\n"
	r := s.of(t, "v0.6.10", namespaceOf(s.a), namespaceOf(s.b), claimOf(s.a, "1Gi"), webOf(s.a, toolImage),
		otherOf(s.b, toolImage), middlewareOf(s.a, 2), configOf(s.a, "texts", template), secret)
	created := s.wantChanges(t, r,
		"create Namespace "+s.a, "create Namespace "+s.b, "create Secret "+s.a+"/login", "create ConfigMap "+s.a+"/texts", "create PersistentVolumeClaim "+s.a+"/data",
		"create Deployment "+s.a+"/web", "create Deployment "+s.b+"/other", "create Middleware "+s.a+"/retry")
	for _, d := range created {
		if strings.Contains(d.Diff, "hunter2") {
			t.Errorf("a Secret's data is shown:\n%s", d.Diff)
		}
	}
	s.apply(t, r)
	start := time.Now()
	s.wantChanges(t, r)
	t.Logf("comparing took %s", time.Since(start))
	config, err := s.Client.CoreV1().ConfigMaps(s.a).Get(ctx, "texts", metav1.GetOptions{})
	if err != nil || config.Data["text"] != template {
		t.Errorf("the text is %q: %v", config.Data["text"], err)
	}

	// The claim's data, and who uses it.
	claim, err := s.Claim(ctx, s.a, "data")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&kube.Claim{Phase: "Bound", StorageClass: "later", Volume: s.Name, Capacity: 1 << 30, Node: agent, Path: "/var/lib/site/" + s.Name}, claim); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}

	// What somebody else changes is seen by both in the same way.
	attempts := []byte(`{"spec":{"retry":{"attempts":9}}}`)
	if _, err := s.Dynamic.Resource(middlewares).Namespace(s.a).Patch(ctx, "retry", types.MergePatchType, attempts, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.differs(t, r); got != "Middleware "+s.a+"/retry was changed: spec.retry.attempts" {
		t.Errorf("reason %q", got)
	}
	drifted := s.wantChanges(t, r, "update Middleware "+s.a+"/retry")
	kubetest.Contains(t, drifted[0].Diff, "-    attempts: 9\n", "+    attempts: 2\n")

	// Killed in the middle of an upgrade in which objects come and go.
	secret = strings.Replace(secret, "hunter2", "hunter3", 1)
	next := s.of(t, "v0.6.11", namespaceOf(s.a), webOf(s.a, toolImage), otherOf(s.a, noImage), middlewareOf(s.a, 3),
		configOf(s.a, "more", "x"), secret)
	s.kill(t, next, []string{"other: 0 of 1 pods ready"})
	if state := s.state(t, next); state.Status != "pending-upgrade" {
		t.Errorf("state %+v", state)
	}

	final := s.of(t, "v0.6.12", namespaceOf(s.a), webOf(s.a, toolImage), middlewareOf(s.a, 3), secret)
	gone := s.wantChanges(t, final, "remove ConfigMap "+s.a+"/more", "remove Deployment "+s.a+"/other")
	kubetest.Contains(t, gone[0].Diff, "-  name: more\n")
	s.apply(t, final)
	if state := s.state(t, final); state.Status != "deployed" || state.ChartVersion != "v0.6.12" {
		t.Errorf("state %+v", state)
	}
	// Kept: the second namespace and the claim, with its data. Gone: all else.
	if claim, err = s.Claim(ctx, s.a, "data"); err != nil || claim == nil || claim.Phase != "Bound" {
		t.Errorf("claim %+v: %v", claim, err)
	}
	if n, err := s.Client.CoreV1().Namespaces().Get(ctx, s.b, metav1.GetOptions{}); err != nil || n.DeletionTimestamp != nil {
		t.Errorf("a namespace that is to be kept: %v", err)
	}
	deployments, err := s.Rollouts(ctx, s.b)
	if err != nil || len(deployments) > 0 {
		t.Errorf("still there: %v, %v", deployments, err)
	}
	configs, err := s.Client.CoreV1().ConfigMaps(s.a).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs.Items {
		if c.Name != "kube-root-ca.crt" {
			t.Errorf("ConfigMap %s is still there", c.Name)
		}
	}
	manifest, err := helm.Manifest(ctx, s.Cluster, s.Namespace, s.Name)
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, string(manifest), "attempts: 3")
	if s.kinds(t, manifest)["ConfigMap"] != 0 {
		t.Errorf("the manifest is that of another revision:\n%s", manifest)
	}
}

func (s *site) kinds(t *testing.T, manifest []byte) map[string]int {
	t.Helper()
	objects, err := helm.ManifestObjects(manifest)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.Kind]++
	}
	return kinds
}

// What the cluster would not let be changed is found before anything is changed.
func TestRefusedChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster(t))
	good := []string{namespaceOf(s.a), claimOf(s.a, "1Gi"), webOf(s.a, toolImage), configOf(s.a, "texts", "one")}
	r := s.of(t, "1.0.0", good...)
	s.apply(t, r)
	for name, test := range map[string]struct {
		objects []string
		want    []string
	}{
		"selector": {
			[]string{namespaceOf(s.a), claimOf(s.a, "1Gi"), strings.Replace(webOf(s.a, toolImage), "app: web", "app: other", 2), configOf(s.a, "texts", "two")},
			[]string{"Deployment " + s.a + "/web cannot be set to what was rendered: ", "spec.selector", "field is immutable", "hint: this cannot be changed in place", "k3s kubectl -n " + s.a + " delete deployment web"},
		},
		"claim": {
			[]string{namespaceOf(s.a), claimOf(s.a, "2Gi"), webOf(s.a, toolImage), configOf(s.a, "texts", "two")},
			[]string{"PersistentVolumeClaim " + s.a + "/data cannot be set to what was rendered: ", "hint: a claim keeps its storage class"},
		},
		"value": {
			[]string{namespaceOf(s.a), claimOf(s.a, "1Gi"), strings.Replace(webOf(s.a, toolImage), "replicas: 1", "replicas: -1", 1), configOf(s.a, "texts", "two")},
			[]string{"Deployment " + s.a + "/web cannot be set", "spec.replicas", "hint: correct the value"},
		},
	} {
		bad := s.of(t, "2.0.0", test.objects...)
		var refused []string
		for _, d := range s.diff(t, bad) {
			if d.Change == helm.Refused {
				refused = append(refused, d.Problem)
			}
		}
		if len(refused) != 1 || !strings.Contains(refused[0], test.want[0]) {
			t.Errorf("%s: the comparison says %q, want %q", name, refused, test.want[0])
		}
		err := helm.Apply(kubetest.Within(t), s.Cluster, bad, nil)
		if err == nil {
			t.Fatalf("%s: applied", name)
		}
		kubetest.Contains(t, kubetest.Explained(err), append(test.want, "upgrade release kube-system/"+s.Name+" from chart 1.0.0 to 2.0.0", "nothing was changed")...)
	}
	s.wantChanges(t, r)
	if state := s.state(t, r); state.Revision != 1 {
		t.Errorf("state %+v", state)
	}
}

// A Deployment that is over its deadline ends the wait, and a rollback after it is not
// taken for one that has failed as well.
func TestProgressDeadline(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster(t))
	ctx := kubetest.Within(t)
	base := []string{namespaceOf(s.a), namespaceOf(s.b), claimOf(s.a, "1Gi"), webOf(s.a, toolImage)}
	good := s.of(t, "1.0.0", append(base, otherOf(s.b, toolImage))...)
	if _, err := helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 0, 0, nil); !errors.Is(err, helm.ErrNoRevision) {
		t.Errorf("rolled back what is not there: %v", err)
	}
	if _, err := helm.Manifest(ctx, s.Cluster, s.Namespace, s.Name); !errors.Is(err, helm.ErrNoRevision) {
		t.Errorf("the manifest of what is not there: %v", err)
	}
	s.apply(t, good)
	if _, err := helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 0, 0, nil); !errors.Is(err, helm.ErrNoRevision) {
		t.Errorf("rolled back to nothing: %v", err)
	}

	bad := s.of(t, "2.0.0", append(base, otherOf(s.b, noImage), configOf(s.a, "extra", "x"))...)
	bad.Timeout = 10 * time.Minute // more than the test has
	err := helm.Apply(ctx, s.Cluster, bad, func(text string) { t.Log(text) })
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	t.Log(kubetest.Explained(err))
	kubetest.Contains(t, kubetest.Explained(err), "Deployment "+s.b+"/other: ",
		"its progress deadline of 5 s is exceeded", "condition Progressing is False: ProgressDeadlineExceeded", "rolled back to revision 1, chart 1.0.0", noImage)
	s.wantChanges(t, good)

	// Left as it is, and gone back from by hand.
	bad.NoRollback = true
	if err = helm.Apply(ctx, s.Cluster, bad, nil); err == nil {
		t.Fatal("applied")
	}
	kubetest.Contains(t, err.Error(), "its progress deadline of 5 s is exceeded", "not rolled back, as was asked for")
	if state := s.state(t, bad); state.Status != "failed" {
		t.Errorf("state %+v", state)
	}
	to, err := helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 0, time.Minute, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(kubetest.Explained(err))
	}
	if to != 3 { // which is the first rollback
		t.Errorf("rolled back to %d", to)
	}
	s.wantChanges(t, good)
	if got := s.differs(t, good); got != "" {
		t.Errorf("it differs: %s", got)
	}

	third := s.of(t, "3.0.0", append(base, otherOf(s.b, toolImage), configOf(s.a, "third", "x"))...)
	s.apply(t, third)
	if to, err = helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 0, time.Minute, nil); err != nil || to != 5 {
		t.Errorf("rolled back to %d: %v", to, err)
	}
	if to, err = helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 6, time.Minute, nil); err != nil || to != 6 {
		t.Errorf("rolled back to %d: %v", to, err)
	}
	s.wantChanges(t, third)
	if _, err = helm.Rollback(ctx, s.Cluster, s.Namespace, s.Name, 2, 0, nil); !errors.Is(err, helm.ErrNoRevision) {
		t.Errorf("rolled back to one that has failed: %v", err)
	}
	history, err := helm.History(ctx, s.Cluster, s.Namespace, s.Name)
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, h := range history {
		states = append(states, fmt.Sprintf("%d %s %s", h.Revision, h.ChartVersion, h.Status))
	}
	want := []string{"1 1.0.0 superseded", "2 2.0.0 failed", "3 1.0.0 superseded", "4 2.0.0 failed", "5 1.0.0 superseded", "6 3.0.0 superseded", "7 1.0.0 superseded", "8 3.0.0 deployed"}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// Objects that somebody else has made are left alone.
func TestForeignObject(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster(t))
	ctx := kubetest.Within(t)
	for range 2 {
		if err := helm.EnsureNamespace(ctx, s.Cluster, s.a, s.Name, s.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutSecret(ctx, s.a, "login", map[string][]byte{"password": []byte("one"), "old": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	theirs := []byte(`{"data":{"theirs":"eA=="}}`)
	if _, err := s.Client.CoreV1().Secrets(s.a).Patch(ctx, "login", types.MergePatchType, theirs, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutSecret(ctx, s.a, "login", map[string][]byte{"password": []byte("two")}); err != nil {
		t.Fatal(err)
	}
	data, err := s.Secret(ctx, s.a, "login")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]byte{"password": []byte("two"), "theirs": []byte("x")}, data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if none, err := s.Secret(ctx, s.a, "none"); err != nil || none != nil {
		t.Errorf("a Secret that is not there: %v, %v", none, err)
	}
	if none, err := s.Claim(ctx, s.a, "none"); err != nil || none != nil {
		t.Errorf("a claim that is not there: %v, %v", none, err)
	}

	// The release that contains the namespace takes it over, and the Secret stays.
	idle := strings.Replace(claimOf(s.a, "1Gi"), "name: data", "name: idle", 1)
	r := s.of(t, "1.0.0", namespaceOf(s.a), idle)
	s.apply(t, r)
	if err := helm.EnsureNamespace(ctx, s.Cluster, s.a, s.Name, s.Namespace); err != nil {
		t.Fatal(err)
	}
	s.wantChanges(t, r)
	claim, err := s.Claim(ctx, s.a, "idle")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&kube.Claim{Phase: "Pending", StorageClass: "later"}, claim); diff != "" {
		t.Errorf("a claim that nobody uses (-want +got):\n%s", diff)
	}
	err = helm.EnsureNamespace(ctx, s.Cluster, s.a, "other", "kube-system")
	if err == nil {
		t.Fatal("a namespace of another release was taken over")
	}
	kubetest.Contains(t, err.Error(), "namespace "+s.a+" belongs to the Helm release kube-system/"+s.Name)

	// One that an administrator has prepared keeps what it has.
	s.create(ctx, t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+s.b+", labels: {their: label}}\n")
	s.create(ctx, t, configOf(s.b, "texts", "theirs"))
	if err := helm.EnsureNamespace(ctx, s.Cluster, s.b, s.Name, s.Namespace); err != nil {
		t.Fatal(err)
	}
	r = s.of(t, "2.0.0", namespaceOf(s.a), namespaceOf(s.b))
	s.apply(t, r)
	n, err := s.Client.CoreV1().Namespaces().Get(ctx, s.b, metav1.GetOptions{})
	if err != nil || n.Labels["their"] != "label" {
		t.Errorf("labels %v: %v", n.Labels, err)
	}
	err = helm.Apply(ctx, s.Cluster, s.of(t, "3.0.0", namespaceOf(s.a), namespaceOf(s.b), configOf(s.b, "texts", "ours")), nil)
	if err == nil {
		t.Fatal("somebody else's object was overwritten")
	}
	kubetest.Contains(t, err.Error(), `ConfigMap "texts" in namespace "`+s.b+`" exists and cannot be imported`, "nothing was changed")
	kubetest.Contains(t, kubetest.Explained(err), "hint: somebody else has made it: delete it, or hand it over with the label app.kubernetes.io/managed-by=Helm")
}

func TestPods(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx := kubetest.Within(t)
	r := c.demo(t, nil)
	if err := c.makeNamespace(ctx, r.Namespace); err != nil {
		t.Fatal(err)
	}
	d := kubetest.Deployment("web", 2, toolImage)
	d.Spec.Template.Spec.NodeName = agent
	if _, err := c.Client.AppsV1().Deployments(r.Namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := wait.Rollouts(ctx, c.Cluster, r.Namespace, []kube.Workload{{Kind: kube.Deployment, Name: "web"}}, nil); err != nil {
		t.Fatal(kubetest.Explained(err))
	}
	pods, err := c.Pods(ctx, r.Namespace, "app=web")
	if err != nil || len(pods) != 2 {
		t.Fatalf("pods %+v: %v", pods, err)
	}
	for _, p := range pods {
		want := kube.Pod{Namespace: r.Namespace, Name: p.Name, UID: p.UID, Node: agent, Phase: "Running", Ready: true,
			OwnerKind: "ReplicaSet", Labels: p.Labels, Addresses: p.Addresses, Grace: time.Second}
		diff := cmp.Diff(want, p, cmpopts.EquateComparable(netip.Addr{}))
		if diff != "" || p.Labels["app"] != "web" || p.UID == "" || len(p.Addresses) != 1 {
			t.Errorf("pod (-want +got):\n%s", diff)
		}
	}
	if none, err := c.Pods(ctx, r.Namespace, "app=none"); err != nil || len(none) > 0 {
		t.Errorf("pods %+v: %v", none, err)
	}

	// Another pod of the same name is left alone.
	other := pods[0]
	other.UID = "00000000-0000-0000-0000-000000000000"
	if err := c.EndPods(ctx, []kube.Pod{other, {Namespace: r.Namespace, Name: "none", UID: other.UID}}, 0); err != nil {
		t.Error(err)
	}
	if now, err := c.Pods(ctx, r.Namespace, ""); err != nil || !slices.EqualFunc(pods, now, func(a, b kube.Pod) bool { return a.UID == b.UID && b.Terminating.IsZero() }) {
		t.Errorf("pods %+v: %v", now, err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = wait.Gone(short, c.Cluster, pods, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	kubetest.Contains(t, kubetest.Explained(err), "not gone after ", "pod "+r.Namespace+"/"+pods[0].Name,
		"pod "+pods[1].Name+" on a1: Running")

	// A pod that nothing can end yet: somebody holds it.
	hold := []byte(`{"metadata":{"finalizers":["example.org/hold"]}}`)
	if _, err := c.Client.CoreV1().Pods(r.Namespace).Patch(ctx, pods[0].Name, types.MergePatchType, hold, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EndPods(ctx, pods, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	now, err := c.Pods(ctx, r.Namespace, "")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(now, func(p kube.Pod) bool { return p.UID == pods[0].UID })
	if i < 0 || now[i].Terminating.IsZero() || now[i].Ready || now[i].Grace > 2*time.Second {
		t.Errorf("pods %+v", now)
	}
	var told []string
	let := []byte(`{"metadata":{"finalizers":null}}`)
	err = wait.Gone(ctx, c.Cluster, pods, func(text string) {
		told = append(told, text)
		if strings.HasSuffix(text, "waiting for pod "+r.Namespace+"/"+pods[0].Name) { // and no other
			if _, err := c.Client.CoreV1().Pods(r.Namespace).Patch(ctx, pods[0].Name, types.MergePatchType, let, metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || len(told) == 0 {
		t.Errorf("told %q: %v", told, err)
	}
}
