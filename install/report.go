package install

import (
	"context"
	"errors"
	"time"

	bundlereport "github.com/liteboxd/boxlift/bundle/report"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/report"
	"github.com/liteboxd/boxlift/install/site"
)

// Report reads what a report about a cluster has: what [History], [Observe], [CheckCertificates] and, with a bundle,
// [Inspect] find. What cannot be read is among its problems. The error says that nothing of the cluster was reached,
// in which case what there is beside the state is reported all the same, or that ctx has ended.
func Report(ctx context.Context, o Options, about *bundlereport.Bundle) (*report.Cluster, error) {
	c := &report.Cluster{Name: o.Config.Cluster.Name, Taken: time.Now().UTC().Truncate(time.Second), Bundle: about}
	withBundle := o
	o.Bundle = nil // one that does not fit must not be in the way of all else
	var unreached error
	note := func(part report.Part, err error) {
		if err != nil {
			c.Problems = append(c.Problems, report.Problem{Part: part, Err: err})
		}
	}
	var err error
	c.Record, err = History(ctx, o)
	note(report.Releases, err)
	c.Observation, unreached = Observe(ctx, o)
	note(report.Observation, unreached)
	c.Certificates, err = CheckCertificates(ctx, o, nil)
	if errors.Is(err, certificates.ErrCertificates) && !errors.Is(err, site.ErrHosts) {
		err = nil // the table has it
	}
	note(report.Certificates, err)
	if withBundle.Bundle != nil {
		c.Status, err = Inspect(ctx, withBundle)
		if errors.Is(err, site.ErrDifferent) && !errors.Is(err, site.ErrHosts) {
			err = nil // the table has it
		}
		note(report.Drift, err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c.Reached() {
		return c, nil
	}
	return c, unreached
}
