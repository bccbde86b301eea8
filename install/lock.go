package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
)

// plainSite is an install.yaml that leaves everything at its default.
const plainSite = "cluster: {servers: [{host: 192.0.2.1, agent: true}]}\nliteboxd: {}\n"

// CheckLock makes sure that a lock has a LiteBoxd that its manifests are for, and every image
// that a site with no settings of its own needs: those of LiteBoxd's manifests, and of what other components are
// installed from, which sources are. What a site sets later is checked by [Install] and [Preflight]. The error wraps
// [site.ErrLock], or says what is wrong with a source.
func CheckLock(ctx context.Context, l *lock.Lock, sources []workload.Source) error {
	asked, _, err := config.Parse("install.yaml", []byte(plainSite), func(string) (string, bool) { return "", false })
	if err != nil {
		return err
	}
	in := newRooms(Options{Config: asked})
	in.site.Misfit, in.site.Contents = site.ErrLock, contentsOf(l)
	in.site.K3s = in.site.Version(site.K3sComponent)
	var errs []error
	for _, s := range sources {
		errs = append(errs, in.checkSource(ctx, l, s))
	}
	if err := errors.Join(errs...); err != nil {
		return err
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

// checkSource makes sure that a lock has every image that a component names.
func (in *installation) checkSource(ctx context.Context, l *lock.Lock, s workload.Source) error {
	var uses []workload.Use
	var err error
	hint := "`boxlift bundle lock` adds the images that workloads lack"
	if s.Component == site.CiliumComponent {
		if in.site.K3s == "" {
			return nil // nothing can be installed from it
		}
		// Without digests, which are nothing that is compared: asking whether they are known
		// would render the chart twice.
		values := in.network.CiliumValues(cilium.FirstMinor(nil, in.site.Version(site.CiliumComponent)), false)
		var named []manifests.ImageUse
		named, err = in.network.UsesOf(ctx, cilium.WithoutKeys(cilium.Release(s.Content, values, 0)))
		uses = asUses(named)
		hint = "add them to the images of the component cilium, or delete that component and have `boxlift bundle lock " +
			"--cilium VERSION` write it"
	} else {
		uses, _, err = WorkloadUses(ctx, s, in.site.K3s)
	}
	if err != nil {
		return err
	}
	lacks, err := workload.ImagesOf(l.Components...).Lacking(uses)
	errs := []error{err}
	for _, lack := range lacks {
		errs = append(errs, fault.WithHint(fmt.Errorf("%w: the component %s: %s, and no component has %s", site.ErrLock,
			s.Component, lack.Use, lack.Ref), hint))
	}
	return errors.Join(errs...)
}

// WorkloadUses lists where a workload names images, rendered with the values of the lock on a version of k3s, and what
// else looks like one: operators may make pods of it. Without a version, the oldest Kubernetes that boxlift installs is
// assumed. Errors begin with the place in the lock.
func WorkloadUses(ctx context.Context, s workload.Source, k3sVersion string) (uses, possible []workload.Use, err error) {
	if k3sVersion == "" {
		k3sVersion = oldestKubernetes
	}
	objects, err := workloadObjects(ctx, s, k3sVersion)
	if err != nil {
		return nil, nil, err
	}
	return asUses(manifests.ImagesOf(objects)), asUses(manifests.PossibleImagesOf(objects)), nil
}

func workloadObjects(ctx context.Context, s workload.Source, k3sVersion string) ([]*unstructured.Unstructured, error) {
	values := map[string]any{}
	if s.Values != nil {
		var err error
		if values, err = helm.ParseValues(s.ValuesContent); err != nil {
			return nil, fault.Input.Errorf("%s: %w", s.Values.Place(), err)
		}
	}
	if !s.IsChart {
		files, err := manifests.UnpackFolder(s.Content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.From.Place(), err)
		}
		objects, err := manifests.RenderWorkload(manifests.Workload{Base: files, Namespace: s.Component})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.From.Place(), err)
		}
		return objects, nil
	}
	version, err := helm.ChartVersion(s.Content)
	if err != nil {
		return nil, fault.Input.Errorf("%s: %w", s.From.Place(), err)
	}
	if strings.TrimPrefix(version, "v") != strings.TrimPrefix(s.Version, "v") {
		return nil, fault.Input.Errorf(
			"%s: the chart's version is %s, and that of the component %s: write the chart's "+
				"into the lock, which is what the cluster tells", s.From.Place(), version, s.Version)
	}
	kubernetes, _, _ := strings.Cut(k3sVersion, "+")
	manifest, err := helm.Render(ctx, helm.Release{Name: s.Component, Namespace: s.Component, Chart: s.Content,
		Values: values}, kubernetes)
	if err != nil {
		err = fault.Input.Errorf("%s: it cannot be rendered: %w", s.From.Place(), err)
		if len(fault.Hints(err)) == 0 {
			err = fault.WithHint(err, "what the chart asks for goes into a file "+bundle.ValuesFile+" of the component: "+
				"files: [{name: "+bundle.ValuesFile+", url: \"file:...\"}]")
		}
		return nil, err
	}
	objects, err := helm.DecodeManifest(manifest)
	if err != nil {
		return nil, fault.Input.Errorf("%s: %w", s.From.Place(), err)
	}
	return objects, nil
}

func asUses(named []manifests.ImageUse) []workload.Use {
	uses := make([]workload.Use, 0, len(named))
	for _, use := range named {
		uses = append(uses, workload.Use(use))
	}
	return uses
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
