package liteboxd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const objectsThatRun = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config}\n"

// running is a cluster with a LiteBoxd of revision 3, two sandboxes and the volume with its database.
func running() []runtime.Object {
	return append(volume("first", dataFolder), kubetest.Labelled("first", nil), keySecret("the-key"), loginSecret("x"),
		sandboxPod("sandbox-a", "first", 0), sandboxPod("sandbox-b", "first", 2),
		revision(2, common.StatusSuperseded, "old"),
		revision(3, common.StatusDeployed, objectsThatRun))
}

// runningRows and runningSandboxes are what a backup has of it.
var (
	runningRows = database.Keys{"templates": {"'a'", "'b'", "'c'"}, "template_versions": nil,
		"image_prepulls": nil}
	runningSandboxes = []Sandbox{
		{Name: "sandbox-a", UID: "uid of sandbox-a", Node: "first"},
		{Name: "sandbox-b", UID: "uid of sandbox-b", Node: "first", Restarts: 2},
	}
)

// whole is all that a backup is about. One part of it breaks: the cluster, or the host.
type whole struct {
	*kubetest.Memory
	host   *hosttest.Fake
	in     *installation
	byHost bool
}

func (w whole) BreakAfter(n int) {
	if w.byHost {
		w.host.BreakAfter(n)
		return
	}
	w.Memory.BreakAfter(n)
}

func (w whole) Lost(err error) bool { return errors.Is(err, hosttest.ErrLost) || w.Memory.Lost(err) }

var times = regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z|"time": "[^"]*"`)

func (w whole) Snapshot(t testing.TB) string {
	text := w.Memory.Snapshot(t) + w.host.Snapshot(t)
	for _, name := range w.in.backupFiles(t) {
		content, err := os.ReadFile(filepath.Join(w.in.site.Beside(backupsDir), name))
		if err != nil {
			t.Fatal(err)
		}
		text += name + " " + string(content)
	}
	return times.ReplaceAllString(text, "TIME")
}

// backupFiles are all files of backups, finished or not.
func (in *installation) backupFiles(t testing.TB) []string {
	var names []string
	dir := in.site.Beside(backupsDir)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return names
}

// reasoned is how a release differs.
func reasoned(reason string, err error) func() (string, error) {
	return func() (string, error) { return reason, err }
}

// Before LiteBoxd is changed, what the change could destroy is kept; a backup is complete, or there is none.
func TestBackupStep(t *testing.T) {
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		differs func() (string, error)
		why     string
	}{
		{"it is about to be changed", running(), reasoned("an image is another one", nil),
			"about to be changed: an image is another one"},
		{"it stays as it is", running(), reasoned("", nil), ""},
		{"it was never rolled out", volume("first", dataFolder), reasoned("there is no release", nil), ""},
	} {
		for _, byHost := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/host %v", test.name, byHost), func(t *testing.T) {
				steptest.ProveIn(t, steptest.Wide{Why: test.why,
					Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
						in, m := onCluster(t, plain, test.objects...)
						in.engine.Resume = true // who does not go on with a run makes a backup of his own
						f := in.databaseHost(t, true)
						return whole{m, f, in, byHost},
							func() run.Step { return in.deployer.UpgradeTo("v0.6.11").BackupStep(test.differs) }
					}})
			})
		}
	}
}

// A backup has what it takes to go back, and only the operator can read it.
func TestBackupContents(t *testing.T) {
	in, _ := onCluster(t, plain, running()...)
	f := in.databaseHost(t, true)
	step := in.deployer.UpgradeTo("v0.6.11").BackupStep(reasoned("it differs", nil))
	left := filepath.Join(in.site.Beside(backupsDir), "20250101T000000.000Z"+unfinishedSuffix)
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := step.Needed(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := step.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a run that was killed has left is still there: %v", err)
	}
	dir := in.site.Backup
	made, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range made {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{backupRecord, BackupDatabase, backupObjects, backupKeyFile}, names); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{backupKeyFile: "the-key", backupObjects: objectsThatRun} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	copied, err := os.ReadFile(filepath.Join(dir, BackupDatabase))
	if err != nil {
		t.Fatal(err)
	}
	want := &Backup{
		Format: 1, Cluster: "example", From: 3, To: "v0.6.11", SHA256: fmt.Sprintf("%x", sha256.Sum256(copied)),
		Rows: runningRows, Sandboxes: runningSandboxes,
	}
	got, at, err := in.deployer.LastBackup(func(*Backup) bool { return true })
	if err != nil || at != dir {
		t.Fatalf("%s, %v", at, err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Backup{}, "Time")); diff != "" {
		t.Error(diff)
	}
	if text := f.Snapshot(t); strings.Contains(text, snapshotTarget) {
		t.Errorf("the copy is still on the host: %s", text)
	}
}

// Whatever is wrong with what is to be kept, or with what the host says, there is no half backup.
func TestBackupFails(t *testing.T) {
	says := func(text string) func(*testing.T, *installation, *hosttest.Fake) {
		return func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(text))
		}
	}
	with := func(objects ...runtime.Object) func(*testing.T, *installation, *hosttest.Fake) {
		return func(t *testing.T, in *installation, _ *hosttest.Fake) { in.reach(t, kubetest.NewMemory(t, objects...)) }
	}
	pending := func() []runtime.Object {
		objects := volume("first", dataFolder)
		objects[0].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimLost
		return append(objects, keySecret("k"))
	}
	for _, test := range []struct {
		name string
		harm func(*testing.T, *installation, *hosttest.Fake)
		want []string
	}{
		{"no key", with(volume("first", dataFolder)...),
			[]string{"liteboxd-keys has no key", "put the key of an earlier backup there"}},
		{"an empty key", with(append(volume("first", dataFolder), keySecret(""))...), []string{"has no key"}},
		{"a volume that no node has", with(append(volume("first", ""), keySecret("k"))...),
			[]string{"the volume pvc-1 of liteboxd-system/liteboxd-api-data", "cannot be read on any node now"}},
		{"a volume that is lost", with(pending()...), []string{"which is Lost, cannot be read"}},
		{"a volume on a host that nobody knows",
			with(append(volume("other", dataFolder), keySecret("k"), kubetest.Labelled("other", nil))...),
			[]string{"find the volume of liteboxd-system/liteboxd-api-data", "it is on the node other"}},
		{"a damaged database", func(t *testing.T, _ *installation, f *hosttest.Fake) {
			content := f.ReadFile(t, dataFolder+"/"+DatabaseFile)
			f.WriteFile(t, dataFolder+"/"+DatabaseFile, content[:4096]+strings.Repeat("x", len(content)-4096), 0o600)
		}, []string{"LiteBoxd's database", "damaged database"}},
		{"no database at all", func(t *testing.T, _ *installation, f *hosttest.Fake) {
			f.WriteFile(t, dataFolder+"/"+DatabaseFile, strings.Repeat("no database", 1000), 0o600)
		}, []string{"copy LiteBoxd's database", "10.0.0.11"}},
		{"no helper", func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Fails(127, "not found"))
		}, []string{"copy LiteBoxd's database", "not found"}},
		{"a full disk, in colours", func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Fails(1, "\x1b[2Jno space left on device"))
		}, []string{"\ufffd[2Jno space left on device"}},
		{"no JSON", says("Segmentation fault"), []string{"the answer of boxlift-node cannot be read"}},
		{"nothing", says(""), []string{"the answer of boxlift-node cannot be read"}},
		{"more than is kept", says(`{"bytes":1,"sha256":"` + strings.Repeat("0", 2<<20) + `"}`),
			[]string{"cannot be read"}},
		{"no sha256", says(`{"bytes":1}`), []string{"cannot be read", "it has no sha256"}},
		{"half a sha256", says(`{"sha256":"abc"}`), []string{"64 hex digits"}},
		{"a copy that is not there", says(`{"sha256":"` + ones + `"}`), []string{"no such file"}},
		{"another copy", func(t *testing.T, _ *installation, f *hosttest.Fake) {
			f.WriteFile(t, snapshotTarget, "another", 0o600)
			says(`{"sha256":"`+ones+`"}`)(t, nil, f)
		}, []string{"arrived with the sha256"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, _ := onCluster(t, plain, running()...)
			f := in.databaseHost(t, true)
			test.harm(t, in, f)
			step := in.deployer.UpgradeTo("v0.6.11").BackupStep(reasoned("it differs", nil))
			err := step.Run(t.Context())
			if err == nil {
				t.Fatal("it was made")
			}
			kubetest.Contains(t, err.Error(), test.want...)
			if len(err.Error()) > 2000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if files := in.backupFiles(t); files != nil || in.site.Backup != "" {
				t.Errorf("there is a backup %q: %q", in.site.Backup, files)
			}
			if text := f.Snapshot(t); strings.Contains(text, snapshotTarget) {
				t.Errorf("the copy is still on the host: %s", text)
			}
		})
	}
}

// Where LiteBoxd has no database yet, there is none in the backup, and all else is.
func TestBackupWithoutDatabase(t *testing.T) {
	claim := volume("first", dataFolder)[0].(*corev1.PersistentVolumeClaim)
	claim.Spec.VolumeName, claim.Status.Phase = "", corev1.ClaimPending
	for name, objects := range map[string][]runtime.Object{
		"no claim":                        {keySecret("k")},
		"a claim that waits for a volume": {keySecret("k"), claim},
		"a volume with nothing in it": append(volume("first", dataFolder), kubetest.Labelled("first", nil),
			keySecret("k")),
	} {
		in, _ := onCluster(t, plain, objects...)
		in.databaseHost(t, false)
		if err := in.deployer.UpgradeTo("v0.6.11").backUp(t.Context(), 1); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, dir, err := in.deployer.LastBackup(func(*Backup) bool { return true })
		if err != nil || b.SHA256 != "" || len(b.Rows) != 0 {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
		if _, err := os.Stat(filepath.Join(dir, BackupDatabase)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a database: %v", name, err)
		}
	}
}

// A run that goes on takes the backup that the one before has made; another run makes its own, with what is there now.
func TestBackupIsTakenUp(t *testing.T) {
	for _, test := range []struct {
		name   string
		made   Backup
		resume bool
		why    string
	}{
		{"goes on", Backup{Cluster: "example", To: "v0.6.11"}, true, ""},
		{"a run of its own", Backup{Cluster: "example", To: "v0.6.11"}, false, "about to be changed"},
		{"goes on, to another version", Backup{Cluster: "example", To: "v0.6.10"}, true, "about to be changed"},
		{"goes on, after it was compared", Backup{Cluster: "example", To: "v0.6.11", Compared: true}, true,
			"about to be changed"},
		{"one of data that was given up", Backup{Cluster: "example"}, true, "about to be changed"},
	} {
		in, _ := onCluster(t, plain, running()...)
		in.engine.Resume = test.resume
		dir := in.keep(t, test.made)
		reason, err := in.deployer.UpgradeTo("v0.6.11").BackupStep(reasoned("it differs", nil)).Needed(t.Context())
		if err != nil || (reason == "") != (test.why == "") || !strings.Contains(reason, test.why) {
			t.Errorf("%s: %q, %v", test.name, reason, err)
		}
		if taken := in.site.Backup == dir; taken != (test.why == "") {
			t.Errorf("%s: the backup is %q", test.name, in.site.Backup)
		}
	}
}

// keep has a backup be there.
func (in *installation) keep(t *testing.T, b Backup) (dir string) {
	t.Helper()
	if b.Time.IsZero() {
		b.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	dir = filepath.Join(in.site.Beside(backupsDir), b.Time.Format(backupTimeFormat))
	if err := errors.Join(os.MkdirAll(dir, 0o700), writeBackup(&b, dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What cannot be found out stops the run before anything is changed: no change goes without a backup.
func TestBackupCannotLook(t *testing.T) {
	noAnswer := errors.New("no answer")
	for name, test := range map[string]struct {
		differs func() (string, error)
		record  string
		broken  bool
		damaged bool
		want    string
	}{
		"the release cannot be compared": {differs: reasoned("", noAnswer), want: "no answer"},
		"the history cannot be read":     {differs: reasoned("it differs", nil), broken: true, want: "read release"},
		"what Helm has on record cannot be read": {differs: reasoned("it differs", nil), damaged: true,
			want: "the Secret sh.helm.release.v1.liteboxd.v3, which has the newest revision, 3, cannot be read"},
		"a backup's record is no JSON": {differs: reasoned("it differs", nil), record: "{",
			want: "read the backup"},
		"a backup's record is another one": {differs: reasoned("it differs", nil), record: `{"time": 1}`,
			want: "read the backup"},
	} {
		in, m := onCluster(t, plain, running()...)
		if test.record != "" {
			record := filepath.Join(in.keep(t, Backup{}), backupRecord)
			if err := os.WriteFile(record, []byte(test.record), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if test.broken {
			m.BreakAfter(0)
		}
		for number, status := range map[int]string{2: "superseded", 3: "deployed"} { // all that there are
			s := kubetest.HelmRelease(t, seed.ReleasesNamespace, seed.LiteBoxdRelease, "v0.6.10", status, number)
			s.Data["release"] = s.Data["release"][:7]
			if test.damaged {
				m.Put(t, s)
			}
		}
		reason, err := in.deployer.UpgradeTo("v0.6.11").BackupStep(test.differs).Needed(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, %v, want %q", name, reason, err, test.want)
		}
	}
}

// Without a cluster there is nothing to keep.
func TestBackupWithoutCluster(t *testing.T) {
	in := example(t, plain)
	step := in.deployer.UpgradeTo("v0.6.11").BackupStep(reasoned("it differs", nil))
	if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// The database is read where it is said to be, when that is said, whatever its claim says.
func TestDatabaseElsewhere(t *testing.T) {
	in, m := onCluster(t, plain, keySecret("k"))
	f := in.databaseHost(t, true)
	u := in.deployer.UpgradeTo("v0.6.11")
	u.DatabaseHost, u.DatabaseFolder = in.site.Hosts[0], dataFolder
	to := filepath.Join(t.TempDir(), "copy.db")
	digest, rows, err := u.CopyDatabase(t.Context(), to)
	if err != nil || digest == "" || !slices.Equal(rows["templates"], []string{"'a'", "'b'", "'c'"}) {
		t.Errorf("%q, %v, %v", digest, rows, err)
	}
	if m.Changes() != nil || !slices.Contains(f.Commands(), "copy a database") {
		t.Errorf("%q, %q", m.Changes(), f.Commands())
	}
	// The copy is removed from the host also where the run ends while it is fetched.
	ctx, cancel := context.WithCancel(t.Context())
	in.site.Hosts[0].Conn = interrupted{f, cancel}
	if _, _, err := u.CopyDatabase(ctx, to); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if text := f.Snapshot(t); strings.Contains(text, snapshotTarget) {
		t.Errorf("the copy is still on the host: %s", text)
	}
}

// interrupted is a host from which a file is fetched when the run is told to end.
type interrupted struct {
	*hosttest.Fake
	end func()
}

func (i interrupted) Get(ctx context.Context, o host.GetOptions, w io.Writer) error {
	i.end()
	return i.Fake.Get(ctx, o, w)
}
