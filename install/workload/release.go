package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests/lint"
)

// Differs says why a release is not in the cluster as it is to be, "" when it is.
func Differs(ctx context.Context, s *site.Site, r helm.Release) (string, error) {
	if s.API == nil {
		return "there is no cluster yet", nil
	}
	return helm.Differs(ctx, s.API, r)
}

// RequireHosts is the step that leaves a release as it is while a host fails. name is what people call it.
func RequireHosts(s *site.Site, id, name string, differs func() (string, error)) run.Step {
	return run.Step{
		ID: id, Proves: true,
		Run: func(context.Context) error {
			reason, err := differs()
			if reason == "" || err != nil || s.API == nil {
				return err
			}
			for _, h := range s.Hosts {
				if h.Err != nil {
					return fmt.Errorf("%s is left as it is (%s), because %s failed: its pods may come to run "+
						"there, and the images may be missing", name, reason, h.Name)
				}
			}
			return nil
		},
	}
}

// RefuseErrors is an error of those findings that say that objects cannot work, nil when there are none.
func RefuseErrors(findings []lint.Finding) error {
	var errs []error
	for _, f := range findings {
		if f.Severity == lint.Error {
			errs = append(errs, fmt.Errorf("%w: %s", site.ErrConfig, f))
		}
	}
	return errors.Join(errs...)
}
