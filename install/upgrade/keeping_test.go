package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const (
	oldK3s, newK3s = "v1.35.8+k3s1", "v1.36.4+k3s1"
	agentUnit      = site.UnitDir + "k3s-agent.service"
)

// connect is boxlift's way to an API server.
func connect(t *testing.T, api *kubetest.Memory) *kube.Cluster {
	t.Helper()
	c, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// aNode is a Ready node whose kubelet is of a version.
func aNode(name, kubelet string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.KubeletVersion = kubelet
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// helper is boxlift-node on a host whose kubelet is well.
func helper(_ context.Context, c *hosttest.Call) int {
	if len(c.Args) != 5 || c.Args[0] != "probe" {
		_, _ = io.WriteString(c.Stderr, "unknown command\n")
		return 2
	}
	target := reach.ProbeTarget{Kind: reach.ProbeHTTP, Target: c.Args[4]}
	report := reach.ProbeReport{Version: reach.ProbeVersion, Results: []reach.ProbeResult{{ProbeTarget: target, State: reach.OK, Status: http.StatusOK}}}
	_ = json.NewEncoder(c.Stdout).Encode(report) // the caller may have gone
	return 0
}

// toMove is an agent that runs the old k3s, in a cluster with an API. Its program has its version for a content, and
// its node has the version of the program that was started last.
func toMove(t *testing.T) (*move, *hosttest.Fake, *kubetest.Memory) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig+"liteboxd: {}\n", "k3s="+newK3s)
	in.site.K3s, in.site.Bundle = newK3s, sitetest.Fresh(t, 1).Bundle
	in.upgrader.Upgrade = &Upgrading{}
	h := in.site.Hosts[1]
	f := hosttest.New(t, h.Name)
	h.Conn, h.Hostname, h.Platform = f, "host-1", "linux/amd64"
	for _, name := range []string{site.K3sProgram, site.InstallScript} {
		content := map[string]string{site.K3sProgram: newK3s}[name]
		in.site.Contents.Files = append(in.site.Contents.Files, bundle.File{
			Component: site.K3sComponent, Name: name, Platform: h.Platform, Digest: digest.FromString(content), Size: int64(len(content)),
		})
	}
	for name, content := range map[string]string{
		site.K3sBinary: oldK3s, agentUnit: "[Service]\n", agentUnit + ".env": "", site.K3sConfigFile: "a: old\n", site.K3sTokenFile: "the-token\n",
		site.K3sRegistries: "mirrors: {}\n", site.ServiceFile: "made from the old\n", site.StartedFile: "the old\n",
	} {
		f.WriteFile(t, name, content, map[bool]os.FileMode{true: 0o755, false: 0o600}[name == site.K3sBinary])
	}
	api := kubetest.NewMemory(t, aNode("first", newK3s), aNode("host-1", oldK3s))
	in.site.API = connect(t, api)
	f.Program("sync", hosttest.Prints("")) // this machine's own would wait for all that others write
	f.Program("boxlift-node", helper)
	f.Program("k3s", func(_ context.Context, c *hosttest.Call) int {
		version, err := os.ReadFile(c.Host.Path(site.K3sBinary))
		_, _ = fmt.Fprintf(c.Stdout, "k3s version %s (abc)\n", version) // the caller may have gone
		return map[bool]int{true: 0, false: 127}[err == nil]
	})
	f.Unit("k3s-agent").Runs().OnStart(func(f *hosttest.Fake) error {
		version, err := os.ReadFile(f.Path(site.K3sBinary))
		if err == nil {
			api.Put(t, aNode("host-1", string(version)))
		}
		return err
	})
	return &move{upgrader: in.upgrader, host: h, phase: "agents", wanted: &k3s.Node{Cluster: in.cluster, Host: h}}, f, api
}

// isNew brings what an upgrade brings: another program and config, a file more, and one less.
func isNew(t *testing.T, f *hosttest.Fake) {
	t.Helper()
	f.WriteFile(t, site.K3sBinary+".x", newK3s, 0o755)
	if err := errors.Join(os.Rename(f.Path(site.K3sBinary+".x"), f.Path(site.K3sBinary)), os.Remove(f.Path(site.K3sRegistries))); err != nil {
		t.Fatal(err)
	}
	f.WriteFile(t, site.K3sConfigFile, "a: new\n", 0o600)
	f.WriteFile(t, site.K3sResolvConf, "nameserver 10.0.0.1\n", 0o600)
}

// goesBy is what k3s goes by on the host.
func goesBy(t *testing.T, m *move, f *hosttest.Fake) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range append(m.keptFiles(), site.K3sBinary) {
		if content := f.ReadFile(t, name); content != "" {
			files[name] = content
		}
	}
	return files
}

// What k3s is stays whole beside it, and is put back whole, wherever the connection breaks: the files that came since
// go, those that went come back, and what runs is what ran.
func TestKeepAndGoBack(t *testing.T) {
	for breaks := 0; ; breaks++ {
		m, f, _ := toMove(t)
		before := goesBy(t, m, f)
		if err := m.keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		found, err := readKept(t.Context(), m.host)
		if diff := cmp.Diff(m.before, found); diff != "" || err != nil || found.K3s != oldK3s || found.Bundle != m.upgrader.Site.Bundle.Digest() {
			t.Fatalf("kept is %+v, %v", found, err)
		}
		for name, mode := range map[string]os.FileMode{k3s.PreviousDir: 0o700, k3s.KeptFile: 0o600, k3s.PreviousDir + "/k3s": 0o755} {
			if info, err := os.Stat(f.Path(name)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		isNew(t, f)
		f.BreakAfter(breaks)
		broken := m.restorePrevious(t.Context())
		f.BreakAfter(-1)
		if broken != nil && !errors.Is(broken, hosttest.ErrLost) {
			t.Fatalf("after %d commands: %v", breaks, broken)
		}
		if broken != nil {
			if err := m.restorePrevious(t.Context()); err != nil {
				t.Fatalf("again, after %d commands: %v", breaks, err)
			}
		}
		if diff := cmp.Diff(before, goesBy(t, m, f)); diff != "" {
			t.Errorf("after %d commands, -want +got:\n%s", breaks, diff)
		}
		if f.ReadFile(t, site.StartedFile) == "the old\n" || f.Unit("k3s-agent").Active() != "active" || f.Unit("k3s-agent").Starts() == 0 {
			t.Errorf("after %d commands, k3s was not started with what was put back", breaks)
		}
		if broken == nil {
			if breaks < 5 {
				t.Errorf("it has %d commands", breaks)
			}
			return
		}
	}
}

// Keeping fails as a whole: k3s is not moved then, and what an upgrade before has kept is there, or nothing. It is done
// by the same step when its cause has gone.
func TestKeepFails(t *testing.T) {
	for _, test := range []struct {
		program string
		stays   bool // what was kept before
	}{{"k3s", true}, {"rm", true}, {"mkdir", true}, {"cp", true}, {"cat", true}, {"chmod", true}, {"sync", true}, {"mv", false}} {
		t.Run(test.program, func(t *testing.T) {
			m, f, _ := toMove(t)
			earlier := fmt.Sprintf(`{"format":1,"bundle":%q,"k3s":"v1.34.1+k3s1","pods":[]}`, digest.FromString("earlier"))
			f.WriteFile(t, k3s.KeptFile, earlier, 0o600)
			before := goesBy(t, m, f)
			f.FailNext(test.program, 1, "No space left on device")
			if err := m.keep(t.Context()); err == nil || !strings.Contains(err.Error(), "No space left on device") || m.before != nil {
				t.Fatalf("it went on: %v, %+v", err, m.before)
			}
			if got := f.ReadFile(t, k3s.KeptFile); (got == earlier) != test.stays || got != earlier && got != "" {
				t.Errorf("kept is %q", got)
			}
			if diff := cmp.Diff(before, goesBy(t, m, f)); diff != "" {
				t.Errorf("the host was changed:\n%s", diff)
			}
			if err := m.keep(t.Context()); err != nil || m.before == nil || m.before.K3s != oldK3s {
				t.Errorf("again: %v, %+v", err, m.before)
			}
			if strings.Contains(f.Snapshot(t), ".boxlift-new") {
				t.Error("half of it is left")
			}
		})
	}
}

// A host without links between folders keeps a copy of the program.
func TestKeepWithoutLinks(t *testing.T) {
	m, f, _ := toMove(t)
	f.Program("ln", hosttest.Fails(1, "Operation not permitted"))
	if err := m.keep(t.Context()); err != nil || f.ReadFile(t, k3s.PreviousDir+"/k3s") != oldK3s {
		t.Errorf("%v, %q", err, f.ReadFile(t, k3s.PreviousDir+"/k3s"))
	}
}

// What cannot be put back is an error, and not a start of what there is: of the new program with the old config.
func TestGoBackFails(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *hosttest.Fake){
		"nothing is kept":     func(_ *testing.T, f *hosttest.Fake) { _ = os.RemoveAll(f.Path(k3s.PreviousDir)) },
		"without the program": func(_ *testing.T, f *hosttest.Fake) { _ = os.Remove(f.Path(k3s.PreviousDir + "/k3s")) },
		"a full disk":         func(_ *testing.T, f *hosttest.Fake) { f.FailNext("cp", 1, "No space left on device") },
		"a read-only disk":    func(_ *testing.T, f *hosttest.Fake) { f.FailNext("mv", 1, "Read-only file system") },
	} {
		t.Run(name, func(t *testing.T) {
			m, f, _ := toMove(t)
			if err := m.keep(t.Context()); err != nil {
				t.Fatal(err)
			}
			isNew(t, f)
			fail(t, f)
			if err := m.restorePrevious(t.Context()); err == nil || f.Unit("k3s-agent").Starts() != 0 {
				t.Errorf("%v, and k3s was started %d times", err, f.Unit("k3s-agent").Starts())
			}
		})
	}
	m, f, _ := toMove(t)
	if err := m.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	isNew(t, f)
	f.Unit("k3s-agent").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
	f.Program("journalctl", hosttest.Prints("\x1b[31mfatal: the-token is wrong\n"))
	var failed *setup.ServiceError
	if err := m.restorePrevious(t.Context()); !errors.As(err, &failed) {
		t.Errorf("k3s does not start: %v", err)
	} else if strings.Contains(failed.Lines, "the-token") || strings.Contains(failed.Lines, "\x1b") || !strings.Contains(failed.Lines, "fatal:") {
		t.Errorf("its journal: %q", failed.Lines)
	}
}

// What a host keeps is read strictly. A host that says something else, or much of it, is not taken for one that keeps
// nothing: its k3s would be kept once more, over the one to go back to.
func TestReadKept(t *testing.T) {
	const start = `{"format":1,"bundle":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",`
	for _, test := range []struct{ name, text, want string }{
		{"no JSON", "{", "kept.json"},
		{"another form", `{"format":2,"bundle":"","k3s":"","pods":[]}`, "it has format 2, and this boxlift knows format 1"},
		{"no form", `{}`, "format 0"},
		{"more than is known", start + `"more":1}`, "more"},
		{"twice", start + `"k3s":"v1","pods":[]}` + start + `"k3s":"v1","pods":[]}`, "kept.json"},
		{"huge", start + `"k3s":"v1","pods":[` + strings.Repeat(`{"name":"a"},`, 1<<18) + `{}]}`, "kept.json"},
		{"a list", `[]`, "kept.json"},
	} {
		f := hosttest.New(t, "a")
		f.WriteFile(t, k3s.KeptFile, test.text, 0o600)
		k, err := readKept(t.Context(), &site.Host{Conn: f})
		if k != nil || err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 2000 {
			t.Errorf("%s: %+v, %v", test.name, k, err)
		}
	}
	f := hosttest.New(t, "a")
	f.WriteFile(t, k3s.KeptFile, start+`"k3s":"v1\u001b[31m`+strings.Repeat("x", 1000)+`","pods":[]}`, 0o600)
	if k, err := readKept(t.Context(), &site.Host{Conn: f}); err != nil || len(k.K3s) > 110 || strings.Contains(k.K3s, "\x1b") {
		t.Errorf("%+v, %v", k, err)
	}
	f.FailNext("cat", 1, "Input/output error")
	if k, err := readKept(t.Context(), &site.Host{Conn: f}); k != nil || err == nil {
		t.Errorf("%+v, %v", k, err)
	}
}

// Whether k3s is started again on a host, and gets another program, is seen there.
func TestLookAtMove(t *testing.T) {
	for _, test := range []struct {
		name            string
		make            func(*testing.T, *hosttest.Fake)
		moves, replaces bool
		wrong           string
	}{
		{"no k3s", func(_ *testing.T, f *hosttest.Fake) { _ = os.Remove(f.Path(site.K3sBinary)) }, false, false, ""},
		{"another program", func(*testing.T, *hosttest.Fake) {}, true, true, ""},
		{"the program is there, and not started", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, site.K3sBinary, newK3s, 0o755) }, true, false, ""},
		{"an answer that is no sum", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(strings.Repeat("z", 64)))
		}, false, false, "boxlift-node printed"},
		{"a host that is gone", func(_ *testing.T, f *hosttest.Fake) { f.BreakAfter(0) }, false, false, "connection lost"},
	} {
		m, f, _ := toMove(t)
		test.make(t, f)
		before := f.Snapshot(t)
		err := m.lookAtMove(t.Context())
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: %v", test.name, err)
		}
		if m.moves != test.moves || m.replaces != test.replaces || f.Snapshot(t) != before {
			t.Errorf("%s: moves %t, replaces %t", test.name, m.moves, m.replaces)
		}
	}
}

// What is kept already stays where this upgrade was broken off between the new files and the start.
func TestToKeepOnAHost(t *testing.T) {
	for _, test := range []struct {
		name, started string
		want          toKeep
	}{{"not started yet", "", keepNothing}, {"about to be, adopted", setup.ChangedMark + "\n", keepNothing}, {"started", "a fingerprint\n", keepPods}} {
		m, f, _ := toMove(t)
		m.moves, m.before = true, &kept{}
		f.WriteFile(t, site.StartedFile, test.started, 0o600)
		if got, err := m.toKeep(t.Context()); got != test.want || err != nil {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
		f.BreakAfter(0)
		if _, err := m.toKeep(t.Context()); !errors.Is(err, hosttest.ErrLost) {
			t.Errorf("%s, and the host is gone: %v", test.name, err)
		}
	}
}

// Forgetting goes wrong as a whole, or goes on where it broke off.
func TestForgetPreviousFails(t *testing.T) {
	m, f, _ := toMove(t)
	if err := m.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	step := forgetStep(m.host)
	f.FailNext("rm", 1, "Device or resource busy")
	if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Device or resource busy") {
		t.Errorf("%v", err)
	}
	if reason, err := step.Needed(t.Context()); !strings.Contains(reason, oldK3s) || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	before := goesBy(t, m, f)
	if err := step.Run(t.Context()); err != nil || strings.Contains(f.Snapshot(t), k3s.PreviousDir) {
		t.Errorf("again: %v", err)
	}
	if diff := cmp.Diff(before, goesBy(t, m, f)); diff != "" {
		t.Errorf("what runs was changed: %s", diff)
	}
}
