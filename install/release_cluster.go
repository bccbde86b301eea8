package install

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/manifests"
)

// running is what was found to run on a cluster.
type running struct {
	nodes []kube.Node
	// cilium is the newest revision of its Helm release, nil for none.
	cilium *kube.ReleaseState
	// liteboxd is the version of LiteBoxd's API, "" for none.
	liteboxd string
}

// findRunning finds out which versions run.
func (in *installer) findRunning(ctx context.Context) (*running, error) {
	var r running
	var err error
	if r.nodes, err = in.api.Nodes(ctx); err != nil {
		return nil, err
	}
	if r.cilium, err = in.api.ReleaseState(ctx, cilium.Namespace, cilium.ReleaseName); err != nil {
		return nil, err
	}
	r.liteboxd, err = in.runningLiteBoxd(ctx)
	return &r, err
}

// liteboxdServer is the last part of the name of the image of LiteBoxd's API (v0.6.10).
const liteboxdServer = "liteboxd-server"

// runningLiteBoxd is LiteBoxd's version: that of boxlift's release of it, or the tag of its
// API's image, by which it is known whoever has deployed it.
func (in *installer) runningLiteBoxd(ctx context.Context) (string, error) {
	if in.Config.LiteBoxd == nil {
		return "", nil
	}
	state, err := in.api.ReleaseState(ctx, releasesNamespace, liteboxdRelease)
	if err != nil {
		return "", err
	}
	if state != nil && state.Status == helmDeployed {
		return state.ChartVersion, nil
	}
	rollouts, err := in.api.Rollouts(ctx, in.Config.LiteBoxd.NamespaceSystem)
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
func (in *installer) compareRecord(ctx context.Context) (*release.Release, []string) {
	if in.api == nil {
		return nil, nil
	}
	r, _, err := readRecord(ctx, in.api)
	if err != nil {
		return nil, []string{err.Error()}
	}
	newest := r.Newest()
	if newest == nil {
		return nil, []string{"the cluster has no record of releases: boxlift adopt makes one, and so does boxlift install"}
	}
	differences := in.recordDifferences(r)
	// What differs from the bundle at hand is told anyway.
	if current := r.Current(); current == newest && newest.Bundle != in.Bundle.Digest() {
		found, err := in.findRunning(ctx)
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
func (in *installer) recordDifferences(r *release.Record) []string {
	newest := r.Newest()
	var texts []string
	if newest.State != release.Succeeded {
		texts = append(texts, fmt.Sprintf("release %d (%s, bundle %s, by %s) is %s since %s", newest.Number, newest.Command, short(newest.Bundle.String()),
			newest.By, newest.State, since(newest).Format(time.RFC3339)))
	}
	if serial := in.Bundle.Validity().Serial; r.IsOlder(in.Bundle.Digest(), serial) {
		texts = append(texts, gate.OlderText(serial, r.Serial))
	}
	if newest.Bundle != in.Bundle.Digest() {
		texts = append(texts, fmt.Sprintf("release %d is of bundle %s, this is %s", newest.Number, short(newest.Bundle.String()), short(in.Bundle.Digest().String())))
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
	defer in.close()
	in.mode = plan
	if err = in.connectServers(ctx, nil); err == nil {
		var r *release.Record
		if r, _, err = readRecord(ctx, in.api); err == nil {
			return r, nil
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !errors.Is(err, ErrHosts) {
		err = fmt.Errorf("%w: read the record of releases: %w", ErrCluster, err)
	}
	r, copyErr := release.ReadFile(in.recordCopy())
	return r, errors.Join(err, copyErr)
}

// Adoption is what was found out about a cluster that was adopted.
type Adoption struct {
	Cluster string `json:"cluster"`
	// Release is the cluster's, New whether it was recorded now.
	Release release.Release `json:"release"`
	New     bool            `json:"new"`
	// Nodes are the versions of k3s by the names of the nodes, Cilium and LiteBoxd theirs.
	Nodes    map[string]string `json:"nodes"`
	Cilium   string            `json:"cilium"`
	LiteBoxd string            `json:"liteboxd,omitempty"`
	// Foreign are the hosts whose k3s boxlift has not set up: it looks at them and backs the
	// cluster up, and sets up nothing there.
	Foreign []string `json:"foreign,omitempty"`
}

// Adopt records a bundle as the one that a cluster runs, when its versions are those of the
// bundle and its nodes the hosts of install.yaml. Nothing but the record is written. The error
// wraps [ErrRefused] and lists all that does not match, when something does not.
func Adopt(ctx context.Context, o Options) (*Adoption, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.close()
	in.mode = plan
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.eachHost(ctx, in.hosts, in.lookAtMember)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, in.hostErrors()
	}
	if err := in.reachAPI(ctx, in.servers()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	if in.api == nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, errNoCluster)
	}
	found, err := in.findRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	foreign, err := in.foreignHosts(ctx)
	if err != nil {
		return nil, err
	}
	a, err := in.adopt(ctx, found)
	if a != nil {
		a.Foreign = foreign
	}
	return a, err
}

// foreignHosts are those whose k3s boxlift has not set up. With which settings it was, nobody can
// say for sure: some, such as the networks of pods and services, must never change, and are not to
// be found in any one place.
func (in *installer) foreignHosts(ctx context.Context) ([]string, error) {
	isForeign := make([]bool, len(in.hosts))
	err := in.eachHost(ctx, in.hosts, func(ctx context.Context, h *host) error {
		out, err := h.root(ctx, "find out who has set up k3s", "/bin/sh", "-c", `for f in "$@"; do [ ! -e "$f" ] || echo boxlift; done`, "sh", k3sTokenFile, serviceFile)
		isForeign[slices.Index(in.hosts, h)] = len(out) == 0
		return err
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, in.hostErrors()
	}
	var names []string
	for i, h := range in.hosts {
		if isForeign[i] {
			names = append(names, h.name)
		}
	}
	return names, nil
}

// lookAtMember connects to a host, and finds out what part it has in a cluster.
func (in *installer) lookAtMember(ctx context.Context, h *host) error {
	if err := in.connect(ctx, h); err != nil {
		return err
	}
	return h.lookAtK3s(ctx)
}

func (in *installer) adopt(ctx context.Context, found *running) (*Adoption, error) {
	if reasons := append(found.mismatches(in.version), in.strangers(found.nodes)...); len(reasons) > 0 {
		return nil, &adoptError{reasons}
	}
	a := &Adoption{Cluster: in.Config.Cluster.Name, Nodes: make(map[string]string), Cilium: found.cilium.ChartVersion, LiteBoxd: found.liteboxd}
	for _, n := range found.nodes {
		a.Nodes[n.Name] = n.Kubelet
	}
	r, _, err := readRecord(ctx, in.api)
	if errors.Is(err, release.ErrInvalid) {
		return nil, fmt.Errorf("%w: %w", ErrRefused, &recordError{err})
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	if newest := r.Newest(); newest != nil {
		if newest.State == release.Succeeded && newest.Bundle == in.Bundle.Digest() {
			a.Release = *newest
			return a, in.copyRecord(r)
		}
		return nil, fmt.Errorf("%w: the cluster has a record already, whose release %d, of bundle %s, is %s: boxlift history shows it",
			ErrRefused, newest.Number, short(newest.Bundle.String()), newest.State)
	}
	err = in.changeRecord(ctx, func(r *release.Record) error {
		if r.Newest() != nil {
			return fmt.Errorf("%w: somebody else has recorded a release meanwhile", ErrRefused)
		}
		run, text, err := in.newRelease("adopt", release.Running)
		if err != nil {
			return err
		}
		one, err := r.Begin(run, text)
		if err != nil {
			return err
		}
		r.Set(one.Number, release.Succeeded, fmt.Sprintf("adopted as it was found, with %s", counted(len(found.nodes), "node")), time.Now())
		a.Release, a.New = *r.Newest(), true
		return nil
	})
	if err != nil && !errors.Is(err, ErrRefused) {
		err = fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return a, err
}

// strangers are hosts without a node, and nodes without a host.
func (in *installer) strangers(nodes []kube.Node) []string {
	var texts []string
	for _, h := range in.hosts {
		if in.nodeOf(h, nodes) == nil {
			texts = append(texts, h.name+" is in install.yaml, and has no node in the cluster")
		}
	}
	for _, n := range in.absent(nodes) {
		texts = append(texts, fmt.Sprintf("the node %s (%s) is not in install.yaml", n.Name, strings.Join(n.Addresses, ", ")))
	}
	return texts
}

// adoptError says why a cluster is not adopted.
type adoptError struct{ reasons []string }

func (e *adoptError) Error() string {
	return "refused: the cluster is not what bundle and install.yaml say:\n  " + strings.Join(e.reasons, "\n  ")
}

func (*adoptError) Unwrap() error { return ErrRefused }

func (*adoptError) Hint() string {
	return "adopt it with a bundle of the versions that run, and an install.yaml that lists its nodes"
}
