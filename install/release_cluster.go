package install

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/manifests"
)

// running is what was found to run on a cluster.
type running struct {
	nodes []kube.Node
	// cilium is the newest revision of its Helm release, nil for none.
	cilium *helm.State
	// liteboxd is the version of LiteBoxd's API, "" for none.
	liteboxd string
}

// findRunning finds out which versions run.
func (ins *Inspector) findRunning(ctx context.Context) (*running, error) {
	var r running
	var err error
	if r.nodes, err = ins.site.api.Nodes(ctx); err != nil {
		return nil, err
	}
	if r.cilium, err = helm.Current(ctx, ins.site.api, cilium.Namespace, cilium.ReleaseName); err != nil {
		return nil, err
	}
	r.liteboxd, err = ins.runningLiteBoxd(ctx)
	return &r, err
}

// liteboxdServer is the last part of the name of the image of LiteBoxd's API (v0.6.10).
const liteboxdServer = "liteboxd-server"

// runningLiteBoxd is LiteBoxd's version: that of boxlift's release of it, or the tag of its
// API's image, by which it is known whoever has deployed it.
func (ins *Inspector) runningLiteBoxd(ctx context.Context) (string, error) {
	if ins.site.Config.LiteBoxd == nil {
		return "", nil
	}
	state, err := helm.Current(ctx, ins.site.api, releasesNamespace, liteboxdRelease)
	if err != nil {
		return "", err
	}
	if state != nil && state.Status == helmDeployed {
		return state.ChartVersion, nil
	}
	rollouts, err := ins.site.api.Rollouts(ctx, ins.site.Config.LiteBoxd.NamespaceSystem)
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

// mismatches says what runs in another version than that which version gives for its
// component.
func (r *running) mismatches(version func(component string) string) []string {
	var texts []string
	for _, n := range r.nodes {
		if wanted := version(k3sComponent); n.Kubelet != wanted {
			texts = append(texts, fmt.Sprintf("the node %s runs k3s %s, not %s", n.Name, n.Kubelet, wanted))
		}
	}
	wanted := version(CiliumComponent)
	switch {
	case r.cilium == nil:
		texts = append(texts, "there is no Helm release "+cilium.ReleaseName+" in "+cilium.Namespace)
	case r.cilium.Status != helmDeployed:
		texts = append(texts, fmt.Sprintf("the Helm release %s is %s", cilium.ReleaseName, r.cilium.Status))
	case strings.TrimPrefix(r.cilium.ChartVersion, "v") != strings.TrimPrefix(wanted, "v"):
		texts = append(texts, fmt.Sprintf("Cilium is %s, not %s", r.cilium.ChartVersion, wanted))
	}
	switch wanted := version(liteboxdComponent); {
	case r.liteboxd == "" || r.liteboxd == wanted:
	case wanted == "":
		texts = append(texts, fmt.Sprintf("LiteBoxd %s runs, which the lock does not have", r.liteboxd))
	default:
		texts = append(texts, fmt.Sprintf("LiteBoxd is %s, not %s", r.liteboxd, wanted))
	}
	return texts
}

// helmDeployed is Helm's word for a revision that was rolled out and is the current one.
const helmDeployed = "deployed"

// compareRecord looks at the cluster's newest release, and says what does not go with it.
func (ins *Inspector) compareRecord(ctx context.Context) (*release.Release, []string) {
	if ins.site.api == nil {
		return nil, nil
	}
	r, _, err := readRecord(ctx, ins.site.api)
	if err != nil {
		return nil, []string{err.Error()}
	}
	newest := r.Newest()
	if newest == nil {
		return nil, []string{"the cluster has no record of releases: boxlift adopt makes one, and so does boxlift install"}
	}
	differences := ins.recordDifferences(r)
	// What differs from the bundle at hand is told anyway.
	if current := r.Current(); current == newest && newest.Bundle != ins.site.Bundle.Digest() {
		found, err := ins.findRunning(ctx)
		if err != nil {
			return newest, append(differences, err.Error())
		}
		for _, text := range found.mismatches(current.Version) {
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
		texts = append(texts, fmt.Sprintf("release %d (%s, bundle %s, by %s) is %s since %s", newest.Number, newest.Command, short(newest.Bundle.String()),
			newest.By, newest.State, since(newest).Format(time.RFC3339)))
	}
	if serial := ins.site.Bundle.Validity().Serial; r.IsOlder(ins.site.Bundle.Digest(), serial) {
		texts = append(texts, gate.OlderText(serial, r.Serial))
	}
	if newest.Bundle != ins.site.Bundle.Digest() {
		texts = append(texts, fmt.Sprintf("release %d is of bundle %s, this is %s", newest.Number, short(newest.Bundle.String()), short(ins.site.Bundle.Digest().String())))
	}
	return texts
}

// since is when a release came to be what it is.
func since(r *release.Release) time.Time {
	if !r.Ended.IsZero() {
		return r.Ended
	}
	return r.Started
}

// History is the record of a cluster's releases; nil when it has none. When the cluster cannot
// be asked, it is the copy beside the state, and the error says why.
func History(ctx context.Context, o Options) (*release.Record, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = plan
	if err = in.engine.connectServers(ctx, nil); err == nil {
		var r *release.Record
		if r, _, err = readRecord(ctx, in.site.api); err == nil {
			return r, nil
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !errors.Is(err, ErrHosts) {
		err = fmt.Errorf("%w: read the record of releases: %w", ErrCluster, err)
	}
	r, copyErr := release.ReadFile(in.record.recordCopy())
	return r, errors.Join(err, copyErr)
}
