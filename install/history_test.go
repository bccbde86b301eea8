package install

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What an upgrade has left in the state stays there until it is gone on with or gone back from:
// only the state has its flags.
func TestUpgradeKeepsItsState(t *testing.T) {
	const upgraded, rolledBack = "upgrade", "rollback --to 3"
	verbs := map[string]journal.Verb{
		upgraded: journal.Upgrade, rolledBack: journal.Rollback, "node remove": journal.Remove, "rollback liteboxd": journal.RollbackLiteBoxd,
		"certs rotate": journal.RotateCertificates, "upgrade confirm": journal.Confirm,
	}
	failed := errors.New("k3s does not start")
	tests := []struct {
		name string
		// began is the command in the state, phase that of its last step, and ended how it ended.
		began, phase string
		ended        error
		cluster      string // in the state; "" is the same
		command      string // that is run now
		upgrade      bool
		// left is the command in the state afterwards, refused whether the run is.
		left    string
		refused bool
	}{
		{name: "an installation", began: upgraded, phase: "servers", ended: failed, left: upgraded, refused: true},
		{name: "an installation in a rollback", began: rolledBack, phase: "servers", ended: failed, left: rolledBack, refused: true},
		{name: "certificates", began: upgraded, phase: "servers", ended: failed, command: "certs rotate", left: upgraded, refused: true},
		{name: "its confirmation", began: upgraded, phase: "servers", ended: failed, command: "upgrade confirm", left: upgraded, refused: true},
		{name: "a host that is gone", began: upgraded, phase: "servers", ended: failed, command: "node remove", left: upgraded},
		{name: "LiteBoxd alone", began: rolledBack, phase: "servers", ended: failed, command: "rollback liteboxd", left: rolledBack},
		{name: "the way back", began: upgraded, phase: "servers", ended: failed, command: rolledBack, upgrade: true, left: rolledBack},
		{name: "forth again", began: rolledBack, phase: "servers", ended: failed, command: upgraded, upgrade: true, left: upgraded},
		{name: "after its end", began: upgraded, phase: "servers", left: "install"},
		{name: "before any k3s was changed", began: upgraded, phase: "ship", ended: failed, left: "install"},
		{name: "another cluster", began: upgraded, phase: "servers", ended: failed, cluster: "other", left: "install"},
		{name: "no upgrade", began: "install --skip liteboxd", phase: "servers", ended: failed, command: "node remove", left: "node remove"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, sitetest.ExampleConfig)
			in.site.StatePath, in.engine.Command = filepath.Join(t.TempDir(), "state.json"), test.command
			in.engine.Verb = verbs[test.command]
			if test.upgrade {
				in.engine.Upgrades = true
			}
			if test.cluster == "" {
				test.cluster = in.site.Config.Cluster.Name
			}
			began := journal.Run{Command: test.began, Verb: verbs[test.began], Cluster: test.cluster, Bundle: "sha256:0123456789abcdef", Flags: []string{"--batch-size=1"}}
			before := writeState(t, in.site.StatePath, began, test.phase, test.ended)

			worked := false
			err := in.recorded(nil, func() error {
				worked = true
				end, err := in.engine.Journal.Start(journal.Step{Phase: "remove", Host: "10.0.0.12", ID: "uninstall-k3s"})
				return errors.Join(err, end(nil))
			})
			if test.refused != errors.Is(err, site.ErrRefused) || !test.refused && err != nil || worked == test.refused {
				t.Fatalf("it has worked: %t, %v", worked, err)
			}
			var hinted interface{ Hint() string }
			if test.refused && (!errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "boxlift resume")) {
				t.Errorf("it does not say how to go on: %v", err)
			}
			after, err := journal.Read(in.site.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			if after.Command != test.left {
				t.Errorf("the state is that of %s, want %s", after.Command, test.left)
			}
			if test.left != test.began {
				return
			}
			if !test.refused {
				before.Steps = append(before.Steps, after.Steps[len(after.Steps)-1])
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("what is known of the upgrade: %s", diff)
			}
		})
	}
}

// writeState writes the state of a run with one step.
func writeState(t *testing.T, path string, run journal.Run, phase string, ended error) journal.State {
	t.Helper()
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Begin(run); err != nil {
		t.Fatal(err)
	}
	end, err := j.Start(journal.Step{Phase: phase, Host: "10.0.0.11", ID: "start-k3s"})
	if err := errors.Join(err, end(ended), j.End(ended), j.Close()); err != nil {
		t.Fatal(err)
	}
	last, err := journal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return last
}
