package network

import (
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/cilium"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const configPath = "/api/v1/namespaces/" + cilium.Namespace + "/configmaps/cilium-config"

// onCluster is a site with a cluster that has objects.
func onCluster(t *testing.T, objects ...runtime.Object) (*installation, kubetest.Releases) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig, "cilium=1.20.0")
	m := kubetest.NewMemory(t, objects...)
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	in.site.API = api
	return in, kubetest.Releases{Memory: m}
}

// ofVersion is a release of a chart like Cilium's, with the mode in the values in its ConfigMap.
func ofVersion(t *testing.T, version, mode string, more ...string) helm.Release {
	t.Helper()
	templates := map[string]string{
		"values.yaml": "mode: tunnel\n",
		"templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config}\n" +
			"data: {mode: \"{{ .Values.mode }}\", of: \"" + version + "\"}\n",
	}
	for i, text := range more {
		templates[fmt.Sprintf("templates/more-%d.yaml", i)] = text
	}
	values := map[string]any{}
	if mode != "" {
		values["mode"] = mode
	}
	// Nothing here takes time: what is waited for longer does not come.
	return cilium.Release(kubetest.Chart(t, version, templates), values, 4*time.Second)
}

// applied lets the cluster have a release.
func (in *installation) applied(t *testing.T, r helm.Release) {
	t.Helper()
	if err := helm.Apply(t.Context(), in.site.API, r, nil); err != nil {
		t.Fatal(err)
	}
}

// Cilium is set up where it is not as it is to be, whoever has changed it, and is so wherever that is broken off.
func TestReleaseStep(t *testing.T) {
	config := func(mode string, owned bool) *corev1.ConfigMap {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: cilium.Namespace, Name: "cilium-config"},
			Data: map[string]string{"mode": mode, "of": "1.20.0"}}
		if owned {
			kube.ReleaseName{Namespace: cilium.Namespace, Name: cilium.ReleaseName}.Mark(c)
		}
		return c
	}
	type before = func(*testing.T, *installation, kubetest.Releases)
	kept := func(version, status string) before {
		return func(t *testing.T, _ *installation, m kubetest.Releases) {
			m.Put(t, kubetest.HelmRelease(t, cilium.Namespace, cilium.ReleaseName, version, status, 4))
		}
	}
	has := func(version, mode string, then func(*testing.T, kubetest.Releases)) before {
		return func(t *testing.T, in *installation, m kubetest.Releases) {
			in.applied(t, ofVersion(t, version, mode))
			if then != nil {
				then(t, m)
			}
		}
	}
	for _, test := range []struct {
		name  string
		is    before
		why   string
		whole bool // all of what a step promises is proven
	}{
		{"there is none", func(*testing.T, *installation, kubetest.Releases) {}, "not installed", true},
		{"it is as it is to be", has("1.20.0", "native", nil), "", true},
		{"an older one", has("1.19.1", "native", nil), "chart 1.19.1 -> 1.20.0", false},
		{"other values", has("1.20.0", "", nil), "values changed: mode", false},
		{"somebody else has installed it", kept("1.20.0", "deployed"), "was not installed by boxlift", false},
		{"an upgrade was broken off", kept("1.20.0", "pending-upgrade"), "revision 4 is pending-upgrade", false},
		{"an upgrade has failed", kept("1.20.0", "failed"), "revision 4 failed", false},
		{"somebody has changed an object", has("1.20.0", "native", func(t *testing.T, m kubetest.Releases) {
			m.Put(t, config("tunnel", true))
		}), "ConfigMap kube-system/cilium-config was changed: data.mode", false},
		{"somebody has deleted an object", has("1.20.0", "native", func(t *testing.T, m kubetest.Releases) {
			m.Remove(t, configPath)
		}), "ConfigMap kube-system/cilium-config is missing", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before, there := onCluster(t)
			test.is(t, before, there)
			objects := there.Objects(t)
			fresh := func(t *testing.T) (kubetest.Releases, func() run.Step) {
				in, m := onCluster(t, objects...)
				wanted := ofVersion(t, "1.20.0", "native")
				return m, func() run.Step { return in.network.releaseStep(wanted) }
			}
			var m kubetest.Releases
			if test.whole {
				steptest.ProveIn(t, steptest.Wide{Why: test.why,
					Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
						w, making := fresh(t)
						if m.Memory == nil {
							m = w
						}
						return w, making
					}})
			} else {
				var making func() run.Step
				m, making = fresh(t)
				step := making()
				before := m.Snapshot(t)
				reason, err := step.Needed(t.Context())
				if err != nil || !strings.Contains(reason, test.why) || m.Snapshot(t) != before {
					t.Errorf("needed because %q, want %q: %v", reason, test.why, err)
				}
				if err := step.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
					t.Errorf("it is still needed: %q, %v", reason, err)
				}
			}
			newest := m.Newest(t)
			if len(newest) != 1 || newest[0].Status != "deployed" || newest[0].Chart != "1.20.0" {
				t.Errorf("on record is %+v", newest)
			}
			if mode := m.Object(t, configPath).Object["data"]; fmt.Sprint(mode) != "map[mode:native of:1.20.0]" {
				t.Errorf("the cluster has %v", mode)
			}
		})
	}
	in := example(t, sitetest.ExampleConfig, "cilium=1.20.0")
	if reason, err := in.network.releaseStep(ofVersion(t, "1.20.0", "")).Needed(t.Context()); err != nil ||
		reason != "there is no cluster yet" {
		t.Errorf("%q, %v", reason, err)
	}
}

// What cannot be set up says why, and leaves the cluster with what it had, or with what has come so far; the next run
// goes on from there.
func TestReleaseStepFails(t *testing.T) {
	const daemons = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: cilium}\nspec:\n" +
		"  selector: {matchLabels: {app: a}}\n  template: {metadata: {labels: {app: a}}}\n"
	for _, test := range []struct {
		name   string
		is     func(*testing.T, *installation, kubetest.Releases)
		wanted []string
		want   []string
		chart  string // of what is on record then, "" for nothing
		state  string
	}{
		{name: "an object is somebody else's", is: func(t *testing.T, _ *installation, m kubetest.Releases) {
			m.Put(t, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: cilium.Namespace, Name: "cilium-config"}})
		}, want: []string{"install release kube-system/cilium, chart 1.20.0", "somebody else has made it"}},
		{name: "the cluster refuses a change", is: func(t *testing.T, in *installation, m kubetest.Releases) {
			in.applied(t, ofVersion(t, "1.19.1", ""))
			m.Instead = func(w http.ResponseWriter, r *http.Request) bool {
				if !r.URL.Query().Has("dryRun") {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusUnprocessableEntity)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid",` +
					`"message":"data is immutable\u001b[2J","code":422}`)) // the caller may have gone
				return true
			}
		}, want: []string{"cannot be set to what was rendered", "data is immutable", "nothing was changed"},
			chart: "1.19.1", state: "deployed"},
		{name: "it does not roll out the first time", is: func(*testing.T, *installation, kubetest.Releases) {},
			wanted: []string{daemons}, want: []string{"DaemonSet kube-system/cilium"}, chart: "1.20.0",
			state: "failed"},
		{name: "an upgrade does not roll out", is: func(t *testing.T, in *installation, _ kubetest.Releases) {
			in.applied(t, ofVersion(t, "1.19.1", ""))
		}, wanted: []string{daemons}, want: []string{"DaemonSet kube-system/cilium",
			"rolled back to revision 1, chart 1.19.1"}, chart: "1.19.1", state: "deployed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in, m := onCluster(t)
			test.is(t, in, m)
			step := in.network.releaseStep(ofVersion(t, "1.20.0", "native", test.wanted...))
			err := step.Run(t.Context())
			if err == nil {
				t.Fatal("it is done")
			}
			text := kubetest.Explained(err)
			kubetest.Contains(t, text, test.want...)
			if strings.Contains(text, "\x1b") {
				t.Errorf("it is not fit for a terminal: %q", text)
			}
			m.Instead = nil
			newest := m.Newest(t)
			if (len(newest) == 0) != (test.chart == "") || len(newest) > 0 && (newest[0].Chart != test.chart ||
				newest[0].Status != test.state) {
				t.Errorf("on record is %+v", newest)
			}
			if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
				t.Errorf("it counts as done: %v", err)
			}
		})
	}
}

// archived is an archive with files, as that of the cilium command is.
func archived(t *testing.T, files map[string]string) string {
	t.Helper()
	all := make(map[string][]byte)
	for name, content := range files {
		all[name] = []byte(content)
	}
	plain, err := kubetest.Tar(all)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	w := gzip.NewWriter(&out)
	_, err = w.Write(plain)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// commandHost is a host to which an archive was shipped, and what the bundle has of it.
func commandHost(t *testing.T, archive string) (*hosttest.Fake, *site.Host, bundle.File) {
	t.Helper()
	f := hosttest.New(t, "a")
	file := bundle.File{Component: site.CiliumComponent, Name: site.CiliumCLIArchive + "amd64.tar.gz",
		Platform: "linux/amd64", Digest: digest.FromString(archive), Size: int64(len(archive))}
	f.WriteFile(t, site.StoredPath(file), archive, 0o755)
	f.WriteFile(t, path.Dir(site.CiliumCLI)+"/other", "", 0o755)
	f.Program("sync", hosttest.Prints("")) // this machine's own would wait for all that others write
	return f, &site.Host{Conn: f}, file
}

// The cilium command is that of the bundle, or it is put there whole.
func TestCommandStep(t *testing.T) {
	archive := archived(t, map[string]string{"cilium": "the command"})
	ofOther := site.StoredPath(bundle.File{Component: site.CiliumComponent,
		Name: site.CiliumCLIArchive + "amd64.tar.gz", Digest: digest.FromString("another")}) + ".unpacked"
	for _, test := range []struct {
		name, why string
		is        map[string]string
		done      bool
	}{
		{name: "nothing is there", why: "/usr/local/bin/cilium is missing"},
		{name: "somebody's own", why: "is not from this bundle", is: map[string]string{site.CiliumCLI: "another"}},
		{name: "that of an earlier bundle", why: "is not from this bundle",
			is: map[string]string{site.CiliumCLI: "another", ofOther: ""}},
		{name: "it was removed", why: "is missing", is: map[string]string{ofOther: ""}},
		{name: "it is there", done: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var f *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				host, h, file := commandHost(t, archive)
				f = host
				for name, content := range test.is {
					f.WriteFile(t, name, content, 0o755)
				}
				step := commandStep(h, file)
				if test.done {
					if err := step.Run(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				return f, step
			}})
			info, err := os.Stat(f.Path(site.CiliumCLI))
			if err != nil || info.Mode().Perm() != 0o755 || f.ReadFile(t, site.CiliumCLI) != "the command" {
				t.Errorf("%v, %v, %q", info, err, f.ReadFile(t, site.CiliumCLI))
			}
			if strings.Contains(f.Snapshot(t), ofOther) {
				t.Error("it still counts as that of an earlier bundle")
			}
		})
	}
	steptest.Hostile(t, func(t *testing.T, h machine.Host) run.Step {
		_, _, file := commandHost(t, archive)
		return commandStep(&site.Host{Conn: h}, file)
	})
}

// What cannot be unpacked leaves the command that was there, and counts as missing still.
func TestCommandStepFails(t *testing.T) {
	good := archived(t, map[string]string{"cilium": "the command"})
	for _, test := range []struct {
		name, archive string
		set           func(*hosttest.Fake)
		want          string
	}{
		{name: "an archive without it", archive: archived(t, map[string]string{"other": "x"}),
			want: "cilium: Not found"},
		{name: "an archive that breaks off", archive: good[:len(good)/2], want: "unpack the cilium command"},
		{name: "no archive", archive: "no archive", want: "not in gzip format"},
		{name: "a full disk", archive: good, want: "No space left", set: func(f *hosttest.Fake) {
			f.FailNext("tar", 2, "tar: cilium: Wrote only 512 of 10240 bytes: No space left on device")
		}},
		{name: "a disk that cannot be written to", archive: good, want: "Read-only", set: func(f *hosttest.Fake) {
			f.FailNext("mv", 1, "mv: Read-only file system")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, h, file := commandHost(t, test.archive)
			f.WriteFile(t, site.CiliumCLI, "what was there", 0o755)
			if test.set != nil {
				test.set(f)
			}
			before, step := f.Snapshot(t), commandStep(h, file)
			if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
				t.Error(diff)
			}
			if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
				t.Errorf("it counts as done: %v", err)
			}
		})
	}
}
