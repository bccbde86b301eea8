package liteboxd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	configPath = "/api/v1/namespaces/" + system + "/configmaps/liteboxd-config"
	// apiThatWaits is an object that is not rolled out where nobody runs pods.
	apiThatWaits = "---\napiVersion: apps/v1\nkind: Deployment\n" +
		"metadata: {name: liteboxd-api, namespace: " + system + "}\n" +
		"spec:\n  selector: {matchLabels: {app: a}}\n  template: {metadata: {labels: {app: a}}}\n"
)

// installed is the site of a cluster with LiteBoxd's namespace and other objects, where nothing takes time: what is
// waited for longer does not come.
func installed(t *testing.T, more ...runtime.Object) (*installation, kubetest.Releases) {
	t.Helper()
	in, m := onCluster(t, plain, append([]runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, keySecret("the-key"), loginSecret("x"),
	}, more...)...)
	in.site.Config.Runtime.CommandTimeout = 4 * time.Second
	return in, kubetest.Releases{Memory: m}
}

// deployment is LiteBoxd of a version, with a setting in its ConfigMap.
func (in *installation) deployment(t *testing.T, version, setting, more string) *Deployment {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config, namespace: %s}\n"+
		"data: {a: %s}\n", system, setting)
	chart, err := helm.ChartOf(seed.LiteBoxdRelease, version, []byte(text+more))
	if err != nil {
		t.Fatal(err)
	}
	return &Deployment{Version: version, Release: helm.Release{Name: seed.LiteBoxdRelease,
		Namespace: seed.ReleasesNamespace, Chart: chart, Timeout: in.site.Config.Runtime.CommandTimeout}}
}

// deploys lets the cluster have deployments, one after the other.
func (in *installation) deploys(t *testing.T, all ...*Deployment) {
	t.Helper()
	for _, d := range all {
		if err := helm.Apply(t.Context(), in.site.API, d.Release, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// deploying is the step that brings the cluster to a deployment, as a run that begins now has it.
func (in *installation) deploying(t *testing.T, d *Deployment) run.Step {
	t.Helper()
	return in.deployer.deployStep(d, func() (string, error) { return workload.Differs(t.Context(), in.site, d.Release) })
}

// rollingBack is the step that takes LiteBoxd back to a revision.
func (in *installation) rollingBack(to int) run.Step {
	release := kube.ReleaseName{Namespace: seed.ReleasesNamespace, Name: seed.LiteBoxdRelease}
	return (&workload.Rollback{Site: in.site, Release: release, Name: "LiteBoxd", To: to}).Step("roll-back-liteboxd")
}

// has fails the test unless the cluster has this LiteBoxd, and this on record.
func has(t *testing.T, m kubetest.Releases, setting, version, status string) {
	t.Helper()
	newest := m.Newest(t)
	if len(newest) != 1 || newest[0].Status != status || newest[0].Chart != version {
		t.Errorf("on record is %+v", newest)
	}
	object := m.Object(t, configPath)
	if object == nil || fmt.Sprint(object.Object["data"]) != "map[a:"+setting+"]" {
		t.Errorf("the cluster has %v", object)
	}
}

// LiteBoxd is brought to what is asked for from whatever there is, and is so wherever that is broken off.
func TestDeployStep(t *testing.T) {
	for _, test := range []struct {
		name  string
		is    func(*testing.T, *installation, kubetest.Releases)
		why   string
		whole bool
	}{
		{"there is none", func(*testing.T, *installation, kubetest.Releases) {}, "not installed", false},
		{"it is as it is to be", func(t *testing.T, in *installation, _ kubetest.Releases) {
			in.deploys(t, in.deployment(t, "0.6.10", "new", ""))
		}, "", true},
		{"an older one", func(t *testing.T, in *installation, _ kubetest.Releases) {
			in.deploys(t, in.deployment(t, "0.6.9", "old", ""))
		}, "chart 0.6.9 -> 0.6.10", true},
		{"another setting", func(t *testing.T, in *installation, _ kubetest.Releases) {
			in.deploys(t, in.deployment(t, "0.6.10", "old", ""))
		}, "chart 0.6.10 has other contents", false},
		{"an earlier try was broken off", func(t *testing.T, _ *installation, m kubetest.Releases) {
			m.Put(t, kubetest.HelmRelease(t, seed.ReleasesNamespace, seed.LiteBoxdRelease, "0.6.10",
				"pending-upgrade", 4))
		}, "revision 4 is pending-upgrade", false},
		{"somebody has deleted an object", func(t *testing.T, in *installation, m kubetest.Releases) {
			in.deploys(t, in.deployment(t, "0.6.10", "new", ""))
			m.Remove(t, configPath)
		}, "liteboxd-config is missing", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before, there := installed(t)
			test.is(t, before, there)
			objects := there.Objects(t)
			var first kubetest.Releases
			fresh := func(t *testing.T) (steptest.World, func() run.Step) {
				in, m := installed(t, objects...)
				if first.Memory == nil {
					first = m
				}
				d := in.deployment(t, "0.6.10", "new", "")
				return m, func() run.Step { return in.deploying(t, d) }
			}
			if test.whole {
				steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: fresh})
			} else {
				done(t, test.why, fresh)
			}
			has(t, first, "new", "0.6.10", "deployed")
		})
	}
	in := example(t, plain)
	if reason, err := in.deploying(t, in.deployment(t, "0.6.10", "new", "")).Needed(t.Context()); err != nil ||
		reason != "there is no cluster yet" {
		t.Errorf("%q, %v", reason, err)
	}
}

// done looks at a step, which changes nothing, and carries it out, after which it is not needed.
func done(t *testing.T, why string, fresh func(*testing.T) (steptest.World, func() run.Step)) {
	t.Helper()
	w, making := fresh(t)
	before, step := w.Snapshot(t), making()
	reason, err := step.Needed(t.Context())
	if err != nil || !strings.Contains(reason, why) || w.Snapshot(t) != before {
		t.Errorf("needed because %q, want %q: %v", reason, why, err)
	}
	if err := step.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reason, err := making().Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("it is still needed: %q, %v", reason, err)
	}
}

// A version that does not come up leaves the one that ran, and says where the database is as it was: nobody but the
// operator can say whether it is to go back, too.
func TestDeployStepFails(t *testing.T) {
	for _, test := range []struct {
		name           string
		is             string // the version that runs, "" for none
		backup, noBack bool
		want           []string
		version, state string
	}{
		{name: "the first one", version: "0.6.10", state: "failed",
			want: []string{"Deployment liteboxd-system/liteboxd-api"}},
		{name: "the next one", is: "0.6.9", version: "0.6.9", state: "deployed",
			want: []string{"Deployment liteboxd-system/liteboxd-api", "rolled back to revision 1, chart 0.6.9"}},
		{name: "the next one, after a backup", is: "0.6.9", backup: true, version: "0.6.9", state: "deployed",
			want: []string{"rolled back to revision 1", "the database stays as it is", BackupDatabase}},
		{name: "the next one, and it is to stay", is: "0.6.9", noBack: true, version: "0.6.10", state: "failed",
			want: []string{"not rolled back, as was asked for"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in, m := installed(t)
			if test.is != "" {
				in.deploys(t, in.deployment(t, test.is, "old", ""))
			}
			if test.backup {
				in.site.Backup = t.TempDir()
				if err := os.WriteFile(filepath.Join(in.site.Backup, BackupDatabase), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d := in.deployment(t, "0.6.10", "new", apiThatWaits)
			d.Release.NoRollback = test.noBack
			step := in.deploying(t, d)
			err := step.Run(t.Context())
			if err == nil {
				t.Fatal("it is done")
			}
			kubetest.Contains(t, kubetest.Explained(err), test.want...)
			if told := strings.Contains(err.Error(), "the database stays as it is"); told != test.backup {
				t.Errorf("of the database: %v", err)
			}
			has(t, m, map[string]string{"0.6.9": "old", "0.6.10": "new"}[test.version], test.version, test.state)
			if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
				t.Errorf("it counts as done: %v", err)
			}
		})
	}
}

// LiteBoxd is taken back to a revision once, wherever that is broken off.
func TestRollBackStep(t *testing.T) {
	for _, test := range []struct {
		name  string
		is    func(*testing.T, *installation)
		to    int
		why   string
		whole bool
		has   [2]string
	}{
		{"the one before", func(*testing.T, *installation) {}, 1, "it is asked for", true, [2]string{"old", "0.6.9"}},
		{"the one that runs", func(*testing.T, *installation) {}, 2, "", true, [2]string{"new", "0.6.10"}},
		{"it was taken back already", func(t *testing.T, in *installation) {
			if err := in.rollingBack(1).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, 1, "", true, [2]string{"old", "0.6.9"}},
		{"a newer one has failed", func(t *testing.T, in *installation) {
			d := in.deployment(t, "0.6.11", "newest", apiThatWaits)
			d.Release.NoRollback = true
			if err := helm.Apply(t.Context(), in.site.API, d.Release, nil); err == nil {
				t.Fatal("it is rolled out")
			}
		}, 2, "it is asked for", false, [2]string{"new", "0.6.10"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before, there := installed(t)
			before.deploys(t, before.deployment(t, "0.6.9", "old", ""), before.deployment(t, "0.6.10", "new", ""))
			test.is(t, before)
			objects := there.Objects(t)
			var first kubetest.Releases
			var firstSite *installation
			fresh := func(t *testing.T) (steptest.World, func() run.Step) {
				in, m := installed(t, objects...)
				if first.Memory == nil {
					first, firstSite = m, in
				}
				return m, func() run.Step { return in.rollingBack(test.to) }
			}
			if test.whole {
				steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: fresh})
			} else {
				done(t, test.why, fresh)
			}
			has(t, first, test.has[0], test.has[1], "deployed")
			if test.why == "" {
				return
			}
			// Who rolled back has to know that the next install brings it back again.
			if text := strings.Join(firstSite.site.Warnings, "\n"); !strings.Contains(text,
				fmt.Sprintf("LiteBoxd is as in revision %d again; install.yaml and the bundle are not", test.to)) {
				t.Errorf("warnings %q", text)
			}
			if first.Object(t, "/apis/apps/v1/namespaces/"+system+"/deployments/liteboxd-api") != nil {
				t.Error("what only the failed revision has is still there")
			}
		})
	}
}

// A revision that was never rolled out is not gone back to, and that is not told as done.
func TestRollBackStepFails(t *testing.T) {
	in, m := installed(t)
	good := in.deployment(t, "0.6.10", "new", "")
	in.deploys(t, good)
	slow := in.deployment(t, "0.6.9", "old", apiThatWaits)
	slow.Release.NoRollback = true
	if err := helm.Apply(t.Context(), in.site.API, slow.Release, nil); err == nil {
		t.Fatal("it is rolled out")
	}
	step := in.rollingBack(2)
	err := step.Run(t.Context())
	if !errors.Is(err, helm.ErrNoRevision) || in.site.Warnings != nil {
		t.Errorf("to a revision that was never good: %v, warnings %q", err, in.site.Warnings)
	}
	has(t, m, "old", "0.6.9", "failed")
	if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("it counts as done: %v", err)
	}
	m.BreakAfter(0)
	if reason, err := step.Needed(t.Context()); reason != "" || !m.Lost(err) {
		t.Errorf("without an API: %q, %v", reason, err)
	}
}

// All of a deployment by a run that acts: what could be lost is kept before anything is changed, with the change in its
// record, and compared after it.
func TestDeploy(t *testing.T) {
	in, m := installed(t)
	in.deploys(t, in.deployment(t, "0.6.9", "old", ""))
	m.Put(t, kubetest.Labelled("first", nil), sandboxPod("sandbox-a", "first", 1))
	in.deployer.Deployment = in.deployment(t, "0.6.10", "new", "")
	in.deployer.Deployment.Rendered = &manifests.Rendered{}
	var err error
	if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.engine.Journal.Close() })
	if err := in.engine.Journal.Begin(journal.Run{Command: "upgrade"}); err != nil {
		t.Fatal(err)
	}
	if err := in.engine.Apply(t.Context(), []run.Phase{{Name: "liteboxd", Look: in.deployer.Deploy}}); err != nil {
		t.Fatal(err)
	}
	has(t, m, "new", "0.6.10", "deployed")
	b, _, err := in.deployer.LastBackup(func(*Backup) bool { return true })
	if err != nil || b == nil {
		t.Fatal(b, err)
	}
	b.Time = time.Time{}
	want := &Backup{Format: 1, Cluster: "example", From: 1, To: "0.6.10", Compared: true,
		Sandboxes: []Sandbox{{Name: "sandbox-a", UID: "uid of sandbox-a", Node: "first", Restarts: 1}}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Error(diff)
	}
	var done []string
	for _, step := range in.engine.Journal.State().Steps {
		done = append(done, step.ID+" "+string(step.Result))
	}
	if diff := cmp.Diff([]string{"make-liteboxd-secrets unchanged", "back-up-liteboxd done", "deploy-liteboxd done"},
		done); diff != "" {
		t.Error(diff)
	}
}
