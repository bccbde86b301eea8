package recovery

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	killall    = "/usr/local/bin/k3s-killall.sh"
	thisID     = "sha256:0123 2026-03-04T05:06:07Z" // of the restore that goes on
	restoredID = thisID + "\n"
)

// sqliteFile is the content of a database with one table.
func sqliteFile(t *testing.T, table string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "db")
	db, err := sql.Open("sqlite", name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "CREATE TABLE "+table+" (id INTEGER PRIMARY KEY)")
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// snapshotFile is a snapshot as etcd makes it: its database and, behind it, the database's sha256.
func snapshotFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "snapshot")
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{PageSize: 4096, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, bucket := range []string{"key", "meta"} {
			b, err := tx.CreateBucket([]byte(bucket))
			if err == nil {
				err = b.Put([]byte("0"), []byte("value"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(withSum(content))
}

// backupWith is a backup of the example with these entries besides.
func backupWith(t *testing.T, m backup.Manifest, entries map[string]string) *backup.Reader {
	t.Helper()
	m.Cluster, m.K3s = "example", "v1.34.4+k3s1"
	all := map[string]string{backup.Token: sitetest.FullToken + "\n"}
	maps.Copy(all, entries)
	if m.Datastore == backup.Etcd {
		return etcdBackup(t, m, all)
	}
	return sitetest.BackupWith(t, m, all)
}

// restoringTo is an installation to whose hosts a backup is restored; all of them can be talked to.
func restoringTo(t *testing.T, config string, r *backup.Reader) (*installation, []*hosttest.Fake) {
	t.Helper()
	in := example(t, config, "k3s=v1.34.4+k3s1")
	in.recovery.Restore, in.recovery.Restoring = &Restore{Backup: r, Replace: true}, &restoring{Reader: r, ID: thisID}
	var fakes []*hosttest.Fake
	for i, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		f.Program("sync", hosttest.Prints("")) // this machine's own would wait for all that others write
		h.Conn, h.Hostname = f, fmt.Sprintf("host-%d", i)
		fakes = append(fakes, f)
	}
	return in, fakes
}

// etcdBackup makes a backup of a server with etcd.
func etcdBackup(t *testing.T, m backup.Manifest, entries map[string]string) *backup.Reader {
	t.Helper()
	dir := t.TempDir()
	entries[backup.EtcdSnapshot] = snapshotFile(t)
	for name, content := range entries {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	m.Time, m.Server = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "first"
	file := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), file, m, dir); err != nil {
		t.Fatal(err)
	}
	r, err := backup.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// runsK3s lets k3s be installed as a service, with the script that ends all that runs in it, which counts.
func runsK3s(t *testing.T, f *hosttest.Fake, service string, killed *int) *hosttest.Unit {
	t.Helper()
	f.WriteFile(t, site.UnitDir+service+".service", "[Service]\n", 0o644)
	f.WriteFile(t, killall, "", 0o755)
	f.Program("k3s-killall.sh", func(_ context.Context, c *hosttest.Call) int {
		if c.Host.Unit(service).Active() == "active" {
			_, _ = io.WriteString(c.Stderr, "k3s runs still, and starts pods again\n")
			return 1
		}
		*killed++
		return 0
	})
	return f.Unit(service)
}

// k3s is stopped wherever it is not known to have been stopped for this very restore, and a host that is restored runs
// on.
func TestStopStep(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	const why = "the backup of 2026-01-02T03:04:05Z is to be restored"
	for _, test := range []struct {
		name  string
		place int
		make  func(*testing.T, *hosttest.Fake, *hosttest.Unit)
		why   string
	}{
		{"a server that runs", 0, func(_ *testing.T, _ *hosttest.Fake, u *hosttest.Unit) { u.Runs() }, why},
		{"an agent that runs", 1, func(_ *testing.T, _ *hosttest.Fake, u *hosttest.Unit) { u.Runs() }, why},
		{"one that comes up", 0, func(_ *testing.T, _ *hosttest.Fake, u *hosttest.Unit) { u.Starting(0) }, why},
		{"one that others have stopped", 0, func(*testing.T, *hosttest.Fake, *hosttest.Unit) {}, why},
		{"stopped for this restore", 0, func(t *testing.T, f *hosttest.Fake, _ *hosttest.Unit) {
			f.WriteFile(t, run.RestoringFile, restoredID, 0o600)
		}, ""},
		{"stopped for it, and started by somebody", 0, func(t *testing.T, f *hosttest.Fake, u *hosttest.Unit) {
			f.WriteFile(t, run.RestoringFile, restoredID, 0o600)
			u.Runs()
		}, why},
		{"stopped for it, and on its way up", 1, func(t *testing.T, f *hosttest.Fake, u *hosttest.Unit) {
			f.WriteFile(t, run.RestoringFile, restoredID, 0o600)
			u.Starting(0)
		}, why},
		{"stopped for another restore", 0, func(t *testing.T, f *hosttest.Fake, _ *hosttest.Unit) {
			f.WriteFile(t, run.RestoringFile, "sha256:0123 2025-12-31T00:00:00Z\n", 0o600)
		}, why},
		{"restored, and it runs", 0, func(t *testing.T, f *hosttest.Fake, u *hosttest.Unit) {
			f.WriteFile(t, run.RestoredFile, restoredID, 0o600)
			u.Runs()
		}, ""},
		{"restored from the same backup before", 0, func(t *testing.T, f *hosttest.Fake, u *hosttest.Unit) {
			f.WriteFile(t, run.RestoredFile, "sha256:0123 2025-12-31T00:00:00Z\n", 0o600)
			u.Runs()
		}, why},
		{"a note that is damaged", 0, func(t *testing.T, f *hosttest.Fake, u *hosttest.Unit) {
			f.WriteFile(t, run.RestoredFile, strings.Repeat("\x00\x1b[31m", 1<<16), 0o600)
			f.WriteFile(t, run.RestoringFile, strings.Repeat("x", 1<<20), 0o600)
			u.Runs()
		}, why},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			killed, service := 0, []string{"k3s", "k3s-agent"}[test.place]
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
				last, killed = fakes[test.place], 0
				test.make(t, last, runsK3s(t, last, service, &killed))
				return last, in.recovery.stopStep(in.site.Hosts[test.place])
			}})
			if test.why == "" {
				return
			}
			if got := last.ReadFile(t, run.RestoringFile); got != restoredID || killed != 1 {
				t.Errorf("the note is %.100q, and what runs in k3s was ended %d times", got, killed)
			}
			if active := last.Unit(service).Active(); active != "inactive" {
				t.Errorf("%s is %s", service, active)
			}
		})
	}
}

// A host that was set up anew, or got no further than its unit, has nothing to stop. It waits for its data all the
// same.
func TestStopStepWithoutK3s(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	for _, unit := range []bool{false, true} {
		steptest.Prove(t, steptest.Case{Why: "is to be restored", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
			if unit {
				fakes[0].WriteFile(t, site.UnitDir+"k3s.service", "[Service]\n", 0o644)
				fakes[0].Unit("k3s").Runs()
			}
			return fakes[0], in.recovery.stopStep(in.site.Hosts[0])
		}})
	}
}

// The host waits for its data before anything of it is stopped: whatever the script breaks off at, k3s is not started
// without the data, and the step is needed until it has stopped.
func TestStopStepBreaksOff(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	for _, test := range []struct {
		at    string
		waits bool
	}{
		{"mkdir", false}, {"cat", false}, {"mv", false}, {"sync", true}, {"systemctl", true},
	} {
		t.Run(test.at, func(t *testing.T) {
			in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
			killed, f := 0, fakes[0]
			unit := runsK3s(t, f, "k3s", &killed).Runs()
			step := in.recovery.stopStep(in.site.Hosts[0])
			f.FailNext(test.at, 1, "no space left on device")
			if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no space left on device") {
				t.Fatalf("it went on: %v", err)
			}
			if waits := f.ReadFile(t, run.RestoringFile) != ""; waits != test.waits || unit.Active() != "active" || killed != 0 {
				t.Errorf("it waits: %t, k3s is %s, ended %d times", waits, unit.Active(), killed)
			}
			if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
				t.Errorf("it is no longer needed: %v", err)
			}
			if err := step.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if reason, err := step.Needed(t.Context()); reason != "" || err != nil || killed != 1 {
				t.Errorf("done again: %q, %v, ended %d times", reason, err, killed)
			}
		})
	}
}

// A host that cannot say how it is is neither stopped nor taken for one that has stopped.
func TestStopStepCannotLook(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	for _, test := range []struct {
		name string
		make func(*hosttest.Fake)
		want string
	}{
		{"its files", func(f *hosttest.Fake) {
			f.WriteFile(t, run.RestoredFile, "x", 0o600)
			f.Program("cat", hosttest.Fails(1, "Input/output error"))
		}, "Input/output error"},
		{"no systemd", func(f *hosttest.Fake) {
			f.Program("systemctl", hosttest.Fails(1, "System has not been booted with systemd"))
		}, "has not been booted"},
		{"the connection", func(f *hosttest.Fake) { f.BreakAfter(1) }, "connection lost"},
	} {
		in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
		killed := 0
		runsK3s(t, fakes[0], "k3s", &killed).Runs()
		test.make(fakes[0])
		reason, err := in.recovery.stopStep(in.site.Hosts[0]).Needed(t.Context())
		if reason != "" || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, %v", test.name, reason, err)
		}
	}
}

// k3s counts as stopped only where systemd says so.
func TestStopStepTakesNothingForStopped(t *testing.T) {
	r := backupWith(t, backup.Manifest{}, nil)
	for _, answer := range []string{"", "LoadState=loaded\n", "ActiveState=\n", "ActiveState=\x1b[31m\n", "ActiveState=deactivating\n", strings.Repeat("x", 1<<20)} {
		in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
		fakes[0].WriteFile(t, run.RestoringFile, restoredID, 0o600)
		fakes[0].Program("systemctl", hosttest.Prints(answer))
		if reason, err := in.recovery.stopStep(in.site.Hosts[0]).Needed(t.Context()); reason == "" || err != nil {
			t.Errorf("%.50q: it is not needed: %v", answer, err)
		}
	}
	for _, state := range []string{"inactive", "failed"} {
		in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
		fakes[0].WriteFile(t, run.RestoringFile, restoredID, 0o600)
		fakes[0].Program("systemctl", hosttest.Prints("ActiveState="+state+"\n"))
		if reason, err := in.recovery.stopStep(in.site.Hosts[0]).Needed(t.Context()); reason != "" || err != nil {
			t.Errorf("%s: %q, %v", state, reason, err)
		}
	}
}

// withSum puts a database's sha256 behind it.
func withSum(content []byte) []byte {
	sum := sha256.Sum256(content)
	return append(content, sum[:]...)
}

// A stop that the user breaks off while pods are ended is done again: pods that go on are of another time than the
// data.
func TestStopStepKilledWhilePodsEnd(t *testing.T) {
	in, fakes := restoringTo(t, sitetest.ExampleConfig, backupWith(t, backup.Manifest{}, nil))
	killed := 0
	runsK3s(t, fakes[0], "k3s", &killed).Runs()
	ctx, cancel := context.WithCancel(t.Context())
	fakes[0].Program("k3s-killall.sh", func(context.Context, *hosttest.Call) int { cancel(); return 137 })
	step := in.recovery.stopStep(in.site.Hosts[0])
	if err := step.Run(ctx); err == nil {
		t.Fatal("it was not broken off")
	}
	if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("pods go on, and it is not needed: %v", err)
	}
}
