package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/workload"
)

// checkSiteWorkloads looks whether the workloads of install.yaml are deployed, and whether their pods run.
func (e *examination) checkSiteWorkloads(ctx context.Context) []HealthCheck {
	if len(e.inspector.Site.Config.Workloads) == 0 {
		return skipped([]string{checkWorkload}, "install.yaml lists no workloads")
	}
	var checks []HealthCheck
	for _, w := range e.inspector.Site.Config.Workloads {
		checks = append(checks, checkRelease(ctx, e, w)...)
	}
	return checks
}

// checkRelease looks at one of them.
func checkRelease(ctx context.Context, e *examination, w workloads.Workload) []HealthCheck {
	api := e.inspector.Site.API
	c := HealthCheck{Check: checkWorkload, Subject: w.Name, State: HealthFailed}
	state, err := helm.Current(ctx, api, w.Namespace, w.Name)
	switch {
	case err != nil:
		return []HealthCheck{failedCheck(checkWorkload, w.Name, err)}
	case state == nil:
		c.Detail, c.Hint = "is not installed", "boxlift install brings it"
		return []HealthCheck{c}
	case state.Status != HelmDeployed:
		c.Detail = fmt.Sprintf("revision %d of its release, chart %s, is %s: %s", state.Revision, state.ChartVersion,
			state.Status, state.Description)
		c.Hint = "boxlift install takes it up; boxlift workload rollback " + w.Name + " goes back to the revision before"
	default:
		c.State, c.Detail = HealthOK, fmt.Sprintf("%s %s is deployed", state.Chart, state.ChartVersion)
	}
	checks := []HealthCheck{c}
	manifest, err := helm.Manifest(ctx, api, w.Namespace, w.Name)
	if errors.Is(err, helm.ErrNoRevision) {
		return checks
	}
	var objects []*unstructured.Unstructured
	if err == nil {
		objects, err = helm.DecodeManifest(manifest)
	}
	if err != nil {
		return append(checks, failedCheck(checkWorkload, w.Name, err))
	}
	rolled := workload.RolledOut(objects, w.Namespace)
	for _, namespace := range slices.Sorted(maps.Keys(rolled)) {
		checks = append(checks, e.checkWorkloads(ctx, checkWorkload, namespace, rolled[namespace])...)
	}
	return checks
}
