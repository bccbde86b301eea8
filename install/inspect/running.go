package inspect

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
)

// Running is what was found to run on a cluster.
type Running struct {
	Nodes []kube.Node
	// Cilium is the newest revision of its Helm release, nil for none.
	Cilium *helm.State
	// LiteBoxd is the version of LiteBoxd's API, "" for none.
	LiteBoxd string
}

// FindRunning finds out which versions run.
func (ins *Inspector) FindRunning(ctx context.Context) (*Running, error) {
	var r Running
	var err error
	if r.Nodes, err = ins.Site.API.Nodes(ctx); err != nil {
		return nil, err
	}
	if r.Cilium, err = helm.Current(ctx, ins.Site.API, cilium.Namespace, cilium.ReleaseName); err != nil {
		return nil, err
	}
	r.LiteBoxd, err = ins.runningLiteBoxd(ctx)
	return &r, err
}

// liteboxdServer is the last part of the name of the image of LiteBoxd's API (v0.6.10).
const liteboxdServer = "liteboxd-server"

// runningLiteBoxd is LiteBoxd's version: that of boxlift's release of it, or the tag of its
// API's image, by which it is known whoever has deployed it.
func (ins *Inspector) runningLiteBoxd(ctx context.Context) (string, error) {
	if ins.Site.Config.LiteBoxd == nil {
		return "", nil
	}
	state, err := helm.Current(ctx, ins.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil {
		return "", err
	}
	if state != nil && state.Status == HelmDeployed {
		return state.ChartVersion, nil
	}
	rollouts, err := ins.Site.API.Rollouts(ctx, ins.Site.Config.LiteBoxd.NamespaceSystem)
	if err != nil {
		return "", err
	}
	for _, r := range rollouts {
		if r.Kind == kube.Deployment && r.Name == manifests.API {
			return liteboxdTag(r.Images), nil
		}
	}
	return "", nil
}

// liteboxdTag is the tag of the image of LiteBoxd's API among others, "" when it is not there.
func liteboxdTag(images []string) string {
	for _, image := range images {
		image, _, _ = strings.Cut(image, "@")
		if repository, tag, tagged := strings.Cut(path.Base(image), ":"); tagged && repository == liteboxdServer {
			return tag
		}
	}
	return ""
}

// Mismatches says what runs in another version than that which version gives for its
// component.
func (r *Running) Mismatches(version func(component string) string) []string {
	var texts []string
	for _, n := range r.Nodes {
		if wanted := version(site.K3sComponent); n.Kubelet != wanted {
			texts = append(texts, fmt.Sprintf("the node %s runs k3s %s, not %s", n.Name, n.Kubelet, wanted))
		}
	}
	wanted := version(site.CiliumComponent)
	switch {
	case r.Cilium == nil:
		texts = append(texts, "there is no Helm release "+cilium.ReleaseName+" in "+cilium.Namespace)
	case r.Cilium.Status != HelmDeployed:
		texts = append(texts, fmt.Sprintf("the Helm release %s is %s", cilium.ReleaseName, r.Cilium.Status))
	case strings.TrimPrefix(r.Cilium.ChartVersion, "v") != strings.TrimPrefix(wanted, "v"):
		texts = append(texts, fmt.Sprintf("Cilium is %s, not %s", r.Cilium.ChartVersion, wanted))
	}
	switch wanted := version(seed.LiteBoxdComponent); {
	case r.LiteBoxd == "" || r.LiteBoxd == wanted:
	case wanted == "":
		texts = append(texts, fmt.Sprintf("LiteBoxd %s runs, which the lock does not have", r.LiteBoxd))
	default:
		texts = append(texts, fmt.Sprintf("LiteBoxd is %s, not %s", r.LiteBoxd, wanted))
	}
	return texts
}

// HelmDeployed is Helm's word for a revision that was rolled out and is the current one.
const HelmDeployed = "deployed"

// compareRecord looks at the cluster's newest release, and says what does not go with it.
func (ins *Inspector) compareRecord(ctx context.Context) (*release.Release, []string) {
	if ins.Site.API == nil {
		return nil, nil
	}
	r, _, err := run.ReadRecord(ctx, ins.Site.API)
	if err != nil {
		return nil, []string{err.Error()}
	}
	newest := r.Newest()
	if newest == nil {
		return nil, []string{"the cluster has no record of releases: boxlift adopt makes one, and so does boxlift " +
			"install"}
	}
	differences := ins.recordDifferences(r)
	switch newest, err := r.NewestTrust(ins.Trust, time.Now()); {
	case err != nil:
		differences = append(differences, err.Error())
	case newest != nil:
		differences = append(differences, r.RevokedSince(newest.Version())...)
	}
	// What differs from the bundle at hand is told anyway.
	if current := r.Current(); current == newest && newest.Bundle != ins.Site.Bundle.Digest() {
		found, err := ins.FindRunning(ctx)
		if err != nil {
			return newest, append(differences, err.Error())
		}
		for _, text := range found.Mismatches(current.Version) {
			differences = append(differences, fmt.Sprintf("release %d: %s", current.Number, text))
		}
	}
	return newest, differences
}

// recordDifferences compares the newest release with the bundle. An install.yaml that was
// changed is no difference by itself: what it asks for is compared with the cluster.
func (ins *Inspector) recordDifferences(r *release.Record) []string {
	newest := r.Newest()
	var texts []string
	if newest.State != release.Succeeded {
		texts = append(texts, fmt.Sprintf("release %d (%s, bundle %s, by %s) is %s since %s", newest.Number,
			newest.Command, site.Short(newest.Bundle.String()),
			newest.By, newest.State, Since(newest).Format(time.RFC3339)))
	}
	if serial := ins.Site.Bundle.Validity().Serial; r.IsOlder(ins.Site.Bundle.Digest(), serial) {
		texts = append(texts, gate.OlderText(serial, r.Serial))
	}
	if newest.Bundle != ins.Site.Bundle.Digest() {
		texts = append(texts, fmt.Sprintf("release %d is of bundle %s, this is %s", newest.Number,
			site.Short(newest.Bundle.String()), site.Short(ins.Site.Bundle.Digest().String())))
	}
	return texts
}

// Since is when a release came to be what it is.
func Since(r *release.Release) time.Time {
	if !r.Ended.IsZero() {
		return r.Ended
	}
	return r.Started
}
