package install

import (
	"context"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/install/seed"
)

// Have finds out what the hosts of install.yaml hold of bundles: blobs in packs, files that
// were shipped, and boxlift-node. It only looks, and needs nothing of boxlift's on the hosts.
// Every host has to answer, or else the error wraps site.ErrHosts and there is no result but the
// list of hosts.
func Have(ctx context.Context, o Options) (*have.Have, []seed.Holding, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, nil, err
	}
	defer in.engine.Close()
	return in.seeder.Have(ctx)
}
