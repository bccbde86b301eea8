package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/progress"
)

func newBundleCommand(global *globalOptions) *cobra.Command {
	return group("bundle", "Make, verify and look into bundles",
		newBundleLockCommand(global),
		newBundleBuildCommand(global),
		newBundleVerifyCommand(global),
		newBundleInspectCommand(),
	)
}

// sourceOptions are the flags of the commands that talk to upstream.
type sourceOptions struct {
	lock        string
	mirrors     []string
	parallelism int
	tries       uint
}

func (o *sourceOptions) addFlags(c *cobra.Command) {
	c.Flags().StringVarP(&o.lock, "file", "f", "versions.lock", "the lock")
	c.Flags().StringArrayVar(&o.mirrors, "mirror", nil, "fetch from elsewhere, over https: HOST=ENDPOINT[/PATH] without a scheme, for registries and files (repeatable)")
	c.Flags().IntVar(&o.parallelism, "parallelism", 6, "downloads at a time")
	c.Flags().UintVar(&o.tries, "tries", 0, "attempts at one request (default 8, about a minute)")
}

func (o *sourceOptions) client(reporter progress.Reporter, log *slog.Logger) (*source.Client, error) {
	if o.parallelism < 1 || o.parallelism > 64 {
		return nil, usagef("--parallelism %d: expected 1 to 64", o.parallelism)
	}
	options := source.Options{
		UserAgent: "boxlift/" + version,
		MaxTries:  o.tries,
		Log:       log,
		Retrying: func(err error, pause time.Duration) {
			reporter.Message(fmt.Sprintf("%v; trying again in %s", err, progress.Duration(pause)))
		},
	}
	for _, m := range o.mirrors {
		mirror, err := source.ParseMirror(m)
		if err != nil {
			return nil, &usageError{err}
		}
		options.Mirrors = append(options.Mirrors, mirror)
	}
	return source.New(options), nil
}

func newBundleLockCommand(global *globalOptions) *cobra.Command {
	var o sourceOptions
	c := &cobra.Command{
		Use:   "lock",
		Short: "Fill in the pins that versions.lock lacks",
		Long: `Fill in the pins that versions.lock lacks: what each tag stands for at this
moment, the sha256 and size of each file, and what image archives hold. Pins that are
there stay, and so does everything else in the file. Review the change before you
build from it: from then on, exactly these bytes are accepted.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleLock(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	return c
}

func runBundleLock(ctx context.Context, out io.Writer, global *globalOptions, o sourceOptions, reporter progress.Reporter) error {
	content, err := lock.ReadFile(o.lock)
	if err != nil {
		return &inputError{fmt.Errorf("read the lock: %w", err)}
	}
	document, err := lock.ParseDocument(o.lock, content)
	if err != nil {
		return err
	}
	missing := len(document.Lock().Unpinned())
	client, err := o.client(reporter, global.logger(reporter))
	if err != nil {
		return err
	}
	resolveErr := bundle.Resolve(ctx, bundle.ResolveOptions{Document: document, Source: client, Parallelism: o.parallelism, Reporter: reporter})
	left := len(document.Lock().Unpinned())
	if left < missing {
		// A link stays one.
		target, err := filepath.EvalSymlinks(o.lock)
		if err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
		info, err := os.Stat(target)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(target, document.Bytes(), info.Mode().Perm()); err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
	}
	if resolveErr != nil {
		return fmt.Errorf("%s: %d of %d missing pins filled in: %w", o.lock, missing-left, missing, resolveErr)
	}
	text := fmt.Sprintf("%d pins filled in, none missing", missing)
	if missing == 0 {
		text = "nothing to do: every pin is there"
	}
	_, err = fmt.Fprintf(out, "%s: %s\n", o.lock, text)
	return err
}

type bundleBuildOptions struct {
	sourceOptions
	output         string
	key            string
	passwordFile   string
	unsigned       bool
	programs       string
	allowMovedTags bool
}

func newBundleBuildCommand(global *globalOptions) *cobra.Command {
	var o bundleBuildOptions
	c := &cobra.Command{
		Use:   "build",
		Short: "Build and sign a bundle from versions.lock",
		Long: `Build a bundle: fetch everything that versions.lock pins, prove it against its
digests, and write it into one signed file. The file gets its name only when it is
complete. An interrupted build goes on where it was when it is run again.

Credentials for registries come from the docker configuration. The password of the
key is asked for on the terminal, or read from --key-password-file or from the
variable ` + passwordVariable + `.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleBuild(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVarP(&o.output, "output", "o", "", "the bundle to write (required)")
	c.Flags().StringVar(&o.key, "key", "", "private key to sign with")
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", "file that holds the key's password")
	c.Flags().BoolVar(&o.unsigned, "unsigned", false, "leave the bundle unsigned; install refuses it by default")
	c.Flags().StringVar(&o.programs, "programs", "", "folder with boxlift's programs, one folder for each platform (default: beside this program)")
	c.Flags().BoolVar(&o.allowMovedTags, "allow-moved-tags", false, "build with the locked digests although tags stand for others now")
	return c
}

func runBundleBuild(ctx context.Context, out io.Writer, global *globalOptions, o bundleBuildOptions, reporter progress.Reporter) error {
	if o.output == "" {
		return usagef("--output is needed: the name of the bundle")
	}
	switch {
	case o.key != "" && o.unsigned:
		return usagef("--key and --unsigned exclude each other")
	case o.key == "" && !o.unsigned:
		return withHint(usagef("--key or --unsigned is needed"), "`boxlift key generate` makes a key")
	}
	if err := bundle.CheckOutput(o.output); err != nil {
		return err
	}
	// Opening the key takes 64 MiB for a moment, and the window of an image archive 32 MiB.
	// Without a limit, garbage of twice that size would be left lying about. The user's
	// own limit comes first.
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(48 << 20)
	}
	content, err := lock.ReadFile(o.lock)
	if err != nil {
		return &inputError{fmt.Errorf("read the lock: %w", err)}
	}
	l, err := lock.Parse(o.lock, content)
	if err != nil {
		return err
	}
	if err := bundle.CheckPins(o.lock, l); err != nil {
		return err
	}
	programs, err := findPrograms(o.programs, l.Platforms)
	if err != nil {
		return err
	}
	client, err := o.client(reporter, global.logger(reporter))
	if err != nil {
		return err
	}
	// The key comes before the first download, so that nobody has to sit and wait for it.
	var signer *signature.Signer
	if o.key != "" {
		if signer, err = loadSigner(ctx, o.key, o.passwordFile); err != nil {
			return err
		}
	}
	start := time.Now()
	plan, err := bundle.NewPlan(ctx, bundle.PlanOptions{
		Lock: l, LockName: o.lock, LockContent: content, Programs: programs, Source: client, Version: version,
		Parallelism: o.parallelism, AllowMovedTags: o.allowMovedTags, Reporter: reporter,
	})
	if err != nil {
		return err
	}
	result, err := plan.Build(ctx, bundle.BuildOptions{Path: o.output, Signer: signer})
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	switch {
	case result.Unchanged:
		w.printf("%s is complete already; nothing was written\n", o.output)
	case result.Reused > 0:
		w.printf("%s built in %s; %s of it were there from an earlier build\n", o.output, progress.Duration(time.Since(start)), progress.Bytes(result.Reused))
	default:
		w.printf("%s built in %s\n", o.output, progress.Duration(time.Since(start)))
	}
	w.printf("size:   %s (%d bytes), %d blobs\n", progress.Bytes(result.Size), result.Size, result.Blobs)
	w.printf("digest: %s\n", result.Digest)
	if signer != nil {
		w.printf("signed: by the key %s\n", signature.KeyID(signer.PublicKey()))
	} else {
		w.printf("signed: no\n")
	}
	if partials, err := bundle.Partials(o.output); err == nil && len(partials) > 0 {
		w.printf("left by builds of other locks, to be deleted when no longer wanted:\n  %s\n", strings.Join(partials, "\n  "))
	}
	return w.err
}

// findPrograms finds boxlift's own programs for the node platforms. `make build` lays
// them out as <os>-<architecture>/<name> beside the boxlift that runs.
func findPrograms(folder string, platforms []lock.Platform) ([]bundle.Program, error) {
	if folder == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find boxlift's own programs: %w", err)
		}
		if self, err = filepath.EvalSymlinks(self); err != nil {
			return nil, fmt.Errorf("find boxlift's own programs: %w", err)
		}
		folder = filepath.Dir(self)
		// The program may be run from the folder of its own platform.
		if filepath.Base(folder) == runtime.GOOS+"-"+runtime.GOARCH {
			folder = filepath.Dir(folder)
		}
	}
	var programs []bundle.Program
	for _, platform := range platforms {
		for _, name := range []string{bundle.NodeProgram, bundle.OperatorProgram} {
			path := filepath.Join(folder, platform.OS()+"-"+platform.Architecture(), name)
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
				return nil, withHint(fmt.Errorf("boxlift's program %s for %s, which every bundle carries, is not at %s", name, platform, path),
					"unpack the whole release, or run `make build`, and name the folder with --programs")
			}
			programs = append(programs, bundle.Program{Name: name, Platform: platform, Path: path})
		}
	}
	return programs, nil
}

func newBundleVerifyCommand(global *globalOptions) *cobra.Command {
	var o verifyOptions
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove that a bundle is whole and who signed it",
		Long: `Prove that a bundle is whole: the signature over index.json, which has to be by
the key that --key names, and through it every other byte of the file. Needs no
network.`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleVerify(cmd.Context(), out, args[0], o, r)
			})
		},
	}
	o.addFlags(c)
	return c
}

func runBundleVerify(ctx context.Context, out io.Writer, path string, o verifyOptions, reporter progress.Reporter) error {
	key, err := o.publicKey()
	if err != nil {
		return err
	}
	start := time.Now()
	r, err := bundle.Open(path)
	if err != nil {
		return damagedHint(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	signed := "not checked"
	if key != nil {
		if err := r.VerifySignature(key); err != nil {
			return signatureHint(err)
		}
		signed = "by the key " + signature.KeyID(key)
	}
	if err := r.Verify(ctx, reporter); err != nil {
		return damagedHint(err)
	}
	w := &errorWriter{w: out}
	w.printf("%s is whole: %s verified in %s\n", path, progress.Bytes(r.Size()), progress.Duration(time.Since(start)))
	w.printf("digest: %s\nsigned: %s\n", r.Digest(), signed)
	return w.err
}

func damagedHint(err error) error {
	if !errors.Is(err, ocitar.ErrMalformed) && !errors.Is(err, bundle.ErrInvalid) {
		return err
	}
	return withHint(err, "copy the file again from where it was built, and compare the bundle digests on both sides")
}

func signatureHint(err error) error {
	switch {
	case errors.Is(err, signature.ErrNotSigned):
		return withHint(err, "build it with --key; --insecure-skip-signature accepts it all the same")
	case errors.Is(err, signature.ErrWrongKey):
		return withHint(err, "use the public key of those who built the bundle; if that is this one, somebody else made this file")
	}
	return withHint(err, "the file was changed after it was signed, or its signature was made up: do not use it")
}

func newBundleInspectCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "List what a bundle carries",
		Long: `List components, images, files, platforms and sizes of a bundle. The manifests
are read and proven; the signature and the other contents are not: see
"boxlift bundle verify".`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return runBundleInspect(cmd.OutOrStdout(), args[0], format)
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// inspection is what inspect prints as JSON.
type inspection struct {
	Digest     string             `json:"digest"`
	Size       int64              `json:"size"`
	Builder    string             `json:"builder"`
	Signed     bool               `json:"signed"`
	Components []bundle.Component `json:"components"`
	Files      []bundle.File      `json:"files"`
	Images     []bundle.Image     `json:"images"`
}

func runBundleInspect(out io.Writer, path, format string) error {
	r, err := bundle.Open(path)
	if err != nil {
		return damagedHint(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	contents, err := r.Contents()
	if err != nil {
		return damagedHint(err)
	}
	i := inspection{
		Digest: r.Digest().String(), Size: r.Size(), Builder: r.Version(), Signed: r.Signed(),
		Components: contents.Describe(), Files: contents.Files, Images: contents.Images,
	}
	if format == "json" {
		return printJSON(out, i)
	}
	return i.print(out)
}

func (i *inspection) print(out io.Writer) error {
	signed := "no"
	if i.Signed {
		signed = "yes (not checked here)"
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("digest:\t%s\nsize:\t%s (%d bytes)\nbuilt by:\tboxlift %s\nsigned:\t%s\n", i.Digest, progress.Bytes(i.Size), i.Size, i.Builder, signed)
	w.printf("\nCOMPONENT\tVERSION\tFILES\tIMAGES\tSIZE\tPLATFORMS\n")
	for _, c := range i.Components {
		w.printf("%s\t%s\t%d\t%d\t%s\t%s\n", c.Name, orDash(c.Version), c.Files, c.Images, progress.Bytes(c.Size), joinPlatforms(c.Platforms))
	}
	w.printf("\nFILE\tCOMPONENT\tPLATFORM\tSIZE\tSHA256\n")
	for _, f := range i.Files {
		w.printf("%s\t%s\t%s\t%s\t%s\n", f.Name, f.Component, orDash(string(f.Platform)), progress.Bytes(f.Size), f.Digest.Encoded())
	}
	w.printf("\nIMAGE\tCOMPONENT\tPLATFORMS\tSIZE\tDIGEST\n")
	for _, image := range i.Images {
		platforms := make([]lock.Platform, 0, len(image.Platforms))
		var size int64
		for _, p := range image.Platforms {
			platforms = append(platforms, p.Platform)
			size += p.Size()
		}
		w.printf("%s\t%s\t%s\t%s\t%s\n", image.Name, image.Component, joinPlatforms(platforms), progress.Bytes(size), image.Digest)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func joinPlatforms(platforms []lock.Platform) string {
	names := make([]string, 0, len(platforms))
	for _, p := range platforms {
		names = append(names, string(p))
	}
	slices.Sort(names)
	return orDash(strings.Join(names, ","))
}
