package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	boxDatabase = "/var/lib/rancher/k3s/storage/pvc-1_box_data/liteboxd.db"
	member      = k3s.K3sDatabases + "/etcd/member/snap/db"
	resetFlag   = k3s.K3sDatabases + "/reset-flag"
)

// chown is the program of a host on which all files are root's: it takes numbers alone, and files that are there.
func chown(owners map[string]string) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		if len(c.Args) != 2 || strings.Trim(c.Args[0], "0123456789:") != "" {
			_, _ = fmt.Fprintf(c.Stderr, "chown: invalid user: %q\n", c.Args)
			return 1
		}
		if _, err := os.Stat(c.Host.Path(c.Args[1])); err != nil {
			_, _ = fmt.Fprintf(c.Stderr, "chown: cannot access %q: No such file or directory\n", c.Args[1])
			return 1
		}
		owners[c.Args[1]] = c.Args[0]
		return 0
	}
}

// resets is systemd-run with k3s' reset, which makes a member of the snapshot, and refuses to do so twice without a
// start in between.
func resets(_ context.Context, c *hosttest.Call) int {
	i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--cluster-reset-restore-path=") })
	want := []string{"--quiet", "--collect", "--wait", "--unit", run.RestoreUnit, "--", "/usr/local/bin/k3s", "server", "--cluster-reset"}
	if i < 0 || !slices.Equal(c.Args[:i], want) {
		_, _ = fmt.Fprintf(c.Stderr, "k3s was run with %q\n", c.Args)
		return 1
	}
	_, snapshot, _ := strings.Cut(c.Args[i], "=")
	content, err := os.ReadFile(c.Host.Path(snapshot))
	if err != nil {
		_, _ = io.WriteString(c.Stderr, "etcd: snapshot file doesn't exist\n")
		return 1
	}
	if _, err := os.Stat(c.Host.Path(resetFlag)); err == nil {
		_, _ = io.WriteString(c.Stderr, "cluster-reset was successfully performed, please remove the cluster-reset flag\n")
		return 1
	}
	if err := errors.Join(os.MkdirAll(path.Dir(c.Host.Path(member)), 0o700), os.WriteFile(c.Host.Path(member), content, 0o600),
		os.WriteFile(c.Host.Path(resetFlag), nil, 0o600)); err != nil {
		return 1
	}
	return 0
}

// Each host gets what the backup has of it, and nothing stays of the cluster that it had.
func TestRestoreStep(t *testing.T) {
	three := strings.Replace(sitetest.ThreeServers, "name: three", "name: example", 1)
	etcd := backup.Manifest{Datastore: backup.Etcd}
	box := backup.Manifest{LiteBoxd: &backup.Location{
		Node: "host-1", Path: boxDatabase, File: backup.Ownership{UID: 1000, GID: 1001, Mode: 0o644}, Folder: backup.Ownership{UID: 7, GID: 8, Mode: 0o1777},
	}}
	passwords := map[string]string{backup.NodePassword("first"): "of-first\n", backup.NodePassword("host-1"): "of-host-1\n"}
	withBox := map[string]string{backup.LiteBoxdRecord: "{}", backup.LiteBoxdDatabase: sqliteFile(t, "templates")}
	old := map[string]string{k3s.K3sStateDB: "old", k3s.K3sStateDB + "-wal": "old", member: "old", resetFlag: ""}
	for _, test := range []struct {
		name     string
		config   string
		place    int
		manifest backup.Manifest
		entries  map[string]string
		before   map[string]string
		want     map[string]string // files, "" for none; "=ENTRY" for what the backup has
		owners   map[string]string
	}{
		{
			"SQLite, on a new host", sitetest.ExampleConfig, 0, backup.Manifest{}, nil, nil,
			map[string]string{k3s.K3sStateDB: "=" + backup.SQLiteDatabase, k3s.K3sNodePassword: ""}, nil,
		},
		{
			"SQLite, over another cluster", sitetest.ExampleConfig, 0, backup.Manifest{}, nil, old,
			map[string]string{k3s.K3sStateDB: "=" + backup.SQLiteDatabase, k3s.K3sStateDB + "-wal": "", member: ""}, nil,
		},
		{
			"etcd, on a new host", three, 0, etcd, nil, nil,
			map[string]string{member: "=" + backup.EtcdSnapshot, run.RestoreDir + "/etcd-snapshot": ""}, nil,
		},
		{"etcd, after a reset", three, 0, etcd, nil, old, map[string]string{member: "=" + backup.EtcdSnapshot}, nil},
		{"etcd, another server", three, 1, etcd, passwords, old, map[string]string{member: "", k3s.K3sNodePassword: "of-host-1\n"}, nil},
		{
			"the password of a node", sitetest.ExampleConfig, 0, backup.Manifest{}, passwords, map[string]string{k3s.K3sNodePassword: "another"},
			map[string]string{k3s.K3sNodePassword: "of-first\n"}, nil,
		},
		{"an agent", sitetest.ExampleConfig, 1, backup.Manifest{}, passwords, nil, map[string]string{k3s.K3sNodePassword: "of-host-1\n", k3s.K3sStateDB: ""}, nil},
		{
			"an agent of which the backup has nothing", sitetest.ExampleConfig, 1, backup.Manifest{}, nil, map[string]string{k3s.K3sNodePassword: "its own"},
			map[string]string{k3s.K3sNodePassword: "its own", k3s.K3sStateDB: ""}, nil,
		},
		{
			"LiteBoxd's database", sitetest.ExampleConfig, 1, box, withBox, map[string]string{boxDatabase: "old", boxDatabase + "-wal": "old", boxDatabase + "-shm": "old"},
			map[string]string{boxDatabase: "=" + backup.LiteBoxdDatabase, boxDatabase + "-wal": "", boxDatabase + "-shm": ""},
			map[string]string{boxDatabase: "1000:1001", path.Dir(boxDatabase): "7:8"},
		},
		{"LiteBoxd's database, of another node", sitetest.ExampleConfig, 0, box, withBox, nil, map[string]string{boxDatabase: ""}, map[string]string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			var in *installation
			r := backupWith(t, test.manifest, test.entries)
			owners := make(map[string]string)
			fresh := func(t *testing.T) (*hosttest.Fake, run.Step) {
				var fakes []*hosttest.Fake
				in, fakes = restoringTo(t, test.config, r)
				last = fakes[test.place]
				clear(owners)
				last.Program("chown", chown(owners))
				last.Program("systemd-run", resets)
				last.WriteFile(t, run.RestoringFile, restoredID, 0o600)
				last.WriteFile(t, run.RestoredFile, "another restore\n", 0o600)
				for name, content := range test.before {
					last.WriteFile(t, name, content, 0o600)
				}
				h := in.site.Hosts[test.place]
				return last, (&hostRestore{recovery: in.recovery, host: h, node: &k3s.Node{Cluster: in.cluster, Host: h}}).step()
			}
			steptest.Prove(t, steptest.Case{Why: "it is of 2026-01-02T03:04:05Z", Fresh: fresh})
			for name, want := range test.want {
				if entry, ok := strings.CutPrefix(want, "="); ok {
					content, err := in.recovery.Restoring.ReadSmall(entry, 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					want = string(content)
				}
				if got := last.ReadFile(t, name); got != want {
					t.Errorf("%s has %.50q (%d bytes)", name, got, len(got))
				}
			}
			if diff := cmp.Diff(test.owners, owners); diff != "" && test.owners != nil {
				t.Errorf("owners, -want +got:\n%s", diff)
			}
			// It is over, and for this restore alone.
			if restored, waits := last.ReadFile(t, run.RestoredFile), last.ReadFile(t, run.RestoringFile); restored != restoredID || waits != "" {
				t.Errorf("restored: %q, waits for %q", restored, waits)
			}
			done := func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, step := fresh(t)
				f.WriteFile(t, run.RestoredFile, restoredID, 0o600)
				return f, step
			}
			steptest.Prove(t, steptest.Case{Fresh: done})
		})
	}
}

// restoreOn is the step for the first server of etcd, or the agent, and its host.
func restoreOn(t *testing.T, place int, m backup.Manifest) (*installation, *hosttest.Fake, run.Step) {
	t.Helper()
	in, fakes := restoringTo(t, sitetest.ExampleConfig, backupWith(t, m, map[string]string{backup.NodePassword("host-1"): "of-host-1\n"}))
	h := in.site.Hosts[place]
	node := &k3s.Node{Cluster: in.cluster, Host: h, Token: "K10abc::server:canary-password"}
	fakes[place].WriteFile(t, run.RestoringFile, restoredID, 0o600)
	fakes[place].Program("systemd-run", resets)
	return in, fakes[place], (&hostRestore{recovery: in.recovery, host: h, node: node}).step()
}

// What fails leaves the host waiting, so that no run starts k3s there, and is done by the same step when its cause has
// gone.
func TestRestoreStepFails(t *testing.T) {
	etcd := backup.Manifest{Datastore: backup.Etcd}
	for _, test := range []struct {
		name     string
		place    int
		manifest backup.Manifest
		fail     func(*testing.T, *installation, *hosttest.Fake)
		mend     func(*hosttest.Fake)
		want     string
	}{
		{"the old data stays", 0, backup.Manifest{}, func(_ *testing.T, _ *installation, f *hosttest.Fake) { f.FailNext("rm", 1, "Structure needs cleaning") }, nil, "Structure needs cleaning"},
		{"a full disk", 0, etcd, func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.FailNext("mkdir", 1, "No space left on device")
		}, nil, "No space left on device"},
		{"a file where a folder is to be", 1, backup.Manifest{}, func(t *testing.T, _ *installation, f *hosttest.Fake) {
			f.WriteFile(t, path.Dir(k3s.K3sNodePassword), "not a folder", 0o600)
		}, func(f *hosttest.Fake) { _ = os.Remove(f.Path(path.Dir(k3s.K3sNodePassword))) }, "node"},
		{"a folder where a file is to be", 1, backup.Manifest{}, func(t *testing.T, _ *installation, f *hosttest.Fake) {
			f.WriteFile(t, k3s.K3sNodePassword+"/x", "", 0o600)
		}, func(f *hosttest.Fake) { _ = os.RemoveAll(f.Path(k3s.K3sNodePassword)) }, "is a directory"},
		{"no systemd-run", 0, etcd, func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.Program("systemd-run", nil)
			f.Program("journalctl", hosttest.Prints(""))
		}, func(f *hosttest.Fake) { f.Program("systemd-run", resets) }, "k3s does not restore the snapshot"},
		{"no journal either", 0, etcd, func(_ *testing.T, _ *installation, f *hosttest.Fake) {
			f.FailNext("systemd-run", 1, "Failed to connect to bus")
		}, nil, "Failed to connect to bus"},
		{"the note", 1, backup.Manifest{}, func(_ *testing.T, _ *installation, f *hosttest.Fake) { f.FailNext("mv", 1, "Read-only file system") }, nil, "Read-only file system"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, f, step := restoreOn(t, test.place, test.manifest)
			test.fail(t, in, f)
			if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("it went on: %v", err)
			}
			if f.ReadFile(t, run.RestoringFile) != restoredID {
				t.Error("the host does not wait for its data any more")
			}
			if test.mend != nil {
				test.mend(f)
			}
			if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
				t.Errorf("it is no longer needed: %v", err)
			}
			if err := step.Run(t.Context()); err != nil || f.ReadFile(t, run.RestoredFile) != restoredID {
				t.Errorf("done again: %v", err)
			}
		})
	}
}

// A backup that was changed since it was proven does not get onto a host.
func TestRestoreStepProvesAgain(t *testing.T) {
	for _, m := range []backup.Manifest{{}, {Datastore: backup.Etcd}} {
		in, f, step := restoreOn(t, 0, m)
		entry := in.recovery.Restoring.Manifest().Datastore.Entry()
		content, err := in.recovery.Restoring.ReadSmall(entry, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		file := in.recovery.Restoring.Path()
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		whole[strings.Index(string(whole), string(content))+len(content)/2] ^= 1
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := step.Run(t.Context()); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", entry, err)
		}
		if f.ReadFile(t, run.RestoredFile) != "" || f.ReadFile(t, k3s.K3sStateDB) != "" || f.ReadFile(t, member) != "" {
			t.Errorf("%s is there all the same", entry)
		}
	}
}

// What k3s says while it resets the cluster is shown without the token, bounded, and fit for a terminal.
func TestRestoreStepShowsTheJournal(t *testing.T) {
	_, f, step := restoreOn(t, 0, backup.Manifest{Datastore: backup.Etcd})
	f.Program("systemd-run", hosttest.Fails(1, "Job for boxlift-restore.service failed."))
	var asked []string
	f.Program("journalctl", func(_ context.Context, c *hosttest.Call) int {
		asked = c.Args
		_, _ = io.WriteString(c.Stdout, strings.Repeat("noise\n", 1<<18)+"joined with canary-password\n\x1b[31mfatal: bad member ID arg\n")
		return 0
	})
	err := step.Run(t.Context())
	var failed *setup.ServiceError
	if !errors.As(err, &failed) {
		t.Fatal(err)
	}
	if failed.Service != run.RestoreUnit || !strings.Contains(failed.Text, "Job for boxlift-restore.service failed.") {
		t.Errorf("%+v", failed)
	}
	if text := failed.Lines; len(text) > 16<<10 || strings.ContainsAny(text, "\x1b") || strings.Contains(text, "canary") ||
		!strings.Contains(text, "fatal: bad member ID arg") {
		t.Errorf("%d bytes of the journal: %.300q", len(text), text)
	}
	if !slices.Contains(asked, run.RestoreUnit) || !slices.Contains(asked, "300") {
		t.Errorf("the journal was asked for %q", asked)
	}
}

// Looking fails where the host cannot be read, rather than to restore once more what runs already.
func TestRestoreStepCannotLook(t *testing.T) {
	_, f, step := restoreOn(t, 1, backup.Manifest{})
	f.WriteFile(t, run.RestoredFile, restoredID, 0o600)
	f.FailNext("cat", 1, "Input/output error")
	if reason, err := step.Needed(t.Context()); reason != "" || err == nil {
		t.Errorf("%q, %v", reason, err)
	}
	f.BreakAfter(0)
	if reason, err := step.Needed(t.Context()); reason != "" || !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("%q, %v", reason, err)
	}
}
