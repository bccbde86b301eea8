package install

import (
	"context"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
)

// plainSite is an install.yaml that leaves everything at its default.
const plainSite = "cluster: {servers: [{host: 192.0.2.1, agent: true}]}\nliteboxd: {}\n"

// CheckLock makes sure that a lock has a LiteBoxd that its manifests are for, and pins every image
// that a site with no settings of its own needs: those of Cilium's chart and of LiteBoxd's manifests. What a site sets
// later is checked by [Install] and [Preflight]. chart is the archive of Cilium's chart, empty when
// the lock has none. The error wraps [site.ErrLock].
func CheckLock(ctx context.Context, l *lock.Lock, chart []byte) error {
	asked, _, err := config.Parse("install.yaml", []byte(plainSite), func(string) (string, bool) { return "", false })
	if err != nil {
		return err
	}
	in := newRooms(Options{Config: asked})
	in.site.Misfit, in.site.Contents = site.ErrLock, contentsOf(l)
	in.site.K3s = in.site.Version(site.K3sComponent)
	if len(chart) > 0 && in.site.K3s != "" {
		// Without digests, which are nothing that is compared: asking whether they are known
		// would render the chart twice.
		values := in.network.CiliumValues(cilium.FirstMinor(nil, in.site.Version(site.CiliumComponent)), false)
		if err := in.network.CheckReleaseImages(ctx, cilium.WithoutKeys(cilium.Release(chart, values, 0))); err != nil {
			return err
		}
	}
	if in.site.Version(seed.LiteBoxdComponent) == "" {
		return nil
	}
	if err := in.deployer.CheckLiteBoxdVersion(); err != nil {
		return err
	}
	parameters, err := in.deployer.ManifestParameters()
	if err != nil {
		return err
	}
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: parameters})
	if err != nil {
		return fmt.Errorf("render LiteBoxd's manifests: %w", err)
	}
	return in.deployer.CheckImages(rendered.Images())
}

// ChartImages lists the images that Cilium's chart names for a site with no settings of its
// own. Without a version of k3s, that of the oldest Kubernetes that the chart may run on is
// assumed.
func ChartImages(ctx context.Context, chart []byte, ciliumVersion, k3sVersion string) ([]string, error) {
	asked, _, err := config.Parse("install.yaml", []byte(plainSite), func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	if k3sVersion == "" {
		k3sVersion = oldestKubernetes
	}
	in := newRooms(Options{Config: asked})
	in.site.K3s, in.site.Contents = k3sVersion, contentsOf(&lock.Lock{})
	values := in.network.CiliumValues(cilium.FirstMinor(nil, ciliumVersion), false)
	return in.network.ImagesOf(ctx, cilium.Release(chart, values, 0))
}

// ManifestImages lists the images that LiteBoxd's manifests name, with these of a release,
// for a site with no settings of its own.
func ManifestImages(of upstream.LiteBoxdImages) ([]string, error) {
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{
		Images:           manifests.Images{API: of.API, Gateway: of.Gateway, Web: of.Web, Helper: of.Helper},
		SandboxResources: true,
	}})
	if err != nil {
		return nil, fmt.Errorf("render LiteBoxd's manifests: %w", err)
	}
	var images []string
	for _, use := range rendered.Images() {
		images = append(images, use.Image)
	}
	return images, nil
}

// oldestKubernetes is the oldest that Cilium 1.18 to 1.20 are made for.
const oldestKubernetes = "v1.30.0"

// contentsOf lists what a bundle of a lock will carry, as far as the lock tells.
func contentsOf(l *lock.Lock) *bundle.Contents {
	c := &bundle.Contents{}
	for _, component := range l.Components {
		c.Components = append(c.Components, component.Name)
		add := func(image bundle.Image) {
			image.Component, image.Version = component.Name, component.Version
			if !slices.ContainsFunc(c.Images, func(i bundle.Image) bool {
				return i.Component == image.Component &&
					i.Name == image.Name
			}) {
				c.Images = append(c.Images, image)
			}
		}
		for _, i := range component.Images {
			switch {
			case i.Ref != "":
				add(bundle.Image{Name: i.Ref, Digest: i.Digest})
			case i.Contents != nil:
				for _, inside := range i.Contents.Images {
					add(bundle.Image{Name: inside.Ref, Digest: inside.Digest})
				}
			}
		}
		for _, f := range component.Files {
			c.Files = append(c.Files, bundle.File{Component: component.Name, Version: component.Version, Name: f.Name,
				Platform: f.Platform})
		}
	}
	return c
}
