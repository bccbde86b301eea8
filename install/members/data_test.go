package members

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Agents that install.yaml does not have are all judged before the first is touched, the one without data too.
// What is given up by name goes on to the removal, which here reaches no host.
func TestAbsentAgentsWithDataStay(t *testing.T) {
	const system, sandboxes = "liteboxd-system", "liteboxd-sandbox"
	const config = `cluster:
  servers: [{host: 127.0.0.1, name: server, port: 1, password: p}]
  absentAgentLogin: {port: 1, password: p}
ssh: {trustOnFirstUse: true}
network: {cni: cilium}
runtime: {removeAbsentAgents: true, sshTimeoutSeconds: 1}
liteboxd: {}
`
	nodes := []kube.Node{
		{Name: "server", Server: true, Ready: true, Addresses: []string{"127.0.0.1"}},
		{Name: "a", Ready: true, Addresses: []string{"127.0.0.2"}},
		{Name: "b", Ready: true, Addresses: []string{"127.0.0.3"}},
	}
	tests := []struct {
		name, namespace, claim string
		node                   string
		giveUp                 []string
		inspect                bool
		held, unreached        bool
		text                   string
	}{
		{name: "LiteBoxd's database", namespace: system, claim: "liteboxd-api-data", node: "b", held: true,
			text: "LiteBoxd's database (the claim liteboxd-system/liteboxd-api-data), up to 5.0 GiB, " +
				"in " + LocalStorage + "/pvc-1"},
		{name: "a persistent sandbox", namespace: sandboxes, claim: "sandbox-data-7f", node: "b", held: true,
			text: "b (127.0.0.3) holds\n  persistent sandbox 7f (the claim liteboxd-sandbox/sandbox-data-7f), up to 5.0 GiB"},
		{name: "on the server", namespace: "shop", claim: "data", node: "server", unreached: true},
		{name: "given up by name", namespace: "shop", claim: "data", node: "b", giveUp: []string{"b"}, unreached: true},
		{name: "given up by address", namespace: "shop", claim: "data", node: "b", giveUp: []string{"127.0.0.3"},
			unreached: true},
		{name: "that of another host is given up", namespace: "shop", claim: "data", node: "b", giveUp: []string{"a"},
			held: true},
		{name: "no backup is to be had", namespace: system, claim: "liteboxd-api-data", node: "b", giveUp: []string{"b"},
			unreached: true, text: "remove b (127.0.0.3): nothing was changed"},
		{name: "a look", namespace: "shop", claim: "data", node: "b", inspect: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, config)
			in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
			in.members.GiveUpDataOn = test.giveUp
			api := sitetest.NewStorageAPI(test.node, test.namespace, test.claim, "server", "a", "b")
			in.site.API = api.Connect(t)
			removals, err := in.members.absentRemovals(t.Context(), nodes)
			if err != nil || len(removals) != 2 {
				t.Fatalf("%v, %v", removals, err)
			}
			if test.inspect {
				err = in.members.removeAbsent(t.Context(), nodes)
			} else {
				err = in.members.judgeData(t.Context(), removals)
			}
			if err == nil && !test.inspect {
				for _, r := range removals {
					for _, d := range r.held {
						if d.Use == localdata.Database {
							err = errors.Join(err, r.backUpDatabase(t.Context(), d))
						}
					}
				}
			}
			if err == nil && !test.inspect {
				err = removals[1].run(t.Context())
			}
			var held *heldError
			var unreached *unreachableError
			if errors.As(err, &held) != test.held || errors.As(err, &unreached) != test.unreached {
				t.Errorf("got %v", err)
			}
			if test.held && (!errors.Is(err, site.ErrRefused) || !strings.Contains(held.Hint(), "--give-up-the-data-on")) {
				t.Errorf("%v: hint %q", err, held.Hint())
			}
			if !strings.Contains(fmt.Sprint(err), test.text) {
				t.Errorf("got %v, want %q in it", err, test.text)
			}
			if in.engine.Cluster.Changes != nil {
				t.Errorf("changes: %+v", in.engine.Cluster.Changes)
			}
			if test.inspect != strings.Contains(strings.Join(in.engine.Cluster.Differences, "\n"), "b (127.0.0.3) holds") {
				t.Errorf("differences %q", in.engine.Cluster.Differences)
			}
			if api.Others != nil {
				t.Errorf("the cluster was asked for %q", api.Others)
			}
		})
	}
}

// A volume that is made after the hosts were judged keeps the next step from being done, with the others gone.
func TestDataIsJudgedAgain(t *testing.T) {
	in := example(t, sitetest.RemovingConfig)
	in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
	api := sitetest.NewStorageAPI("b", "shop", "data", "server", "b")
	in.site.API = api.Connect(t)
	r := &removal{
		members: in.members, node: kube.Node{Name: "b"}, seen: localdata.Host{Name: "b", Node: "b", Seen: true},
		company: []localdata.Host{{Name: "a", Node: "a"}},
	}
	var held *heldError
	for _, step := range r.steps(&remote.Host{}) {
		if strings.HasPrefix(step.Title, "drain ") {
			continue // it follows at once on the first step
		}
		if err := step.Run(t.Context()); !errors.As(err, &held) {
			t.Errorf("%s: %v", step.Title, err)
		}
	}
	if api.Others != nil {
		t.Errorf("the cluster was asked for %q", api.Others)
	}
	in.members.GiveUpDataOn = []string{"b"}
	if err := r.checkData(t.Context(), false); err != nil {
		t.Errorf("given up: %v", err)
	}
	// A volume that two hosts may use is lost when they leave together.
	in.members.GiveUpDataOn, r.seen.Seen = nil, false
	terms := api.Volumes[0].Spec.NodeAffinity.Required.NodeSelectorTerms
	terms[0].MatchExpressions[0].Values = []string{"a", "b"}
	a := corev1.Node{}
	a.Name, a.Labels = "a", map[string]string{corev1.LabelHostname: "a"}
	api.Nodes = append(api.Nodes, a)
	if err := r.checkData(t.Context(), false); !errors.As(err, &held) {
		t.Errorf("both leave: %v", err)
	}
	r.company = nil
	if err := r.checkData(t.Context(), false); err != nil {
		t.Errorf("the other one stays: %v", err)
	}
}

// Data is not given up by a slip of the hand.
func TestGivingUpNamesWhatIsRemoved(t *testing.T) {
	in := example(t, sitetest.RemovingConfig)
	removals := []*removal{
		{members: in.members, host: in.site.Hosts[1], node: kube.Node{Name: "worker", Addresses: []string{"10.0.0.12"}}},
		{members: in.members, node: kube.Node{Name: "late", Addresses: []string{"10.0.0.13"}}},
	}
	for name, refused := range map[string]bool{
		"worker": false, "10.0.0.12": false, "late": false, "10.0.0.13": false, "lat": true, "": true, "127.0.0.1": true,
	} {
		in.members.GiveUpDataOn = []string{name}
		if err := in.members.checkGivenUp(removals); errors.Is(err, site.ErrRefused) != refused {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// What is on a host is found, whatever it is called.
func TestDataScript(t *testing.T) {
	dir := t.TempDir()
	storage := filepath.Join(dir, "storage")
	for _, folder := range []string{"storage/pvc-1 a", "storage/pvc-2", "storage/empty", "disk", "storage/.hidden"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"storage/pvc-1 a/data", "storage/pvc-2/.data", "storage/.hidden/data", "storage/two\nlines"}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(storage, "link")); err != nil {
		t.Fatal(err)
	}
	look := func(storage string, paths ...string) ([]localdata.Folder, []string) {
		t.Helper()
		script := exec.CommandContext(t.Context(), "/bin/sh", "-c", dataScript, "sh", storage)
		script.Stdin = strings.NewReader(strings.Join(paths, "\x00"))
		out, err := script.Output()
		if err != nil {
			t.Fatal(err)
		}
		found, stray, err := parseData(string(out))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(stray)
		return found, stray
	}
	at := func(name string) string { return filepath.Join(storage, name) }
	found, stray := look(storage, at("pvc-1 a"), filepath.Join(dir, "disk"), filepath.Join(dir, "none"), at("pvc-2"))
	want := []localdata.Folder{{Path: at("pvc-1 a")}, {Path: filepath.Join(dir, "disk"), Empty: true}, {Path: at("pvc-2")}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
	strays := []string{at(".hidden"), at("link"), at("pvc-1 a"), at("pvc-2"), at("two\nlines")}
	if diff := cmp.Diff(strays, stray); diff != "" {
		t.Error(diff)
	}
	if found, stray := look(filepath.Join(dir, "none")); found != nil || stray != nil {
		t.Errorf("on a host without any: %v, %v", found, stray)
	}
	for text, want := range map[string]bool{"volume full nfs /a\x00": true, "volume full ext2/ext3 /a\x00": false} {
		if found, _, err := parseData(text); err != nil || len(found) != 1 || found[0].Network != want {
			t.Errorf("%q: %v, %v", text, found, err)
		}
	}
	for _, text := range []string{"volume full /a\x00", "sh: not found", "stray\x00"} {
		if _, _, err := parseData(text); err == nil {
			t.Errorf("%q is no answer, and was taken", text)
		}
	}
}
