package install

import (
	"context"
	"path/filepath"
	"time"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/internal/backup"
)

// BackupOptions say what backup to make. Options.Bundle is not needed.
type BackupOptions struct {
	Options
	recovery.Settings
}

// CreateBackup makes a backup of the cluster while it runs, and proves it.
func CreateBackup(ctx context.Context, o BackupOptions) (*backup.Report, error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := recovery.CheckBackupDir(o.Dir); err != nil {
		return nil, err
	}
	// It is not noted as a run: an installation that was broken off can be gone on with.
	j, err := journal.Open(o.StatePath)
	if err != nil {
		return nil, err
	}
	defer j.Close() //nolint:errcheck // it only holds a lock
	started := time.Now()
	in.engine.Command = "backup create"
	var report *backup.Report
	err = in.engine.Apply(ctx, in.backupPhases(o.Settings, &report))
	if report != nil {
		in.record.Note(ctx, started, filepath.Base(report.Path), err)
	}
	in.tellWarnings()
	return report, err
}

// ScheduledBackups asks all servers for the backups that they make by themselves. It changes nothing. What could be
// asked is returned also with an error.
func ScheduledBackups(ctx context.Context, o Options) (list []schedule.OnServer, err error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	err = in.engine.Look(ctx, []run.Phase{{Name: "backups", Look: func(ctx context.Context) (err error) {
		list, err = in.schedule.List(ctx)
		return err
	}}})
	return list, err
}

// tellWarnings tells what stopped nothing, for verbs whose results have no place for it.
func (in *installation) tellWarnings() {
	for _, text := range in.site.Warnings {
		in.site.Reporter.Message("warning: " + text)
	}
}

// LossesOf finds out what a cluster has that a backup has not. It changes nothing.
func LossesOf(ctx context.Context, o Options, r *backup.Reader) (*recovery.Losses, error) {
	o.Restore = nil
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	return in.recovery.Losses(ctx, r)
}
