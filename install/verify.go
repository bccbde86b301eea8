package install

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/images"
)

// images proves that every host runs k3s in the wanted version with all images of the
// bundle, complete and safe from the kubelet. k3s itself only logs an image that it could
// not import.
func (im *Importer) images(ctx context.Context) error {
	if im.engine.mode == plan {
		return nil
	}
	return im.engine.eachHost(ctx, im.site.hosts, im.imagesOn)
}

// verify proves that every node is Ready, and that Cilium, DNS, LiteBoxd and the ingress that
// leads to it run.
func (ins *Inspector) verify(ctx context.Context) error {
	if ins.engine.mode == plan || ins.site.api == nil {
		return nil
	}
	err := ins.verifyNodes(ctx)
	if ins.engine.goesOn(err) || err == nil {
		if rolled := ins.verifyWorkloads(ctx); rolled != nil {
			return rolled
		}
	}
	if ins.engine.upgrades {
		// k3s was started again where it changed: what ends soon all the same needs somebody.
		ins.renewer.warnOfCertificates(ctx, func(Certificate) bool { return true })
	}
	return err
}

func (im *Importer) imagesOn(ctx context.Context, h *host) error {
	if im.engine.mode == inspect {
		if ready, err := im.inspectService(ctx, h); !ready || err != nil {
			return err
		}
	}
	version, err := h.k3sVersion(ctx)
	if err != nil {
		return err
	}
	h.k3s = version
	if version != im.site.k3s && im.engine.mode == inspect {
		h.differences = append(h.differences, fmt.Sprintf("k3s is %s, the bundle carries %s", version, im.site.k3s))
		return nil
	}
	if version != im.site.k3s {
		return fmt.Errorf("%s is version %s, the bundle carries %s", k3sBinary, version, im.site.k3s)
	}
	return im.engine.runSteps(ctx, "images", &h.subject, []step{im.imagesStep(h)})
}

// inspectService looks at a host's k3s, and tells whether there is more to see.
func (im *Importer) inspectService(ctx context.Context, h *host) (bool, error) {
	state, err := machine.FindService(ctx, h.conn, unit(h.config.Role))
	if err != nil {
		return false, err
	}
	h.service = orUnknown(state.Active)
	if state.Load == "not-found" {
		h.service = "not installed"
	}
	digest, err := binaryDigest(ctx, h)
	return digest != "" && h.service == "active" && h.facts != nil, err
}

// k3sVersion reads the second word of "k3s version v1.36.4+k3s1 (...)".
func (h *host) k3sVersion(ctx context.Context) (string, error) {
	out, err := h.root(ctx, "ask k3s for its version", k3sBinary, "--version")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[0] != "k3s" || fields[1] != "version" {
		return "", fmt.Errorf("ask k3s for its version: it printed %.200q", out)
	}
	return printable.Short(fields[2], 100), nil
}

// imagesStep makes sure that containerd holds every image that the packs promise, with
// all its content, and that the kubelet leaves them alone.
func (im *Importer) imagesStep(h *host) step {
	return step{
		title: "make the images in containerd complete",
		needed: func(ctx context.Context) (string, error) {
			report, err := im.checkContainerd(ctx, h)
			if err != nil {
				return "", err
			}
			return imagesReason(report), nil
		},
		run: func(ctx context.Context) error {
			report, err := im.checkContainerd(ctx, h, "--repair", "--pin")
			if err != nil {
				return err
			}
			if reason := imagesReason(report); reason != "" {
				return &imagesError{reason: reason, service: unit(h.config.Role)}
			}
			return nil
		},
	}
}

// checkContainerd lets the helper compare containerd with the packs. A run that changes things waits until k3s has
// imported what it is importing. It waits for containerd itself not as long, which k3s starts before anything else.
func (im *Importer) checkContainerd(ctx context.Context, h *host, flags ...string) (images.Report, error) {
	report, err := im.askContainerd(ctx, h, flags...)
	if err != nil || report.Pending == "" || !im.engine.changing() {
		return report, err
	}
	start := time.Now()
	waited := im.site.waiting(ctx, "wait for k3s to import its images on "+h.name, func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) (bool, error) {
			report, err = im.askContainerd(ctx, h, flags...)
			switch {
			case err != nil || report.Pending == "":
				return true, nil
			case len(report.Problems) == 0 && time.Since(start) > containerdTime:
				err = fmt.Errorf("check the images in containerd: %s, %v after it was first asked", report.Pending, containerdTime)
				return true, nil
			}
			return false, errors.New(report.Pending)
		})
	})
	return report, cmp.Or(waited, err)
}

// containerdTime is how long containerd may take to answer once k3s runs.
const containerdTime = 3 * time.Minute

// askContainerd lets the helper compare containerd with the packs, as it is now.
// Where the packs of two releases disagree, those of the run's bundle are right.
func (im *Importer) askContainerd(ctx context.Context, h *host, flags ...string) (images.Report, error) {
	var report images.Report
	args := append([]string{helperPath, "check", "--containerd"}, flags...)
	for _, p := range h.packs {
		args = append(args, "--current", packName(p))
	}
	// What a registry of somebody else's gives for a name may have another digest: one that does not take
	// indexes of platforms that it lacks gets reduced ones.
	if im.site.packOptions(h).Boot && im.site.Config.Seeding.Mode == config.SeedRegistry {
		for _, image := range im.site.contents.Images {
			if !strings.Contains(image.Name, "@") {
				args = append(args, "--image", image.Name+"@"+image.Digest.String())
			}
		}
	}
	if namesDigests(im.site.k3s) {
		args = append(args, "--digests")
	}
	out, err := h.root(ctx, "check the images in containerd", args...)
	if err != nil {
		return report, err
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return report, fmt.Errorf("check the images in containerd: the answer of boxlift-node cannot be read: %w", err)
	}
	return report, nil
}

// imagesReason sums up what is wrong with the images of a host.
func imagesReason(r images.Report) string {
	switch {
	case r.OK:
		return ""
	case r.Pending != "":
		return r.Pending
	}
	if len(r.Problems) == 0 {
		return "boxlift-node says that they are not complete, and not why"
	}
	const shown = 3
	texts := make([]string, 0, shown)
	for _, p := range r.Problems[:min(len(r.Problems), shown)] {
		texts = append(texts, printable.Clip(printable.Text(p.Text), 300))
	}
	more := ""
	if n := len(r.Problems) - shown; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return strings.Join(texts, "; ") + more
}

// imagesError says which images k3s did not import.
type imagesError struct{ reason, service string }

func (e *imagesError) Error() string { return "k3s runs, but " + e.reason }

func (e *imagesError) Hint() string {
	return "see `journalctl -u " + e.service + " | grep import` on the host, then restart the service, which imports again"
}

// readyWith says what a node, nil for one that is not registered, lacks to be Ready with a
// version of k3s.
func readyWith(k3s string) func(*kube.Node) string {
	return func(n *kube.Node) string {
		switch {
		case n == nil:
			return "its node is not registered in the cluster"
		case n.Kubelet != k3s:
			return fmt.Sprintf("its node %s runs %s, and is to run %s", n.Name, n.Kubelet, k3s)
		case !n.Ready:
			return fmt.Sprintf("its node %s is not Ready: %s", n.Name, n.Reason)
		}
		return ""
	}
}

// verifyNodes waits until every host's node is Ready in the wanted version.
func (ins *Inspector) verifyNodes(ctx context.Context) error {
	lacks := readyWith(ins.site.k3s)
	if ins.engine.changing() {
		return ins.site.awaitEachNode(ctx, "wait for all nodes to be Ready", ins.site.hosts, lacks)
	}
	nodes, err := ins.site.api.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, h := range ins.site.hosts {
		n := ins.site.nodeOf(h, nodes)
		if n != nil {
			h.node = n.Name
		}
		if text := lacks(n); text != "" && h.err == nil {
			h.differences = append(h.differences, text)
		}
	}
	return nil
}

// workloads have to run in every cluster.
func (ins *Inspector) workloads() []kube.Workload {
	w := cilium.Workloads(ins.site.Config.Network.Cilium.Values)
	if !slices.Contains(ins.cluster.disabled(), "coredns") {
		w = append(w, kube.Workload{Kind: "Deployment", Name: "coredns"})
	}
	return w
}

// disabled are the parts of k3s that install.yaml turns off.
func (c *Cluster) disabled() []string {
	n := &k3sNode{cluster: c, host: c.site.servers()[0]}
	switch v := n.settings()["disable"].(type) {
	case string:
		return strings.Split(v, ",")
	case []string:
		return v
	}
	return nil
}

// verifyWorkloads waits until Cilium and DNS run everywhere.
func (ins *Inspector) verifyWorkloads(ctx context.Context) error {
	if !ins.engine.changing() {
		namespaces := []string{cilium.Namespace}
		if ins.deployer.deployment != nil {
			namespaces = append(namespaces, ins.site.Config.LiteBoxd.NamespaceSystem)
		}
		for _, namespace := range namespaces {
			rollouts, err := ins.site.api.Rollouts(ctx, namespace)
			if err != nil {
				return err
			}
			for _, r := range rollouts {
				if !r.Done {
					ins.site.differences = append(ins.site.differences, r.String())
				}
			}
		}
		return nil
	}
	if err := ins.site.waiting(ctx, "wait for Cilium and DNS", func(ctx context.Context) error {
		return wait.Rollouts(ctx, ins.site.api, cilium.Namespace, ins.workloads(), ins.site.Reporter.Message)
	}); err != nil || ins.deployer.deployment == nil {
		return err
	}
	if err := ins.site.waiting(ctx, "wait for LiteBoxd's deployments", func(ctx context.Context) error {
		return wait.Rollouts(ctx, ins.site.api, ins.site.Config.LiteBoxd.NamespaceSystem, ins.deployer.deployment.workloads(), ins.site.Reporter.Message)
	}); err != nil || !ins.deployer.deployment.needs(partTraefik) {
		return err
	}
	return ins.site.waiting(ctx, "wait for Traefik", ins.awaitTraefik)
}

// awaitTraefik waits until users are let in: k3s installs Traefik by itself, from a chart, and
// the user's HelmChartConfig may have made a DaemonSet of it.
func (ins *Inspector) awaitTraefik(ctx context.Context) error {
	var traefik kube.Workload
	if err := poll(ctx, func(ctx context.Context) (bool, error) {
		rollouts, err := ins.site.api.Rollouts(ctx, metav1.NamespaceSystem)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(rollouts, func(r kube.Rollout) bool { return r.Name == partTraefik })
		if i < 0 {
			return false, errors.New("k3s has not installed it: on a server see k3s kubectl -n kube-system describe helmchart traefik, and the log of the job helm-install-traefik")
		}
		traefik = kube.Workload{Kind: rollouts[i].Kind, Name: partTraefik}
		return true, nil
	}); err != nil {
		return err
	}
	return wait.Rollouts(ctx, ins.site.api, metav1.NamespaceSystem, []kube.Workload{traefik}, ins.site.Reporter.Message)
}
