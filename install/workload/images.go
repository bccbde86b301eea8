package workload

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
)

// Images are those that something on the cluster uses. On the hosts there is no other place to get one from than the
// bundle, and where install.yaml says that nodes pull from.
type Images struct {
	Site *site.Site
	// Component is the component of the lock that has them.
	Component string
	// Setting is where install.yaml could name other images.
	Setting string
	Uses    []manifests.ImageUse
}

// errUncarried says that the bundle does not carry an image.
var errUncarried = errors.New("it is not carried")

// Check makes sure that the bundle carries every image, or that install.yaml says where nodes pull it from. Whether it
// can be had there is asked on the hosts, see [Images.Uncarried].
func (i Images) Check() error {
	var errs []error
	for _, use := range i.Uses {
		if _, err := i.find(use.Image); err != nil {
			errs = append(errs, fmt.Errorf("%w: %s (%s) needs the image %s: %w", i.Site.Misfit, use.Object,
				use.Container, use.Image, err))
		}
	}
	return errors.Join(errs...)
}

// Uncarried lists the images that the bundle does not carry, in order. Nodes pull them from where install.yaml says.
func (i Images) Uncarried() []string {
	var list []string
	for _, reference := range i.names() {
		if _, err := i.carried(reference); errors.Is(err, errUncarried) {
			list = append(list, reference)
		}
	}
	return list
}

// CheckPlatform makes sure that the bundle carries every image, as far as it carries it at all, for a node's platform:
// pods may come to run on any node.
func (i Images) CheckPlatform(platform lock.Platform) error {
	var missing []string
	for _, reference := range i.names() {
		image, err := i.find(reference)
		if err != nil {
			return err
		}
		if image != nil && !slices.ContainsFunc(image.Platforms,
			func(p format.PlatformImage) bool { return p.Platform.Match(platform) }) {
			missing = append(missing, image.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the host is %s, and the bundle carries these images for other platforms only: %s; use "+
			"hosts of those platforms, or build images for this one and name them in %s", platform,
			strings.Join(missing, ", "), i.Setting)
	}
	return nil
}

// names lists the images, each once and in order.
func (i Images) names() []string {
	var list []string
	for _, use := range i.Uses {
		list = append(list, use.Image)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// find is carried, and nil for an image that nodes pull from elsewhere by what install.yaml says.
func (i Images) find(reference string) (*bundle.Image, error) {
	image, err := i.carried(reference)
	if errors.Is(err, errUncarried) {
		where, problem := seed.Where(i.Site, reference)
		if problem != nil {
			return nil, problem
		}
		if len(where) > 0 {
			return nil, nil //nolint:nilnil // nothing is wrong with it, and it is not here
		}
	}
	if err != nil {
		return nil, err
	}
	return &image, nil
}

// carried finds an image by a reference, as the nodes will. The error wraps errUncarried where there is none.
func (i Images) carried(reference string) (bundle.Image, error) {
	ref, digest, _ := strings.Cut(reference, "@")
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return bundle.Image{}, err
	}
	// Kubernetes and containerd complete a short name as Docker does.
	full := strings.Replace(parsed.Name(), name.DefaultRegistry+"/", "docker.io/", 1)
	images := i.Site.Contents.Images
	at := slices.IndexFunc(images, func(i bundle.Image) bool { return i.Name == full })
	switch {
	case at < 0:
		return bundle.Image{}, fmt.Errorf("%w: add `- {ref: %s}` to the images of the component %s in "+
			"versions.lock, then run boxlift bundle lock and boxlift bundle build; or say in registries of install.yaml "+
			"where nodes pull it from", errUncarried, full, i.Component)
	case digest != "" && digest != string(images[at].Digest):
		return bundle.Image{}, fmt.Errorf("the bundle carries it with the digest %s: take the digest out or correct it",
			images[at].Digest)
	case digest != "" && !site.NamesDigests(i.Site.K3s):
		return bundle.Image{}, fmt.Errorf("k3s %s gives imported images no name with a digest, so that no node would "+
			"find it: take the digest out", i.Site.K3s)
	}
	return images[at], nil
}
