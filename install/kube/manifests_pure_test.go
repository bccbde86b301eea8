package kube

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var update = flag.Bool("update", false, "write golden files anew")

// rendered is what Helm makes of the one template of a chart.
func rendered(t *testing.T, archive []byte) string {
	t.Helper()
	c, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(c, nil, chartcommon.ReleaseOptions{Name: "r", Namespace: "n"}, chartcommon.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 {
		t.Fatalf("%d files were rendered", len(files))
	}
	return files[c.Name()+"/templates/"+objectsFile]
}

func TestChartOf(t *testing.T) {
	objects := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: \"{{ .Values.x }} {{ fail `no` }} {{/* }} 不 $(X) %\"}\n---\n# only a comment\n"
	first, err := ChartOf("liteboxd", "v0.6.10", []byte(objects))
	if err != nil {
		t.Fatal(err)
	}
	second, err := ChartOf("liteboxd", "v0.6.10", []byte(objects))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same objects make two charts: %v", err)
	}
	if got := rendered(t, first); got != objects {
		t.Errorf("rendered is %q, want %q", got, objects)
	}
	for name, c := range map[string]struct{ name, version, objects, want string }{
		"a name that is a path": {"../x", "1.0.0", "", "chart \"../x\""},
		"no name":               {"", "1.0.0", "", "chart.metadata.name is required"},
		"no version":            {"x", "", "", "chart.metadata.version"},
		"a version of words":    {"x", "newest", "", "\"newest\""},
		"what Helm takes out":   {"x", "1.0.0", "text: <no value>", "Helm would take out"},
		"not UTF-8":             {"x", "1.0.0", "text: \xff", "not UTF-8"},
	} {
		if _, err := ChartOf(c.name, c.version, []byte(c.objects)); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			contains(t, err.Error(), c.want)
		}
	}
}

func FuzzChartOf(f *testing.F) {
	f.Add("text: {{ .Values.x }}\n---\n{}\n")
	f.Add("\xef\xbb\xbfa: b\r\n")
	f.Fuzz(func(t *testing.T, objects string) {
		archive, err := ChartOf("x", "1.0.0", []byte(objects))
		if err != nil {
			return
		}
		if got, want := rendered(t, archive), strings.TrimPrefix(objects, "\xef\xbb\xbf"); got != want {
			t.Errorf("rendered is %q, want %q", got, want)
		}
	})
}

func TestRollbackTarget(t *testing.T) {
	revision := func(version int, status common.Status, manifest string) *release.Release {
		return &release.Release{Version: version, Manifest: manifest, Info: &release.Info{Status: status}}
	}
	broken := func(version int, status common.Status, manifest string, to int) *release.Release {
		r := revision(version, status, manifest)
		r.Info.RollbackRevision = to
		return r
	}
	const deployed, superseded, failed, pending = common.StatusDeployed, common.StatusSuperseded, common.StatusFailed, common.StatusPendingUpgrade
	for name, c := range map[string]struct {
		revisions []*release.Release
		revision  int
		want      int // 0: none
	}{
		"not installed":             {nil, 0, 0},
		"only one":                  {[]*release.Release{revision(1, deployed, "a")}, 0, 0},
		"the one before":            {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), revision(3, deployed, "c")}, 0, 2},
		"one has failed":            {[]*release.Release{revision(1, superseded, "a"), revision(2, failed, "b"), revision(3, deployed, "c")}, 0, 1},
		"rolled back already":       {[]*release.Release{revision(1, superseded, "z"), revision(2, superseded, "a"), revision(3, failed, "b"), revision(4, deployed, "a")}, 0, 1},
		"nothing else":              {[]*release.Release{revision(2, superseded, "a"), revision(3, failed, "b"), revision(4, deployed, "a")}, 0, 0},
		"the current has failed":    {[]*release.Release{revision(1, superseded, "z"), revision(2, deployed, "a"), revision(3, failed, "a")}, 0, 2},
		"broken off":                {[]*release.Release{revision(2, deployed, "a"), revision(3, pending, "b")}, 0, 2},
		"a rollback broken off":     {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b"), broken(3, common.StatusPendingRollback, "a", 1)}, 0, 1},
		"a rollback failed":         {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), broken(3, failed, "a", 1)}, 0, 1},
		"after a rollback":          {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), broken(3, deployed, "a", 1)}, 0, 2},
		"its target is no more":     {[]*release.Release{revision(2, superseded, "b"), broken(3, failed, "a", 1)}, 0, 2},
		"never rolled out":          {[]*release.Release{revision(1, failed, "a"), revision(2, failed, "b")}, 0, 0},
		"a named one":               {[]*release.Release{revision(1, superseded, "a"), revision(2, superseded, "b"), revision(3, deployed, "c")}, 1, 1},
		"the current":               {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b")}, 2, 2},
		"a named one that is not":   {[]*release.Release{revision(1, superseded, "a"), revision(2, deployed, "b")}, 7, 0},
		"a named one that failed":   {[]*release.Release{revision(1, failed, "a"), revision(2, deployed, "b")}, 1, 0},
		"less than the first there": {[]*release.Release{revision(4, superseded, "a"), revision(5, deployed, "b")}, -1, 0},
	} {
		got, err := rollbackTarget(c.revisions, c.revision)
		switch {
		case c.want == 0 && !errors.Is(err, ErrNoRevision):
			t.Errorf("%s: %v, %v; want none", name, got, err)
		case c.want != 0 && (err != nil || got.Version != c.want):
			t.Errorf("%s: %v, %v; want %d", name, got, err, c.want)
		}
	}
}

// However often a run is broken off, ten revisions stay that can be gone back to.
func TestHistoryLimit(t *testing.T) {
	for _, c := range []struct{ good, failed, want int }{{1, 0, 10}, {10, 0, 10}, {3, 9, 19}, {10, 20, 30}, {10, 50, 30}} {
		var revisions []*release.Release
		for n := range c.good + c.failed {
			status := common.StatusSuperseded
			if n >= c.good {
				status = common.StatusFailed
			}
			revisions = append(revisions, &release.Release{Version: n + 1, Info: &release.Info{Status: status}})
		}
		if got := historyLimit(revisions); got != c.want {
			t.Errorf("%d good and %d failed revisions: %d stay, want %d", c.good, c.failed, got, c.want)
		}
	}
}

func TestDeadlines(t *testing.T) {
	seconds := int32(10)
	at := func(generation int64, reason string) *appsv1.Deployment {
		d := deployment("web", 1)
		d.Generation, d.Spec.ProgressDeadlineSeconds = 2, &seconds
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: generation, Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: "False", Reason: reason}}}
		return d
	}
	const over, updated = "ProgressDeadlineExceeded", "ReplicaSetUpdated"
	type look struct {
		deployment *appsv1.Deployment
		waited     time.Duration
		want       bool
	}
	for name, looks := range map[string][]look{
		"it becomes over":              {{at(2, updated), 0, false}, {at(2, over), 3 * time.Second, true}},
		"it was over before":           {{at(2, over), 0, false}, {at(2, over), 9 * time.Second, false}, {at(2, over), 10 * time.Second, true}},
		"it was over, and has gone on": {{at(2, over), 0, false}, {at(2, updated), time.Second, false}, {at(2, over), 2 * time.Second, true}},
		"of an older template":         {{at(1, over), 0, false}, {at(1, over), time.Minute, false}},
		"it goes on":                   {{at(2, updated), 0, false}, {at(2, updated), time.Minute, false}},
	} {
		d := deadlines{}
		for i, l := range looks {
			if got := d.exceeded(l.deployment, l.waited); got != l.want {
				t.Errorf("%s: look %d: %v", name, i, got)
			}
		}
	}
}

func TestUnifiedDiff(t *testing.T) {
	const is = `apiVersion: v1
kind: %KIND
metadata:
  name: login
  namespace: sys
  uid: 1-2-3
  resourceVersion: "7"
  generation: 2
  creationTimestamp: "2026-01-01T00:00:00Z"
  managedFields: [{manager: x}]
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "s3cret", a: b}
data: {gone: s3cret-1, same: s3cret-2, changed: s3cret-3}
status: {phase: x}
`
	const want = `apiVersion: v1
kind: %KIND
metadata: {name: login, namespace: sys, annotations: {a: "c\e[2Jd"}}
data: {same: s3cret-2, changed: s3cret-4, new: s3cret-5}
stringData: [s3cret-6]
`
	var all strings.Builder
	for _, kind := range []string{"Secret", "ConfigMap"} {
		before, err := decodeManifest(strings.ReplaceAll(is, "%KIND", kind))
		if err != nil {
			t.Fatal(err)
		}
		after, err := decodeManifest(strings.ReplaceAll(want, "%KIND", kind))
		if err != nil {
			t.Fatal(err)
		}
		o := Object{kind, "sys", "login"}
		for _, text := range []func() (string, error){
			func() (string, error) { return unifiedDiff(o, before[0], after[0]) },
			func() (string, error) { return unifiedDiff(o, nil, after[0]) },
			func() (string, error) { return unifiedDiff(o, before[0], nil) },
		} {
			text, err := text()
			if err != nil {
				t.Fatal(err)
			}
			if kind == "Secret" && strings.Contains(text, "s3cret") {
				t.Errorf("a Secret's data is shown:\n%s", text)
			}
			all.WriteString(text)
		}
	}
	golden(t, "diff.golden", all.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", file, diff)
	}
}

func TestVolumePlaces(t *testing.T) {
	bound := func(terms ...[]string) *corev1.PersistentVolume {
		selector := &corev1.NodeSelector{}
		for _, hosts := range terms {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts},
			}})
		}
		return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: selector}}}
	}
	zone := bound([]string{"a"})
	zone.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "topology.kubernetes.io/zone"
	for name, c := range map[string]struct {
		volume *corev1.PersistentVolume
		want   string
	}{
		"one host":            {bound([]string{"a"}), "a"},
		"the same host twice": {bound([]string{"a"}, []string{"a"}), "a"},
		"two hosts":           {bound([]string{"a", "b"}), ""},
		"one or the other":    {bound([]string{"a"}, []string{"b"}), ""},
		"a zone":              {zone, ""},
		"anywhere":            {&corev1.PersistentVolume{}, ""},
		"nowhere":             {bound(), ""},
	} {
		if got := hostOf(c.volume); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1-2"}}
	volume := func(source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-7"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	for want, source := range map[string]corev1.PersistentVolumeSource{
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~csi/pvc-7/mount": {CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver.longhorn.io"}},
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~nfs/pvc-7":       {NFS: &corev1.NFSVolumeSource{}},
		"": {ISCSI: &corev1.ISCSIPersistentVolumeSource{}},
	} {
		if got := mountPath(pod, volume(source)); got != want {
			t.Errorf("path %q, want %q", got, want)
		}
	}
}

func TestNewPod(t *testing.T) {
	yes, grace, left := true, int64(120), int64(30)
	deleted := metav1.NewTime(time.Date(2026, 11, 21, 9, 0, 30, 0, time.UTC))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "sys", UID: types.UID("1"), Labels: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{{Kind: "Node"}, {Kind: "ReplicaSet", Controller: &yes}}},
		Spec:       corev1.PodSpec{NodeName: "n1", TerminationGracePeriodSeconds: &grace},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			InitContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}}, ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 2}, {RestartCount: 3}},
		},
	}
	want := Pod{Namespace: "sys", Name: "web", UID: "1", Node: "n1", Phase: "Running", Ready: true, Restarts: 6, OwnerKind: "ReplicaSet", Labels: map[string]string{"a": "b"}, Grace: 2 * time.Minute}
	if diff := cmp.Diff(want, newPod(p)); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &deleted, &left
	want.Ready, want.Terminating, want.Grace = false, deleted.Add(-30*time.Second), 30*time.Second
	if diff := cmp.Diff(want, newPod(p)); diff != "" {
		t.Errorf("pod that ends (-want +got):\n%s", diff)
	}
}
