package upgrade

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

var otherBundle = digest.FromString("another bundle")

// recorded is a record of releases, whose numbers count from 1.
func recorded(t *testing.T, releases ...release.Release) *release.Record {
	t.Helper()
	r := release.New("example")
	for i, one := range releases {
		one.Number, one.Attempts, one.Boxlift, one.By, one.Started = i+1, 1, "v1", "op@laptop", time.Unix(1000, 0).UTC()
		one.Lock = digest.FromString("a lock")
		if one.Config == "" {
			one.Config = strings.Repeat("a", 64)
		}
		if one.Components == nil {
			one.Components = []release.Component{}
		}
		if one.State.Finished() {
			one.Ended = time.Unix(2000, 0).UTC()
		}
		r.Releases = append(r.Releases, one)
	}
	if _, err := r.Encode(); err != nil {
		t.Fatal(err)
	}
	return r
}

// recordSecret is how the cluster keeps a record.
func recordSecret(document []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: release.SecretNamespace, Name: release.SecretName},
		Data:       map[string][]byte{release.SecretKey: document},
	}
}

// What the cluster's record says of an upgrade: whether it goes on, begins, or is in the way of another one.
func TestLookAtRecord(t *testing.T) {
	m, _, _ := toMove(t)
	this, config := m.upgrader.Site.Bundle.Digest(), m.upgrader.Site.Config.Fingerprint()
	one := func(b digest.Digest, s release.State, command string) release.Release {
		return release.Release{Bundle: b, State: s, Command: command, Config: config}
	}
	first := one(otherBundle, release.Succeeded, "install")
	changed := first
	changed.Config = strings.Repeat("b", 64)
	for _, test := range []struct {
		name     string
		to       int
		releases []release.Release
		want     gate.Cluster
		record   string // in what is wrong with it
		way      string
		drift    string
	}{
		{name: "no release", want: gate.Cluster{Unrecorded: true}},
		{name: "an upgrade", releases: []release.Release{first}},
		{name: "to what runs", releases: []release.Release{one(this, release.Succeeded, "install")}, want: gate.Cluster{Standing: true}},
		{name: "broken off", releases: []release.Release{first, one(this, release.Running, "upgrade")}, want: gate.Cluster{Standing: true, UnderWay: true}},
		{name: "failed", releases: []release.Release{first, one(this, release.Failed, "upgrade")}, want: gate.Cluster{Standing: true, UnderWay: true}},
		{name: "that changed nothing yet", releases: []release.Release{first, one(this, release.Created, "upgrade")}, want: gate.Cluster{Standing: true}},
		{name: "by another command", releases: []release.Release{first, one(this, release.Failed, "install")}, want: gate.Cluster{Standing: true}},
		{
			name: "beside another one", releases: []release.Release{first, one(digest.FromString("third"), release.Failed, "upgrade")},
			record: "release 2 (upgrade, bundle sha256:", way: "go back first: boxlift rollback --to 1",
		},
		{
			name: "with nothing to go back to", releases: []release.Release{one(otherBundle, release.Running, "install")},
			record: "release 1 (install, bundle", way: "boxlift resume, or the same command again",
		},
		{name: "after one was taken back", releases: []release.Release{first, one(digest.FromString("third"), release.RolledBack, "upgrade")}},
		{name: "install.yaml was changed", releases: []release.Release{changed}, drift: "install.yaml asks for something else than in release 1"},
		{
			name: "back, from one that is unfinished", to: 1, releases: []release.Release{one(this, release.Succeeded, "install"), one(otherBundle, release.Failed, "upgrade")},
			want: gate.Cluster{UnderWay: true},
		},
		{name: "back, with another install.yaml", to: 1, releases: []release.Release{one(this, release.Succeeded, "install"), changed}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _, api := toMove(t)
			r := recorded(t, test.releases...)
			r.Serial = 7
			document, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			api.Put(t, recordSecret(document))
			u := &planner{upgrader: m.upgrader, options: Settings{RollbackTo: test.to}}
			if err := u.lookAtRecord(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := u.is.Record; (got == "") != (test.record == "") || !strings.Contains(got, test.record) || !strings.Contains(u.is.RecordWay, test.way) {
				t.Errorf("it says %q, %q", got, u.is.RecordWay)
			}
			if got := strings.Join(u.is.Drift, "; "); got != test.drift {
				t.Errorf("it has drifted: %q", got)
			}
			test.want.Serial, u.is.Record, u.is.RecordWay, u.is.Drift = 7, "", "", nil
			if diff := cmp.Diff(test.want, u.is); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A record that cannot be used is a gate's affair; an API that does not answer is not taken for a cluster without one.
func TestLookAtRecordOfOthers(t *testing.T) {
	for _, document := range []string{"", "{", `{"format":99}`, strings.Repeat("[", 1<<20)} {
		m, _, api := toMove(t)
		api.Put(t, recordSecret([]byte(document)))
		u := &planner{upgrader: m.upgrader}
		if err := u.lookAtRecord(t.Context()); err != nil || u.is.Record == "" || u.is.RecordWay == "" || u.is.Unrecorded || len(u.is.Record) > 1000 {
			t.Errorf("%.20q: %+v, %v", document, u.is, err)
		}
	}
	m, _, api := toMove(t)
	api.Answer(fmt.Sprintf("/api/v1/namespaces/%s/secrets/%s", release.SecretNamespace, release.SecretName), unavailable)
	u := &planner{upgrader: m.upgrader}
	if err := u.lookAtRecord(t.Context()); err == nil || u.is.Unrecorded {
		t.Errorf("%+v, %v", u.is, err)
	}
}

// A cluster goes back in place, or by the newest backup of what ran with the release's bundle, or not at all. Without
// the cluster, the copy of its record beside the state says which.
func TestWayBack(t *testing.T) {
	const config = "cluster: {name: example, master: {host: 127.0.0.1, port: 1, password: p}}\nnetwork: {cni: cilium}\n" +
		"ssh: {trustOnFirstUse: true}\nruntime: {sshTimeoutSeconds: 1}\n"
	this := sitetest.Fresh(t, 1).Bundle
	one := func(b digest.Digest, s release.State, k3s, backup string) release.Release {
		return release.Release{Bundle: b, State: s, Command: "upgrade", Backup: backup, Components: []release.Component{{Name: "k3s", Version: k3s}}}
	}
	first := one(this.Digest(), release.Succeeded, "v1.35.8+k3s1", "")
	for _, test := range []struct {
		name     string
		to       int
		releases []release.Release
		want     string
		wrong    string
		is       error
	}{
		{"a patch", 1, []release.Release{first, one(otherBundle, release.Succeeded, "v1.35.9+k3s1", "b.tar")}, "", "", nil},
		{"a minor version", 1, []release.Release{first, one(otherBundle, release.Succeeded, "v1.36.4+k3s1", "b.tar")}, "b.tar", "", nil},
		{"a minor version, and it failed", 1, []release.Release{first, one(otherBundle, release.Failed, "v1.36.4+k3s1", "b.tar")}, "b.tar", "", nil},
		{"it changed nothing", 1, []release.Release{first, one(otherBundle, release.Created, "v1.36.4+k3s1", "b.tar")}, "", "", nil},
		{
			"there and back", 3,
			[]release.Release{first, one(otherBundle, release.RolledBack, "v1.36.4+k3s1", "old.tar"), one(this.Digest(), release.Succeeded, "v1.35.8+k3s1", ""), one(otherBundle, release.Failed, "v1.36.4+k3s1", "new.tar")},
			"new.tar", "", nil,
		},
		{"without a backup", 1, []release.Release{first, one(otherBundle, release.Succeeded, "v1.36.4+k3s1", "")}, "", "boxlift backup list shows what there is", ErrNoBackup},
		{"no such release", 5, []release.Release{first}, "", "the record has no release 5", site.ErrRefused},
		{"one that failed", 1, []release.Release{one(this.Digest(), release.Failed, "v1.35.8+k3s1", "")}, "", "only one that succeeded can be gone back to", site.ErrRefused},
		{"one of another bundle", 1, []release.Release{one(otherBundle, release.Succeeded, "v1.35.8+k3s1", "")}, "", "give that bundle", site.ErrRefused},
		{"no record", 1, nil, "", "the record has no release 1", site.ErrRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, config)
			in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
			in.site.Bundle, in.site.K3s, in.site.StatePath = this, "v1.35.8+k3s1", filepath.Join(t.TempDir(), "state.json")
			if test.releases != nil {
				if err := in.record.CopyRecord(recorded(t, test.releases...)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := in.upgrader.WayBack(t.Context(), Settings{RollbackTo: test.to})
			if test.want != "" {
				test.want = filepath.Join(recovery.BackupsDir(in.site.StatePath, "example"), test.want)
			}
			if got != test.want || (err == nil) != (test.is == nil) || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("%q, %v", got, err)
			}
			if err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Error(err)
			}
			// A restore that was broken off is gone on with, whatever the record says.
			j, err := journal.Open(in.site.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			err = j.Begin(journal.Run{Command: "backup restore", Bundle: this.Digest().String(), BackupFile: "/srv/half.tar"})
			if _, started := j.Start(journal.Step{Phase: run.RestorePhase, ID: "stop-k3s"}); err != nil || started != nil {
				t.Fatal(err, started)
			}
			if err := j.End(errors.New("x")); err != nil {
				t.Fatal(err)
			}
			if got, err := in.upgrader.WayBack(t.Context(), Settings{RollbackTo: test.to}); got != "/srv/half.tar" || err != nil {
				t.Errorf("a restore is unfinished: %q, %v", got, err)
			}
		})
	}
}

// A copy of the record that is damaged says nothing of a way back.
func TestWayBackByADamagedRecord(t *testing.T) {
	m, _, _ := toMove(t)
	in := roomsOf(m.upgrader.Site)
	in.site.API, in.site.StatePath, in.site.Conns = nil, filepath.Join(t.TempDir(), "state.json"), site.NewConnections(in.site.Config, nil, nil)
	in.site.Hosts[0].Config.Host, in.site.Hosts[0].Config.Port = "127.0.0.1", 1
	file := in.record.RecordCopy()
	for _, text := range []string{"{", "[]", strings.Repeat("x", 8<<20)} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := in.upgrader.WayBack(t.Context(), Settings{RollbackTo: 1}); got != "" || !errors.Is(err, release.ErrInvalid) {
			t.Errorf("%.10q: %q, %v", text, got, err)
		}
	}
}

// What an upgrade is judged by: versions and states of nodes, Cilium and LiteBoxd, and the claim of LiteBoxd's data.
func TestLookAtCluster(t *testing.T) {
	m, _, api := toMove(t)
	box := m.upgrader.Site.Config.LiteBoxd.NamespaceSystem
	server := aNode("first", newK3s)
	server.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "true", etcdLabel: "true"}
	ill := aNode("host-1", oldK3s)
	ill.Status.Conditions[0].Status, ill.Status.Conditions[0].Reason, ill.Status.Conditions[0].Message = corev1.ConditionFalse, "KubeletNotReady", "\x1b[31mno CNI"
	api.Put(t, server, ill, kubetest.HelmRelease(t, "kube-system", "cilium", "1.20.0", "pending-upgrade", 2))
	d := kubetest.Deployment("liteboxd-api", 1, "registry.lan/liteboxd-server:v0.6.9")
	d.Namespace = box
	api.Put(t, d)
	u := &planner{upgrader: m.upgrader}
	if err := u.lookAtCluster(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := gate.Cluster{
		Nodes: []gate.Node{
			{Name: "first", Server: true, Kubelet: newK3s, Ready: true}, {Name: "host-1", Kubelet: oldK3s, Reason: "KubeletNotReady: \ufffd[31mno CNI"},
		},
		EmbeddedEtcd: true, Cilium: "1.20.0", CiliumState: "pending-upgrade", LiteBoxd: "v0.6.9", Unrecorded: true,
		Volume: "the claim liteboxd-api-data does not exist", VolumeWay: u.is.VolumeWay,
	}
	if diff := cmp.Diff(want, u.is); diff != "" || u.is.VolumeWay == "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantChanges := []ComponentChange{{"k3s", []string{oldK3s, newK3s}, "v2"}, {"cilium", []string{"1.20.0"}, "1.21"}, {"liteboxd", []string{"v0.6.9"}, "v0.6.10"}}
	if diff := cmp.Diff(wantChanges, u.componentChanges(gate.Target{K3s: "v2", Cilium: "1.21", LiteBoxd: "v0.6.10"})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if changes := api.Changes(); changes != nil {
		t.Errorf("looking has changed the cluster: %q", changes)
	}
	for _, path := range []string{
		"/api/v1/nodes", "/api/v1/namespaces/kube-system/secrets", "/apis/apps/v1/namespaces/" + box + "/deployments",
		"/api/v1/namespaces/" + box + "/persistentvolumeclaims/liteboxd-api-data",
	} {
		for name, answer := range map[string]http.HandlerFunc{"503": unavailable, "no JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"NodeList","items":[{]`)) // the caller may have gone
		}} {
			api.Answer(path, answer)
			u := &planner{upgrader: m.upgrader}
			if err := u.lookAtCluster(t.Context()); err == nil {
				t.Errorf("%s answers with %s: %+v", path, name, u.is)
			}
		}
		api.Answer(path, nil)
	}
}

// An upgrade over a minor version that drains says so in its order, where a patch does not.
func TestOrderOfADrain(t *testing.T) {
	m, _, _ := toMove(t)
	for _, from := range []string{oldK3s, "v1.36.3+k3s1"} {
		u := &planner{upgrader: m.upgrader, options: Settings{Accept: gate.Accept{Drain: true}}, phases: []string{"backup", "servers", "agents"}}
		u.found = &inspect.Running{Nodes: []kube.Node{{Kubelet: from}}}
		p := &Plan{Components: []ComponentChange{{"k3s", []string{from}, newK3s}}, Hosts: []Host{{Host: "a1", Role: "agent", K3s: from}}}
		order := u.order(p)
		drains := slices.ContainsFunc(order, func(s Step) bool {
			return s.What == "DRAIN, which ends all sandboxes there, and start k3s "+newK3s && slices.Equal(s.Hosts, []string{"a1"})
		})
		if drains != (from == oldK3s) || u.movesMinor() != drains || len(order) != 2 {
			t.Errorf("from %s: %+v", from, order)
		}
	}
	// Agents that have had the servers' token cost the servers a start.
	m.upgrader.Cluster.SharesToken = true
	u := &planner{upgrader: m.upgrader, found: &inspect.Running{Nodes: []kube.Node{{Kubelet: newK3s}}}, phases: []string{"backup", k3s.TokensPhase}}
	order := u.order(&Plan{Components: []ComponentChange{{"k3s", []string{newK3s}, newK3s}}})
	if len(order) != 2 || !strings.HasPrefix(order[1].What, "give the servers another token") || !slices.Equal(order[1].Hosts, []string{"first (10.0.0.11)"}) {
		t.Errorf("%+v", order)
	}
}

// Bundles that are there lead further than one step can, and damaged ones are an error.
func TestPathVia(t *testing.T) {
	m, _, _ := toMove(t)
	u := &planner{upgrader: m.upgrader, options: Settings{Via: []*bundle.Reader{m.upgrader.Site.Bundle}}}
	u.is.Nodes = []gate.Node{{Name: "first", Server: true, Kubelet: newK3s, Ready: true}}
	if path, err := u.path(gate.Target{K3s: newK3s}); path != nil || err != nil {
		t.Errorf("one step: %+v, %v", path, err)
	}
	u.is.Nodes[0].Kubelet, u.is.Cilium = "v1.33.1+k3s1", "1.18.6"
	path, err := u.path(gate.Target{K3s: newK3s, Cilium: "1.20.0"})
	if err != nil || len(path) < 3 {
		t.Errorf("three minor versions: %+v, %v", path, err)
	}
	var refused error = &gatesError{[]gate.Finding{{Gate: gate.Nodes, Outcome: gate.Refused, Reason: "x"}}}
	var hint interface{ Hint() string }
	if !errors.Is(refused, site.ErrRefused) || !errors.As(refused, &hint) || !strings.Contains(hint.Hint(), "boxlift upgrade plan") {
		t.Errorf("%v", refused)
	}
}
