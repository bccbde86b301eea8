package install

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// A restore that was broken off keeps its id, so that hosts that have had it are left
// alone; any other one has an id of its own.
func TestRestoreID(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	in.site.K3s = "v1.34.4+k3s1"
	in.engine.Restores, in.recovery.Restore = true, &recovery.Restore{Backup: sitetest.OpenBackup(t, backup.Manifest{Cluster: "example", K3s: in.site.K3s}, sitetest.FullToken)}
	if err := in.recovery.CheckRestore(); err != nil {
		t.Fatal(err)
	}
	var err error
	if in.engine.Journal, err = journal.Open(filepath.Join(t.TempDir(), "state.json")); err != nil {
		t.Fatal(err)
	}
	defer in.engine.Journal.Close()
	begin := func(command string, end error) string {
		t.Helper()
		in.engine.Command = command
		if err := in.begin(nil); err != nil {
			t.Fatal(err)
		}
		if err := in.engine.Journal.End(end); err != nil {
			t.Fatal(err)
		}
		return in.recovery.Restoring.ID
	}
	failed := errors.New("broken off")
	first := begin("backup restore", failed)
	if again := begin("backup restore", nil); again != first {
		t.Errorf("gone on with as %s, it began as %s", again, first)
	}
	anew := begin("backup restore", failed)
	if anew == first {
		t.Error("a second restore of the same backup is taken for the first")
	}
	if other := begin("install --restore", nil); other == anew {
		t.Error("another command is taken for the one that was broken off")
	}
	if got := in.engine.Journal.State().BackupFile; got != in.recovery.Restore.Backup.Path() {
		t.Errorf("the state has the backup %q", got)
	}
	if !strings.HasPrefix(first, in.recovery.Restoring.Digest()+" ") {
		t.Errorf("the id %s does not say which backup it is of", first)
	}
}

// Until a restore that has begun on hosts has ended, no other run takes its place; one that
// was refused before that is in nobody's way.
func TestRestoreKeepsState(t *testing.T) {
	for _, began := range []bool{false, true} {
		in := example(t, sitetest.ExampleConfig)
		var err error
		if in.engine.Journal, err = journal.Open(filepath.Join(t.TempDir(), "state.json")); err != nil {
			t.Fatal(err)
		}
		defer in.engine.Journal.Close()
		if err := in.engine.Journal.Begin(journal.Run{Command: "backup restore"}); err != nil {
			t.Fatal(err)
		}
		if began {
			if _, err := in.engine.Journal.Start(journal.Step{Phase: run.RestorePhase, Host: "first", ID: "stop-k3s"}); err != nil {
				t.Fatal(err)
			}
		}
		in.engine.Command = "install"
		err = in.begin(nil)
		if refused := errors.Is(err, site.ErrRefused); refused != began || err != nil && !refused {
			t.Errorf("begun on hosts: %t; got %v", began, err)
		}
	}
}
