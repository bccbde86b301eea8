package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type bundleJoinOptions struct {
	formOptions
	output string
}

func newBundleJoinCommand(global *globalOptions) *cobra.Command {
	var o bundleJoinOptions
	c := &cobra.Command{
		Use:   "join FILE",
		Short: "Make one file of a bundle's volumes, or a whole bundle of a delta",
		Long: `Make one file of the volumes of a bundle: byte for byte the file that "boxlift bundle
build" writes without --split. FILE is the first volume, or the name of the whole. Every
volume is compared with the list of checksums. No other command needs this: all of them
read volumes as they are. An encrypted bundle stays encrypted.

With --base, make the whole bundle of a delta and the bundle that holds what it leaves
out: byte for byte what "boxlift bundle build" writes without --since, signature
and trust file included. Further signatures, statements and a trust file that lie beside it are
copied. Every blob is proven, and who signed it is for "boxlift bundle verify" to say. What is written has
the form that --split, --encrypt-to and --passphrase ask for, whatever that of the delta is.`,
		Example: `  boxlift bundle join bundle.tar.000
  boxlift bundle join --base old.tar delta.tar -o new.tar`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				if len(o.bases) > 0 {
					return o.runDelta(cmd.Context(), out, args[0], r)
				}
				if o.split != "" || o.isEncrypting(o.passphraseFile) || len(o.identities) > 0 || o.workDir != "" {
					return fault.WithHint(
						fault.Usage.Errorf(
							"what --base makes has a form, and there is no --base: joined volumes are what they were"),
						"name the base if this is a delta")
				}
				return runBundleJoin(cmd.Context(), out, args[0], o.output, r)
			})
		},
	}
	c.Flags().StringVarP(&o.output, "output", "o", "",
		"the file to write, which must not be there (default: the name of the whole; with --base there is none)")
	o.addFormFlags(c)
	o.addBaseFlag(c)
	return c
}

func runBundleJoin(ctx context.Context, out io.Writer, path, output string, reporter progress.Reporter) error {
	written, err := volume.Join(ctx, path, output, reporter)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	w.printf("%s written\n", written)
	if volume.Name(path) == volume.Name(written) {
		return w.err // what lies beside it has its name already
	}
	signatures, err := bundle.CopySignatures(path, written)
	if err != nil {
		return err
	}
	return errors.Join(carryOn(w, path, written, signatures), w.err)
}

// carryOn tells of signatures that were copied, "" for none, and has statements about a bundle and its trust file
// travel with another file that holds it.
func carryOn(w *errorWriter, from, to, signatures string) error {
	stated, err := attestation.Copy(volume.Name(from), volume.Name(to))
	if err != nil {
		return err
	}
	for _, name := range []string{signatures, stated} {
		if name != "" {
			w.printf("%s written: it goes where the bundle goes\n", name)
		}
	}
	carried, err := approval.ReadCarried(from)
	if err != nil || carried == nil {
		return err
	}
	at, err := approval.Carry(to, carried)
	if err == nil {
		w.printf("%s written: it goes where the bundle goes\n", at)
	}
	return err
}

func (o *bundleJoinOptions) runDelta(
	ctx context.Context, out io.Writer, path string, reporter progress.Reporter,
) error {
	if o.output == "" {
		return fault.Usage.Errorf("--output is needed: the name of the whole bundle")
	}
	return o.write(ctx, out, path, o.output, build.Join, reporter)
}

// write writes with write the whole bundle that path stands for into another file, in the form that the flags ask for,
// and what lies beside it.
func (o *formOptions) write(
	ctx context.Context, out io.Writer, path, output string,
	write func(context.Context, *bundle.Reader, build.JoinOptions) (*build.Result, error), reporter progress.Reporter,
) error {
	form, err := o.output(ctx)
	if err != nil {
		return err
	}
	if err := checkOutput(output, form.VolumeSize > 0, append([]string{path}, o.bases...)); err != nil {
		return err
	}
	options := build.Options{Path: output, Output: form}
	if err := options.Check(); err != nil {
		return err
	}
	r, err := o.openWhole(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	result, err := write(ctx, r, build.JoinOptions{Path: output, Output: form, Reporter: reporter})
	if err != nil {
		return damagedHint(err)
	}
	w := &errorWriter{w: out}
	if result.Unchanged {
		printUnchanged(w, output, o.isEncrypting(o.passphraseFile))
	} else {
		w.printf("%s written\n", output)
	}
	w.printf("size:   %s (%d bytes), %d blobs\ndigest: %s\n", progress.Bytes(result.Size), result.Size, result.Blobs,
		result.Digest)
	signatures, err := r.Signatures().CopyTo(output)
	if err != nil {
		return err
	}
	return errors.Join(carryOn(w, path, output, signatures), w.err)
}
