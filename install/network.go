package install

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/gate"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube/helm"
)

const (
	// CiliumComponent is the component of a lock that has Cilium's chart.
	CiliumComponent = "cilium"
	// maxChart bounds a chart archive in bytes; Cilium's has some 230 kB.
	maxChart = 8 << 20
)

// network brings Cilium to the bundle's version and install.yaml's values.
func (n *Network) network(ctx context.Context) error {
	release, err := n.ciliumRelease(ctx)
	if err != nil {
		return err
	}
	steps := []step{{
		title: "set up Cilium " + n.site.version(CiliumComponent),
		needed: func(ctx context.Context) (string, error) {
			if n.site.api == nil {
				return "there is no cluster yet", nil
			}
			return helm.Differs(ctx, n.site.api, release)
		},
		run: func(ctx context.Context) error {
			// It bounds itself: a rollback takes its time too.
			task := n.site.Reporter.Task("wait for Cilium", 0)
			err := helm.Apply(ctx, n.site.api, release, n.site.Reporter.Message)
			task.Done(err)
			return err
		},
	}}
	if err := n.engine.runSteps(ctx, "network", &n.engine.cluster, steps); err != nil {
		return err
	}
	return n.placeCiliumCLI(ctx)
}

// ciliumRelease is what Helm is to install: the chart of the bundle with the values that
// k3s without flannel needs.
func (n *Network) ciliumRelease(ctx context.Context) (helm.Release, error) {
	var chart bundle.File
	for _, f := range n.site.contents.Files {
		if f.Component == CiliumComponent && strings.HasSuffix(f.Name, ".tgz") {
			chart = f
		}
	}
	if chart.Digest == "" {
		return helm.Release{}, fmt.Errorf("%w: the bundle carries no chart of Cilium: add it to the component %s in the lock", ErrConfig, CiliumComponent)
	}
	content, err := n.site.readFile(chart, maxChart)
	if err != nil {
		return helm.Release{}, err
	}
	var installed *helm.State
	if n.site.api != nil {
		if installed, err = helm.Current(ctx, n.site.api, cilium.Namespace, cilium.ReleaseName); err != nil {
			return helm.Release{}, err
		}
	}
	if installed != nil && !n.engine.upgrades && !n.engine.restores && n.engine.mode != inspect {
		if err := checkCiliumStep(installed.ChartVersion, n.site.version(CiliumComponent)); err != nil {
			return helm.Release{}, err
		}
	}
	first := cilium.FirstMinor(installed, n.site.version(CiliumComponent))
	release := cilium.Release(content, n.ciliumValues(first, true), n.site.Config.Runtime.CommandTimeout)
	if known, err := n.knowsDigests(ctx, release); err != nil || known {
		return release, err
	}
	release.Values = n.ciliumValues(first, false)
	return release, nil
}

// checkCiliumStep refuses to take Cilium further at once than its gate lets an upgrade take it.
// A bundle with the cluster's own k3s gets here by an installation, which has no other gates.
func checkCiliumStep(from, to string) error {
	for _, f := range gate.Judge(gate.Cluster{Cilium: from}, gate.Target{Cilium: to}, gate.Accept{}) {
		if f.Gate == gate.CiliumMinor && f.Outcome == gate.Refused {
			return fmt.Errorf("%w: %s: %s", ErrRefused, f.Reason, f.Way)
		}
	}
	return nil
}

// ciliumValues are the chart's values.
func (n *Network) ciliumValues(upgradeCompatibility string, keepDigests bool) map[string]any {
	c := n.site.Config.Network.Cilium
	return cilium.Values(cilium.Input{
		PodCIDR: c.PodCIDR, KubeProxyReplacement: c.KubeProxyReplacement, EnableEgressGateway: c.EnableEgressGateway,
		Nodes: len(n.site.Config.Hosts()), UpgradeCompatibility: upgradeCompatibility, KeepDigests: keepDigests, Extra: c.Values,
	})
}

// knowsDigests tells whether the nodes will find a release's images by the digests that its
// chart gives them: k3s gives imported images a name with the digest that they have in the
// pack, which is the one in the bundle, or else they are pulled by that digest.
func (n *Network) knowsDigests(ctx context.Context, release helm.Release) (bool, error) {
	images, err := n.imagesOf(ctx, release)
	if err != nil {
		return false, err
	}
	if !namesDigests(n.site.k3s) && !n.seeder.servesDigests(images) {
		return false, nil
	}
	for _, image := range images {
		name, digest, asked := strings.Cut(image, "@")
		if asked && !slices.ContainsFunc(n.site.contents.Images, func(i bundle.Image) bool { return i.Name == name && string(i.Digest) == digest }) {
			return false, nil
		}
	}
	return true, nil
}

// namesDigests tells whether a version of k3s names imported images by digest too (k3s
// pull request 13221: v1.32.11, v1.33.7, v1.34.3, and all from v1.35.0 on).
func namesDigests(k3s string) bool {
	var minor, patch int
	if n, _ := fmt.Sscanf(k3s, "v1.%d.%d", &minor, &patch); n != 2 {
		return false
	}
	since, ok := map[int]int{32: 11, 33: 7, 34: 3}[minor]
	return minor >= 35 || ok && patch >= since
}

// imagesOf lists the images that a release asks for. It is asked for the same release
// several times in a run, and each time that Cilium's chart is rendered it makes new RSA keys.
func (n *Network) imagesOf(ctx context.Context, release helm.Release) ([]string, error) {
	values, err := json.Marshal(release.Values)
	if err != nil {
		return nil, fmt.Errorf("%w: values of the chart: %w", ErrConfig, err)
	}
	key := sha256.Sum256(slices.Concat(release.Chart, values))
	if images, ok := n.releaseImages[key]; ok {
		return slices.Clone(images), nil
	}
	kubernetes, _, _ := strings.Cut(n.site.k3s, "+")
	manifest, err := helm.Render(ctx, release, kubernetes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	images, err := helm.Images(manifest)
	if err != nil {
		return nil, err
	}
	if n.releaseImages == nil {
		n.releaseImages = make(map[[sha256.Size]byte][]string)
	}
	n.releaseImages[key] = images
	return slices.Clone(images), nil
}

// checkChart makes sure that the bundle carries every image that Cilium's chart names with
// these values: on the hosts there is no other place to get one from.
func (n *Network) checkChart(ctx context.Context) error {
	release, err := n.ciliumRelease(ctx)
	if err != nil {
		return err
	}
	return n.checkReleaseImages(ctx, release)
}

func (n *Network) checkReleaseImages(ctx context.Context, release helm.Release) error {
	images, err := n.imagesOf(ctx, release)
	if err != nil {
		return err
	}
	carried := make(map[string]bool)
	for _, i := range n.site.contents.Images {
		carried[i.Name] = true
	}
	images = slices.DeleteFunc(images, func(image string) bool {
		name, _, _ := strings.Cut(image, "@")
		return carried[name]
	})
	if len(images) > 0 {
		return fmt.Errorf("%w: Cilium's chart needs images that are not carried: %s; add them to the component %s of the lock and build the bundle again, or take values in install.yaml back that ask for them",
			n.site.misfit, strings.Join(images, ", "), CiliumComponent)
	}
	return nil
}

// ciliumCLI is where the cilium command lies on the first server, and the prefix of the
// name of its archive (releases of cilium-cli).
const (
	ciliumCLI        = "/usr/local/bin/cilium"
	ciliumCLIArchive = "cilium-linux-"
)

// placeCiliumCLI puts the cilium command on the first server, if the bundle carries it.
// boxlift itself has no use for it.
func (n *Network) placeCiliumCLI(ctx context.Context) error {
	h := n.site.hosts[0]
	f, ok := n.site.ciliumCLIFile(h)
	if !ok || h.err != nil {
		return nil
	}
	// The archive's digest is in the name of the file that it was unpacked from.
	marker := storedPath(f) + ".unpacked"
	return n.engine.runSteps(ctx, "network", &h.subject, []step{{
		title: "place the cilium command",
		needed: func(ctx context.Context) (string, error) {
			digests, err := machine.Digests(ctx, h.conn, ciliumCLI, marker)
			switch {
			case err != nil:
				return "", err
			case digests[ciliumCLI] == "":
				return ciliumCLI + " is missing", nil
			case digests[marker] == "":
				return ciliumCLI + " is not from this bundle", nil
			}
			return "", nil
		},
		run: func(ctx context.Context) error {
			const script = `set -e
tmp="$2.boxlift-new"
trap 'rm -f "$tmp"' EXIT
tar -xzOf "$1" cilium >"$tmp"
chown 0:0 "$tmp"
chmod 0755 "$tmp"
sync "$tmp"
rm -f "${3%/*}/"` + ciliumCLIArchive + `*.unpacked
mv -f "$tmp" "$2"
: >"$3"`
			_, err := h.root(ctx, "unpack the cilium command", "/bin/sh", "-c", script, "sh", storedPath(f), ciliumCLI, marker)
			return err
		},
	}})
}

func (s *Site) ciliumCLIFile(h *host) (bundle.File, bool) {
	_, arch, _ := strings.Cut(string(h.platform), "/")
	return s.contents.File(CiliumComponent, ciliumCLIArchive+arch+".tar.gz", h.platform)
}
