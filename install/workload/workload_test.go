package workload

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

const kustomization = "resources: [settings.yaml]\n"

// A workload is made of a chart with values, or of manifests with the site's over them, and what does not fit is said
// before any host is asked.
func TestRender(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{
		"site/kustomization.yaml":  "patches: [{path: settings.yaml}]\n",
		"site/settings.yaml":       settings("settings", "of the site"),
		"wrong/kustomization.yaml": "patches: [{path: ../../settings.yaml}]\n",
		"empty/README.md":          "nothing",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	template := map[string]string{
		"values.yaml":             "who: the chart\nimage: " + image + "\ndeep: {a: 1, b: 1}\n",
		"templates/settings.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: '{{ .Values.who }} {{ .Values.deep.a }} {{ .Values.deep.b }}'}\n",
		"templates/hook.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\n" +
			"spec: {containers: [{name: a, image: '{{ .Values.image }}'}]}\n",
	}
	made := func(value string) smallbundle.Component {
		return component("own", "v1.1.0", manifestsTar(t, map[string]string{
			"kustomization.yaml": kustomization, "settings.yaml": settings("settings", value)}))
	}
	for _, test := range []struct {
		name, workloads string
		images          []string
		component       smallbundle.Component
		off             string // part of k3s
		want, err       string // what the ConfigMap says, or parts of the error
	}{
		{name: "a chart as it is", workloads: "[{name: own}]", images: []string{image},
			component: chartOf(t, "own", "1.0.0", template, ""), want: "the chart 1 1"},
		{name: "with the bundle's values", workloads: "[{name: own}]", images: []string{image},
			component: chartOf(t, "own", "1.0.0", template, "who: the bundle\ndeep: {a: 2}\n"), want: "the bundle 2 1"},
		{name: "with the site's over them", workloads: "[{name: own, values: {who: the site, deep: {b: 3}}}]",
			images:    []string{image},
			component: chartOf(t, "own", "1.0.0", template, "who: the bundle\ndeep: {a: 2}\n"), want: "the site 2 3"},
		{name: "the component has another name", workloads: "[{name: own, component: theirs}]", images: []string{image},
			component: chartOf(t, "theirs", "v1.0.0", template, ""), want: "the chart 1 1"},
		{name: "manifests as they are", workloads: "[{name: own}]", component: made("of the bundle"),
			want: "of the bundle"},
		{name: "with the site's folder", workloads: "[{name: own, configDir: " + folder + "/site}]",
			component: made("of the bundle"), want: "of the site"},

		{name: "no such component", workloads: "[{name: other}]", component: made("x"),
			err: "workload other: install.yaml does not fit the bundle: the bundle has no component other"},
		{name: "nothing to install in it", workloads: "[{name: own}]",
			component: component("own", "1", smallbundle.File{Name: "a", Content: "a"}),
			err:       "the component own carries 0 charts or tars of manifests"},
		{name: "two things to install", workloads: "[{name: own}]", err: "carries 2 charts or tars of manifests",
			component: func() smallbundle.Component {
				c := chartOf(t, "own", "1.0.0", template, "")
				c.Files = made("x").Files
				return c
			}()},
		{name: "an image is missing", workloads: "[{name: own}]", component: chartOf(t, "own", "1.0.0", template, ""),
			err: "Pod hook (a) needs the image " + image + ": it is not carried: add `- {ref: " + image + "}` to the images of the component own"},
		{name: "another version than the chart's", workloads: "[{name: own}]", images: []string{image},
			component: func() smallbundle.Component {
				c := chartOf(t, "own", "1.0.0", template, "")
				c.Version = "2.0.0"
				return c
			}(), err: "has the version 2.0.0 in the lock, and its chart 1.0.0"},
		{name: "a version that Helm does not take", workloads: "[{name: own}]", err: `version "yesterday"`,
			component: func() smallbundle.Component { c := made("x"); c.Version = "yesterday"; return c }()},
		{name: "values that are none", workloads: "[{name: own}]", images: []string{image},
			component: chartOf(t, "own", "1.0.0", template, "- a\n"), err: "values.yaml of the component own: read values: they are no mapping"},
		{name: "a chart that fails", workloads: "[{name: own, values: {image: null}}]",
			component: chartOf(t, "own", "1.0.0", map[string]string{"templates/a.yaml": `{{ required "say an image" .Values.image }}`}, ""),
			err:       "say an image"},
		{name: "values for manifests", workloads: "[{name: own, values: {a: 1}}]", component: made("x"),
			err: "use configDir"},
		{name: "a folder for a chart", workloads: "[{name: own, configDir: " + folder + "}]", images: []string{image},
			component: chartOf(t, "own", "1.0.0", template, ""), err: "use values"},
		{name: "the folder is not there", workloads: "[{name: own, configDir: " + folder + "/none}]",
			component: made("x"),
			err:       "configDir: stat "},
		{name: "the folder has no kustomization", workloads: "[{name: own, configDir: " + folder + "/empty}]",
			component: made("x"),
			err:       "there is no kustomization.yaml at its top"},
		{name: "the folder leads out of itself", workloads: "[{name: own, configDir: " + folder + "/wrong}]",
			component: made("x"),
			err:       "leaves the folder"},
		{name: "a part of k3s that is off", workloads: "[{name: own}]", off: "local-storage",
			err: "PersistentVolumeClaim data needs k3s' local-storage",
			component: component("own", "1.0.0", manifestsTar(t, map[string]string{"kustomization.yaml": "resources: [a.yaml]\n",
				"a.yaml": strings.Replace(claim, "later", "local-path", 1)}))},
		{name: "a secret among manifests", workloads: "[{name: own}]", err: "secrets are not rendered",
			component: component("own", "1.0.0", manifestsTar(t, map[string]string{"kustomization.yaml": "resources: [a.yaml]\n",
				"a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: b}\n"}))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := room(t, "workloads: "+test.workloads+"\n", test.images, test.component)
			if test.off != "" {
				r.Site.Hosts[0].Config.K3s.Config = map[string]any{"disable": []string{test.off}}
			}
			err := r.Render(t.Context())
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %q", err, test.err)
				}
				if class := fault.ClassOf(err); class != fault.Input {
					t.Errorf("%v is %v, want wrong input", err, class)
				}
				if r.Workloads != nil {
					t.Error("something is worked on all the same")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			w := r.Workloads[0]
			for _, o := range w.Objects {
				if o.GetKind() == "ConfigMap" {
					if diff := cmp.Diff(map[string]any{"a": test.want}, o.Object["data"]); diff != "" {
						t.Error(diff)
					}
				}
			}
			if w.Release.Name != "own" || w.Release.Namespace != "own" {
				t.Errorf("the release is %s/%s", w.Release.Namespace, w.Release.Name)
			}
		})
	}
}

// deployed brings a room's workloads to a cluster.
func (r rooms) deployed(t *testing.T) error {
	t.Helper()
	if err := r.Render(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.act(t, Phase, r.Deploy)
}

// act does what a look finds to be needed.
func (r rooms) act(t *testing.T, phase string, look func(context.Context) error) error {
	t.Helper()
	var err error
	if r.Engine.Journal, err = journal.Open(r.Site.StatePath); err != nil {
		t.Fatal(err)
	}
	defer r.Engine.Journal.Close()
	if err := r.Engine.Journal.Begin(journal.Run{Command: "install", Verb: journal.Install}); err != nil {
		t.Fatal(err)
	}
	return r.Engine.Apply(t.Context(), []run.Phase{{Name: phase, Look: look, Gate: true}})
}

// look says what would be done.
func (r rooms) look(t *testing.T, phase string, look func(context.Context) error) []site.Change {
	t.Helper()
	if err := r.Engine.Look(t.Context(), []run.Phase{{Name: phase, Look: look, Gate: true}}); err != nil {
		t.Fatal(err)
	}
	return r.Engine.Cluster.Changes
}

func (r rooms) remove(t *testing.T, name string, withData bool) error {
	t.Helper()
	return r.act(t, RemovalPhase, func(ctx context.Context) error { return r.Remove(ctx, name, withData) })
}

func (r rooms) rollBack(t *testing.T, name string, revision int) error {
	t.Helper()
	return r.act(t, RollbackPhase, func(ctx context.Context) error { return r.RollBack(ctx, name, revision) })
}

func own(t *testing.T, version, value, more string) smallbundle.Component {
	t.Helper()
	return component("own", version, manifestsTar(t, map[string]string{"kustomization.yaml": kustomization,
		"settings.yaml": settings("settings", value) + more}))
}

// pods are those of a Deployment that nobody runs.
var pods = "---\n" + kubetest.Workload("Deployment", "backend", "", image)

// Workloads are brought to what is asked for, what fails goes back by itself and holds up no other, and what
// install.yaml does not know is left alone.
func TestDeploy(t *testing.T) {
	m := room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.0.0", "old", "---\n"+claim)).startedOn(t, nil)
	value := func(want string) {
		t.Helper()
		o := m.Object(t, "/api/v1/namespaces/own/configmaps/settings")
		if o == nil || o.Object["data"].(map[string]any)["a"] != want {
			t.Errorf("the cluster has %v, want %s", o, want)
		}
	}
	value("old")

	// Once more, there is nothing to do.
	same := room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.0.0", "old", "---\n"+claim))
	before := len(m.Changes())
	same.startedOn(t, m.Memory)
	if changes := m.Changes()[before:]; len(changes) > 0 {
		t.Errorf("the second run changes %q", changes)
	}

	// A version that does not come up goes back by itself, and the other workload gets its own.
	broken := room(t, "workloads: [{name: own}, {name: second}]\n", []string{image}, own(t, "v2.0.0", "broken", pods),
		component("second", "v1.0.0", manifestsTar(t, map[string]string{"kustomization.yaml": kustomization,
			"settings.yaml": settings("settings", "second")})))
	broken.connect(t, m.Memory)
	err := broken.deployed(t)
	if err == nil {
		t.Fatal("the broken version came up")
	}
	kubetest.Contains(t, err.Error(), "workload own: ", "rolled back to revision 1, chart v1.0.0")
	value("old")
	if m.Object(t, "/api/v1/namespaces/second/configmaps/settings") == nil {
		t.Error("the other workload did not get its own")
	}

	// In another namespace it would begin anew.
	moved := room(t, "workloads: [{name: own, namespace: elsewhere}]\n", nil, own(t, "v1.0.0", "old", ""))
	moved.connect(t, m.Memory)
	if err := moved.deployed(t); !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), "it runs in the namespace own") {
		t.Errorf("moved to another namespace: %v", err)
	}
	if len(moved.Site.Warnings) != 1 || !strings.Contains(moved.Site.Warnings[0], "the workload second runs in the namespace second") {
		t.Errorf("warnings: %q", moved.Site.Warnings)
	}

	list, err := moved.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range list {
		got = append(got, strings.Join([]string{o.Name, o.Namespace, o.Version, o.State}, " "))
	}
	want := []string{"own elsewhere  ", "own own v1.0.0 deployed", "second second v1.0.0 deployed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// startedOn deploys on a cluster, a new one where it is nil.
func (r rooms) startedOn(t *testing.T, m *kubetest.Memory) kubetest.Releases {
	t.Helper()
	if m == nil {
		m = kubetest.NewMemory(t, later())
	}
	r.connect(t, m)
	if err := r.deployed(t); err != nil {
		t.Fatal(err)
	}
	return kubetest.Releases{Memory: m}
}

// Taken off the cluster, a workload leaves what has data, and one of the same name takes it over again. A run that was
// broken off goes on.
func TestRemove(t *testing.T) {
	const claimPath = "/api/v1/namespaces/own/persistentvolumeclaims/data"
	const settingsPath = "/api/v1/namespaces/own/configmaps/settings"
	component := own(t, "v1.0.0", "x", "---\n"+claim)
	listed := room(t, "workloads: [{name: own}]\n", nil, component)
	m := listed.startedOn(t, nil)
	if err := listed.remove(t, "own", false); !errors.Is(err, site.ErrRefused) ||
		!strings.Contains(err.Error(), "take it out there first") {
		t.Errorf("one that is listed: %v", err)
	}
	without := room(t, "", nil, component)
	without.connect(t, m.Memory)
	if err := without.remove(t, "other", false); !errors.Is(err, site.ErrRefused) ||
		!strings.Contains(err.Error(), "no workload other is on the cluster; there are own") {
		t.Errorf("one that is not there: %v", err)
	}
	before := m.Snapshot(t)
	for withData, want := range map[bool]string{false: "these stay", true: "these go too"} {
		dry := room(t, "", nil, component)
		dry.connect(t, m.Memory)
		changes := dry.look(t, RemovalPhase, func(ctx context.Context) error { return dry.Remove(ctx, "own", withData) })
		if len(changes) != 1 || changes[0].Title != "remove own" ||
			!strings.Contains(changes[0].Reason, want+", with what is in them: PersistentVolumeClaim own/data") {
			t.Errorf("a dry run: %+v", changes)
		}
	}
	if diff := cmp.Diff(before, m.Snapshot(t)); diff != "" {
		t.Errorf("a dry run has changed something: %s", diff)
	}
	if err := without.remove(t, "own", false); err != nil {
		t.Fatal(err)
	}
	if m.Object(t, settingsPath) != nil || len(m.Newest(t)) > 0 {
		t.Error("something of it is left")
	}
	if m.Object(t, claimPath) == nil {
		t.Fatal("its claim is gone")
	}
	if len(without.Site.Warnings) != 1 || !strings.Contains(without.Site.Warnings[0], "PersistentVolumeClaim own/data") {
		t.Errorf("it says %q", without.Site.Warnings)
	}
	room(t, "workloads: [{name: own}]\n", nil, component).startedOn(t, m.Memory)
	if err := without.remove(t, "own", true); err != nil {
		t.Fatal(err)
	}
	if m.Object(t, claimPath) != nil {
		t.Error("its claim is still there")
	}

	// The flag is meant as it is called: also a claim that its author would have kept goes.
	kept := strings.Replace(claim, "name: data", "name: data, annotations: {helm.sh/resource-policy: keep}", 1)
	room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.0.0", "x", "---\n"+kept)).startedOn(t, m.Memory)
	if err := without.remove(t, "own", true); err != nil {
		t.Fatal(err)
	}
	if m.Object(t, claimPath) != nil {
		t.Error("a claim that its author would have kept is still there")
	}
}

// What is on its way out is waited for, and told of when it does not go.
func TestRemoveWaits(t *testing.T) {
	const path = "/api/v1/namespaces/own/configmaps/settings"
	component := own(t, "v1.0.0", "x", "")
	for _, test := range []struct {
		name  string
		looks int // for which the object is still there after it was asked to go
		want  string
	}{
		{"it goes", 2, ""},
		{"something holds it", 1000, "ConfigMap own/settings is still there; its release is forgotten"},
	} {
		m := room(t, "workloads: [{name: own}]\n", nil, component).startedOn(t, nil)
		object, err := json.Marshal(m.Object(t, path))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		asked, looks := false, 0
		m.Answer(path, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method == http.MethodDelete:
				asked = true
				_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
			case asked && looks == test.looks:
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			default:
				if asked {
					looks++
				}
				_, _ = w.Write(object)
			}
		})
		r := room(t, "", nil, component)
		r.connect(t, m.Memory)
		err = r.remove(t, "own", false)
		if test.want == "" && (err != nil || looks != test.looks) {
			t.Errorf("%s: %v after %d looks", test.name, err, looks)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A run that is broken off before any of its changes is gone on with by the same command.
func TestRemoveBrokenOff(t *testing.T) {
	component := own(t, "v1.0.0", "x", "---\n"+claim)
	first := room(t, "workloads: [{name: own}]\n", nil, component).startedOn(t, nil)
	for broken := range 50 {
		m := first.Copy(t)
		r := room(t, "", nil, component)
		r.connect(t, m)
		m.BreakAfter(broken)
		err := r.remove(t, "own", false)
		if err == nil {
			if broken < 3 {
				t.Errorf("only %d changes", broken)
			}
			return
		}
		m.BreakAfter(-1)
		again := room(t, "", nil, component)
		again.connect(t, m)
		if err := again.remove(t, "own", false); err != nil && !strings.Contains(err.Error(), "no workload own") {
			t.Errorf("broken off after %d changes: %v", broken, err)
		}
		if m.Object(t, "/api/v1/namespaces/own/configmaps/settings") != nil {
			t.Errorf("broken off after %d changes: something is left", broken)
		}
		if m.Object(t, "/api/v1/namespaces/own/persistentvolumeclaims/data") == nil {
			t.Errorf("broken off after %d changes: the claim is gone", broken)
		}
	}
}

// A workload is taken back to the revision before.
func TestRollBack(t *testing.T) {
	m := room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.0.0", "old", "")).startedOn(t, nil)
	r := room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.1.0", "new", ""))
	r.startedOn(t, m.Memory)
	if err := r.rollBack(t, "own", 9); !errors.Is(err, site.ErrRefused) {
		t.Errorf("a revision that is not there: %v", err)
	}
	before := m.Snapshot(t)
	dry := room(t, "workloads: [{name: own}]\n", nil, own(t, "v1.1.0", "new", ""))
	dry.connect(t, m.Memory)
	changes := dry.look(t, RollbackPhase, func(ctx context.Context) error { return dry.RollBack(ctx, "own", 0) })
	if len(changes) != 1 || changes[0].Title != "take own back to revision 1" {
		t.Errorf("a dry run: %+v", changes)
	}
	if diff := cmp.Diff(before, m.Snapshot(t)); diff != "" {
		t.Errorf("a dry run has changed something: %s", diff)
	}
	if err := r.rollBack(t, "own", 0); err != nil {
		t.Fatal(err)
	}
	if o := m.Object(t, "/api/v1/namespaces/own/configmaps/settings"); o.Object["data"].(map[string]any)["a"] != "old" {
		t.Errorf("it has %v", o.Object["data"])
	}
	versions, err := r.Running(t.Context())
	if diff := cmp.Diff(map[string][]string{"own": {"v1.0.0"}}, versions); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// A folder of the site's own is there, or the run ends before anything is changed.
func TestSiteFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "patch.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		dir         string
		none, wrong bool
	}{
		"none is given": {"", true, false}, "a folder": {dir, false, false}, "a file": {file, true, true},
		"not there": {filepath.Join(dir, "no"), true, true},
	} {
		got, err := SiteFolder("configDir", test.dir)
		if errors.Is(err, site.ErrConfig) != test.wrong || (got == nil) != test.none || (err != nil) != test.wrong {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
