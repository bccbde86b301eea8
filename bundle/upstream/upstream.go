// Package upstream knows where k3s, Cilium and LiteBoxd publish their releases, and what a
// release is made of: the component of a lock for a version, and whether upstream has
// moved on since.
//
// What upstream states is taken from upstream: k3s' sha256sum files and its list of
// images, the images that Cilium's chart and LiteBoxd's manifests need when they are
// rendered. Nothing large is fetched here: entries that only their own bytes can pin are
// left without pins, for package pins to fill in.
//
// All that comes from upstream is bounded and parsed strictly; what does not look as
// expected is an error that names its address.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
)

// The components whose releases are known.
const (
	K3s      = "k3s"
	Cilium   = "cilium"
	LiteBoxd = "liteboxd"
)

// Names are the components whose releases are known, in the order of installation.
func Names() []string { return []string{K3s, Cilium, LiteBoxd} }

// Where upstream publishes. The installers of the three projects use the same places.
const (
	k3sReleases = "https://github.com/k3s-io/k3s/releases/download/"
	k3sSources  = "https://raw.githubusercontent.com/k3s-io/k3s/"
	k3sChannels = "https://update.k3s.io/v1-release/channels"

	ciliumCharts = "https://helm.cilium.io/"
	// The cilium command goes by versions of its own. Each works with all Cilium that is maintained;
	// ciliumCLIStable names the one that Cilium's documents install.
	ciliumCLIReleases = "https://github.com/cilium/cilium-cli/releases/download/"
	ciliumCLIStable   = "https://raw.githubusercontent.com/cilium/cilium-cli/main/stable.txt"

	liteboxdServer  = "ghcr.io/fslongjin/liteboxd-server"
	liteboxdGateway = "ghcr.io/fslongjin/liteboxd-gateway"
	liteboxdWeb     = "ghcr.io/fslongjin/web"
	// What LiteBoxd runs beside persistent sandboxes unless it is told otherwise.
	liteboxdHelper = "docker.io/library/ubuntu:24.04"
)

// Bounds on what is fetched, in bytes. The files of k3s have a few kB, Cilium's chart 230
// and the index of its charts a few thousand.
const (
	maxList  = 1 << 20
	maxChart = 8 << 20
	maxIndex = 16 << 20
)

// Finder finds out what releases are made of. All of it is required.
//
// Rendering is for those who install: the functions list the images of what they would
// install, in any order and perhaps several times.
type Finder struct {
	Source *source.Client
	// ChartImages lists the images of Cilium's chart, of a version, on a version of k3s.
	ChartImages func(ctx context.Context, chart []byte, cilium, k3s string) ([]string, error)
	// ManifestImages lists the images of LiteBoxd's manifests with these of a release.
	ManifestImages func(LiteBoxdImages) ([]string, error)
}

// LiteBoxdImages are the images of a release of LiteBoxd: full references.
type LiteBoxdImages struct {
	API, Gateway, Web string
	Helper            string // beside persistent sandboxes
}

// Published is what a version of a component is made of.
type Published struct {
	lock.Component
	// ArchiveImages are those that upstream says are in its image archives; nil where
	// there are none.
	ArchiveImages []string
}

// UnknownError says that upstream has no such component, version or platform.
type UnknownError struct {
	err  error
	hint string
}

func (e *UnknownError) Error() string { return e.err.Error() }

// Hint says what to ask for instead.
func (e *UnknownError) Hint() string { return e.hint }

// Unwrap makes it an error of upstream.
func (e *UnknownError) Unwrap() error { return format.ErrUpstream }

// Check reports whether a version of a component is one that upstream could have. It asks
// nobody.
func Check(name, version string) error {
	form, ok := forms[name]
	if !ok {
		return fmt.Errorf("component %s: its releases are not known, only those of %s: change its entries in the "+
			"lock, delete their pins and run `boxlift bundle lock`", name, strings.Join(Names(), ", "))
	}
	if !form.pattern.MatchString(version) {
		return fmt.Errorf("version %q of %s: expected one such as %s", version, name, form.example)
	}
	return nil
}

// Find returns what a version of a component is made of, for some platforms. k3s is the
// version of k3s that Cilium is to run on.
func (f *Finder) Find(ctx context.Context, name, version string, platforms []lock.Platform,
	k3s string) (*Published, error) {
	if err := Check(name, version); err != nil {
		return nil, err
	}
	var r *Published
	var err error
	switch name {
	case K3s:
		r, err = f.k3s(ctx, version, platforms)
	case Cilium:
		r, err = f.cilium(ctx, version, platforms, k3s)
	case LiteBoxd:
		r, err = f.liteboxd(version)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, version, err)
	}
	r.Name, r.Version, r.UpgradesFrom = name, version, UpgradesFrom(name, version)
	return r, nil
}

// k3sArches are the suffixes of the binaries by architecture (k3s' scripts/package-cli,
// v1.36.4).
var k3sArches = map[string]string{"amd64": "", "arm64": "-arm64"}

func (f *Finder) k3s(ctx context.Context, version string, platforms []lock.Platform) (*Published, error) {
	base := k3sReleases + url.QueryEscape(version) + "/"
	r := &Published{}
	var errs []error
	var sums map[string]string
	for _, platform := range platforms {
		file, archive, own, err := f.k3sPlatform(ctx, base, platform)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sums = own
		r.Files, r.Images = append(r.Files, *file), append(r.Images, *archive)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	r.Files = append(r.Files, lock.File{Name: "install.sh", URL: k3sSources + url.QueryEscape(version) + "/install.sh"})
	const list = "k3s-images.txt"
	content, err := f.Source.File(ctx, base+list, maxList)
	if err != nil {
		return nil, err
	}
	if err := checkSum(content, sums[list]); err != nil {
		return nil, fmt.Errorf("%s: %w", base+list, err)
	}
	if r.ArchiveImages, err = parseImages(content); err != nil {
		return nil, fmt.Errorf("%s: %w", base+list, err)
	}
	return r, nil
}

// k3sPlatform reads the checksums of one platform.
func (f *Finder) k3sPlatform(ctx context.Context, base string,
	platform lock.Platform) (*lock.File, *lock.Image, map[string]string, error) {
	arch := platform.Architecture()
	suffix, ok := k3sArches[arch]
	if !ok || platform.Variant() != "" && !platform.Match(lock.Platform("linux/"+arch)) {
		return nil, nil, nil, &UnknownError{fmt.Errorf("k3s is not published for %s, only for linux/amd64, linux/arm64",
			platform), "ask for one of these platforms"}
	}
	address := base + "sha256sum-" + arch + ".txt"
	sums, err := f.sumsAt(ctx, address)
	if err != nil {
		return nil, nil, nil, err
	}
	file := &lock.File{Name: "k3s", Platform: platform, URL: base + "k3s" + suffix, SHA256: sums["k3s"+suffix]}
	archive := &lock.Image{Platform: platform}
	for _, ending := range []string{".tar.zst", ".tar.gz", ".tar"} {
		name := "k3s-airgap-images-" + arch + ending
		if sums[name] != "" {
			archive.Archive, archive.SHA256 = base+name, sums[name]
			break
		}
	}
	if file.SHA256 == "" || archive.Archive == "" {
		return nil, nil, nil, &UnknownError{fmt.Errorf("%s has no checksum of k3s%s, or of an archive of images for %s",
			address, suffix, platform), "see what the release has on its page"}
	}
	size, err := f.Source.Size(ctx, file.URL)
	if err != nil {
		return nil, nil, nil, err
	}
	file.Size = max(size, 0)
	return file, archive, sums, nil
}

// sumsAt fetches checksums in the form of sha256sum.
func (f *Finder) sumsAt(ctx context.Context, address string) (map[string]string, error) {
	content, err := f.Source.File(ctx, address, maxList)
	if err != nil {
		return nil, err
	}
	sums, err := parseSums(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return sums, nil
}

func chartAddress(version string) string { return ciliumCharts + "cilium-" + version + ".tgz" }

func (f *Finder) cilium(
	ctx context.Context, version string, platforms []lock.Platform, k3s string,
) (*Published, error) {
	address := chartAddress(version)
	chart, err := f.Source.File(ctx, address, maxChart)
	if err != nil {
		return nil, err
	}
	rendered, err := f.ChartImages(ctx, chart, version, k3s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	images, err := references(rendered)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	r := &Published{}
	r.Charts = []lock.Chart{{Name: "cilium", URL: address, SHA256: sum(chart), Size: int64(len(chart))}}
	r.Images = images
	if r.Files, err = f.ciliumCLI(ctx, platforms); err != nil {
		return nil, fmt.Errorf("the cilium command: %w", err)
	}
	return r, nil
}

// ciliumCLI finds the archives of the cilium command.
func (f *Finder) ciliumCLI(ctx context.Context, platforms []lock.Platform) ([]lock.File, error) {
	content, err := f.Source.File(ctx, ciliumCLIStable, maxList)
	if err != nil {
		return nil, err
	}
	version := strings.TrimSpace(string(content))
	if !ciliumCLIVersion.MatchString(version) {
		return nil, fmt.Errorf("%s: found %.100q, expected a version such as v0.19.2", ciliumCLIStable, version)
	}
	var files []lock.File
	for _, platform := range platforms {
		name := "cilium-linux-" + platform.Architecture() + ".tar.gz"
		address := ciliumCLIReleases + version + "/" + name
		sums, err := f.sumsAt(ctx, address+ciliumCLISum)
		if err != nil {
			return nil, err
		}
		if sums[name] == "" {
			return nil, &UnknownError{fmt.Errorf("%s has no checksum of %s", address+ciliumCLISum, name),
				"see what the release has on its page"}
		}
		size, err := f.Source.Size(ctx, address)
		if err != nil {
			return nil, err
		}
		files = append(files, lock.File{Name: name, Platform: platform, URL: address, SHA256: sums[name],
			Size: max(size, 0)})
	}
	return files, nil
}

func (f *Finder) liteboxd(version string) (*Published, error) {
	names, err := f.ManifestImages(LiteBoxdImages{
		API: liteboxdServer + ":" + version, Gateway: liteboxdGateway + ":" + version, Web: liteboxdWeb + ":" + version,
		Helper: liteboxdHelper,
	})
	if err != nil {
		return nil, err
	}
	r := &Published{}
	if r.Images, err = references(names); err != nil {
		return nil, fmt.Errorf("LiteBoxd's manifests: %w", err)
	}
	// LiteBoxd's own come first.
	slices.SortStableFunc(r.Images, func(a, b lock.Image) int {
		own := func(m lock.Image) int {
			if lock.Tag(m.Ref) == version {
				return 0
			}
			return 1
		}
		return own(a) - own(b)
	})
	return r, nil
}

// CheckArchives compares what a release's archives hold with what upstream says they do:
// archives that lacked an image have been published before.
func (r *Published) CheckArchives(c lock.Component) error {
	var errs []error
	for _, archive := range c.Images {
		if archive.Contents == nil || r.ArchiveImages == nil {
			continue
		}
		for _, ref := range r.ArchiveImages {
			if !slices.ContainsFunc(archive.Contents.Images, func(m lock.ArchiveImage) bool { return m.Ref == ref }) {
				errs = append(errs, &UnknownError{
					fmt.Errorf("%s %s: %s does not hold the image %s, which upstream lists for the release", r.Name,
						r.Version, path.Base(archive.Archive), ref),
					"this release's archive is not what it should be: take another release",
				})
			}
		}
	}
	return errors.Join(errs...)
}
