package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/store"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// storeOptions is the flag of all commands that work on a store.
type storeOptions struct{ in string }

func (o *storeOptions) addStoreFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.in, "in", "", "folder with the store (required)")
}

func (o *storeOptions) check() error {
	if o.in == "" {
		return fault.WithHint(fault.Usage.Errorf("--in is needed: the folder with the store"),
			"`boxlift store add BUNDLE --in DIR` makes one")
	}
	return nil
}

func (o *storeOptions) open() (*store.Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return store.Open(o.in)
}

// find returns the paths of bundles that are named by their names in the store or their digests.
func (o *storeOptions) find(wanted ...string) ([]string, error) {
	s, err := o.open()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, one := range wanted {
		name, err := s.Find(one)
		if err != nil {
			return nil, err
		}
		paths = append(paths, s.Path(name))
	}
	return paths, nil
}

func newStoreCommand(global *globalOptions) *cobra.Command {
	return group("store", "Keep several bundles in one folder, each blob once",
		newStoreAddCommand(global),
		newStoreListCommand(),
		newStoreExportCommand(global),
		newStoreDiffCommand(),
		newStoreCheckCommand(global),
		newStoreRemoveCommand(),
		newStorePruneCommand(),
	)
}

type storeAddOptions struct {
	verifyOptions
	storeOptions
	name string
}

func newStoreAddCommand(global *globalOptions) *cobra.Command {
	var o storeAddOptions
	c := &cobra.Command{
		Use:   "add BUNDLE",
		Short: "Take a bundle into a store",
		Long: `Take a bundle into a store: a folder that holds several bundles, each blob once. The
folder is made when it is not there. The signature is checked first, and every blob is
hashed in the read that copies it; what the store has already is read there, and not in
BUNDLE. What is damaged in the store is replaced.

From then on DIR/NAME is a bundle, for all commands that take one: nothing has to be
exported. Signatures, statements and the trust file that lie beside BUNDLE come along.

Volumes and encrypted bundles lie in the store as the one file that they stand for, not
encrypted. Of a delta the whole bundle does; what it leaves out is taken from the bundles
of the store, or from --base.

The bundle is in the store when all of it is on the disk. When this was cut short, the
same command goes on where it was.`,
		Example: `  boxlift store add bundle.tar --in /srv/bundles --key boxlift.pub
  boxlift store add delta.tar --in /srv/bundles --trust trust.json --name platform-2.tar
  boxlift registry serve --bundle /srv/bundles/platform-2.tar --key boxlift.pub`,
		Args: arguments("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runStoreAdd(cmd.Context(), out, args[0], o, r)
			})
		},
	}
	o.addFlags(c)
	o.addStoreFlag(c)
	c.Flags().StringVar(&o.name, "name", "", "what it is called in the store (default: the name of its file)")
	return c
}

func runStoreAdd(ctx context.Context, out io.Writer, path string, o storeAddOptions, reporter progress.Reporter) error {
	if err := o.check(); err != nil {
		return err
	}
	if _, err := o.demanded(ctx); err != nil {
		return err
	}
	r, a, err := o.openApproved(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := errors.Join(o.checkDigest(r), o.checkBases(r)); err != nil {
		return err
	}
	s, err := store.Create(o.in)
	if err != nil {
		return err
	}
	added, err := s.Add(ctx, r, store.AddOptions{Name: o.name, Reporter: reporter})
	if err != nil {
		return damagedHint(err)
	}
	w := &errorWriter{w: out}
	if added.Unchanged {
		w.printf("%s has this bundle already; its blobs were read and hashed\n", added.Path)
	} else {
		w.printf("%s is the bundle from now on, for all commands\n", added.Path)
	}
	w.printf("digest: %s\nsize:   %s, of which %s in %s are new to the store\n", added.Digest,
		progress.Bytes(added.Size), progress.Bytes(added.New.Bytes), blobsText(added.New.Blobs))
	if added.Mended.Blobs > 0 {
		w.printf("mended: %s of the store\n", blobsText(added.Mended.Blobs))
	}
	if a == nil {
		w.printf("signed: not checked\n")
	} else {
		printApproval(w, a)
	}
	for _, beside := range added.Beside {
		w.printf("%s written\n", beside)
	}
	if r.File().Encrypted() {
		w.printf("warning: %s is encrypted, and what lies in the store is not\n", path)
	}
	return w.err
}

func blobsText(n int) string {
	if n == 1 {
		return "1 blob"
	}
	return fmt.Sprintf("%d blobs", n)
}

func newStoreListCommand() *cobra.Command {
	var o storeOptions
	var format string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the bundles of a store",
		Long: `List the bundles of a store in the order in which they came, with what each has that no
other has: removing it frees as much. Blobs are not read, and nothing is proven: see
"boxlift store check".`,
		Example: `  boxlift store list --in /srv/bundles`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			s, err := o.open()
			if err != nil {
				return err
			}
			contents, err := s.List()
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), contents)
			}
			return printStore(cmd.OutOrStdout(), contents)
		},
	}
	o.addStoreFlag(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func printStore(out io.Writer, c *store.Contents) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	var size int64
	if len(c.Bundles) > 0 {
		w.printf("NAME\tSIZE\tALONE\tSERIAL\tADDED\tDIGEST\n")
	}
	for _, b := range c.Bundles {
		if b.Problem != "" {
			w.printf("%s\t-\t-\t-\t-\t%s\n", b.Name, orDash(b.Digest.String()))
			continue
		}
		size += b.Size
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, progress.Bytes(b.Size), progress.Bytes(b.Alone.Bytes),
			orDash(b.SerialText()), b.Added.Format(time.DateOnly), b.Digest)
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	w.printf("%s in %s on the disk; as files the bundles would be %s\n", progress.Bytes(c.Needed.Bytes),
		blobsText(c.Needed.Blobs), progress.Bytes(size))
	if c.Unneeded.Blobs > 0 {
		w.printf("%s in %s belong to no bundle: `boxlift store prune` removes them\n", progress.Bytes(c.Unneeded.Bytes),
			blobsText(c.Unneeded.Blobs))
	}
	for _, b := range c.Bundles {
		if b.Problem != "" {
			w.printf("warning: %s cannot be opened: %s\n", b.Name, b.Problem)
		}
	}
	return w.err
}

type storeExportOptions struct {
	formOptions
	storeOptions
	output string
}

func newStoreExportCommand(global *globalOptions) *cobra.Command {
	var o storeExportOptions
	c := &cobra.Command{
		Use:   "export NAME|DIGEST",
		Short: "Write a bundle of a store into a file",
		Long: `Write a bundle of a store into a file, to carry it elsewhere: byte for byte the file that
"boxlift bundle build" wrote, signature included, with what lies beside it. --split makes
volumes, --encrypt-to and --passphrase encrypt. Every blob is proven. Who signed the bundle
is for "boxlift bundle verify" to say.`,
		Example: `  boxlift store export platform.tar --in /srv/bundles -o /media/stick/platform.tar`,
		Args:    arguments("NAME|DIGEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return o.run(cmd.Context(), out, args[0], r)
			})
		},
	}
	o.addFormFlags(c)
	o.addStoreFlag(c)
	c.Flags().StringVarP(&o.output, "output", "o", "", "the file to write (required)")
	return c
}

func (o *storeExportOptions) run(ctx context.Context, out io.Writer, wanted string, reporter progress.Reporter) error {
	if o.output == "" {
		return fault.Usage.Errorf("--output is needed: the file to write")
	}
	paths, err := o.find(wanted)
	if err != nil {
		return err
	}
	return o.write(ctx, out, paths[0], o.output, build.Copy, reporter)
}

func newStoreDiffCommand() *cobra.Command {
	var o readOptions
	var in storeOptions
	var format string
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare what two bundles of a store carry",
		Long: `List what is not the same in two bundles of a store, which are named by their names or
digests, as "boxlift bundle diff" does for any two.

Exit code 0 means that both are the same bundle, 7 that they differ.`,
		Example: `  boxlift store diff platform.tar platform-2.tar --in /srv/bundles`,
		Args:    arguments("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			paths, err := in.find(args...)
			if err != nil {
				return err
			}
			return runBundleDiff(cmd.Context(), cmd.OutOrStdout(), paths[0], paths[1], o, format)
		},
	}
	in.addStoreFlag(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func newStoreCheckCommand(global *globalOptions) *cobra.Command {
	var o storeOptions
	c := &cobra.Command{
		Use:   "check",
		Short: "Read and hash all that is in a store",
		Long: `Read and hash every blob of a store, and compare what its bundles name with what is there.
Every damaged or missing blob is named. "boxlift store add" of a bundle that has them
mends the store. Signatures are for "boxlift bundle verify" to check.`,
		Example: `  boxlift store check --in /srv/bundles`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				s, err := o.open()
				if err != nil {
					return err
				}
				contents, err := s.Check(cmd.Context(), r)
				if err != nil {
					return err
				}
				w := &errorWriter{w: out}
				w.printf("%s is whole: %s in %s, of %d bundles\n", o.in, progress.Bytes(contents.Needed.Bytes),
					blobsText(contents.Needed.Blobs), len(contents.Bundles))
				return w.err
			})
		},
	}
	o.addStoreFlag(c)
	return c
}

func newStoreRemoveCommand() *cobra.Command {
	var o storeOptions
	c := &cobra.Command{
		Use:   "remove NAME|DIGEST",
		Short: "Remove a bundle from a store",
		Long: `Remove a bundle from a store, with what lies beside it and the blobs that no other bundle
of the store has. It is refused while somebody reads the bundle.`,
		Example: `  boxlift store remove platform.tar --in /srv/bundles`,
		Args:    arguments("NAME|DIGEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			name, err := s.Find(args[0])
			if errors.Is(err, store.ErrUnknown) {
				name = args[0] // of which something may be left
			} else if err != nil {
				return err
			}
			freed, err := s.Remove(cmd.Context(), name)
			if err != nil {
				return err
			}
			w := &errorWriter{w: cmd.OutOrStdout()}
			w.printf("%s removed, and %s in %s that no other bundle has\n", s.Path(name), progress.Bytes(freed.Bytes),
				blobsText(freed.Blobs))
			return w.err
		},
	}
	o.addStoreFlag(c)
	return c
}

func newStorePruneCommand() *cobra.Command {
	var o storeOptions
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove blobs that no bundle of a store has",
		Long: `Remove the blobs that no bundle of a store has: "boxlift store add" leaves them when it is
cut short and never run again. Nothing is removed while a bundle of the store cannot be
read, since it may need them.`,
		Example: `  boxlift store prune --in /srv/bundles`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			freed, err := s.Prune(cmd.Context())
			if err != nil {
				return err
			}
			w := &errorWriter{w: cmd.OutOrStdout()}
			w.printf("%s in %s removed\n", progress.Bytes(freed.Bytes), blobsText(freed.Blobs))
			return w.err
		},
	}
	o.addStoreFlag(c)
	return c
}
