package install

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// pages are the phases of all verbs.
func pages(in *installation) map[string][]run.Phase {
	return map[string][]run.Phase{
		"install": in.installPhases(), "status": in.statusPhases(), "liteboxd": in.liteboxdPhases(), "restore": in.restorePhases(),
		"upgrade": in.upgradePhases(), "preflight": in.preflightPhases(), "remove": in.removePhases(members.Settings{}),
		"rollback": in.rollbackPhases(0), "confirm": in.confirmPhases(), "certificates": in.certificatePhases(),
		"tokens": in.tokenPhases(RotateOptions{Servers: true}), "backup": in.backupPhases(recovery.Settings{}, new(*backup.Report)),
		"prune": in.prunePhases(PruneOptions{}, new(*images.Pruning)),
	}
}

// namesOf are the names of phases.
func namesOf(phases []run.Phase) []string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return names
}

// An installation has the phases that the manual lists, in that order. One is not among them: it judges what "converge"
// is said to do.
func TestInstallHasTheDocumentedPhases(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "operations", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| phase | hosts | what |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \|`).FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	has := slices.DeleteFunc(namesOf(example(t, sitetest.ExampleConfig).installPhases()),
		func(name string) bool { return name == "leaving" })
	if diff := cmp.Diff(documented, has); diff != "" {
		t.Error(diff)
	}
}

// What every page has to have: hosts are judged before anything else, and the run ends there when they do not pass;
// images come before what is to run from them; who acts finishes last; and whoever only looks at an installation is
// told of all that it does, by phases that status has too.
func TestPages(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	all := pages(in)
	for name, phases := range all {
		names := namesOf(phases)
		if slices.ContainsFunc(phases, func(p run.Phase) bool { return p.Look == nil }) ||
			len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
			t.Errorf("%s: %q", name, names)
		}
		// What a verb of one phase would refuse, a dry run refuses as well.
		gates := []string{"preflight", "leaving", "remove", "rollback", "confirm", "certificates"}
		if slices.ContainsFunc(phases, func(p run.Phase) bool {
			alone := len(phases) == 1 && (p.Name == k3s.TokensPhase || p.Name == "backup")
			return p.Gate != (alone || slices.Contains(gates, p.Name))
		}) {
			t.Errorf("%s: the gates are others", name)
		}
		if slices.ContainsFunc(phases, func(p run.Phase) bool {
			return p.Ahead != slices.Contains([]string{"place", "majority", "finish"}, p.Name)
		}) {
			t.Errorf("%s: others go ahead", name)
		}
		before := func(first, then string) {
			t.Helper()
			if a, b := slices.Index(names, first), slices.Index(names, then); a >= 0 && b >= 0 && a > b {
				t.Errorf("%s: %s comes after %s", name, first, then)
			}
		}
		for _, pair := range [][2]string{
			{"preflight", "backup"}, {"backup", "ship"}, {"ship", "registry"}, {"registry", "import"}, {"import", "servers"},
			{"registry", "servers"}, {"place", "servers"}, {"registry", "prepare"}, {"prepare", "place"}, {"packages", timekeeping.Phase}, {"prepare", timekeeping.Phase}, {timekeeping.Phase, "place"},
			{timekeeping.Phase, "import"}, {timekeeping.Phase, "servers"}, {"prepare", "import"}, {"prepare", "servers"},
			{run.RestorePhase, "prepare"}, {"servers", "agents"}, {"servers", "front"}, {"front", "agents"}, {"servers", "network"}, {"images", "liteboxd"},
			{"images", "retire"}, {"liteboxd", "verify"}, {"verify", "finish"}, {run.RestorePhase, "servers"}, {"ship", run.RestorePhase},
		} {
			before(pair[0], pair[1])
		}
		if i := slices.Index(names, "finish"); i >= 0 && (i != len(names)-1 || names[0] != "preflight") {
			t.Errorf("%s: %q", name, names)
		}
	}
	// Cilium changes between servers and agents of an upgrade; in an installation it comes up on all nodes at once.
	for name, want := range map[string]bool{"install": false, "restore": false, "upgrade": true} {
		names := namesOf(all[name])
		if got := slices.Index(names, "network") < slices.Index(names, "agents"); got != want {
			t.Errorf("%s: the network comes before agents: %t", name, got)
		}
	}
	status := namesOf(all["status"])
	for _, p := range all["install"] {
		if !p.Ahead && !p.Gate && !slices.Contains(status, p.Name) {
			t.Errorf("status does not look at %s", p.Name)
		}
	}
}

// An upgrade that fails before anything of the cluster has changed can be left at that, without a backup: the record
// has it as one that was only prepared. Nothing only prepares after a phase that changes the cluster.
func TestPhasesThatPrepare(t *testing.T) {
	all := pages(example(t, sitetest.ExampleConfig))
	prepares := func(phases []run.Phase) []string {
		return namesOf(slices.DeleteFunc(slices.Clone(phases), func(p run.Phase) bool { return !p.Prepares }))
	}
	upgrade := namesOf(all["upgrade"])
	want := upgrade[slices.Index(upgrade, "preflight")+1 : slices.Index(upgrade, "majority")]
	if diff := cmp.Diff(want, prepares(all["upgrade"])); diff != "" {
		t.Error(diff)
	}
	for name, last := range map[string]string{"install": timekeeping.Phase, "liteboxd": "registry", "restore": "registry"} {
		names := slices.DeleteFunc(namesOf(all[name]), func(name string) bool { return name == "preflight" || name == "leaving" })
		if diff := cmp.Diff(names[:slices.Index(names, last)+1], prepares(all[name])); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Absent agents leave where install.yaml says so and the run is about all hosts, and registries when all hosts are
// well.
func TestPhasesThatAreLeftOut(t *testing.T) {
	phase := func(in *installation, name string) bool {
		phases := in.installPhases()
		p := phases[slices.IndexFunc(phases, func(p run.Phase) bool { return p.Name == name })]
		return p.If == nil || p.If()
	}
	for _, test := range []struct {
		config string
		only   []string
		want   bool
	}{
		{sitetest.ExampleConfig, nil, false}, {sitetest.RemovingConfig, nil, true}, {sitetest.RemovingConfig, []string{"10.0.0.12"}, false},
	} {
		in := example(t, test.config)
		in.engine.Only = test.only
		if got := phase(in, "leaving"); got != test.want {
			t.Errorf("only %q: absent agents are judged: %t", test.only, got)
		}
		if !phase(in, "retire") {
			t.Error("nothing is retired although all hosts are well")
		}
		in.site.Hosts[1].Fail(sitetest.ErrNoRoute)
		if phase(in, "retire") {
			t.Error("a registry is retired that a failed host may need")
		}
	}
	in := example(t, sitetest.ExampleConfig)
	for phase, want := range map[string][2]bool{"servers": {true, false}, "agents": {false, true}, "registry": {false, false}, "ship": {true, true}} {
		if got := [2]bool{in.worksOn(phase, config.Server), in.worksOn(phase, config.Agent)}; got != want {
			t.Errorf("the plan of %s: server and agent %v", phase, got)
		}
	}
	if in := example(t, sitetest.ExampleConfig+sitetest.OwnRegistry); !in.worksOn("registry", config.Server) {
		t.Error("the plan has no registry")
	}
}

// world is what a verb works on: hosts of install.yaml, by address, a bundle, and a cluster if there is one.
type world struct {
	Options
	fakes  map[string]*hosttest.Fake
	server host.Host
	api    *kubetest.Memory
	told   *messages
}

// messages are what the operator is told.
type messages struct {
	progress.Reporter
	texts []string
}

func (m *messages) Message(text string) { m.texts = append(m.texts, text) }

// newWorld has new hosts, without a cluster, and a bundle of the serial 8 for them.
func newWorld(t *testing.T, text string) *world {
	t.Helper()
	w := &world{api: kubetest.NewMemory(t), told: &messages{Reporter: progress.Discard}}
	w.Config = sitetest.Example(t, text).Config
	w.Bundle = sitetest.WholeBundle(t, lock.Validity{Serial: 8}, "v1.36.4+k3s1", "1.20.0")
	w.StatePath, w.ConfigPath, w.Version = filepath.Join(t.TempDir(), "state.json"), "install.yaml", "v1"
	w.Reporter = w.told
	w.fakes, w.Dial = sitetest.Hosts(t, w.Config)
	return w
}

// clustered lets the first server be that of a cluster, with nodes for all hosts.
func (w *world) clustered(t *testing.T) *world {
	t.Helper()
	hosts := make(map[string]host.Host)
	for i, h := range w.Config.Hosts() {
		name := "node-" + string(rune('1'+i))
		var role map[string]string
		f := w.fakes[h.Host]
		f.WriteFile(t, site.HelperPath, "boxlift-node for linux/amd64", 0o755)
		hosts[h.Host] = f
		if i == 0 {
			name, role = h.Name, map[string]string{"node-role.kubernetes.io/control-plane": "true"}
			f.WriteFile(t, site.K3sKubeconfig, string(w.api.Kubeconfig), 0o600)
			f.WriteFile(t, site.K3sNodeToken, sitetest.FullToken, 0o600)
			f.WriteFile(t, site.ServiceFile, "made", 0o600)
			f.Unit("k3s").Runs()
			hosts[h.Host] = sitetest.Server{Fake: f, Cluster: w.api}
			w.server = hosts[h.Host]
		}
		n := kubetest.Labelled(name, role)
		n.Status.NodeInfo.KubeletVersion = "v1.36.4+k3s1"
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.Host}}
		w.api.Put(t, n)
	}
	w.Dial = sitetest.DialTo(hosts)
	return w
}

// records lets the cluster carry a record.
func (w *world) records(t *testing.T, document []byte) {
	t.Helper()
	secret := &corev1.Secret{Data: map[string][]byte{release.SecretKey: document}}
	secret.Namespace, secret.Name = release.SecretNamespace, release.SecretName
	w.api.Put(t, secret)
}

// record is one with a release of this bundle, which ran this configuration.
func (w *world) record(t *testing.T, state release.State, change func(*release.Record)) []byte {
	t.Helper()
	r := sitetest.RecordOf(t, 8)
	r.Cluster = w.Config.Cluster.Name
	one := &r.Releases[0]
	one.State, one.Bundle, one.Config, one.Verb, one.Command = state, w.Bundle.Digest(), w.Config.Fingerprint(), journal.Upgrade, "upgrade"
	if change != nil {
		change(r)
	}
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// snapshot describes all hosts, the cluster, and what is beside the state.
func (w *world) snapshot(t *testing.T) string {
	t.Helper()
	all := w.api.Snapshot(t)
	for _, name := range slices.Sorted(maps.Keys(w.fakes)) {
		all += w.fakes[name].Snapshot(t)
	}
	err := filepath.WalkDir(filepath.Dir(w.StatePath), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all += strings.TrimPrefix(path, filepath.Dir(w.StatePath)) + " " + string(text) + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Looking at any page, on new hosts and on those of a cluster, changes no host, no object and no file of the
// operator's.
func TestLookingChangesNothing(t *testing.T) {
	for _, isCluster := range []bool{false, true} {
		for name := range pages(example(t, sitetest.ExampleConfig)) {
			if name == "upgrade" && !isCluster {
				continue // its plan is what looks, and refuses hosts without a cluster
			}
			w := newWorld(t, sitetest.ExampleConfig)
			if isCluster {
				w.clustered(t)
				w.records(t, w.record(t, release.Succeeded, nil))
			}
			in, err := newInstaller(w.Options)
			if err != nil {
				t.Fatal(err)
			}
			if err := in.check(t.Context()); err != nil {
				t.Fatal(err)
			}
			in.upgrader.Upgrade = &upgrade.Upgrading{}
			if name == "rollback" { // the verb asks for the section first
				in.site.Config.LiteBoxd = &config.LiteBoxd{}
			}
			before := w.snapshot(t)
			// What it comes to on hosts that say so little is not what this is about.
			err = in.engine.Look(t.Context(), pages(in)[name])
			if diff := cmp.Diff(before, w.snapshot(t)); diff != "" {
				t.Errorf("%s, on a cluster: %t: %s", name, isCluster, diff)
			}
			if w.api.Changes() != nil {
				t.Errorf("%s, on a cluster: %t: it has tried %q", name, isCluster, w.api.Changes())
			}
			if in.engine.Phases == nil {
				t.Errorf("%s, on a cluster: %t: nothing was looked at: %v", name, isCluster, err)
			}
			for _, f := range w.fakes {
				if puts := slices.DeleteFunc(f.Commands(), func(c string) bool { return !strings.HasPrefix(c, "put ") }); len(puts) > 0 {
					t.Errorf("%s, on a cluster: %t: %q", name, isCluster, puts)
				}
			}
			in.engine.Close()
		}
	}
}
