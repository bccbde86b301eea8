package run

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// reached is a run of an upgrade that acts, with a bundle of this serial, and the cluster that it has reached.
func reached(t *testing.T, serial int64) (*installation, *kubetest.Memory) {
	t.Helper()
	in, m := fresh(t, serial), kubetest.NewMemory(t)
	in.site.Config.Runtime.Parallelism, in.site.Config.Runtime.CommandTimeout = 2, time.Minute
	in.site.Hosts[0].Name = "first"
	in.site.Hosts[0].Conn = sitetest.NewServer(t, "first", nil, m)
	in.engine.acts, in.engine.Command, in.engine.Verb = true, "upgrade", journal.Upgrade
	in.begin(t)
	in.connect(t, m)
	return in, m
}

// begin opens the state and begins the run.
func (in *installation) begin(t *testing.T) {
	t.Helper()
	var err error
	if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.engine.Journal.Close() })
	if err := in.engine.Journal.Begin(journal.Run{Command: in.engine.Command, Verb: in.engine.Verb}); err != nil {
		t.Fatal(err)
	}
}

// connect reaches a cluster.
func (in *installation) connect(t *testing.T, m *kubetest.Memory) {
	t.Helper()
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	in.site.API = api
}

// secretPath is where the API has the record.
const secretPath = "/api/v1/namespaces/" + release.SecretNamespace + "/secrets/" + release.SecretName

// putRecord has the cluster carry a document.
func putRecord(t *testing.T, m *kubetest.Memory, document []byte) {
	t.Helper()
	m.Put(t, &corev1.Secret{Type: recordKind, Data: map[string][]byte{release.SecretKey: document},
		ObjectMeta: metav1.ObjectMeta{Namespace: release.SecretNamespace, Name: release.SecretName}})
}

// put has the cluster carry a record.
func put(t *testing.T, m *kubetest.Memory, r *release.Record) {
	t.Helper()
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	putRecord(t, m, document)
}

// recordIn is the record that the cluster carries, nil for none.
func (in *installation) recordIn(t *testing.T) *release.Record {
	t.Helper()
	r, _, err := ReadRecord(t.Context(), in.site.API)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// told are the states of the releases on record with what came of them, oldest first.
func told(r *release.Record) []string {
	var all []string
	if r != nil {
		for _, one := range r.Releases {
			all = append(all, strings.TrimSpace(string(one.State)+" "+one.Result))
		}
	}
	return all
}

// step is one that is needed.
func step(run func() error) Step {
	return Step{ID: "do", Title: "do it", Needed: func(context.Context) (string, error) { return "it is missing", nil },
		Run: func(context.Context) error { return run() }}
}

// Another operator's laptop learns of a change before it happens, and of who only prepares that it may be left.
func TestChangesAreRecordedBefore(t *testing.T) {
	for _, test := range []struct {
		prepares []bool // for each phase
		want     []string
	}{
		{[]bool{true}, []string{"created"}},
		{[]bool{true, true}, []string{"created", "created"}},
		{[]bool{true, false}, []string{"created", "running"}},
		{[]bool{false, true}, []string{"running", "running"}},
		{[]bool{false}, []string{"running"}},
	} {
		in, m := reached(t, 8)
		var seen []string
		for i, prepares := range test.prepares {
			change := step(func() error {
				r := in.recordIn(t)
				seen = append(seen, told(r)...)
				copied, err := release.ReadFile(in.record.RecordCopy())
				if diff := cmp.Diff(r, copied); diff != "" || err != nil {
					t.Errorf("phase %d: the copy beside the state (%v): %s", i, err, diff)
				}
				return nil
			})
			phase := Phase{Name: "servers", Prepares: prepares, Look: func(ctx context.Context) error {
				return in.engine.RunSteps(ctx, "servers", &in.site.Hosts[0].Subject, []Step{change})
			}}
			if err := in.engine.Apply(t.Context(), []Phase{phase}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(test.want, seen); diff != "" {
			t.Errorf("%v: %s", test.prepares, diff)
		}
		r := in.recordIn(t)
		if one := r.Releases[0]; one.Serial != 8 || one.Bundle != in.site.Bundle.Digest() || one.Verb != journal.Upgrade ||
			one.Command != "upgrade" || one.By != site.Operator() || r.Cluster != "lan-1" || r.Serial != 8 {
			t.Errorf("%v: %+v", test.prepares, one)
		}
		if s := m.Object(t, secretPath); s.Object["type"] != string(recordKind) {
			t.Errorf("%v: the Secret is of the type %v", test.prepares, s.Object["type"])
		}
	}
	// Who only looks writes nothing, and no copy either.
	in, m := reached(t, 8)
	in.engine.acts = false
	if err := in.engine.RunSteps(t.Context(), "servers", &in.engine.Cluster, []Step{step(nil)}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(in.record.RecordCopy()); m.Changes() != nil || !os.IsNotExist(err) {
		t.Errorf("looking has written %q, %v", m.Changes(), err)
	}
}

// What was changed while no API answered is recorded as soon as one does.
func TestPendingChangesAreRecorded(t *testing.T) {
	in, m := reached(t, 8)
	in.site.API, in.site.Hosts[0].Conn = nil, nil
	ctx := t.Context()
	for range 2 {
		if err := in.engine.RunSteps(ctx, "servers", &in.engine.Cluster, []Step{step(func() error { return nil })}); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.record.RecordPending(ctx); err != nil || m.Changes() != nil {
		t.Fatalf("without an API: %v, %q", err, m.Changes())
	}
	in.connect(t, m)
	for range 2 {
		if err := in.record.RecordPending(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"running"}, told(in.recordIn(t))); diff != "" || len(m.Changes()) != 1 {
		t.Errorf("%s; %q", diff, m.Changes())
	}
	if err := in.record.EndRelease(ctx, nil); err != nil || in.site.Warnings != nil {
		t.Errorf("%v, %q", err, in.site.Warnings)
	}
	if diff := cmp.Diff([]string{"succeeded 2 changes"}, told(in.recordIn(t))); diff != "" {
		t.Error(diff)
	}
}

// Of two operators who write at the same time, neither takes the other's entry away; one who is always too late gives
// up, and goes on with its work.
func TestTwoOperatorsRecord(t *testing.T) {
	for _, test := range []struct {
		name  string
		times int
		want  []string
	}{
		{"nobody else", 0, []string{"mine"}},
		{"once", 1, []string{"another's", "mine"}},
		{"almost as often as it is tried", recordTries - 1,
			[]string{"another's", "another's", "another's", "another's", "mine"}},
		{"always", recordTries, []string{"another's", "another's", "another's", "another's", "another's"}},
	} {
		in, m := reached(t, 9)
		left, other := test.times, sitetest.RecordOf(t, 9)
		put(t, m, other)
		m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut && left > 0 {
				left--
				other.Note(release.Event{Command: "another's", Started: time.Unix(3000, 0), Ended: time.Unix(3001, 0)})
				put(t, m, other)
			}
			return false
		}
		in.engine.Command = "mine"
		in.record.Note(t.Context(), time.Now(), "1 change", nil)
		r, _, err := ReadRecord(t.Context(), in.site.API)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range r.Events {
			got = append(got, e.Command)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		if lost := test.times == recordTries; lost != (len(in.site.Warnings) == 1) {
			t.Errorf("%s: warnings %q", test.name, in.site.Warnings)
		}
	}
}

// A release that another operator has begun between this run's look and its own beginning gets another number, and the
// run's own end is not written over it.
func TestReleasesBegunTogether(t *testing.T) {
	in, m := reached(t, 9)
	put(t, m, sitetest.RecordOf(t, 9))
	first := true
	m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !first {
			return false
		}
		first = false
		other := sitetest.RecordOf(t, 9)
		if _, err := other.Begin(release.Release{
			State: release.Running, Command: "install", Bundle: digest.FromString("third"), Serial: 9, Boxlift: "v1",
			By: "bob@other", Config: strings.Repeat("b", 64), Components: []release.Component{}, Started: time.Unix(4000, 0),
		}, []byte("its lock")); err != nil {
			t.Error(err)
		}
		put(t, m, other)
		return false
	}
	change := step(func() error { return nil })
	if err := in.engine.RunSteps(t.Context(), "servers", &in.engine.Cluster, []Step{change}); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("k3s does not start")
	if err := in.record.EndRelease(t.Context(), failed); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	want := []string{"succeeded", "failed broken off; release 3 followed", "failed k3s does not start"}
	if diff := cmp.Diff(want, told(in.recordIn(t))); diff != "" || in.record.Recorder.Number != 3 {
		t.Errorf("the run is release %d: %s", in.record.Recorder.Number, diff)
	}
}

// hostileRecords are documents that no boxlift has written, and a part of what is said of each.
var hostileRecords = map[string]struct{ document, says string }{
	"nothing":                {"", "unexpected end of JSON input"},
	"no document":            {"\x1b]0;title\a\x1b[2J", "invalid character"},
	"of a later boxlift":     {`{"format":9}`, "use the boxlift that wrote it, or a newer one"},
	"fields nobody knows":    {`{"format":1,"cluster":"lan-1","releases":[],"locks":{},"run":"rm -rf /"}`, "unknown field"},
	"a name with a terminal": {`{"format":1,"cluster":"\u001b[2J","releases":[],"locks":{}}`, ""},
	"a serial of its own":    {`{"format":1,"cluster":"lan-1","serial":99,"releases":[],"locks":{}}`, "its serial is 99"},
	"without end":            {`{"format":1,"cluster":"` + strings.Repeat("x", release.MaxSize) + `"}`, "more than"},
}

// A record of hostile content stops what acts before its first change, and is not written over; what is said of it is
// fit for a terminal, and names the way out.
func TestRecordOfHostileContent(t *testing.T) {
	for name, test := range hostileRecords {
		in, m := reached(t, 8)
		putRecord(t, m, []byte(test.document))
		before, done := m.Snapshot(t), false
		change := step(func() error { done = true; return nil })
		ctx := t.Context()
		for what, err := range map[string]error{
			"a step":         in.engine.RunSteps(ctx, "servers", &in.engine.Cluster, []Step{change}),
			"preflight":      in.record.CheckBundle(ctx),
			"joining a host": in.record.CheckOwnBundle(ctx),
		} {
			if !errors.Is(err, site.ErrRefused) || !errors.Is(err, release.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %s: got %v", name, what, err)
				continue
			}
			if text := err.Error(); len(text) > 1000 || printable.Text(text) != text {
				t.Errorf("%s: %s: %d bytes: %.300q", name, what, len(text), text)
			}
			kubetest.Contains(t, strings.Join(fault.Hints(err), ""), "get secret boxlift-releases", "boxlift adopt makes another one")
		}
		in.record.Note(ctx, time.Now(), "x", nil)
		if len(in.site.Warnings) != 1 || !strings.Contains(in.site.Warnings[0], "cannot be used") {
			t.Errorf("%s: after work that is done: %q", name, in.site.Warnings)
		}
		if done || m.Snapshot(t) != before {
			t.Errorf("%s: the step was done: %t; %q", name, done, m.Changes())
		}
	}
}

// How a run ends is on record, whatever is in its way; what the run says of itself is not changed by that.
func TestEndRelease(t *testing.T) {
	failed := errors.New("10.0.0.11: k3s does not start\x1b[2J")
	changes := func(t *testing.T, in *installation) {
		t.Helper()
		if err := in.engine.RunSteps(t.Context(), "servers", &in.site.Hosts[0].Subject,
			[]Step{step(func() error { return nil })}); err != nil {
			t.Fatal(err)
		}
	}
	recorded := func(state release.State, change func(*release.Release)) func(*testing.T, *installation, *kubetest.Memory) {
		return func(t *testing.T, in *installation, m *kubetest.Memory) {
			t.Helper()
			r := sitetest.RecordOf(t, 8)
			one := &r.Releases[0]
			one.State, one.Bundle, one.Config = state, in.site.Bundle.Digest(), in.site.Config.Fingerprint()
			if change != nil {
				change(one)
			}
			put(t, m, r)
		}
	}
	for _, test := range []struct {
		name   string
		meets  func(*testing.T, *installation, *kubetest.Memory)
		failed error
		want   []string
		warns  string
	}{
		{name: "changes", meets: func(t *testing.T, in *installation, _ *kubetest.Memory) { changes(t, in) },
			want: []string{"succeeded 1 change"}},
		{name: "sandboxes that ended", meets: func(t *testing.T, in *installation, _ *kubetest.Memory) {
			changes(t, in)
			in.site.Ended = []string{"box/a", "box/b"}
		}, want: []string{"succeeded 1 change; these sandboxes ended meanwhile: box/a, box/b"}},
		{name: "a failure", meets: func(t *testing.T, in *installation, _ *kubetest.Memory) { changes(t, in) },
			failed: failed, want: []string{"failed 10.0.0.11: k3s does not start\ufffd[2J"}},
		{name: "a failure before any change", failed: failed},
		{name: "no change, and it is on record", meets: recorded(release.Succeeded, nil), want: []string{"succeeded"}},
		{name: "no change, after a run that died", meets: recorded(release.Running, nil),
			want: []string{"failed broken off; release 2 followed", "succeeded 0 changes"}},
		{name: "no change, with another install.yaml on record",
			meets: recorded(release.Succeeded, func(r *release.Release) { r.Config = strings.Repeat("c", 64) }),
			want:  []string{"succeeded", "succeeded 0 changes"}},
		{name: "no change, by a run that has not looked at everything",
			meets: func(t *testing.T, in *installation, m *kubetest.Memory) {
				recorded(release.Running, nil)(t, in, m)
				in.engine.Only = []string{"worker"}
			}, want: []string{"running"}},
		{name: "a way back", meets: func(t *testing.T, in *installation, m *kubetest.Memory) {
			recorded(release.Failed, func(r *release.Release) { r.Number = 3 })(t, in, m)
			in.record.TakesBack = 2
			last := in.engine.Journal.State().Run
			last.Verb, last.RollbackTo = journal.Rollback, 2
			if err := in.engine.Journal.Begin(last); err != nil {
				t.Fatal(err)
			}
			changes(t, in)
		}, want: []string{"rolled_back", "succeeded 1 change"}},
		{name: "a restore that has brought an older record back", meets: func(t *testing.T, in *installation, m *kubetest.Memory) {
			recorded(release.Succeeded, nil)(t, in, m)
			in.engine.Restores = true
			changes(t, in)
			put(t, m, sitetest.RecordOf(t, 7))
		}, want: []string{"succeeded", "succeeded 1 change"}},
		{name: "a restore that has brought a longer record back", meets: func(t *testing.T, in *installation, m *kubetest.Memory) {
			in.engine.Restores = true
			changes(t, in)
			put(t, m, sitetest.RecordOf(t, 7))
		}, want: []string{"succeeded", "succeeded 1 change"}},
		{name: "a copy that cannot be kept", meets: func(t *testing.T, in *installation, _ *kubetest.Memory) {
			changes(t, in)
			beside := filepath.Dir(in.record.RecordCopy())
			if err := errors.Join(os.RemoveAll(beside), os.WriteFile(beside, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, want: []string{"succeeded 1 change"}, warns: "keep a copy of the record of releases: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m := reached(t, 8)
			if test.meets != nil {
				test.meets(t, in, m)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // as after Ctrl-C
			if err := in.record.EndRelease(ctx, test.failed); !errors.Is(err, test.failed) || test.failed == nil && err != nil {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(test.want, told(in.recordIn(t))); diff != "" {
				t.Error(diff)
			}
			text := strings.Join(in.site.Warnings, "\n")
			if (text == "") != (test.warns == "") || !strings.Contains(text, test.warns) {
				t.Errorf("warnings: %q", text)
			}
		})
	}
}

// A record that cannot be written does not stop the run that may mend the cluster, and is told of at its end. It is not
// tried with each step.
func TestRecordThatCannotBeWritten(t *testing.T) {
	for name, member := range map[string]bool{"a server of a cluster": true, "one that was none at first": false} {
		in, m := reached(t, 8)
		in.site.Hosts[0].Member = member
		asked := 0
		m.Instead = func(w http.ResponseWriter, _ *http.Request) bool {
			asked++
			http.Error(w, "etcdserver: no leader", http.StatusForbidden)
			return true
		}
		for range 3 {
			change := step(func() error { return nil })
			if err := in.engine.RunSteps(t.Context(), "servers", &in.engine.Cluster, []Step{change}); err != nil {
				t.Fatal(err)
			}
		}
		if asked > 2 {
			t.Errorf("%s: asked %d times", name, asked)
		}
		if err := in.record.EndRelease(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text := strings.Join(in.site.Warnings, "\n"); !strings.Contains(text, "record of releases could not be brought up to date") {
			t.Errorf("%s: warnings: %q", name, text)
		}
	}
}

// The first server whose API gives the record is enough: one that is broken hides neither the record nor what is wrong.
func TestRecordOfAnotherServer(t *testing.T) {
	in := example(t, sitetest.ThreeServers)
	m := kubetest.NewMemory(t)
	put(t, m, sitetest.RecordOf(t, 9))
	for i, h := range in.site.Servers() {
		h.Member = true
		s := sitetest.NewServer(t, "s"+string(rune('1'+i)), nil, m)
		if i < 2 {
			s.WriteFile(t, site.K3sKubeconfig, "apiVersion: [", 0o600)
		}
		h.Conn = s
	}
	_, r, version, err := in.record.OpenRecord(t.Context())
	if err != nil || r == nil || r.Serial != 9 || version == "" {
		t.Fatalf("%+v, %q, %v", r, version, err)
	}
	in.site.Hosts[2].Conn = nil
	if _, _, _, err := in.record.OpenRecord(t.Context()); err == nil || fault.HostOf(err) != in.site.Hosts[1].Name {
		t.Errorf("without the last server: %v", err)
	}
	in.site.Hosts[0].Member, in.site.Hosts[1].Member = false, false
	if _, _, _, err := in.record.OpenRecord(t.Context()); !errors.Is(err, site.ErrNoCluster) {
		t.Errorf("without any: %v", err)
	}
}

// A host comes into a cluster with the cluster's own bundle alone.
func TestCheckOwnBundle(t *testing.T) {
	for _, test := range []struct {
		name  string
		state release.State // "" for no record
		own   bool
		warns bool
		want  string
	}{
		{name: "no record", warns: true},
		{name: "its own", state: release.Succeeded, own: true},
		{name: "its own, which is not at its end", state: release.Running, own: true},
		{name: "another", state: release.Succeeded, want: "add hosts with the cluster's own bundle"},
		{name: "another, which is not at its end", state: release.Failed, want: "is failed, and this is bundle"},
		{name: "another, which was taken back", state: release.RolledBack, warns: true},
	} {
		in, m := reached(t, 8)
		if test.state != "" {
			r := sitetest.RecordOf(t, 8)
			if r.Releases[0].State = test.state; test.own {
				r.Releases[0].Bundle = in.site.Bundle.Digest()
			}
			put(t, m, r)
		}
		wantError(t, test.name, in.record.CheckOwnBundle(t.Context()), site.ErrRefused, test.want)
		if test.warns != (len(in.site.Warnings) == 1) {
			t.Errorf("%s: warnings %q", test.name, in.site.Warnings)
		}
	}
	in := fresh(t, 8)
	if err := in.record.CheckOwnBundle(t.Context()); err != nil {
		t.Errorf("no API: %v", err)
	}
}

// A run that makes no release leaves the record's releases alone, whatever it changes, and works with the cluster's own
// bundle alone. A cluster that is just being set up has no record, which is nothing to warn of.
func TestNoRelease(t *testing.T) {
	in, m := reached(t, 8)
	in.record.NoRelease = true
	if err := in.record.CheckOwnBundle(t.Context()); err != nil || len(in.site.Warnings) > 0 {
		t.Errorf("no record: %v, %q", err, in.site.Warnings)
	}
	if err := in.record.recordChange(t.Context(), false); err != nil || m.Changes() != nil {
		t.Errorf("a change: %v, %q", err, m.Changes())
	}
	put(t, m, sitetest.RecordOf(t, 8))
	wantError(t, "another bundle", in.record.CheckOwnBundle(t.Context()), site.ErrRefused, "run phases with the cluster's own bundle")
	in = fresh(t, 8)
	in.record.NoRelease = true
	if in.record.Note(t.Context(), time.Now(), "1 change", nil); len(in.site.Warnings) > 0 {
		t.Errorf("nothing can be noted where there is no cluster: %q", in.site.Warnings)
	}
}

// A bundle that is older than one that the cluster has had is refused by the cluster's own record, and again where the
// record has changed after that was asked.
func TestOlderBundleIsRefusedTwice(t *testing.T) {
	in, m := reached(t, 8)
	if err := in.record.CheckBundle(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, m, sitetest.RecordOf(t, 9))
	before, done := m.Snapshot(t), false
	err := in.engine.RunSteps(t.Context(), "ship", &in.engine.Cluster, []Step{step(func() error { done = true; return nil })})
	wantError(t, "a step", err, site.ErrRefused, "it is older")
	wantError(t, "preflight", in.record.CheckBundle(t.Context()), site.ErrRefused, "it is older")
	wantError(t, "the end", in.record.EndRelease(t.Context(), err), site.ErrRefused, "it is older")
	if done || m.Snapshot(t) != before {
		t.Errorf("the step was done: %t; %q", done, m.Changes())
	}
	kubetest.Contains(t, strings.Join(fault.Hints(err), ""), "rollback --to", "--accept-older-bundle")
}

// Work that makes no release is noted through any server that answers, after Ctrl-C too.
func TestNote(t *testing.T) {
	in, m := reached(t, 8)
	in.site.API, in.engine.Command, in.record.Version = nil, "node remove", "v1"
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in.record.Note(ctx, time.Now(), "1 change", errors.New("broken off"))
	if in.site.API == nil || in.site.Warnings != nil {
		t.Fatalf("%q", in.site.Warnings)
	}
	r := in.recordIn(t)
	if len(r.Events) != 1 || r.Events[0].Command != "node remove" || !r.Events[0].Failed || r.Events[0].Result != "broken off" {
		t.Errorf("%+v", r.Events)
	}
	if len(m.Changes()) != 1 || len(r.Releases) != 0 {
		t.Errorf("%q, %+v", m.Changes(), r.Releases)
	}
	in.site.API, in.site.Hosts[0].Conn = nil, nil
	in.record.Note(t.Context(), time.Now(), "", nil)
	if len(in.site.Warnings) != 1 || !strings.Contains(in.site.Warnings[0], "the cluster's record could not be told of this: ") {
		t.Errorf("without a server: %q", in.site.Warnings)
	}
}
