package liteboxd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/liteboxd/boxlift/install/kube/storage"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
)

// VolumeLabel marks volumes that have LiteBoxd's database, or have had it. It is there from the first time on that the
// database is brought to another volume.
const VolumeLabel = "boxlift.dev/liteboxd-database"

// checkVolume refuses to deploy while the database has a volume and no claim: with the next claim, LiteBoxd would begin
// anew on an empty one.
func (l *Deployer) checkVolume(ctx context.Context, system string) error {
	claim, err := l.Site.API.Claim(ctx, system, manifests.DataClaim)
	if err != nil || claim != nil && claim.Volume != "" {
		return err
	}
	volumes, err := storage.Volumes(ctx, l.Site.API, VolumeLabel)
	if err != nil || len(volumes) == 0 {
		return err
	}
	return fault.WithHint(fmt.Errorf("%w: LiteBoxd's database was on its way to another volume, and has no claim: "+
		"LiteBoxd would begin anew without it", site.ErrRefused), "the command that was given goes on with it: boxlift "+
		"liteboxd move --to NODE, or boxlift backup restore --only liteboxd with the same backup")
}

// KeyStep makes sure that the cluster has the key that a backup's tokens were made with.
func (u *Change) KeyStep(key []byte) run.Step {
	return run.Step{
		ID: "restore-liteboxd-key", Title: "restore LiteBoxd's key",
		Needed: func(ctx context.Context) (string, error) {
			has, err := u.Deployer.Site.API.Secret(ctx, u.System, manifests.KeysSecret)
			if err != nil {
				return "", err
			}
			switch is := has[keyVariable]; {
			case len(is) == 0:
				return "the Secret " + manifests.KeysSecret + " is missing", nil
			case string(is) != string(key):
				return "", fmt.Errorf("%w: the cluster's key, in the Secret %s/%s, is not that of the backup: LiteBoxd "+
					"could not read the stored tokens of its sandboxes", site.ErrRefused, u.System, manifests.KeysSecret)
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			return u.Deployer.Site.API.PutSecret(ctx, u.System, manifests.KeysSecret,
				map[string][]byte{keyVariable: key})
		},
	}
}

// KeyIn reads the key that is in the folder of a backup of LiteBoxd.
func KeyIn(dir string) ([]byte, error) {
	const most = 4 << 10
	content, err := boundedfile.Read(filepath.Join(dir, backupKeyFile), most)
	if err == nil && len(content) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of the backup of LiteBoxd in %s: %w", dir, err)
	}
	return content, nil
}
