package main

import (
	"context"
	"io"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newBundleListImagesCommand() *cobra.Command {
	var o readOptions
	var format string
	c := &cobra.Command{
		Use:   "list-images FILE",
		Short: "List the images of a bundle",
		Long: `List the images that a bundle carries: names, digests, platforms and sizes. As with
"boxlift bundle inspect", manifests are read and proven, and nothing else is. Of a delta, all
images of its bundle are listed, with how much of each is not in the file.`,
		Example: `  boxlift bundle list-images bundle.tar
  boxlift bundle list-images bundle.tar -o name`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "json" && format != "name" {
				return fault.Usage.Errorf("--output %q: expected table, json or name", format)
			}
			return runBundleListImages(cmd.Context(), cmd.OutOrStdout(), args[0], o, format)
		},
	}
	o.addReadFlags(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table, json, or name for one name in each line")
	return c
}

// listedImage is an image as list-images prints it.
type listedImage struct {
	Name      string           `json:"name"`
	Component string           `json:"component"`
	Digest    digest.Digest    `json:"digest"`
	Platforms []listedPlatform `json:"platforms"`
}

type listedPlatform struct {
	Platform lock.Platform `json:"platform"`
	Digest   digest.Digest `json:"digest"`
	// Size is that of manifest, config and layers, in bytes.
	Size int64 `json:"size"`
	// LeftOut is the part of Size that a delta leaves out.
	LeftOut int64 `json:"leftOut,omitempty"`

	cell string
}

func runBundleListImages(ctx context.Context, out io.Writer, path string, o readOptions, format string) error {
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	contents, err := r.Contents()
	if err != nil {
		return damagedHint(err)
	}
	left := newLeftOut(r.Delta())
	images := make([]listedImage, 0, len(contents.Images))
	for _, image := range contents.Images {
		listed := listedImage{Name: image.Name, Component: image.Component, Digest: image.Digest}
		for _, p := range image.Platforms {
			blobs := blobsOf(p)
			listed.Platforms = append(listed.Platforms,
				listedPlatform{p.Platform, p.Manifest.Digest, p.Size(), left.size(blobs...), left.cell(blobs...)})
		}
		images = append(images, listed)
	}
	if format == "json" {
		return printJSON(out, images)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	if format == "table" {
		w.printf("IMAGE\tCOMPONENT\tPLATFORM\tSIZE\tDIGEST%s\n", left.heading())
	}
	for _, image := range images {
		if format == "name" {
			w.printf("%s\n", image.Name)
			continue
		}
		for _, p := range image.Platforms {
			w.printf("%s\t%s\t%s\t%s\t%s%s\n", image.Name, image.Component, p.Platform, progress.Bytes(p.Size),
				p.Digest, p.cell)
		}
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}
