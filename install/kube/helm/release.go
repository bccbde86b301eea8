package helm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// chartLabel is a label on Helm's record of a revision. Its value is the beginning of the
// sha256 of the chart's archive, in hex: labels have no room for the whole.
const (
	chartLabel       = "boxlift.dev/chart"
	chartLabelLength = 40
)

// releaseTimeout is for releases that name none.
const releaseTimeout = 10 * time.Minute

// Release is a chart with values, as it is to be in the cluster.
type Release struct {
	Name      string
	Namespace string
	// Chart is the chart's archive, a .tgz, which the caller has verified.
	Chart []byte
	// Values go over those in the chart.
	Values map[string]any
	// Timeout bounds the wait for the rollouts, and once more that of a rollback; 10
	// minutes when it is 0.
	Timeout time.Duration
	// NoRollback leaves an upgrade that fails as it is, for somebody to look at.
	NoRollback bool
	// LateKinds waits for kinds of objects that the cluster does not know yet, at most for
	// Timeout: those that something else brings, such as k3s' own charts.
	LateKinds bool
}

func (r Release) owner() kube.ReleaseName {
	return kube.ReleaseName{Namespace: r.Namespace, Name: r.Name}
}

// Differs says why Apply has something to do; "" means that it has not. It
// compares what is on record with r (the chart's contents, the values) and, when these are
// equal, the objects in the cluster with what was rendered. It changes nothing.
func Differs(ctx context.Context, c *kube.Cluster, r Release) (reason string, err error) {
	wanted, err := r.load()
	if err != nil {
		return "", err
	}
	h, err := bind(ctx, c, r.Namespace, r.Name, nil)
	if err != nil {
		return "", err
	}
	defer h.close()
	revisions, err := h.revisions(r.Name)
	if err != nil {
		return "", fmt.Errorf("%s: read release %s/%s: %w", c.Name, r.Namespace, r.Name, err)
	}
	if reason := differs(revisions, r, wanted); reason != "" {
		return reason, nil
	}
	drift, err := drift(ctx, c, revisions[len(revisions)-1].Manifest, r.owner())
	if err != nil {
		return "", fmt.Errorf("%s: compare objects of release %s/%s: %w", c.Name, r.Namespace, r.Name, err)
	}
	return kube.JoinSome(drift), nil
}

// differs compares with the records only.
func differs(revisions []*release.Release, r Release, wanted *chart.Chart) string {
	if len(revisions) == 0 {
		return "not installed"
	}
	last := revisions[len(revisions)-1]
	since := last.Info.LastDeployed.UTC().Format("2006-01-02 15:04 MST")
	switch status := last.Info.Status; {
	case status.IsPending():
		return fmt.Sprintf("revision %d is %s since %s: it was broken off", last.Version, status, since)
	case status == common.StatusFailed:
		return fmt.Sprintf("revision %d failed at %s: %s", last.Version, since, kube.Brief(last.Info.Description))
	case status != common.StatusDeployed:
		return fmt.Sprintf("revision %d is %s since %s", last.Version, status, since)
	}
	suffix := ""
	if last.Info.RollbackRevision > 0 && len(revisions) > 1 {
		before := revisions[len(revisions)-2].Info.Description
		suffix = fmt.Sprintf(" (rolled back at %s; before that: %s)", since, kube.Brief(before))
	}
	var reasons []string
	switch is, want := chartVersion(last), wanted.Metadata.Version; {
	case is != want:
		reasons = append(reasons, fmt.Sprintf("chart %s -> %s", is, want))
	case last.Labels[chartLabel] == "":
		reasons = append(reasons, "was not installed by boxlift")
	case last.Labels[chartLabel] != r.digest():
		reasons = append(reasons, fmt.Sprintf("chart %s has other contents", want))
	}
	if paths := changedPaths(plain(last.Config), plain(r.Values)); len(paths) > 0 {
		reasons = append(reasons, "values changed: "+kube.JoinSome(paths))
	}
	if len(reasons) == 0 {
		return ""
	}
	return strings.Join(reasons, ", ") + suffix
}

// Apply installs or upgrades a release and waits until all of its DaemonSets,
// Deployments and StatefulSets are rolled out, in whatever namespace they are, and its other
// objects are what they should be; it makes the release's own namespace when it is missing.
// A claim whose volume is made when a pod needs it is not waited for.
// Report is told what is done and what is waited for; nil is nobody.
//
// A release that an earlier run has left pending or failed is taken up where it is. Changes
// that others have made to fields that the chart sets are overwritten. Objects that the
// release no longer has are deleted, but for those that are annotated with
// helm.sh/resource-policy: keep. Objects of somebody else are not touched: the release fails.
// A change that the cluster would refuse, such as to a field that cannot be changed, fails
// before anything is changed.
//
// When an upgrade does not roll out in time, a Deployment has exceeded its progress deadline, or
// a volume or an image cannot be had (see package wait), the last good revision is rolled back to
// unless NoRollback is set, and the error says what held up the upgrade, and what became of the rollback. After a first
// installation that does not roll out, everything stays as it is. When ctx ends, nothing is
// rolled back: the next call goes on from there.
func Apply(ctx context.Context, c *kube.Cluster, r Release, report func(string)) error {
	if report == nil {
		report = func(string) {}
	}
	if r.Timeout <= 0 {
		r.Timeout = releaseTimeout
	}
	wanted, err := r.load()
	if err != nil {
		return err
	}
	if err := makeNamespace(ctx, c, r.Namespace, nil); err != nil {
		return err
	}
	if err := awaitKinds(ctx, c, r, report); err != nil {
		return err
	}
	h, err := bind(ctx, c, r.Namespace, r.Name, report)
	if err != nil {
		return err
	}
	defer h.close()
	revisions, err := h.revisions(r.Name)
	if err != nil {
		return fmt.Errorf("%s: read release %s/%s: %w", c.Name, r.Namespace, r.Name, err)
	}

	version := wanted.Metadata.Version
	if len(revisions) == 0 {
		doing := fmt.Sprintf("install release %s/%s, chart %s", r.Namespace, r.Name, version)
		if refused := refusal(ctx, c, r); refused != nil {
			return releaseError(ctx, c, r.owner(), doing, refused, nothingChanged)
		}
		report(fmt.Sprintf("installing %s %s", wanted.Metadata.Name, version))
		if err := h.install(ctx, r, wanted); err != nil {
			return releaseError(ctx, c, r.owner(), doing, err, "")
		}
		return nil
	}
	last, good := revisions[len(revisions)-1], lastGood(revisions)
	doing := fmt.Sprintf("upgrade release %s/%s from chart %s to %s", r.Namespace, r.Name, chartVersion(last), version)
	if refused := refusal(ctx, c, r); refused != nil {
		return releaseError(ctx, c, r.owner(), doing, refused, nothingChanged)
	}
	if err := h.takeUp(revisions, good, report); err != nil {
		return fmt.Errorf("%s: take up release %s/%s: %w", c.Name, r.Namespace, r.Name, err)
	}
	h.history = historyLimit(revisions)
	report(fmt.Sprintf("upgrading %s from %s to %s", wanted.Metadata.Name, chartVersion(last), version))
	err = h.upgrade(ctx, r, wanted)
	if err == nil {
		return nil
	}
	return releaseError(ctx, c, r.owner(), doing, err, h.goBack(ctx, r, last.Version, good, report))
}

const nothingChanged = "nothing was changed"

// refusal asks the cluster whether it would let all objects that exist be changed as r wants
// them. When that cannot be found out, applying them will tell.
func refusal(ctx context.Context, c *kube.Cluster, r Release) error {
	objects, err := rendered(ctx, c, r)
	if bound := (*BoundError)(nil); errors.As(err, &bound) {
		return err // Helm would render it in this process
	}
	if err != nil {
		c.Log.DebugContext(ctx, "what the cluster would refuse is not known", "release", r.Name, "error", err)
		return nil
	}
	return refusalOf(ctx, c, objects, r.owner())
}

func refusalOf(ctx context.Context, c *kube.Cluster, objects []*unstructured.Unstructured, o kube.ReleaseName) error {
	compared, err := compare(ctx, c, objects, o)
	if err != nil {
		c.Log.DebugContext(ctx, "what the cluster would refuse is not known", "release", o.Name, "error", err)
	}
	for i := range compared {
		if c := &compared[i]; c.refused != nil {
			return fault.WithHint(errors.New(c.reason()), c.hint())
		}
	}
	return nil
}

// takeUp makes Helm go on after a run that was broken off: it refuses to touch a release
// that is on record as pending.
func (h *binding) takeUp(revisions []*release.Release, good *release.Release, report func(string)) error {
	last := revisions[len(revisions)-1]
	for _, r := range revisions {
		if good == nil || r.Version > good.Version {
			h.client.leftover = append(h.client.leftover, r.Manifest)
		}
	}
	if status := last.Info.Status; status != common.StatusDeployed && status != common.StatusFailed {
		report(fmt.Sprintf("revision %d was left %s: going on from there", last.Version, status))
		last.SetStatus(common.StatusFailed, fmt.Sprintf("broken off while it was %s", status))
		return h.config.Releases.Update(last)
	}
	return nil
}

func (h *binding) install(ctx context.Context, r Release, wanted *chart.Chart) error {
	in := action.NewInstall(h.config)
	in.ReleaseName, in.Namespace, in.Timeout = r.Name, r.Namespace, r.Timeout
	in.WaitStrategy = helmkube.HookOnlyStrategy // see helmClient
	in.ServerSideApply, in.ForceConflicts = true, true
	in.DisableOpenAPIValidation = true // the server validates; Helm would fetch its whole schema for that
	in.Labels = map[string]string{chartLabel: r.digest()}
	made, err := in.RunWithContext(context.WithoutCancel(ctx), wanted, clone(r.Values))
	if err != nil {
		return err
	}
	// Helm does not say so when it cannot note that the revision is rolled out, as it does of an upgrade.
	if err := h.config.Releases.Update(made); err != nil {
		return fmt.Errorf("note that it is installed: %w", err)
	}
	return nil
}

func (h *binding) upgrade(ctx context.Context, r Release, wanted *chart.Chart) error {
	up := action.NewUpgrade(h.config)
	up.Namespace, up.Timeout, up.MaxHistory = r.Namespace, r.Timeout, h.history
	up.WaitStrategy = helmkube.HookOnlyStrategy
	up.ServerSideApply, up.ForceConflicts = "true", true
	up.DisableOpenAPIValidation = true
	up.ResetValues = true // the values are complete
	up.Labels = map[string]string{chartLabel: r.digest()}
	_, err := up.RunWithContext(context.WithoutCancel(ctx), r.Name, wanted, clone(r.Values))
	return err
}

// goBack rolls a failed upgrade back, if there is something to go back to, and says what
// came of it. before is the revision that was the last one before the upgrade.
func (h *binding) goBack(
	ctx context.Context, r Release, before int, good *release.Release, report func(string),
) string {
	if ctx.Err() != nil {
		return "broken off; the same command goes on from here"
	}
	revisions, err := h.revisions(r.Name)
	if err != nil {
		return "whether there is something to roll back is not known: " + kube.Brief(err.Error())
	}
	if len(revisions) == 0 || revisions[len(revisions)-1].Version == before {
		return nothingChanged
	}
	switch {
	case r.NoRollback:
		return "not rolled back, as was asked for"
	case good == nil:
		return "there is no earlier revision that was rolled out"
	case good.Labels[chartLabel] == r.digest() && len(changedPaths(plain(good.Config), plain(r.Values))) == 0:
		return fmt.Sprintf("not rolled back: revision %d is the same", good.Version)
	}
	to := fmt.Sprintf("revision %d, chart %s", good.Version, chartVersion(good))
	report("rolling back to " + to)
	h.client.leftover = nil // Helm compares with the revision that has just failed
	if err := h.rollback(revisions[len(revisions)-1], good.Version, r.Timeout); err != nil {
		return fmt.Sprintf("the rollback to %s failed too: %s", to, kube.Brief(err.Error()))
	}
	return "rolled back to " + to
}

// releaseError joins what failed with what was done about it.
func releaseError(
	ctx context.Context, c *kube.Cluster, o kube.ReleaseName, doing string, err error, after string,
) error {
	hint, explanation := strings.Join(fault.Hints(err), "\n"), strings.Join(fault.Details(err), "\n")
	if hint == "" && strings.Contains(err.Error(), "invalid ownership metadata") { // Helm has no error for it
		hint = ownershipHint(err.Error(), o)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	err = fmt.Errorf("%s: %s: %w", c.Name, doing, err)
	if after != "" {
		err = fmt.Errorf("%w; %s", err, after)
	}
	return fault.WithHint(fault.WithDetail(err, explanation), hint)
}

// dataKinds are the kinds of objects with which data or other objects go when they are deleted.
var dataKinds = []string{"Namespace", "PersistentVolumeClaim", "PersistentVolume", "CustomResourceDefinition", "Secret"}

// ownershipHint says what to do about an object that Helm found to belong to no release; refusal is
// what Helm says, which begins with the object's kind and its quoted name.
func ownershipHint(refusal string, o kube.ReleaseName) string {
	way := "delete it, or hand it over"
	if slices.ContainsFunc(dataKinds, func(kind string) bool { return strings.Contains(refusal, kind+` "`) }) {
		way = "hand it over; do not delete it, since data would go with it. It is handed over"
	}
	return fmt.Sprintf("somebody else has made it: %s with the label %s=%s and the annotations %s=%s and %s=%s",
		way, kube.ManagedByLabel, kube.ManagedByHelm,
		kube.ReleaseAnnotation, o.Name, kube.NamespaceAnnotation, o.Namespace)
}

// check refuses what is no release, whatever its chart.
func (r Release) check() error {
	if r.Name == "" || r.Namespace == "" {
		return errors.New("a release needs a name and a namespace")
	}
	if _, err := json.Marshal(r.Values); err != nil {
		return fmt.Errorf("release %s/%s: values: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// load reads the chart.
func (r Release) load() (*chart.Chart, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	wanted, err := loadChart(r.Chart)
	if err != nil {
		return nil, fmt.Errorf("release %s/%s: read chart: %w", r.Namespace, r.Name, err)
	}
	return wanted, nil
}

func (r Release) digest() string {
	sum := sha256.Sum256(r.Chart)
	return hex.EncodeToString(sum[:])[:chartLabelLength]
}

func chartVersion(r *release.Release) string {
	if r.Chart == nil || r.Chart.Metadata == nil {
		return "of unknown version"
	}
	return printable.Line(r.Chart.Metadata.Version)
}

func sortRevisions(list []*release.Release) {
	slices.SortFunc(list, func(a, b *release.Release) int { return a.Version - b.Version })
}
