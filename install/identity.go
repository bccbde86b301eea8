package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/sitekey"
)

// Identity is what a cluster has to say something of itself with.
type Identity struct {
	// Signer signs with the key of the site.
	Signer *signature.Signer
	// Record is that of the cluster's releases; nil when it has none.
	Record *release.Record
}

// ReadIdentity asks the cluster, and changes nothing. The error wraps [sitekey.ErrMissing] or [sitekey.ErrInvalid] when
// the cluster has no key, and [site.ErrCluster] or [site.ErrHosts] when it cannot be asked.
func ReadIdentity(ctx context.Context, o Options) (*Identity, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	var identity Identity
	if identity.Record, _, err = run.ReadRecord(ctx, in.site.API); err != nil {
		return nil, fmt.Errorf("%w: read the record of releases: %w", site.ErrCluster, err)
	}
	if identity.Signer, err = sitekey.Read(ctx, in.site.API); err != nil {
		return nil, fmt.Errorf("read the key of the site: %w", err)
	}
	return &identity, nil
}
