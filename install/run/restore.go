package run

import (
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// Files on hosts: which restore the host waits for, and which one it has had.
const (
	RestoringFile = wire.FilesDir + "/restoring"
	RestoredFile  = wire.FilesDir + "/restored"
	// RestoreDir is where a snapshot of etcd lies while it is restored.
	RestoreDir  = wire.FilesDir + "/restore"
	RestoreUnit = "boxlift-restore"
	// RestorePhase stops k3s for a restore.
	RestorePhase = "restore"
)

// RestoreBegan tells whether the last run is a restore that hosts wait for. Another run would
// take its place in the state, and with it the id by which it is gone on with.
func RestoreBegan(last journal.State) bool {
	return last.Unfinished() && slices.ContainsFunc(last.Steps, func(s journal.Step) bool { return s.Phase == RestorePhase && s.Attempts > 0 })
}

// RestoringError says how to go on with a restore that began on a host and did not end.
func (en *Engine) RestoringError() error {
	last, err := journal.Read(en.Site.StatePath)
	if err != nil {
		last = journal.State{}
	}
	return fmt.Errorf("%w: the restore of a backup began on this host and did not end: go on with %s", site.ErrRefused, RestoreCommand(last))
}

// RestoreCommand is how a run goes on with a restore that the state tells of. Which backup it is
// of, only the state knows.
func RestoreCommand(last journal.State) string {
	if last.BackupFile == "" {
		return "boxlift backup restore FILE, with the same backup and the bundle of that time"
	}
	return fmt.Sprintf("boxlift %s %s", last.Command, last.BackupFile)
}
