package main

import (
	"context"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// errBundlesDiffer is how `bundle diff` ends when it has found something.
var errBundlesDiffer = fault.NewKind(fault.Different, "the bundles differ")

func newBundleDiffCommand() *cobra.Command {
	var o readOptions
	var format string
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare what two bundles carry",
		Long: `List the components, files and images that are not the same in two bundles, and
the bytes that are new and gone. The manifests are read and proven; the signatures and
the other contents are not: see "boxlift bundle verify".

Exit code 0 means that both are the same bundle, 7 that they differ.`,
		Example: `  boxlift bundle diff bundle.tar next.tar`,
		Args:    arguments("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return runBundleDiff(cmd.Context(), cmd.OutOrStdout(), args[0], args[1], o, format)
		},
	}
	o.addReadFlags(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func runBundleDiff(ctx context.Context, out io.Writer, from, to string, o readOptions, format string) error {
	a, err := o.openBundle(ctx, from)
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // it was only read
	b, err := o.openBundle(ctx, to)
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // it was only read
	d, err := bundle.Compare(a, b)
	if err != nil {
		return damagedHint(err)
	}
	if format == "json" {
		err = printJSON(out, d)
	} else {
		err = printDifference(out, d)
	}
	if err == nil && !d.Same() {
		err = errBundlesDiffer
	}
	return err
}

func printDifference(out io.Writer, d *bundle.Difference) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	if d.Same() {
		w.printf("%s and %s are the same bundle: %s\n", d.From.Path, d.To.Path, d.From.Digest)
		return w.err
	}
	w.printf("\tFILE\tSIZE\tBUILT BY\tDIGEST\n")
	for _, side := range []struct {
		name string
		bundle.Side
	}{{"old", d.From}, {"new", d.To}} {
		w.printf("%s\t%s\t%s\tboxlift %s\t%s\n", side.name, side.Path, progress.Bytes(side.Size), side.Builder,
			side.Digest)
	}
	w.printf("\n\tBLOBS\tSIZE\nnew\t%d\t%s\ngone\t%d\t%s\nkept\t%d\t%s\n", d.New.Blobs, progress.Bytes(d.New.Bytes),
		d.Gone.Blobs, progress.Bytes(d.Gone.Bytes), d.Kept.Blobs, progress.Bytes(d.Kept.Bytes))
	printValidity(w, d.From.Validity, d.To.Validity)
	if len(d.Components) > 0 {
		w.printf("\nCOMPONENT\tCHANGE\tOLD\tNEW\n")
		for _, c := range d.Components {
			w.printf("%s\t%s\t%s\t%s\n", c.Name, c.Change, orDash(c.From), orDash(c.To))
		}
	}
	printItems(w, "FILE", d.Files)
	printItems(w, "IMAGE", d.Images)
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// printValidity shows what became of serial, audience and end.
func printValidity(w *errorWriter, from, to lock.Validity) {
	if from.Equal(to) {
		return
	}
	w.printf("\nLOCK\tOLD\tNEW\n")
	for _, one := range [][3]string{
		{"serial", from.SerialText(), to.SerialText()},
		{"audience", from.AudienceText(), to.AudienceText()},
		{"notAfter", from.NotAfterText(), to.NotAfterText()},
	} {
		if one[1] != one[2] {
			w.printf("%s\t%s\t%s\n", one[0], orDash(one[1]), orDash(one[2]))
		}
	}
}

func printItems(w *errorWriter, title string, items []bundle.ItemChange) {
	if len(items) == 0 {
		return
	}
	w.printf("\n%s\tCOMPONENT\tPLATFORMS\tCHANGE\tNEW\tGONE\n", title)
	for _, i := range items {
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\n", itemName(i), i.Component, itemPlatforms(i), i.Change,
			progress.Bytes(i.New), progress.Bytes(i.Gone))
	}
}

func itemName(i bundle.ItemChange) string {
	switch {
	case i.From == nil:
		return i.To.Name
	case i.To == nil || i.From.Name == i.To.Name:
		return i.From.Name
	}
	return i.From.Name + " -> " + i.To.Name
}

func itemPlatforms(i bundle.ItemChange) string {
	var from, to []lock.Platform
	if i.From != nil {
		from = i.From.Platforms
	}
	if i.To != nil {
		to = i.To.Platforms
	}
	if i.From == nil || i.To == nil || slices.Equal(from, to) {
		return joinPlatforms(append(slices.Clone(from), to...)[:max(len(from), len(to))])
	}
	return joinPlatforms(from) + " -> " + joinPlatforms(to)
}
