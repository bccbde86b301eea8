package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/manifests"
)

func newBundleCommand(global *globalOptions) *cobra.Command {
	return group("bundle", "Make, verify and look into bundles",
		newBundleLockCommand(global),
		newBundleBuildCommand(global),
		newBundleSignCommand(),
		newBundleAttestCommand(),
		newBundleRehearseCommand(global),
		newBundleVerifyCommand(global),
		newBundleInspectCommand(),
		newBundleJoinCommand(global),
		newBundleListImagesCommand(),
		newBundleDiffCommand(),
		newBundleExtractCommand(),
		newBundleSBOMCommand(global),
		newBundleScanCommand(global),
		newBundleProvenanceCommand(),
	)
}

// sourceOptions are the flags of the commands that talk to upstream.
type sourceOptions struct {
	lock        string
	mirrors     []string
	caFile      string
	parallelism int
	tries       uint
}

func (o *sourceOptions) addFlags(c *cobra.Command) {
	c.Flags().StringVarP(&o.lock, "file", "f", "versions.lock", "the lock")
	c.Flags().StringArrayVar(&o.mirrors, "mirror", nil,
		"fetch from elsewhere, over https: HOST=ENDPOINT[/PATH] without a scheme, for registries and files "+
			"(repeatable; those of one host are asked in turn)")
	c.Flags().StringVar(&o.caFile, "ca-file", "", "certificates (PEM) of authorities to trust beside the system's")
	c.Flags().IntVar(&o.parallelism, "parallelism", 6, "downloads at a time")
	c.Flags().UintVar(&o.tries, "tries", 0, "attempts at one request (default 8, about a minute)")
}

func (o *sourceOptions) client(reporter progress.Reporter, log *slog.Logger) (*source.Client, error) {
	if o.parallelism < 1 || o.parallelism > 64 {
		return nil, fault.Usage.Errorf("--parallelism %d: expected 1 to 64", o.parallelism)
	}
	options := source.Options{
		UserAgent:  "boxlift/" + version,
		Folder:     filepath.Dir(o.lock),
		PackFolder: manifests.Pack,
		MaxTries:   o.tries,
		Log:        log,
		Retrying: func(err error, pause time.Duration) {
			reporter.Message(fmt.Sprintf("%v; trying again in %s", err, progress.Duration(pause)))
		},
	}
	for _, m := range o.mirrors {
		mirror, err := source.ParseMirror(m)
		if err != nil {
			return nil, fault.Usage.Wrap(err)
		}
		options.Mirrors = append(options.Mirrors, mirror)
	}
	if o.caFile != "" {
		var err error
		if options.Authorities, err = readAuthorities(o.caFile); err != nil {
			return nil, err
		}
	}
	return source.New(options), nil
}

// warnOutside tells of files of this host that a lock takes from elsewhere than its own folder: they
// become a part of what is signed.
func (o *sourceOptions) warnOutside(l *lock.Lock, warn func(string)) {
	for _, address := range source.Outside(filepath.Dir(o.lock), l.Addresses()) {
		warn(fmt.Sprintf("warning: %s takes %s, which is not in the lock's folder: "+
			"make sure that it may be read by everybody who gets the bundle", o.lock, address))
	}
}

// readAuthorities adds those in a file to the system's.
func readAuthorities(name string) (*x509.CertPool, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Input.Errorf("read the certificate authorities: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificate authorities: %w", err)
	}
	if !pool.AppendCertsFromPEM(content) {
		return nil, fault.Input.Errorf("read the certificate authorities: %s holds no certificate in PEM", name)
	}
	return pool, nil
}

type bundleBuildOptions struct {
	sourceOptions
	formOptions
	carryOptions
	output       string
	key          string
	passwordFile string
	unsigned     bool
	programs     string
	reuse        []string
	sinceOptions
	allowMovedTags bool
	sbom           bool
}

func newBundleBuildCommand(global *globalOptions) *cobra.Command {
	var o bundleBuildOptions
	c := &cobra.Command{
		Use:   "build",
		Short: "Build and sign a bundle from versions.lock",
		Long: `Build a bundle: fetch everything that versions.lock pins, prove it against its
digests, and write it into one signed file. The file gets its name only when it is
complete. An interrupted build goes on where it was when it is run again, also inside
a file or layer. With --reuse, nothing is fetched that an older bundle holds; what is
copied is proven all the same. A lock without an image that a chart or manifests name is
refused before anything large is fetched.

With --since the bundle is a delta: it leaves out what the other side holds, which is an
older bundle, or what "boxlift have" wrote down there. All commands read it as the bundle
that it is of, when --base names the older one, or alone for what it has; "boxlift bundle
join" makes the whole bundle of both, and hosts that hold the rest need no base. With
--trust, what was written down there has to be signed by the site: see "boxlift have".

With --sbom the bundle carries the list of its software, as "boxlift bundle sbom" prints it.
What is in the layers is known when they are there, and the list is named at the beginning
of the file: so the bundle is written twice, and takes its room twice until it is done.

With --trust, the trust file travels in the bundle, which has the same digest with and
without it. A key that it does not have as a builder's is refused before anything is fetched.

With --split the bundle is written in volumes, which all commands read as they are. With
--encrypt-to or --passphrase it is encrypted in age's format when it is complete; until
then it lies in --work-dir as it is, and both take their room on the disk.

Credentials for registries come from the docker configuration. The password of the
key is asked for on the terminal, or read from --key-password-file or from the
variable ` + passwordVariable + `.`,
		Example: `  boxlift bundle build -o bundle.tar --key boxlift.key
  boxlift bundle build -o delta.tar --since HAVE.json --trust trust.json --key boxlift.key`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleBuild(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVarP(&o.output, "output", "o", "", "the bundle to write (required)")
	o.addFormFlags(c)
	c.Flags().StringVar(&o.key, "key", "", "private key to sign with: a file, or "+keyURIs)
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", passwordFileHelp)
	o.addCarryFlag(c)
	c.Flags().BoolVar(&o.unsigned, "unsigned", false, "leave the bundle unsigned; install refuses it by default")
	c.Flags().StringVar(&o.programs, "programs", "",
		"folder with boxlift's programs, one folder for each platform (default: beside this program)")
	c.Flags().StringArrayVar(&o.reuse, "reuse", nil,
		"an older bundle: what it holds is copied from it, not fetched (repeatable)")
	c.Flags().StringArrayVar(&o.since, "since", nil,
		"leave out what the other side holds: an older bundle, or the file that \"boxlift have\" wrote, which with "+
			"--trust has to be signed by the site (repeatable)")
	c.Flags().BoolVar(&o.sbom, "sbom", false, "carry the list of the bundle's software, a CycloneDX document")
	c.Flags().BoolVar(&o.allowMovedTags, "allow-moved-tags", false,
		"build with the locked digests although tags stand for others now")
	return c
}

func runBundleBuild(
	ctx context.Context, out io.Writer, global *globalOptions, o bundleBuildOptions, reporter progress.Reporter,
) error {
	output, err := o.target(ctx)
	if err != nil {
		return err
	}
	planned, err := o.planOptions(global, reporter)
	if err != nil {
		return err
	}
	if output.Signer, err = o.signer(ctx, planned.Programs); err != nil {
		return err
	}
	signedBy := ""
	if output.Signer != nil {
		signedBy = signature.KeyID(output.Signer.PublicKey())
	}
	policy, err := o.policy(signedBy, trust.Builder)
	if err != nil {
		return err
	}
	if policy != nil {
		if output.Trust, err = policy.File().Encode(); err != nil {
			return err
		}
	}
	if planned.Manifests, err = manifests.Pack(manifests.Embedded()); err != nil {
		return fmt.Errorf("pack the manifests that every bundle carries: %w", err)
	}
	older, closeOlder, err := o.openOlder(ctx, o.reuse)
	if err != nil {
		return err
	}
	defer closeOlder()
	base, bases, closeBases, err := o.openSince(ctx, &o.readOptions, policy)
	if err != nil {
		return err
	}
	defer closeBases()
	planned.Reuse, planned.Since = slices.Concat(older, bases), base
	start := time.Now()
	p, err := plan.New(ctx, planned)
	if err != nil {
		return err
	}
	result, err := build.Write(ctx, p, output)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	if err := o.print(w, result, output, time.Since(start)); err != nil || policy == nil {
		return err
	}
	w.printf("trust:  version %d of the trust file is in it\n", policy.Version().Number)
	return w.err
}

// target says where the bundle goes, and makes sure that it can.
func (o *bundleBuildOptions) target(ctx context.Context) (build.Options, error) {
	if o.output == "" {
		return build.Options{}, fault.Usage.Errorf("--output is needed: the name of the bundle")
	}
	switch {
	case o.key != "" && o.unsigned:
		return build.Options{}, fault.Usage.Errorf("--key and --unsigned exclude each other")
	case o.key == "" && !o.unsigned:
		return build.Options{}, fault.WithHint(
			fault.Usage.Errorf("--key or --unsigned is needed"), "`boxlift key generate` makes a key")
	}
	form, err := o.formOptions.output(ctx)
	if err != nil {
		return build.Options{}, err
	}
	if err := checkOutput(o.output, form.VolumeSize > 0, o.since); err != nil {
		return build.Options{}, err
	}
	options := build.Options{Path: o.output, Output: form}
	return options, options.Check()
}

// planOptions say what the bundle is made from, but for what other bundles have.
func (o *bundleBuildOptions) planOptions(global *globalOptions, reporter progress.Reporter) (plan.Options, error) {
	content, l, err := readLock(o.lock)
	if err != nil {
		return plan.Options{}, err
	}
	if err := plan.CheckPins(o.lock, l); err != nil {
		return plan.Options{}, err
	}
	o.warnOutside(l, global.warner(reporter))
	programs, err := findPrograms(o.programs, l.Platforms)
	if err != nil {
		return plan.Options{}, err
	}
	client, err := o.client(reporter, global.logger(reporter))
	if err != nil {
		return plan.Options{}, err
	}
	complete, err := checkComplete(o.lock, l)
	if err != nil {
		return plan.Options{}, err
	}
	planned := plan.Options{
		Lock: l, LockName: o.lock, LockContent: content, Programs: programs, Source: client, Version: version,
		Parallelism: o.parallelism, AllowMovedTags: o.allowMovedTags, Sources: complete,
		Reporter: reporter,
	}
	if o.sbom {
		// Without such a folder, nothing is kept.
		folder, _ := packagesFolder()
		planned.SBOM = softwareList(packages.Cache{Folder: folder}, reporter)
	}
	return planned, nil
}

// signer opens the key, if there is one, and has the programs read beside. The key comes before
// the first download, so that nobody has to sit and wait for it. It keeps one core busy.
func (o *bundleBuildOptions) signer(ctx context.Context, programs []plan.Program) (*signature.Signer, error) {
	described := make(chan error, 1)
	go func() { described <- plan.Describe(ctx, programs) }()
	var signer *signature.Signer
	var err error
	if o.key != "" {
		signer, err = loadSigner(ctx, o.key, o.passwordFile)
	}
	if err := errors.Join(err, <-described); err != nil {
		return nil, err
	}
	return signer, nil
}

// print says what was built, and how long that took.
func (o *bundleBuildOptions) print(
	w *errorWriter, result *build.Result, output build.Options, took time.Duration,
) error {
	switch {
	case result.Unchanged:
		printUnchanged(w, o.output, o.isEncrypting(o.passphraseFile))
	case result.Reused > 0:
		w.printf("%s built in %s; %s of it were there from an earlier build\n",
			o.output, progress.Duration(took), progress.Bytes(result.Reused))
	default:
		w.printf("%s built in %s\n", o.output, progress.Duration(took))
	}
	if result.Copied > 0 {
		w.printf("copied: %s from older bundles\n", progress.Bytes(result.Copied))
	}
	w.printf("size:   %s (%d bytes), %d blobs\n", progress.Bytes(result.Size), result.Size, result.Blobs)
	if len(o.since) > 0 {
		w.printf("delta:  leaves out %d blobs (%s)\n", result.LeftOut.Blobs, progress.Bytes(result.LeftOut.Bytes))
		o.sinceOptions.print(w)
	}
	w.printf("digest: %s\n", result.Digest)
	if output.Signer != nil {
		w.printf("signed: by the key %s\n", signature.KeyID(output.Signer.PublicKey()))
	} else {
		w.printf("signed: no\n")
	}
	if result.Volumes > 0 {
		w.printf("volumes: %d of at most %d bytes; all of %s.* belong together\n",
			result.Volumes, output.VolumeSize, o.output)
	}
	if o.isEncrypting(o.passphraseFile) {
		w.printf("encrypted: %d bytes on the disk\n", result.Stored)
	}
	if partials, err := build.Partials(o.output, o.workDir); err == nil && len(partials) > 0 {
		w.printf("left by builds of other locks, to be deleted when no longer wanted:\n  %s\n",
			strings.Join(partials, "\n  "))
	}
	return w.err
}

// printUnchanged says that a bundle is there already, in the form that is asked for.
func printUnchanged(w *errorWriter, output string, isEncrypted bool) {
	w.printf("%s is complete already; nothing was written\n", output)
	if isEncrypted {
		w.printf("it stays encrypted for whom it was, which a file does not tell: remove it first to encrypt for " +
			"others\n")
	}
}

// readLock reads a lock that bundles are built from.
func readLock(name string) (content []byte, l *lock.Lock, err error) {
	if content, err = lock.ReadFile(name); err != nil {
		return nil, nil, fault.Input.Errorf("read the lock: %w", err)
	}
	l, err = lock.Parse(name, content)
	return content, l, err
}

// openOlder opens bundles to take blobs from.
func (o *readOptions) openOlder(
	ctx context.Context, paths []string,
) (older []*bundle.Reader, closeAll func(), err error) {
	closeAll = func() {
		for _, r := range older {
			_ = r.Close() // it was only read
		}
	}
	for _, path := range paths {
		r, err := o.openBundle(ctx, path)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		older = append(older, r)
	}
	return older, closeAll, nil
}

// checkComplete makes sure, before anything large is fetched, that the lock has every image
// that charts and manifests ask for.
func checkComplete(lockName string, l *lock.Lock) (*plan.SourceCheck, error) {
	workloads, err := workload.Find(lockName, l)
	if err != nil {
		return nil, err
	}
	components := []string{site.CiliumComponent}
	for _, w := range workloads {
		components = append(components, w.Component)
	}
	return &plan.SourceCheck{Components: components, Check: func(ctx context.Context, sources []workload.Source) error {
		if err := install.CheckLock(ctx, l, sources); err != nil {
			return fmt.Errorf("%s: %w", lockName, err)
		}
		return nil
	}}, nil
}

// findPrograms finds boxlift's own programs for the node platforms. `make build` lays
// them out as <os>-<architecture>/<name> beside the boxlift that runs.
func findPrograms(folder string, platforms []lock.Platform) ([]plan.Program, error) {
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
	var programs []plan.Program
	for _, platform := range platforms {
		for _, name := range []string{bundle.NodeProgram, bundle.OperatorProgram} {
			path := filepath.Join(folder, platform.OS()+"-"+platform.Architecture(), name)
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
				return nil, fault.WithHint(fmt.Errorf(
					"boxlift's program %s for %s, which every bundle carries, is not at %s", name, platform, path),
					"unpack the whole release, or run `make build`, and name the folder with --programs")
			}
			programs = append(programs, plan.Program{Name: name, Platform: platform, Path: path})
		}
	}
	return programs, nil
}

func newBundleVerifyCommand(global *globalOptions) *cobra.Command {
	var o bundleVerifyOptions
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove that a bundle is whole and who signed it",
		Long: `Prove that a bundle is whole: the signature over index.json, which has to be by
the key that --key names, and through it every other byte of the file. Needs no
network. Further signatures ("boxlift bundle sign") are listed, and what others have stated
about the bundle ("boxlift bundle attest"). --attestation also checks statements in files of
their own, such as those of "boxlift bundle provenance" and "boxlift bundle sbom".

A delta is proven without what it leaves out, and how much that is gets told; with --base,
which names the bundle that has it, nothing may be missing.

--rebuild proves beyond that that the bundle is the one that a build from the given lock
makes, byte for byte but for signature and trust file: it makes the build's plan from the lock and the
bundle, and compares. Needs the version of boxlift that built the bundle, and its programs.

FILE is the bundle, or the first of its volumes, or what their names have in common. When
volumes are damaged, missing or in the wrong place, they are named.`,
		Example: `  boxlift bundle verify bundle.tar --key boxlift.pub
  boxlift bundle verify bundle.tar --key boxlift.pub --rebuild versions.lock`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleVerify(cmd.Context(), out, args[0], o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.rebuild, "rebuild", "", "the lock that the bundle has to be the build of")
	c.Flags().StringVar(&o.programs, "programs", "",
		"with --rebuild: folder with boxlift's programs, as for build (default: beside this program)")
	c.Flags().StringArrayVar(&o.attestations, "attestation", nil,
		"statement about the bundle that has to be signed with the same key, or one of the trust file (repeatable)")
	return c
}

type bundleVerifyOptions struct {
	verifyOptions
	attestations []string
	rebuild      string
	programs     string
}

func runBundleVerify(
	ctx context.Context, out io.Writer, path string, o bundleVerifyOptions, reporter progress.Reporter,
) error {
	if o.programs != "" && o.rebuild == "" {
		return fault.Usage.Errorf("--programs is for --rebuild")
	}
	demand, err := o.demanded(ctx)
	if err != nil {
		return err
	}
	if len(o.attestations) > 0 && demand.IsNone() {
		return fault.Usage.Errorf("--attestation needs --key or --trust: a statement is worth what its signer is")
	}
	start := time.Now()
	r, a, err := o.openApproved(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkDigest(r); err != nil {
		return err
	}
	by, w := witness{key: demand.Key}, &errorWriter{w: out}
	if a != nil {
		by.policy = a.Policy
	}
	if err := errors.Join(o.checkBases(r), by.verifyAll(w, o.attestations, r)); err != nil {
		return err
	}
	if o.rebuild != "" {
		// In milliseconds, before gigabytes are read.
		if err := runRebuild(ctx, r, o, reporter); err != nil {
			return damagedHint(err)
		}
	}
	if err := r.Verify(ctx, reporter); err != nil {
		return damagedHint(err)
	}
	if len(o.bases) > 0 {
		if err := r.RequireAll(); err != nil {
			return err
		}
	}
	w.printf("%s is whole: %s verified in %s\n", path, progress.Bytes(r.Size()), progress.Duration(time.Since(start)))
	w.printf("digest: %s\n", r.Digest())
	if a == nil {
		w.printf("signed: not checked\n")
	} else {
		printApproval(w, a)
	}
	if a == nil || a.Policy == nil {
		printSigners(w, r.Signatures(), a)
	}
	if err := by.print(w, r); err != nil {
		return err
	}
	for _, line := range validityLines(r.Validity()) {
		w.printf("%-8s%s\n", line[0]+":", line[1])
	}
	if text := endText(r.Validity(), time.Now()); text != "" {
		w.printf("warning: %s\n", text)
	}
	if o.rebuild != "" {
		w.printf("built:  it is what boxlift %s makes of %s, byte for byte, signatures and trust file aside\n",
			r.Version(), o.rebuild)
	}
	switch d := r.Delta(); {
	case d == nil:
	case len(d.Missing) == 0:
		w.printf("delta:  the %d blobs (%s) that it leaves out are verified too\n", d.LeftOut.Blobs,
			progress.Bytes(d.LeftOut.Bytes))
	default:
		w.printf("delta:  %d blobs (%s) are to be supplied; %s\n", d.LeftOut.Blobs, progress.Bytes(d.LeftOut.Bytes),
			bundle.SinceText(d.Since))
	}
	return w.err
}

// runRebuild compares a bundle with what its lock makes.
func runRebuild(ctx context.Context, r *bundle.Reader, o bundleVerifyOptions, reporter progress.Reporter) error {
	content, l, err := readLock(o.rebuild)
	if err != nil {
		return err
	}
	options := rebuild.Options{Lock: l, LockName: o.rebuild, LockContent: content, Version: version, Reporter: reporter}
	// What another command kept is no proof.
	options.SBOM = softwareList(packages.Cache{}, reporter)
	// Programs of another version would be missed in vain.
	if r.Version() == version {
		if options.Programs, err = findPrograms(o.programs, l.Platforms); err != nil {
			return err
		}
	}
	if options.Manifests, err = manifests.Pack(manifests.Embedded()); err != nil {
		return fmt.Errorf("pack the manifests that every bundle carries: %w", err)
	}
	return rebuild.Prove(ctx, r, options)
}

func signatureHint(err error) error {
	switch {
	case slices.ContainsFunc([]error{trust.ErrUntrusted, trust.ErrRevoked, trust.ErrTooFew, trust.ErrForked,
		trust.ErrSignature},
		func(kind error) bool { return errors.Is(err, kind) }):
		return err // they say themselves what can be done
	case errors.Is(err, signature.ErrNotSigned):
		return fault.WithHint(err, "build it with --key; --insecure-skip-signature accepts it all the same")
	case errors.Is(err, signature.ErrWrongKey):
		return fault.WithHint(err, "use the public key of those who built the bundle; if that is this one, somebody "+
			"else made this file")
	}
	return fault.WithHint(err, "the file was changed after it was signed, or its signature was made up: do not use it")
}

func newBundleInspectCommand() *cobra.Command {
	var o readOptions
	var format string
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "List what a bundle carries",
		Long: `List components, images, files, platforms and sizes of a bundle. The manifests
are read and proven; signatures, statements and the other contents are not: see
"boxlift bundle verify". Of a delta, everything of its bundle is listed, with how much of
it is not in the file.`,
		Example: `  boxlift bundle inspect bundle.tar`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return runBundleInspect(cmd.Context(), cmd.OutOrStdout(), args[0], o, format)
		},
	}
	o.addReadFlags(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// inspection is what inspect prints as JSON.
type inspection struct {
	Digest  string `json:"digest"`
	Size    int64  `json:"size"`
	Builder string `json:"builder"`
	Signed  bool   `json:"signed"`
	// SignedBy are the keys, with the names that the newest trust file has for them which travels with the bundle. Trust
	// is the version of the one in the bundle, and TrustBeside of the one beside it, 0 for none. None of it is proven.
	SignedBy    []approval.Signer `json:"signedBy,omitempty"`
	Trust       int64             `json:"trust,omitempty"`
	TrustBeside int64             `json:"trustBeside,omitempty"`
	Volumes     int               `json:"volumes,omitempty"`
	Encrypted   bool              `json:"encrypted,omitempty"`
	Delta       *bundle.Delta     `json:"delta,omitempty"`
	lock.Validity
	Attestations []attestationView  `json:"attestations,omitempty"` // not proven
	Components   []bundle.Component `json:"components"`
	Files        []bundle.File      `json:"files"`
	Images       []bundle.Image     `json:"images"`

	strays int // statements beside it about something else
}

func runBundleInspect(ctx context.Context, out io.Writer, path string, o readOptions, format string) error {
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	contents, err := r.Contents()
	if err != nil {
		return damagedHint(err)
	}
	stated, list, err := witness{}.views(r)
	if err != nil {
		return err
	}
	i := inspection{
		Attestations: stated, strays: list.Strays(r.Digest()),
		Digest: r.Digest().String(), Size: r.Size(), Builder: r.Version(), Signed: r.Signed(),
		Volumes: r.File().Volumes(), Encrypted: r.File().Encrypted(),
		Delta: r.Delta(), Validity: r.Validity(),
		Components: contents.Describe(), Files: contents.Files, Images: contents.Images,
	}
	beside, err := approval.ReadCarried(path)
	if err != nil {
		return err
	}
	var newest *trust.Version
	if in := r.TrustFile(); in != nil {
		newest = in.Newest()
		i.Trust = newest.Number
	}
	if beside != nil {
		if i.TrustBeside = beside.Newest().Number; i.TrustBeside > i.Trust {
			newest = beside.Newest()
		}
	}
	for _, id := range r.Signatures().Keys() {
		s := approval.Signer{Key: id}
		if newest != nil {
			if k := newest.Key(id); k != nil {
				s.Name = k.Name
			}
		}
		i.SignedBy = append(i.SignedBy, s)
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
	w.printf("digest:\t%s\nsize:\t%s (%d bytes)\nbuilt by:\tboxlift %s\nsigned:\t%s\n", i.Digest,
		progress.Bytes(i.Size), i.Size, i.Builder, signed)
	for _, s := range i.SignedBy {
		w.printf("signer:\t%s\n", s)
	}
	if i.Trust != 0 {
		w.printf("trust:\tversion %d of the trust file is in it (not checked here)\n", i.Trust)
	}
	if i.TrustBeside != 0 {
		w.printf("trust:\tversion %d of the trust file lies beside it (not checked here)\n", i.TrustBeside)
	}
	for _, a := range i.Attestations {
		w.printf("stated:\t%s\n", a)
	}
	if i.strays > 0 {
		w.printf("strays:\t%d statements beside it are about something else\n", i.strays)
	}
	for _, line := range validityLines(i.Validity) {
		w.printf("%s:\t%s\n", line[0], line[1])
	}
	if i.Volumes > 0 {
		w.printf("volumes:\t%d\n", i.Volumes)
	}
	if i.Encrypted {
		w.printf("encrypted:\tyes\n")
	}
	if d := i.Delta; d != nil {
		w.printf("delta:\t%d blobs (%s) of the whole bundle (%s) are not in it\nbase:\t%s\n", d.LeftOut.Blobs,
			progress.Bytes(d.LeftOut.Bytes), progress.Bytes(d.WholeSize), bundle.SinceText(d.Since))
	}
	left := newLeftOut(i.Delta)
	w.printf("\nCOMPONENT\tVERSION\tFILES\tIMAGES\tSIZE\tPLATFORMS\n")
	for _, c := range i.Components {
		w.printf("%s\t%s\t%d\t%d\t%s\t%s\n", c.Name, orDash(c.Version), c.Files, c.Images, progress.Bytes(c.Size),
			joinPlatforms(c.Platforms))
	}
	w.printf("\nFILE\tCOMPONENT\tPLATFORM\tSIZE\tSHA256%s\n", left.heading())
	for _, f := range i.Files {
		if !f.IsOSPackage() {
			w.printf("%s\t%s\t%s\t%s\t%s%s\n", f.Name, f.Component, orDash(string(f.Platform)), progress.Bytes(f.Size),
				f.Digest.Encoded(), left.cell(f.Digest))
		}
	}
	i.printPackages(w, left)
	w.printf("\nIMAGE\tCOMPONENT\tPLATFORMS\tSIZE\tDIGEST%s\n", left.heading())
	for _, image := range i.Images {
		platforms := make([]lock.Platform, 0, len(image.Platforms))
		var size int64
		var blobs []digest.Digest
		for _, p := range image.Platforms {
			platforms = append(platforms, p.Platform)
			size += p.Size()
			blobs = append(blobs, blobsOf(p)...)
		}
		w.printf("%s\t%s\t%s\t%s\t%s%s\n", image.Name, image.Component, joinPlatforms(platforms), progress.Bytes(size),
			image.Digest, left.cell(blobs...))
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// printPackages lists packages of operating systems apart from other files: there are many of them.
func (i *inspection) printPackages(w *errorWriter, left leftOut) {
	heading := "\nOS PACKAGE\tVERSION\tFOR\tCOMPONENT\tSIZE\tSHA256" + left.heading() + "\n"
	for _, f := range i.Files {
		if !f.IsOSPackage() {
			continue
		}
		w.printf("%s%s\t%s\t%s %s\t%s\t%s\t%s%s\n", heading, f.Package.Name, f.Package.Version, f.Package.Release(),
			f.Platform, f.Component, progress.Bytes(f.Size), f.Digest.Encoded(), left.cell(f.Digest))
		heading = ""
	}
}

// endText warns of a bundle that was not meant to be used any more; "" when there is nothing to warn
// of. It is no error: clocks behind an air gap are what they are.
func endText(v lock.Validity, now time.Time) string {
	if v.NotAfter.IsZero() || !now.After(v.NotAfter) {
		return ""
	}
	return fmt.Sprintf("the bundle was meant to be used until %s, and this machine's clock says %s: "+
		"take a newer one if there is any", v.NotAfterText(), now.UTC().Format(time.RFC3339))
}

// validityLines are what a bundle says of when and where to use it, each with its name.
func validityLines(v lock.Validity) [][2]string {
	return slices.DeleteFunc([][2]string{
		{"serial", v.SerialText()}, {"for", strings.ReplaceAll(v.AudienceText(), ",", ", ")},
		{"until", v.NotAfterText()},
	}, func(line [2]string) bool { return line[1] == "" })
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
