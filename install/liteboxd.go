package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/relocation"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

var errNoLiteBoxd = fmt.Errorf("%w: install.yaml has no section liteboxd: add one, `liteboxd: {}` takes all defaults",
	site.ErrConfig)

// RenderLiteBoxd makes LiteBoxd's objects from the manifests in a bundle and what
// install.yaml and its configDir say. It asks no host. The error wraps [site.ErrConfig] when the
// two do not go together, among them when an image is asked for that the bundle does not
// carry.
func RenderLiteBoxd(o Options) (*liteboxd.Deployment, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	return in.deployer.RenderLiteBoxd()
}

// DiffLiteBoxd says what an installation would change of LiteBoxd's objects in the running
// cluster. It changes nothing.
func DiffLiteBoxd(ctx context.Context, o Options) ([]helm.ObjectDiff, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Scope = run.OnlyLiteBoxd
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	diffs, err := helm.Diff(ctx, in.site.API, in.deployer.Deployment.Release)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return diffs, nil
}

// RollbackLiteBoxd takes LiteBoxd back to an earlier revision of its release: the last
// one that was deployed with success before the one that runs, unless revision is one of
// [LiteBoxdHistory]. What is there is backed up first, as before an upgrade. The database
// stays as it is. Options.Bundle is not needed.
func RollbackLiteBoxd(ctx context.Context, o Options, revision int) (*run.Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command = "rollback liteboxd"
	return o.run(ctx, journal.RollbackLiteBoxd,
		func(in *installation) []run.Phase { return in.rollbackPhases(revision) })
}

// LiteBoxdHistory lists the revisions of LiteBoxd's release, the newest last. It changes
// nothing.
func LiteBoxdHistory(ctx context.Context, o Options) ([]helm.State, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	history, err := helm.History(ctx, in.site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return history, nil
}

// MoveLiteBoxd brings LiteBoxd's database to another node, which is named as install.yaml or the cluster names it. The
// volume that it was on is kept until [ConfirmMove]. Options.Bundle is not needed.
func MoveLiteBoxd(ctx context.Context, o Options, to string) (*run.Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command = MoveCommand
	return o.run(ctx, journal.MoveLiteBoxd, func(in *installation) []run.Phase { return in.movePhases(to) })
}

// MoveCommand is what the state calls [MoveLiteBoxd].
const MoveCommand = "liteboxd move"

// ConfirmMove removes the volumes that LiteBoxd's database was on before it was moved or restored. One whose host is
// not reached is an error unless it is to be forgotten: then the folder stays on that host. Options.Bundle is not
// needed.
func ConfirmMove(ctx context.Context, o Options, forgetUnreachable bool) (*run.Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command = MoveCommand + " --confirm"
	return o.run(ctx, journal.ConfirmMove,
		func(in *installation) []run.Phase { return in.confirmMovePhases(forgetUnreachable) })
}

// RestoreLiteBoxd puts LiteBoxd's database back from a backup, to a node, or to one that boxlift chooses where to is
// "". What is there is backed up first, if its host can be reached, and its volume is kept. Options.Bundle is not
// needed.
func RestoreLiteBoxd(ctx context.Context, o Options, s *relocation.Source, to string) (*run.Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command, o.backup = "backup restore --only liteboxd", s
	// One that was broken off is gone on with unasked: to begin anew would undo what users have done since.
	last, err := journal.Read(o.StatePath)
	o.Resume = err == nil && !o.DryRun && last.Unfinished() && last.Verb == journal.RestoreLiteBoxd &&
		last.Config == restoringLiteBoxd(o.Config, s)
	return o.run(ctx, journal.RestoreLiteBoxd, func(in *installation) []run.Phase {
		return in.restoreLiteBoxdPhases(s, to)
	})
}

// restoringLiteBoxd tells what a restore is asked for from others, also of another backup.
func restoringLiteBoxd(c *config.Config, s *relocation.Source) string {
	sum := sha256.Sum256([]byte(c.Fingerprint() + "\n" + s.SHA256))
	return hex.EncodeToString(sum[:])
}

// LossesOfLiteBoxd finds out what is lost when LiteBoxd's database is put back from a backup. It changes nothing.
func LossesOfLiteBoxd(ctx context.Context, o Options, s *relocation.Source, to string) (*relocation.Losses, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	return in.relocation.Losses(ctx, s, to)
}

// NewestBackupOfLiteBoxd is the newest proven backup beside the state that has LiteBoxd's database; see
// [relocation.Newest].
func NewestBackupOfLiteBoxd(ctx context.Context, o Options, identities []age.Identity, warn func(string)) (
	*relocation.Source, func() error, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, nil, err
	}
	return relocation.Newest(ctx, in.site, identities, warn)
}
