package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
)

// checkTrusted finds out whether what runs was revoked since, by the trust file that the cluster keeps or a newer one
// that install.yaml names.
func (e *examination) checkTrusted(ctx context.Context) []HealthCheck {
	r, _, err := run.ReadRecord(ctx, e.inspector.Site.API)
	if err != nil {
		return []HealthCheck{failedCheck(checkTrust, "", err)}
	}
	return e.judgeTrust(r)
}

func (e *examination) judgeTrust(r *release.Record) []HealthCheck {
	if r.Current() == nil {
		return []HealthCheck{{Check: checkTrust, State: HealthSkipped, Detail: "the cluster has no record of what it runs"}}
	}
	newest, err := r.NewestTrust(e.inspector.Trust, time.Now())
	if err != nil {
		return []HealthCheck{failedCheck(checkTrust, "", err)}
	}
	if newest == nil {
		return []HealthCheck{{Check: checkTrust, State: HealthSkipped, Detail: "the cluster keeps no trust file"}}
	}
	if texts := r.RevokedSince(newest.Version()); len(texts) > 0 {
		return []HealthCheck{{Check: checkTrust, State: HealthFailed, Detail: strings.Join(texts, "; "),
			Hint: "upgrade to a bundle that is good by that file; where enough others sign the one that runs, boxlift " +
				"install with it says so"}}
	}
	return []HealthCheck{{Check: checkTrust, State: HealthOK,
		Detail: fmt.Sprintf("version %d of the trust file revokes nothing that runs", newest.Version().Number)}}
}
