package recovery

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// A backup's folder is made for the operator alone; what is no folder, or below a file, is refused.
func TestBackupDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in := carrying(t, "", "v1.34.4+k3s1")
	in.site.StatePath = filepath.Join(dir, "state.json")
	for _, c := range []struct{ to, want string }{
		{"", filepath.Join(dir, "backups", "example")},
		{filepath.Join(dir, "new", "folder"), filepath.Join(dir, "new", "folder")},
		{dir, dir}, {file, ""}, {filepath.Join(file, "below"), ""},
	} {
		if err := CheckBackupDir(c.to); (err == nil) != (c.want != "") || err != nil && !errors.Is(err, site.ErrRefused) {
			t.Errorf("%q is looked at: %v", c.to, err)
		}
		got, err := in.recovery.backupDir(Settings{Dir: c.to})
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, site.ErrRefused) {
			t.Errorf("%q: %q, %v", c.to, got, err)
		}
		if c.want == "" || c.want == dir {
			continue
		}
		if info, err := os.Stat(got); err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%q: %v, %v", c.to, info, err)
		}
	}
}

func TestCheckRestore(t *testing.T) {
	const threeServers = "cluster:\n  name: example\n  servers:\n    - {host: 10.0.0.1, password: x}\n    - {host: 10.0.0.2, password: x}\n    - {host: 10.0.0.3, password: x}\nnetwork: {cni: cilium}\n"
	tests := []struct {
		name, config string
		manifest     backup.Manifest
		token        string
		scope        run.Scope
		want         string
		is           error
	}{
		{name: "as it was", manifest: backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, token: sitetest.FullToken},
		{"another cluster", sitetest.ExampleConfig, backup.Manifest{Cluster: "other", K3s: "v1.34.4+k3s1"}, sitetest.FullToken, run.Everything, `the backup is of the cluster "other"`, site.ErrRefused},
		{"another k3s", sitetest.ExampleConfig, backup.Manifest{Cluster: "example", K3s: "v1.33.1+k3s1", Bundle: "sha256:0123456789abcdef"}, sitetest.FullToken, run.Everything, "give the bundle sha256:0123456789ab,", site.ErrRefused},
		{"servers without etcd", threeServers, backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, sitetest.FullToken, run.Everything, "of one server with SQLite", site.ErrRefused},
		{"in part", sitetest.ExampleConfig, backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, sitetest.FullToken, run.WithoutLiteBoxd, "as a whole", site.ErrRefused},
		{"an agent's token", sitetest.ExampleConfig, backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, "K10abc::node:p", run.Everything, "no token of a server", backup.ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.config == "" {
				test.config = sitetest.ExampleConfig
			}
			in := example(t, test.config)
			in.site.K3s, in.engine.Scope = "v1.34.4+k3s1", test.scope
			in.engine.Restores, in.recovery.Restore = true, &Restore{Backup: sitetest.OpenBackup(t, test.manifest, test.token)}
			err := in.recovery.CheckRestore()
			if test.want == "" {
				if err != nil || in.cluster.Restoration.Token != "canary-password" {
					t.Errorf("%v, %+v", err, in.recovery.Restoring)
				}
				return
			}
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the token is shown: %v", err)
			}
		})
	}
}

// Agents get the token back that they joined with. A backup from before they had one of their own says nothing of it.
func TestRestoredAgentToken(t *testing.T) {
	for _, test := range []struct {
		name   string
		agents []string
		want   string
		is     error
	}{
		{name: "one of their own", agents: []string{"canary-agents"}, want: "canary-agents"},
		{name: "the servers'"},
		{name: "none", agents: []string{""}, is: backup.ErrInvalid},
		{name: "something else", agents: []string{"K10abc::node:canary"}, is: backup.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, sitetest.ExampleConfig)
			in.site.K3s = "v1.34.4+k3s1"
			in.engine.Restores, in.recovery.Restore = true, &Restore{
				Backup: sitetest.OpenBackup(t, backup.Manifest{Cluster: "example", K3s: in.site.K3s}, sitetest.FullToken, test.agents...),
			}
			err := in.recovery.CheckRestore()
			if !errors.Is(err, test.is) || in.cluster.Restoration.AgentToken != test.want && err == nil {
				t.Errorf("got %v, %+v; want %q, %v", err, in.recovery.Restoring, test.want, test.is)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("the token is shown: %v", err)
			}
		})
	}
}

// Whoever has to go on with a restore reads the whole command, and rollback takes the backup that
// the restore began with. A state of before it had the file's name tells of none.
func TestUnfinishedRestore(t *testing.T) {
	const bundle, file = digest.Digest("sha256:0123"), "/srv/backups/b.tar"
	aRun := func(change func(*journal.Run)) journal.Run {
		r := journal.Run{Command: "backup restore", Bundle: bundle.String(), BackupFile: file}
		change(&r)
		return r
	}
	tests := []struct {
		name    string
		run     journal.Run
		began   bool
		end     error
		file    string
		command string
	}{
		{"none", aRun(func(r *journal.Run) { r.Command, r.BackupFile = "install", "" }), false, errors.New("x"), "", ""},
		{"refused before it began", aRun(func(*journal.Run) {}), false, errors.New("x"), "", ""},
		{"broken off", aRun(func(*journal.Run) {}), true, errors.New("x"), file, "boxlift backup restore " + file},
		{"of an installation", aRun(func(r *journal.Run) { r.Command = "install --restore" }), true, errors.New("x"), file, "boxlift install --restore " + file},
		{"another bundle", aRun(func(r *journal.Run) { r.Bundle = "sha256:4567" }), true, errors.New("x"), "", "boxlift backup restore " + file},
		{"no name", aRun(func(r *journal.Run) { r.BackupFile = "" }), true, errors.New("x"), "", "boxlift backup restore FILE, with the same backup"},
		{"ended", aRun(func(*journal.Run) {}), true, nil, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, sitetest.ExampleConfig)
			in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
			j, err := journal.Open(in.site.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			err = j.Begin(test.run)
			if test.began {
				_, started := j.Start(journal.Step{Phase: run.RestorePhase, Host: "first", ID: "stop-k3s"})
				err = errors.Join(err, started)
			}
			if err := errors.Join(err, j.End(test.end)); err != nil {
				t.Fatal(err)
			}
			if got := UnfinishedRestore(in.site.StatePath, bundle); got != test.file {
				t.Errorf("the backup %q, want %q", got, test.file)
			}
			if err := in.engine.RestoringError(); !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.command) {
				t.Errorf("%v, want %q", err, test.command)
			}
		})
	}
}

// What a restore takes back of the record: releases that came, went on or ended since.
func TestReleasesSince(t *testing.T) {
	record := func(releases ...release.Release) *release.Record { return &release.Record{Releases: releases} }
	one := func(number, attempts int, state release.State) release.Release {
		return release.Release{Number: number, Attempts: attempts, State: state, Command: "upgrade", Components: []release.Component{{Name: "k3s", Version: "v1.34.4+k3s1"}}}
	}
	tests := []struct {
		name        string
		before, now *release.Record
		want        []string
	}{
		{name: "no record"},
		{"the same", record(one(1, 1, release.Succeeded)), record(one(1, 1, release.Succeeded)), nil},
		{"none before", nil, record(one(1, 1, release.Succeeded)), []string{"1 (upgrade, k3s v1.34.4+k3s1, succeeded)"}},
		{"it had begun", record(one(1, 1, release.Succeeded), one(2, 1, release.Created)), record(one(1, 1, release.Succeeded), one(2, 1, release.Failed)), []string{"2 (upgrade, k3s v1.34.4+k3s1, failed)"}},
		{"it went on", record(one(2, 1, release.Failed)), record(one(2, 3, release.Failed)), []string{"2 (upgrade, k3s v1.34.4+k3s1, failed)"}},
		{"it was taken back", record(one(2, 1, release.Succeeded)), record(one(2, 1, release.RolledBack), one(3, 1, release.Succeeded)), []string{"3 (upgrade, k3s v1.34.4+k3s1, succeeded)"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, releasesSince(test.before, test.now)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
