package recovery

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// helper is boxlift-node, with its own copy of databases. It is an old one that does not know prune.
func helper(ctx context.Context, c *hosttest.Call) int {
	if len(c.Args) != 5 || c.Args[0] != "snapshot-sqlite" {
		_, _ = io.WriteString(c.Stderr, "unknown command\n")
		return 2
	}
	report, err := database.Copy(ctx, database.Options{Source: c.Host.Path(c.Args[2]), Target: c.Host.Path(c.Args[4])})
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, err)
		return 1
	}
	_ = json.NewEncoder(c.Stdout).Encode(report) // the caller may have gone
	return 0
}

// k3sProgram is k3s that keeps its cluster in etcd: it saves a snapshot with a content, and forgets what it has saved.
func k3sProgram(content string, kept map[string]bool) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		switch {
		case len(c.Args) == 1 && c.Args[0] == "--version":
			_, _ = io.WriteString(c.Stdout, "k3s version v1.34.4+k3s1 (abc)\ngo version go1.25.1\n")
		case len(c.Args) == 6 && c.Args[1] == "save":
			_, _ = io.WriteString(c.Stdout, "level=info msg=\"Snapshot saved\"\n")
			name := c.Args[3] + "-first-1772600767"
			kept[name] = true
			if err := os.WriteFile(c.Host.Path(c.Args[5]+"/"+name), []byte(content), 0o600); err != nil {
				_, _ = fmt.Fprintln(c.Stderr, err)
				return 1
			}
		case len(c.Args) == 5 && c.Args[1] == "delete":
			delete(kept, c.Args[4])
		default:
			return 1
		}
		return 0
	}
}

// running is a cluster of a server with a datastore, and an agent, whose k3s knows these snapshots.
func running(t *testing.T, d backup.Datastore) (*installation, []*hosttest.Fake, *kubetest.Memory, map[string]bool) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig)
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	var fakes []*hosttest.Fake
	for i, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		f.Program("sync", hosttest.Prints(""))
		h.Conn, h.Hostname = f, fmt.Sprintf("host-%d", i)
		f.WriteFile(t, k3s.K3sNodePassword, "of-"+h.NodeName()+"\n", 0o600)
		fakes = append(fakes, f)
	}
	f, kept := fakes[0], make(map[string]bool)
	f.Unit("k3s").Runs()
	f.WriteFile(t, wire.FilesDir+"/x", "", 0o600)
	f.WriteFile(t, k3s.K3sServerToken, sitetest.FullToken+"\n", 0o600)
	f.WriteFile(t, site.K3sConfigFile, "secrets-encryption: true\n", 0o600)
	f.WriteFile(t, site.UnitDir+"k3s.service", "[Service]\n", 0o644)
	f.WriteFile(t, site.K3sDataDir+"/server/tls/ca.key", "a key", 0o600)
	f.Program("boxlift-node", helper)
	f.Program("k3s", k3sProgram(snapshotFile(t), kept))
	if d == backup.Etcd {
		f.WriteFile(t, member, "", 0o600)
	} else {
		f.WriteFile(t, k3s.K3sStateDB, sqliteFile(t, "kine"), 0o600)
	}
	api := kubetest.NewMemory(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: release.SecretNamespace, Name: release.SecretName},
			Data:       map[string][]byte{release.SecretKey: []byte("whatever it says")},
		})
	var err error
	if in.site.API, err = kube.Connect(kube.Options{Name: "first", Kubeconfig: api.Kubeconfig, Dial: api.Dial}); err != nil {
		t.Fatal(err)
	}
	return in, fakes, api, kept
}

// A backup has all that a cluster cannot be made again from, was proven, and leaves nothing behind, here and on hosts.
func TestCreateBackup(t *testing.T) {
	for _, d := range []backup.Datastore{backup.SQLite, backup.Etcd} {
		in, fakes, api, kept := running(t, d)
		dir := BackupsDir(in.site.StatePath, "example")
		left := filepath.Join(dir, ".unfinished-example-of a run that was killed")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		before := fakes[1].Snapshot(t)
		report, err := in.recovery.CreateBackup(t.Context(), Settings{Boxlift: "v1"})
		if err != nil {
			t.Fatal(err)
		}
		if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 1 || names[0] != report.Path {
			t.Errorf("there are %q, %v, and the backup is %s", names, err, report.Path)
		}
		if info, err := os.Stat(report.Path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what a run that was killed has left: %v", err)
		}
		after := fakes[0].Snapshot(t)
		if fakes[1].Snapshot(t) != before || strings.Contains(after, snapshotsDir) || strings.Contains(after, ".boxlift-put") || len(kept) > 0 {
			t.Errorf("%s: hosts are not as they were: %s; k3s knows %v", d, after, kept)
		}
		if changes := api.Changes(); changes != nil {
			t.Errorf("the cluster was changed: %q", changes)
		}
		r, err := backup.Open(report.Path)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, name := range []string{backup.Token, backup.NodePassword("first"), backup.NodePassword("host-1"), backup.ReleaseRecord} {
			content, err := r.ReadSmall(name, 1<<10)
			if err != nil {
				t.Error(err)
			}
			got[name] = string(content)
		}
		want := map[string]string{
			backup.Token: sitetest.FullToken + "\n", backup.NodePassword("first"): "of-first\n", backup.NodePassword("host-1"): "of-host-1\n",
			backup.ReleaseRecord: "whatever it says",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		m := r.Manifest()
		if m.Server != "first" || m.K3s != "v1.34.4+k3s1" || m.Datastore != d || m.Bundle != "" || !slices.Equal(m.Nodes, []string{"first", "host-1"}) {
			t.Errorf("%+v", m)
		}
		content, _, err := r.Open(backup.ServerFiles)
		if err != nil {
			t.Fatal(err)
		}
		var files []string
		for archive := tar.NewReader(content); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, header.Name)
		}
		for _, name := range []string{"etc/rancher/k3s/config.yaml", "var/lib/rancher/k3s/server/tls/ca.key", "etc/systemd/system/k3s.service"} {
			if !slices.Contains(files, name) {
				t.Errorf("of the server's files, %s is missing: %q", name, files)
			}
		}
		if encrypts, err := encryptsSecrets(r); err != nil || encrypts == nil || !*encrypts {
			t.Errorf("that it encrypts Secrets is not known: %v", err)
		}
		_ = r.Close()
	}
}

// A server's config is kept as it is, and one that costs more than it may is not read when it comes to a restore.
func TestHostileConfigInABackup(t *testing.T) {
	in, fakes, _, _ := running(t, backup.SQLite)
	text := ""
	for i := range 2000 {
		text += fmt.Sprintf("key%d: v\n", i)
	}
	fakes[0].WriteFile(t, site.K3sConfigFile, text, 0o600)
	report, err := in.recovery.CreateBackup(t.Context(), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := backup.Open(report.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = encryptsSecrets(r)
	if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "cannot be read") {
		t.Error(err)
	}
}

// A host that is down is one more reason to make a backup, which is without its password, and says so.
func TestCreateBackupWithoutAHost(t *testing.T) {
	in, fakes, _, _ := running(t, backup.SQLite)
	fakes[1].BreakAfter(0)
	report, err := in.recovery.CreateBackup(t.Context(), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := backup.Open(report.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if r.Has(backup.NodePassword("host-1")) || !r.Has(backup.NodePassword("first")) {
		t.Errorf("it has %v", r.Manifest().Entries)
	}
	if len(in.site.Warnings) != 1 || !strings.Contains(in.site.Warnings[0], "the backup is without that host's node password") || in.site.Hosts[1].Err != nil {
		t.Errorf("%q, %v", in.site.Warnings, in.site.Hosts[1].Err)
	}
}

// What could not be restored is no backup, whatever a server answers: nothing has the name of one, and nothing is left.
func TestCreateBackupRefuses(t *testing.T) {
	saves := func(script func(f *hosttest.Fake, folder, name string) int) func(*testing.T, *hosttest.Fake, *kubetest.Memory) {
		return func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			known := k3sProgram("", map[string]bool{})
			f.Program("k3s", func(ctx context.Context, c *hosttest.Call) int {
				if len(c.Args) == 6 && c.Args[1] == "save" {
					return script(f, f.Path(c.Args[5]), c.Args[3])
				}
				return known(ctx, c)
			})
		}
	}
	writes := func(files ...string) func(*testing.T, *hosttest.Fake, *kubetest.Memory) {
		return saves(func(_ *hosttest.Fake, folder, _ string) int {
			for _, name := range files {
				_ = os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o600)
			}
			return 0
		})
	}
	for _, test := range []struct {
		name      string
		datastore backup.Datastore
		make      func(*testing.T, *hosttest.Fake, *kubetest.Memory)
		want      string
		is        error
	}{
		{"no token", backup.Etcd, func(t *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.WriteFile(t, k3s.K3sServerToken, " \n", 0o600)
		}, "without the token no backup can be restored", nil},
		{"a database elsewhere", backup.SQLite, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) { _ = os.Remove(f.Path(k3s.K3sStateDB)) }, "in no datastore of k3s' own", site.ErrRefused},
		{"k3s is down", backup.Etcd, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) { f.Unit("k3s").Starting(0) }, "no server that can be logged in to runs k3s", nil},
		{"another k3s", backup.Etcd, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.Program("k3s", hosttest.Prints("\x1b[31mk0s\n"))
		}, `it printed "\x1b[31mk0s\n"`, nil},
		{"the API is down", backup.Etcd, func(_ *testing.T, _ *hosttest.Fake, api *kubetest.Memory) {
			api.Answer("/api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "etcdserver: no leader", http.StatusServiceUnavailable)
			})
		}, "list nodes", nil},
		{"compressed", backup.Etcd, writes("snapshot.zip"), "take etcd-snapshot-compress out", site.ErrRefused},
		{"no snapshot", backup.Etcd, writes(), "k3s made no snapshot", nil},
		{"two of them", backup.Etcd, writes("a", "b"), "k3s made no snapshot", nil},
		{"names that lead away", backup.Etcd, saves(func(_ *hosttest.Fake, folder, _ string) int {
			_ = os.MkdirAll(filepath.Join(folder, "x"), 0o700)
			_ = os.WriteFile(filepath.Join(folder, "x", "y"), nil, 0o600)
			return 0
		}), "k3s made no snapshot", nil},
		{"one that is none", backup.Etcd, writes("snapshot"), "", backup.ErrInvalid},
		{"etcd is ill", backup.Etcd, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.Program("k3s", func(ctx context.Context, c *hosttest.Call) int {
				if len(c.Args) > 1 && c.Args[1] == "save" {
					return hosttest.Fails(1, "database space exceeded")(ctx, c)
				}
				return k3sProgram("", map[string]bool{})(ctx, c)
			})
		}, "database space exceeded", nil},
		{"a database that is none", backup.SQLite, func(t *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.WriteFile(t, k3s.K3sStateDB, strings.Repeat("x", 8192), 0o600)
		}, "", nil},
		{"an answer that is none", backup.SQLite, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.Program("boxlift-node", hosttest.Prints("{"))
		}, "boxlift-node cannot be read", nil},
		{"keys that cannot be read", backup.SQLite, func(_ *testing.T, f *hosttest.Fake, _ *kubetest.Memory) {
			f.FailNext("tar", 2, "tar: ca.key: Cannot open")
		}, "tar: ca.key: Cannot open", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes, api, _ := running(t, test.datastore)
			test.make(t, fakes[0], api)
			report, err := in.recovery.CreateBackup(t.Context(), Settings{})
			if err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%+v, %v", report, err)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b") {
				t.Errorf("it is not fit for a terminal: %q", err)
			}
			if left, err := os.ReadDir(BackupsDir(in.site.StatePath, "example")); err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
			if strings.Contains(fakes[0].Snapshot(t), snapshotsDir) {
				t.Error("the snapshot is still on the host")
			}
		})
	}
}

// Without --replace, a host that has a cluster keeps it; one that waits for its data is left to the restore that it
// waits for.
func TestCheckRestoring(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	for _, test := range []struct {
		name              string
		restores, replace bool
		host              func(*site.Host)
		restored          string
		want              string
	}{
		{name: "an installation", host: func(*site.Host) {}},
		{name: "an installation, on a host that waits", host: func(h *site.Host) { h.AwaitsRestore = true }, want: "the restore of a backup began on this host"},
		{name: "a new host", restores: true, host: func(*site.Host) {}},
		{name: "one that is in a cluster", restores: true, host: func(h *site.Host) { h.Member = true }, want: "the host has a cluster already"},
		{name: "an agent of one", restores: true, host: func(h *site.Host) { h.Joined = "https://10.0.0.9:6443" }, want: "the host has a cluster already"},
		{name: "one that may be replaced", restores: true, replace: true, host: func(h *site.Host) { h.Member = true }},
		{name: "one that waits", restores: true, host: func(h *site.Host) { h.Member, h.AwaitsRestore = true, true }},
		{name: "one that this restore has done", restores: true, host: func(h *site.Host) { h.Member = true }, restored: restoredID},
		{name: "one that another restore has done", restores: true, host: func(h *site.Host) { h.Member = true }, restored: "other\n", want: "the host has a cluster already"},
	} {
		in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
		in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
		in.recovery.Restore.Replace = test.replace
		if !test.restores {
			in.recovery.Restore, in.recovery.Restoring = nil, nil
		}
		h := in.site.Hosts[0]
		test.host(h)
		if test.restored != "" {
			fakes[0].WriteFile(t, run.RestoredFile, test.restored, 0o600)
		}
		err := in.recovery.CheckRestoring(t.Context(), h)
		if (err == nil) != (test.want == "") || err != nil && (!errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A restore that was broken off keeps its id, so that no host is restored twice; another one, or one that has ended,
// gets its own.
func TestBeginRestore(t *testing.T) {
	r, other := backupWith(t, backup.Manifest{}, nil), backupWith(t, backup.Manifest{Boxlift: "v2"}, nil)
	asked := journal.Run{Command: "backup restore", Cluster: "example", Bundle: "sha256:01", Config: "config"}
	for _, test := range []struct {
		name  string
		end   error
		r     *backup.Reader
		asked func(*journal.Run)
		same  bool
	}{
		{"broken off", errors.New("x"), r, func(*journal.Run) {}, true},
		{"ended", nil, r, func(*journal.Run) {}, false},
		{"another backup", errors.New("x"), other, func(*journal.Run) {}, false},
		{"another bundle", errors.New("x"), r, func(j *journal.Run) { j.Bundle = "sha256:02" }, false},
		{"another install.yaml", errors.New("x"), r, func(j *journal.Run) { j.Config = "changed" }, false},
		{"by another command", errors.New("x"), r, func(j *journal.Run) { j.Command = "install --restore" }, false},
	} {
		in, _ := restoringTo(t, sitetest.ExampleConfig, r)
		j, err := journal.Open(filepath.Join(t.TempDir(), "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		in.engine.Journal = j
		if err := in.recovery.BeginRestore(asked, journal.State{}); err != nil {
			t.Fatal(err)
		}
		first := in.recovery.Restoring.ID
		if err := j.End(test.end); err != nil {
			t.Fatal(err)
		}
		again := asked
		test.asked(&again)
		in.recovery.Restoring = &restoring{Reader: test.r, ID: test.r.Digest()}
		if err := in.recovery.BeginRestore(again, j.State()); err != nil {
			t.Fatal(err)
		}
		if got := in.recovery.Restoring.ID; (got == first) != test.same || !strings.HasPrefix(got, test.r.Digest()+" ") {
			t.Errorf("%s: the id is %q, and was %q", test.name, got, first)
		}
		if got := j.State().BackupFile; got != test.r.Path() {
			t.Errorf("%s: the state names the backup %s", test.name, got)
		}
		j.Close()
	}
}

// What a restore takes back is told: what people have made since, nodes that joined and sandboxes that began. What
// LiteBoxd has brought, what controllers made and what was there before is not among it.
func TestLost(t *testing.T) {
	const config = sitetest.ExampleConfig + "liteboxd: {}\n"
	in, _, api, _ := running(t, backup.SQLite)
	with := example(t, config)
	with.site.API = in.site.API
	r := backupWith(t, backup.Manifest{Nodes: []string{"first"}}, nil)
	since := r.Manifest().Time
	made := func(namespace, name string, after time.Duration) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(since.Add(after))}
	}
	isController := true
	owned := made("shop", "web-1", time.Hour)
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &isController}}
	ours := made("liteboxd-system", "liteboxd-api", time.Hour)
	kube.ReleaseName{Namespace: seed.ReleasesNamespace, Name: seed.LiteBoxdRelease}.Mark(&ours)
	sandboxes := with.site.Config.LiteBoxd.NamespaceSandbox
	api.Put(t,
		&corev1.Namespace{ObjectMeta: made("", "shop", 0)}, &corev1.Namespace{ObjectMeta: made("", "old", -time.Second)},
		&corev1.Pod{ObjectMeta: owned}, &corev1.Pod{ObjectMeta: made("shop", "by-hand", time.Hour)}, &corev1.Pod{ObjectMeta: made(sandboxes, "sandbox", time.Hour)},
		&corev1.ConfigMap{ObjectMeta: made("shop", "kube-root-ca.crt", time.Hour)}, &corev1.Service{ObjectMeta: ours},
		&corev1.Secret{ObjectMeta: made("kube-system", "x", time.Hour)},
	)
	losses := &Losses{Since: since}
	if err := with.recovery.lostObjects(t.Context(), losses); err != nil {
		t.Fatal(err)
	}
	if err := with.recovery.compareWithBackup(t.Context(), r, nil, losses); err != nil {
		t.Fatal(err)
	}
	want := &Losses{Since: since, Nodes: []string{"host-1"}, Objects: []string{"Namespace shop", "Pod shop/by-hand"}}
	if diff := cmp.Diff(want, losses); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for i := range 2 * maxLostObjects {
		api.Put(t, &corev1.ConfigMap{ObjectMeta: made("shop", fmt.Sprintf("c-%d", i), time.Hour)})
	}
	if err := with.recovery.lostObjects(t.Context(), losses); err != nil || losses.MoreObjects != maxLostObjects+2 {
		t.Errorf("%d more, %v", losses.MoreObjects, err)
	}
	// A record that cannot be read is an error, not a cluster without releases.
	if err := with.recovery.lostReleases(t.Context(), r, losses); !errors.Is(err, release.ErrInvalid) || losses.Releases != nil {
		t.Errorf("%v, %v", losses.Releases, err)
	}
	if changes := api.Changes(); changes != nil {
		t.Errorf("the cluster was changed: %q", changes)
	}
}
