package upgrade

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestSplit(t *testing.T) {
	tests := map[string]struct {
		agents, canary, size int
		want                 [][]int
	}{
		"none":                  {0, 1, 5, nil},
		"one batch":             {3, 0, 5, [][]int{{0, 1, 2}}},
		"canaries first":        {5, 1, 3, [][]int{{0}, {1, 2, 3}, {4}}},
		"more canaries than is": {2, 3, 1, [][]int{{0, 1}}},
		"one by one":            {3, 0, 1, [][]int{{0}, {1}, {2}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			agents := make([]int, test.agents)
			for i := range agents {
				agents[i] = i
			}
			if diff := cmp.Diff(test.want, split(agents, test.canary, test.size)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A run goes on with a release only where it is of the same verb, the same way back, and the same bundle.
func TestIsThat(t *testing.T) {
	bundle, other := digest.FromString("a"), digest.FromString("b")
	for _, test := range []struct {
		settings Settings
		release  release.Release
		want     bool
	}{
		{Settings{}, release.Release{Verb: journal.Upgrade, Bundle: bundle}, true},
		{Settings{}, release.Release{Verb: journal.Upgrade, Bundle: other}, false},
		{Settings{}, release.Release{Verb: journal.Install, Bundle: bundle}, false},
		{Settings{}, release.Release{Verb: journal.Rollback, RollbackTo: 3, Bundle: bundle}, false},
		{Settings{RollbackTo: 3}, release.Release{Verb: journal.Rollback, RollbackTo: 3, Bundle: bundle}, true},
		{Settings{RollbackTo: 3}, release.Release{Verb: journal.Rollback, RollbackTo: 2, Bundle: bundle}, false},
	} {
		if got := test.settings.isThat(&test.release, bundle); got != test.want {
			t.Errorf("%+v and %+v: %t", test.settings, test.release, got)
		}
	}
}

// Which hosts go back by themselves.
func TestStays(t *testing.T) {
	tests := map[string]struct {
		role  config.Role
		from  string // "" for a host that was not moved
		moved bool
		want  string
	}{
		"an agent":                    {config.Agent, "v1.33.13+k3s1", true, ""},
		"an agent that was not moved": {config.Agent, "", false, "has not changed its k3s"},
		"the first server":            {config.Server, "v1.33.13+k3s1", false, ""},
		"the second server":           {config.Server, "v1.33.13+k3s1", true, "moved to another minor version"},
		"a server, for a patch":       {config.Server, "v1.34.3+k3s1", false, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := roomsOf(&site.Site{})
			in.site.K3s, in.cluster.Crossing.Moved = "v1.34.4+k3s1", test.moved
			m := &move{upgrader: in.upgrader, host: &site.Host{Config: config.Host{Role: test.role}}}
			if test.from != "" {
				m.before = &kept{K3s: test.from}
			}
			if got := m.stays(); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("it says %q", got)
			}
		})
	}
}

// Whatever k3s is started again for, there is a way back from it. What this upgrade has kept is not
// replaced by what it has brought since.
func TestToKeep(t *testing.T) {
	tests := map[string]struct {
		move move
		want toKeep
	}{
		"k3s is left alone":      {move{}, keepNothing},
		"another program":        {move{moves: true, replaces: true}, keepAll},
		"other settings":         {move{moves: true}, keepAll},
		"once more, went back":   {move{moves: true, replaces: true, before: &kept{}}, keepAll},
		"left alone from now on": {move{before: &kept{}}, keepNothing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := test.move.toKeep(t.Context()); got != test.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, test.want)
			}
		})
	}
}

// An upgrade that was broken off has drained the node, and whatever goes on there lets pods come to
// it again: the same upgrade, another one, or a rollback without draining. What somebody else has
// cordoned stays so.
func TestWasCordoned(t *testing.T) {
	this, other := &bundle.Reader{}, digest.FromString("another bundle")
	cordoned := &kube.Node{Unschedulable: true}
	tests := map[string]struct {
		found         *kept
		node          *kube.Node
		want, drained bool
	}{
		"nothing is kept":              {nil, cordoned, true, false},
		"not cordoned":                 {nil, &kube.Node{}, false, false},
		"drained by this upgrade":      {&kept{Bundle: this.Digest(), Drained: true}, cordoned, false, true},
		"drained by another one":       {&kept{Bundle: other, Drained: true}, cordoned, false, true},
		"cordoned before this upgrade": {&kept{Bundle: this.Digest(), Cordoned: true}, cordoned, true, false},
		"cordoned after another one":   {&kept{Bundle: other}, cordoned, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := &move{upgrader: roomsOf(&site.Site{Bundle: this}).upgrader}
			m.takeUp(test.found)
			if got := m.wasCordoned(test.node); got != test.want || m.drained != test.drained {
				t.Errorf("cordoned %t, drained %t", got, m.drained)
			}
		})
	}
}

// A node stays Ready for a while when its kubelet is gone: with the same version, only a new report
// tells that it is back.
func TestLacksNow(t *testing.T) {
	const k3s = "v1.34.4+k3s1"
	reported := time.Unix(1000, 0)
	node := func(version string, at time.Time) *kube.Node {
		return &kube.Node{Name: "a", Kubelet: version, Ready: true, Reported: at}
	}
	tests := map[string]struct {
		reported time.Time
		node     *kube.Node
		want     string
	}{
		"another version":          {time.Time{}, node("v1.34.3+k3s1", reported), "runs v1.34.3+k3s1"},
		"the new version":          {time.Time{}, node(k3s, reported), ""},
		"the old report":           {reported, node(k3s, reported.UTC()), "has not reported since"},
		"a new report":             {reported, node(k3s, reported.Add(time.Second)), ""},
		"a report by a slow clock": {reported, node(k3s, reported.Add(-time.Second)), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := &move{upgrader: &Upgrader{Site: &site.Site{K3s: k3s}}, host: &site.Host{}, reported: test.reported}
			if got := m.lacksNow(test.node); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("it says %q", got)
			}
		})
	}
}

// A host that has only got other settings is not said to go back to another version.
func TestPrevious(t *testing.T) {
	m := &move{upgrader: &Upgrader{Site: &site.Site{K3s: "v2"}}, before: &kept{K3s: "v1"}}
	if got := m.previous(); got != "k3s v1" {
		t.Errorf("%q", got)
	}
	m.before.K3s = "v2"
	if got := m.previous(); got != "k3s v2 with the settings that it had" {
		t.Errorf("%q", got)
	}
}

// What became of a host is said, although waiting for its node has put down an error before.
func TestGoBackSaysWhatBecameOfTheHost(t *testing.T) {
	h := &site.Host{Subject: site.Subject{Name: "10.0.0.12"}, Config: config.Host{Role: config.Agent}}
	m := &move{upgrader: roomsOf(&site.Site{}).upgrader, host: h}
	notReady := errors.New("its node is not Ready")
	h.Fail(notReady)
	h.Fail(m.goBack(t.Context(), notReady))
	const want = "10.0.0.12: its node is not Ready; the host stays as it is: the upgrade has not changed its k3s"
	if h.Err.Error() != want {
		t.Errorf("the host's error is %q, want %q", h.Err, want)
	}
}

func TestComparePods(t *testing.T) {
	before := []keptPod{
		{Namespace: "default", Name: "job", UID: "1"},
		{Namespace: "box", Name: "one", UID: "2", Sandbox: true},
		{Namespace: "box", Name: "two", UID: "3", Restarts: 1, Sandbox: true},
	}
	ready := func(uid string) kube.Pod { return kube.Pod{UID: uid, Phase: "Running", Ready: true, Restarts: 1} }
	with := func(p kube.Pod, change func(*kube.Pod)) kube.Pod {
		change(&p)
		return p
	}
	ready2 := kube.Pod{UID: "2", Phase: "Running", Ready: true}
	tests := map[string]struct {
		job, one    kube.Pod
		late, ended []string
		err         string
	}{
		"all ready":              {job: ready("1"), one: with(ready("2"), func(p *kube.Pod) { p.Restarts = 0 })},
		"a job's pod ended":      {job: kube.Pod{UID: "1", Phase: "Succeeded"}, one: kube.Pod{UID: "2", Ready: true}},
		"a sandbox's time is up": {job: ready("1"), one: kube.Pod{UID: "2", Phase: "Failed", Reason: "DeadlineExceeded"}, ended: []string{"box/one"}},
		"a job was evicted":      {job: kube.Pod{UID: "1", Phase: "Failed", Reason: "Evicted"}, one: ready2},
		"evicted":                {job: ready("1"), one: kube.Pod{UID: "2", Phase: "Failed", Reason: "Evicted"}, err: "the sandbox box/one was ended by the cluster (Evicted)"},
		"refused by the kubelet": {job: ready("1"), one: kube.Pod{UID: "2", Phase: "Failed", Reason: "UnexpectedAdmissionError"}, err: "the sandbox box/one was ended by the cluster (UnexpectedAdmissionError)"},
		"driven out by a taint":  {job: ready("1"), one: kube.Pod{UID: "2", Phase: "Running", Reason: "DeletionByTaintManager", Terminating: time.Unix(1, 0)}, err: "the sandbox box/one was ended by the cluster (DeletionByTaintManager)"},
		"replaced":               {job: ready("1"), one: kube.Pod{Namespace: "box", Name: "one", UID: "another", Ready: true}, err: "the sandbox box/one was replaced by another pod"},
		"a sandbox ended":        {job: ready("1"), one: kube.Pod{UID: "2", Phase: "Failed"}, ended: []string{"box/one"}},
		"a sandbox is gone":      {job: ready("1"), one: kube.Pod{UID: "another"}, ended: []string{"box/one"}},
		"a sandbox is ended":     {job: ready("1"), one: kube.Pod{UID: "2", Terminating: time.Unix(1, 0)}, ended: []string{"box/one"}},
		"not ready yet":          {job: kube.Pod{UID: "1", Phase: "Running"}, one: kube.Pod{UID: "2", Phase: "Running"}, late: []string{"default/job", "box/one"}},
		"started again":          {job: ready("1"), one: ready("2"), err: "the sandbox box/one was started again"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			late, ended, err := comparePods(before, []kube.Pod{ready("3"), test.one, test.job})
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Fatalf("the error is %v, want %q", err, test.err)
			}
			if diff := cmp.Diff([][]string{test.late, test.ended}, [][]string{late, ended}); diff != "" {
				t.Errorf("late and ended, -want +got:\n%s", diff)
			}
		})
	}
}

// All sandboxes that were lost are named.
func TestComparePodsNamesAllLost(t *testing.T) {
	before := []keptPod{{Namespace: "box", Name: "one", UID: "1", Sandbox: true}, {Namespace: "box", Name: "two", UID: "2", Sandbox: true}}
	_, _, err := comparePods(before, []kube.Pod{{UID: "1", Phase: "Failed", Reason: "OutOfpods"}, {UID: "2", Ready: true, Restarts: 1}})
	var lost *lostError
	if !errors.As(err, &lost) {
		t.Fatalf("the error is %v", err)
	}
	if diff := cmp.Diff([]string{"1", "2"}, lost.uids); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const want = "the sandbox box/one was ended by the cluster (OutOfpods), the sandbox box/two was started again"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

// Whichever component has moved, the backup from before is the way back.
func TestHasBegun(t *testing.T) {
	current := &release.Release{Components: []release.Component{{Name: site.K3sComponent, Version: "v1"}, {Name: site.CiliumComponent, Version: "1.18.6"}, {Name: seed.LiteBoxdComponent, Version: "v0.6.9"}}}
	runs := func(k3s, cilium, status, liteboxd string) *inspect.Running {
		return &inspect.Running{Nodes: []kube.Node{{Kubelet: "v1"}, {Kubelet: k3s}}, Cilium: &helm.State{ChartVersion: cilium, Status: status}, LiteBoxd: liteboxd}
	}
	before := runs("v1", "1.18.6", inspect.HelmDeployed, "v0.6.9")
	tests := map[string]struct {
		state   release.State
		current *release.Release
		found   *inspect.Running
		moved   bool
		want    bool
	}{
		"it failed before it changed anything": {release.Failed, current, before, false, false},
		"it was broken off before that":        {release.Created, current, before, false, false},
		"it was broken off at work":            {release.Running, current, before, false, true},
		"one node has moved":                   {release.Failed, current, runs("v2", "1.18.6", inspect.HelmDeployed, "v0.6.9"), false, true},
		"an API server alone has moved":        {release.Failed, current, before, true, true},
		"Cilium has moved":                     {release.Failed, current, runs("v1", "1.18.12", inspect.HelmDeployed, "v0.6.9"), false, true},
		"Cilium was being moved":               {release.Failed, current, runs("v1", "1.18.6", "pending-upgrade", "v0.6.9"), false, true},
		"LiteBoxd has moved":                   {release.Failed, current, runs("v1", "1.18.6", inspect.HelmDeployed, "v0.6.10"), false, true},
		"nothing is known of before":           {release.Failed, nil, before, false, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := hasBegun(&release.Release{State: test.state}, test.current, test.found, test.moved); got != test.want {
				t.Errorf("it is %t", got)
			}
		})
	}
}

// A backup that an upgrade goes on with is opened, not only found.
func TestProvenAgain(t *testing.T) {
	whole := sitetest.OpenBackup(t, backup.Manifest{Cluster: "example", K3s: "v1"}, sitetest.FullToken).Path()
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	damaged := slices.Clone(content)
	damaged[bytes.Index(damaged, []byte("canary-password"))] ^= 1
	tests := []struct {
		name, path string
		want       error
	}{
		{"whole", whole, nil},
		{"encrypted", write("b.tar.age", []byte("age-encryption.org/v1\n")), nil},
		{"damaged", write("b.tar", damaged), backup.ErrInvalid},
		{"cut off", write("b.tar", content[:len(content)/2]), backup.ErrInvalid},
		{"gone", filepath.Join(t.TempDir(), "b.tar"), fs.ErrNotExist},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			made, err := provenAgain(t.Context(), test.path)
			if !errors.Is(err, test.want) || made.IsZero() != (test.want != nil) {
				t.Errorf("%v, %v; want %v", made, err, test.want)
			}
		})
	}
}
