// Package network brings Cilium to the bundle's version and install.yaml's values, and finds out before any host
// is asked whether the bundle carries what its chart names.
package network

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
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
)

// Network brings Cilium to what is asked for.
type Network struct {
	Site   *site.Site
	Engine *run.Engine
	Seeder *seed.Seeder

	// releaseImages are the images that charts ask for, by the digest of chart and values.
	releaseImages map[[sha256.Size]byte][]manifests.ImageUse
}

// Network brings Cilium to the bundle's version and install.yaml's values.
func (n *Network) Network(ctx context.Context) error {
	release, err := n.ciliumRelease(ctx)
	if err != nil {
		return err
	}
	if err := n.Engine.RunSteps(ctx, "network", &n.Engine.Cluster, []run.Step{n.releaseStep(release)}); err != nil {
		return err
	}
	return n.placeCiliumCLI(ctx)
}

// releaseStep brings Cilium to a release.
func (n *Network) releaseStep(release helm.Release) run.Step {
	return run.Step{
		ID: "set-up-cilium", Title: "set up Cilium " + n.Site.Version(site.CiliumComponent),
		Needed: func(ctx context.Context) (string, error) {
			if n.Site.API == nil {
				return "there is no cluster yet", nil
			}
			return helm.Differs(ctx, n.Site.API, release)
		},
		Run: func(ctx context.Context) error {
			// It bounds itself: a rollback takes its time too.
			task := n.Site.Reporter.Task("wait for Cilium", 0)
			err := helm.Apply(ctx, n.Site.API, release, n.Site.Awaits(""))
			task.Done(err)
			return err
		},
	}
}

// Judge refuses to take Cilium further at once than its gate lets an upgrade take it, which has other gates besides.
func (n *Network) Judge(ctx context.Context) error {
	if n.Site.API == nil {
		return nil
	}
	installed, err := helm.Current(ctx, n.Site.API, cilium.Namespace, cilium.ReleaseName)
	if err != nil || installed == nil {
		return err
	}
	return checkCiliumStep(installed.ChartVersion, n.Site.Version(site.CiliumComponent))
}

// IsInstalled reports whether the cluster has a release of Cilium, in whatever version.
func (n *Network) IsInstalled(ctx context.Context) (bool, error) {
	installed, err := helm.Current(ctx, n.Site.API, cilium.Namespace, cilium.ReleaseName)
	return installed != nil, err
}

// ciliumRelease is what Helm is to install: the chart of the bundle with the values that
// k3s without flannel needs.
func (n *Network) ciliumRelease(ctx context.Context) (helm.Release, error) {
	var chart bundle.File
	for _, f := range n.Site.Contents.Files {
		if f.Component == site.CiliumComponent && strings.HasSuffix(f.Name, ".tgz") {
			chart = f
		}
	}
	if chart.Digest == "" {
		return helm.Release{}, fmt.Errorf("%w: the bundle carries no chart of Cilium: add it to the component %s in "+
			"the lock", site.ErrConfig, site.CiliumComponent)
	}
	content, err := n.Site.ReadFile(chart, site.MaxChart)
	if err != nil {
		return helm.Release{}, err
	}
	var installed *helm.State
	if n.Site.API != nil {
		if installed, err = helm.Current(ctx, n.Site.API, cilium.Namespace, cilium.ReleaseName); err != nil {
			return helm.Release{}, err
		}
	}
	first := cilium.FirstMinor(installed, n.Site.Version(site.CiliumComponent))
	release := cilium.Release(content, n.CiliumValues(first, true), n.Site.Config.Runtime.CommandTimeout)
	if known, err := n.knowsDigests(ctx, release); err != nil || known {
		return release, err
	}
	release.Values = n.CiliumValues(first, false)
	return release, nil
}

// checkCiliumStep refuses to take Cilium further at once than its gate lets an upgrade take it.
func checkCiliumStep(from, to string) error {
	for _, f := range gate.Judge(gate.Cluster{Cilium: from}, gate.Target{Cilium: to}, gate.Accept{}) {
		if f.Gate == gate.CiliumMinor && f.Outcome == gate.Refused {
			return fmt.Errorf("%w: %s: %s", site.ErrRefused, f.Reason, f.Way)
		}
	}
	return nil
}

// CiliumValues are the chart's values.
func (n *Network) CiliumValues(upgradeCompatibility string, keepDigests bool) map[string]any {
	c := n.Site.Config.Network.Cilium
	return cilium.Values(cilium.Input{
		PodCIDR: c.PodCIDR, KubeProxyReplacement: c.KubeProxyReplacement, EnableEgressGateway: c.EnableEgressGateway,
		Nodes: len(n.Site.Config.Hosts()), UpgradeCompatibility: upgradeCompatibility, KeepDigests: keepDigests,
		Extra: c.Values,
	})
}

// knowsDigests reports whether the nodes will find a release's images by the digests that its
// chart gives them: k3s gives imported images a name with the digest that they have in the
// pack, which is the one in the bundle, or else they are pulled by that digest.
func (n *Network) knowsDigests(ctx context.Context, release helm.Release) (bool, error) {
	images, err := n.ImagesOf(ctx, release)
	if err != nil {
		return false, err
	}
	if !site.NamesDigests(n.Site.K3s) && !n.Seeder.ServesDigests(images) {
		return false, nil
	}
	for _, image := range images {
		name, digest, asked := strings.Cut(image, "@")
		if asked && !slices.ContainsFunc(n.Site.Contents.Images,
			func(i bundle.Image) bool { return i.Name == name && string(i.Digest) == digest }) {
			return false, nil
		}
	}
	return true, nil
}

// ImagesOf lists the images that a release asks for, each once and in order.
func (n *Network) ImagesOf(ctx context.Context, release helm.Release) ([]string, error) {
	uses, err := n.UsesOf(ctx, release)
	if err != nil {
		return nil, err
	}
	var images []string
	for _, use := range uses {
		images = append(images, use.Image)
	}
	slices.Sort(images)
	return slices.Compact(images), nil
}

// UsesOf lists where a release names images. It is asked for the same release
// several times in a run, and each time that Cilium's chart is rendered it makes new RSA keys.
func (n *Network) UsesOf(ctx context.Context, release helm.Release) ([]manifests.ImageUse, error) {
	values, err := json.Marshal(release.Values)
	if err != nil {
		return nil, fmt.Errorf("%w: values of the chart: %w", site.ErrConfig, err)
	}
	key := sha256.Sum256(slices.Concat(release.Chart, values))
	if uses, ok := n.releaseImages[key]; ok {
		return slices.Clone(uses), nil
	}
	kubernetes, _, _ := strings.Cut(n.Site.K3s, "+")
	manifest, err := helm.Render(ctx, release, kubernetes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrConfig, err)
	}
	objects, err := helm.DecodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	if n.releaseImages == nil {
		n.releaseImages = make(map[[sha256.Size]byte][]manifests.ImageUse)
	}
	uses := manifests.ImagesOf(objects)
	n.releaseImages[key] = uses
	return slices.Clone(uses), nil
}

// CheckChart makes sure that the bundle carries every image that Cilium's chart names with these values, or that
// install.yaml says where nodes pull it from: on the hosts there is no other place to get one from.
func (n *Network) CheckChart(ctx context.Context) error {
	release, err := n.ciliumRelease(ctx)
	if err != nil {
		return err
	}
	return n.CheckReleaseImages(ctx, release)
}

// CheckReleaseImages is CheckChart for a release of Cilium's chart.
func (n *Network) CheckReleaseImages(ctx context.Context, release helm.Release) error {
	images, err := n.uncarried(ctx, release)
	if err != nil {
		return err
	}
	var nowhere []string
	for _, image := range images {
		where, err := seed.Where(n.Site, image)
		if err != nil {
			return fmt.Errorf("%w: image %s of Cilium's chart: %w", site.ErrConfig, image, err)
		}
		if len(where) == 0 {
			nowhere = append(nowhere, image)
		}
	}
	if len(nowhere) > 0 {
		return fmt.Errorf("%w: Cilium's chart needs images that are not carried: %s; add them to the component %s of "+
			"the lock and build the bundle again, or take values in install.yaml back that ask for them, or say in its "+
			"registries where nodes pull them from",
			n.Site.Misfit, strings.Join(nowhere, ", "), site.CiliumComponent)
	}
	return nil
}

// Uncarried lists the images of Cilium's chart that the bundle does not carry. Nodes pull them from where install.yaml
// says.
func (n *Network) Uncarried(ctx context.Context) ([]string, error) {
	release, err := n.ciliumRelease(ctx)
	if err != nil {
		return nil, err
	}
	return n.uncarried(ctx, release)
}

func (n *Network) uncarried(ctx context.Context, release helm.Release) ([]string, error) {
	images, err := n.ImagesOf(ctx, release)
	if err != nil {
		return nil, err
	}
	carried := make(map[string]bool)
	for _, i := range n.Site.Contents.Images {
		carried[i.Name] = true
	}
	return slices.DeleteFunc(images, func(image string) bool {
		name, _, _ := strings.Cut(image, "@")
		return carried[name]
	}), nil
}

// placeCiliumCLI puts the cilium command on the first server, if the bundle carries it.
// boxlift itself has no use for it.
func (n *Network) placeCiliumCLI(ctx context.Context) error {
	h := n.Site.Hosts[0]
	f, ok := n.Site.CiliumCLIFile(h)
	if !ok || h.Err != nil {
		return nil
	}
	return n.Engine.RunSteps(ctx, "network", &h.Subject, []run.Step{commandStep(h, f)})
}

// commandStep unpacks the cilium command out of an archive that was shipped to a host.
func commandStep(h *site.Host, f bundle.File) run.Step {
	// The archive's digest is in the name of the file that it was unpacked from.
	marker := site.StoredPath(f) + ".unpacked"
	return run.Step{
		ID: "place-cilium-command", Title: "place the cilium command",
		Needed: func(ctx context.Context) (string, error) {
			digests, err := machine.Digests(ctx, h.Conn, site.CiliumCLI, marker)
			switch {
			case err != nil:
				return "", err
			case digests[site.CiliumCLI] == "":
				return site.CiliumCLI + " is missing", nil
			case digests[marker] == "":
				return site.CiliumCLI + " is not from this bundle", nil
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
tmp="$2.boxlift-new"
trap 'rm -f "$tmp"' EXIT
tar -xzOf "$1" cilium >"$tmp"
chown 0:0 "$tmp"
chmod 0755 "$tmp"
sync "$tmp"
rm -f "${3%/*}/"` + site.CiliumCLIArchive + `*.unpacked
mv -f "$tmp" "$2"
: >"$3"`
			_, err := h.Root(ctx, "unpack the cilium command", "/bin/sh", "-c", script, "sh", site.StoredPath(f),
				site.CiliumCLI, marker)
			return err
		},
	}
}
