package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
)

// KeepTrust has the cluster keep the trust file that Options.Demand names, if it follows on the one that it keeps. No
// bundle is needed: this is how a revocation comes to a site between bundles. The error wraps site.ErrRefused when the
// file does not follow, or is older.
func KeepTrust(ctx context.Context, o Options) (*run.Summary, error) {
	o.Command = "trust keep"
	return o.run(ctx, journal.KeepTrust, (*installation).trustPhases)
}
