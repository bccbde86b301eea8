package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/extract"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

type bundleExtractOptions struct {
	verifyOptions
	image     string
	file      string
	component string
	platform  string
	output    string
	format    string
}

// The forms that images are extracted in, by the names that skopeo has for them.
const (
	formatArchive = "oci-archive"
	formatLayout  = "oci"
)

func newBundleExtractCommand() *cobra.Command {
	var o bundleExtractOptions
	c := &cobra.Command{
		Use:   "extract FILE",
		Short: "Take an image, a file or a component out of a bundle",
		Long: `Take one image, file or component out of a bundle. Every byte is proven while it is
written, and what is written gets its name when it is complete; nothing is overwritten.

An image becomes an OCI layout in a tar, which skopeo, ctr and k3s read, or in a
folder with --format oci. A component becomes a folder with its files and, in
` + extract.ImagesFile + `, its images. Without --platform, all platforms are taken. What a delta
leaves out is taken from the bundle that --base names.`,
		Example: `  boxlift bundle extract bundle.tar --key boxlift.pub --image docker.io/library/busybox:1.37 -o busybox.tar
  skopeo copy oci-archive:busybox.tar:docker.io/library/busybox:1.37 docker://registry.lan/busybox:1.37
  boxlift bundle extract bundle.tar --key boxlift.pub --file k3s --platform linux/arm64 -o k3s`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBundleExtract(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], o)
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.image, "image", "",
		"the image of this name, as \"boxlift bundle list-images -o name\" prints it")
	c.Flags().StringVar(&o.file, "file", "", "the file of this name")
	c.Flags().StringVar(&o.component, "component", "",
		"this component; with --file or --image, where several have one of that name")
	c.Flags().StringVar(&o.platform, "platform", "", "only what is for this platform, such as linux/arm64")
	c.Flags().StringVarP(&o.output, "output", "o", "", "what to write (required)")
	c.Flags().StringVar(&o.format, "format", formatArchive, "form of an image: oci-archive (a tar) or oci (a folder)")
	return c
}

func (o *bundleExtractOptions) check() error {
	switch {
	case o.image != "" && o.file != "":
		return fault.Usage.Errorf("--image and --file exclude each other")
	case o.image == "" && o.file == "" && o.component == "":
		return fault.Usage.Errorf("--image, --file or --component is needed: what to take out")
	case o.output == "":
		return fault.Usage.Errorf("--output is needed: where to put it")
	case o.format != formatArchive && o.format != formatLayout:
		return fault.Usage.Errorf("--format %q: expected %s or %s", o.format, formatArchive, formatLayout)
	case o.format == formatLayout && o.image == "":
		return fault.Usage.Errorf("--format %s is for --image", formatLayout)
	case o.platform != "":
		if err := lock.Platform(o.platform).Validate(); err != nil {
			return fault.Usage.Errorf("--platform %w", err)
		}
	}
	return nil
}

func runBundleExtract(ctx context.Context, out, warnings io.Writer, path string, o bundleExtractOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	demand, err := o.demanded(ctx)
	if err != nil {
		return err
	}
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := errors.Join(o.checkBases(r), o.checkDigest(r)); err != nil {
		return err
	}
	if demand.IsNone() {
		fmt.Fprintln(warnings, "boxlift: warning: THE SIGNATURE OF THE BUNDLE IS NOT CHECKED "+
			"(--insecure-skip-signature): whoever made this file chose what is taken out of it")
	}
	contents, err := r.Contents()
	if err != nil {
		return damagedHint(err)
	}
	switch err := o.extract(ctx, r, contents); {
	case errors.Is(err, extract.ErrThere):
		return fault.WithHint(err, "name another --output, or move what is there away")
	case err != nil:
		return damagedHint(err)
	}
	_, err = fmt.Fprintf(out, "%s\n", o.output)
	return err
}

func (o *bundleExtractOptions) extract(ctx context.Context, r *bundle.Reader, contents *bundle.Contents) error {
	platform := lock.Platform(o.platform)
	switch {
	case o.image != "":
		image, err := o.chooseImage(contents)
		if err != nil {
			return err
		}
		if o.format == formatLayout {
			return extract.Layout(ctx, r, o.output, []bundle.Image{image})
		}
		return extract.Archive(ctx, r, o.output, []bundle.Image{image})
	case o.file != "":
		f, err := o.chooseFile(contents)
		if err != nil {
			return err
		}
		return extract.File(ctx, r, o.output, f)
	}
	if !slices.Contains(contents.Components, o.component) {
		return fault.WithHint(fault.Input.Errorf("the bundle has no component %s", o.component),
			"it has "+strings.Join(contents.Components, ", "))
	}
	return extract.Component(ctx, r, o.output, o.component, platform)
}

func (o *bundleExtractOptions) chooseImage(contents *bundle.Contents) (bundle.Image, error) {
	var found []bundle.Image
	for _, image := range contents.Images {
		if image.Name == o.image && (o.component == "" || image.Component == o.component) {
			found = append(found, image)
		}
	}
	if len(found) == 0 {
		return bundle.Image{}, fault.WithHint(fault.Input.Errorf("the bundle has no image %s", o.image),
			"`boxlift bundle list-images` prints the names, which are those with registry and tag")
	}
	// Where several components have an image of one name, it is the same one, or else
	// the user has to say which.
	if slices.ContainsFunc(found, func(i bundle.Image) bool { return i.Digest != found[0].Digest }) {
		return bundle.Image{}, fault.WithHint(
			fault.Input.Errorf("several components have different images %s", o.image), "say which with --component")
	}
	image := found[0]
	if o.platform == "" {
		return image, nil
	}
	image, ok := image.On(lock.Platform(o.platform))
	if !ok {
		return bundle.Image{}, fault.Input.Errorf("the image %s is not there for %s", o.image, o.platform)
	}
	return image, nil
}

func (o *bundleExtractOptions) chooseFile(contents *bundle.Contents) (bundle.File, error) {
	var found []bundle.File
	var which []string
	for _, f := range contents.Files {
		isNamed := f.Name == o.file || f.IsOSPackage() && f.Package.Release()+"/"+f.Name == o.file
		if isNamed && (o.component == "" || f.Component == o.component) &&
			f.Platform.Match(lock.Platform(o.platform)) {
			found = append(found, f)
			of := f.Component
			if f.IsOSPackage() {
				of += " " + f.Package.Release()
			}
			which = append(which, strings.TrimSuffix(of+" "+string(f.Platform), " "))
		}
	}
	if len(found) == 0 {
		return bundle.File{}, fault.WithHint(
			fault.Input.Errorf("the bundle has no file %s", strings.TrimSuffix(o.file+" for "+o.platform, " for ")),
			"`boxlift bundle inspect` lists them")
	}
	if slices.ContainsFunc(found, func(f bundle.File) bool { return f.Digest != found[0].Digest }) {
		return bundle.File{}, fault.WithHint(
			fault.Input.Errorf("the bundle has several files %s: %s", o.file, strings.Join(which, ", ")),
			"say which with --component and --platform; an OS package's name may begin with its release: debian/bookworm/NAME")
	}
	return found[0], nil
}
