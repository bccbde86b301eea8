package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/push"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// The variables that may hold the credentials for a push.
const (
	pushUsernameVariable = "BOXLIFT_PUSH_USERNAME"
	pushPasswordVariable = "BOXLIFT_PUSH_PASSWORD"
)

type registryPushOptions struct {
	verifyOptions
	bundle       string
	to           string
	rewrites     []string
	chartsTo     string
	platforms    []string
	username     string
	passwordFile string
	caFile       string
	plainHTTP    bool
	insecureTLS  bool
	requireIndex bool
	dryRun       bool
	jobs         int
	format       string
}

func newRegistryPushCommand(global *globalOptions) *cobra.Command {
	var o registryPushOptions
	c := &cobra.Command{
		Use:   "push",
		Short: "Push a bundle's images to Harbor or another registry",
		Long: `Push the images of a bundle to Harbor or any other OCI registry. What is there
already is not sent again, what several repositories share is sent once, and a push
that was interrupted goes on when it is run again. Digests stay what they are
upstream.

Each image keeps its repository's name, without the registry it came from, unless a
rewrite rule gives it another: registry= names the registry that the rule is for, or
* for all, match= is a regular expression (Go's) for the repository without the
registry, and replace= is what stands in place of each match, with $1 for a group.
The rules are those of k3s' registries.yaml.

With --charts-to, the Helm charts of the bundle are pushed too, in the form that helm
pulls: --charts-to plant/charts makes oci://HOST/plant/charts/cilium of Cilium's.

The bundle's signature over its index is checked first. Other contents are hashed while
they are sent, and the end of what differs from its digest is withheld.

Credentials are those of --username, with the password from --password-file, from
` + pushPasswordVariable + ` or from the terminal; or those of the variables
` + pushUsernameVariable + ` and ` + pushPasswordVariable + `; or else those of the docker
configuration.`,
		Example: `  boxlift registry push --bundle b.tar --key boxlift.pub --to harbor.lan --ca-file harbor-ca.crt \
    --rewrite 'registry=*,match=^(.*)$,replace=plant/$1' \
    --username 'robot$plant+push' --password-file robot.token`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runRegistryPush(cmd.Context(), out, global, o, r)
			})
		},
	}
	c.Flags().StringVar(&o.bundle, "bundle", "", "the bundle (required)")
	o.addFlags(c)
	c.Flags().StringVar(&o.to, "to", "", "the registry: HOST or HOST:PORT, without a scheme (required)")
	c.Flags().StringArrayVar(&o.rewrites, "rewrite", nil, "give repositories other names: "+
		"registry=…,match=…,replace=… (repeatable)")
	c.Flags().StringVar(&o.chartsTo, "charts-to", "", "push Helm charts too, below this repository, such as "+
		"plant/charts")
	c.Flags().StringArrayVar(&o.platforms, "platform", nil, "only images for this platform, such as linux/amd64 "+
		"(repeatable; default: all that the bundle carries)")
	c.Flags().StringVar(&o.username, "username", "", "name to log in with, used as it is; quote a $ for the shell: "+
		"'robot$name'")
	c.Flags().StringVar(&o.passwordFile, "password-file", "", "file that holds the password")
	c.Flags().StringVar(&o.caFile, "ca-file", "", "certificates (PEM) of authorities to trust beside the system's")
	c.Flags().BoolVar(&o.plainHTTP, "plain-http", false, "use http instead of https: credentials go over the line in "+
		"the clear")
	c.Flags().BoolVar(&o.insecureTLS, "insecure-skip-tls-verify", false, "accept any certificate")
	c.Flags().BoolVar(&o.requireIndex, "require-index-digests", false,
		"fail where the registry refuses an image index of which not every platform is pushed")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "list what would go where and what is there; change nothing")
	c.Flags().IntVar(&o.jobs, "jobs", 6, "requests at a time")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
	return c
}

func runRegistryPush(ctx context.Context, out io.Writer, global *globalOptions, o registryPushOptions,
	reporter progress.Reporter) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	options.Reporter, options.Log = reporter, global.logger(reporter)
	if o.insecure {
		global.warner(reporter)("warning: THE SIGNATURE OF THE BUNDLE IS NOT CHECKED (--insecure-skip-signature): " +
			"whoever made this file chose what is pushed")
	}
	if err := o.credentials(ctx, options); err != nil {
		return err
	}
	if _, err := o.demanded(ctx); err != nil {
		return err
	}
	r, err := o.openWhole(ctx, o.bundle)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkDigest(r); err != nil {
		return err
	}
	options.Bundle = r
	do := push.Push
	if o.dryRun {
		do = push.Check
	}
	result, err := do(ctx, *options)
	if err != nil {
		return pushError(err)
	}
	if o.format == "json" {
		return printJSON(out, pushReport{Bundle: r.Digest().String(), DryRun: o.dryRun, Result: result})
	}
	return printPush(out, result, o.dryRun)
}

// pushReport is what push prints as JSON.
type pushReport struct {
	Bundle string `json:"bundle"`
	DryRun bool   `json:"dryRun"`
	*push.Result
}

// options are those that the flags alone decide on.
func (o *registryPushOptions) options() (*push.Options, error) {
	switch {
	case o.bundle == "":
		return nil, fault.Usage.Errorf("--bundle is needed: the bundle to push")
	case o.to == "":
		return nil, fault.Usage.Errorf("--to is needed: the registry, as HOST or HOST:PORT")
	case o.jobs < 1 || o.jobs > 64:
		return nil, fault.Usage.Errorf("--jobs %d: expected 1 to 64", o.jobs)
	case o.plainHTTP && (o.caFile != "" || o.insecureTLS):
		return nil, fault.Usage.Errorf("--plain-http excludes --ca-file and --insecure-skip-tls-verify")
	}
	if err := checkFormat(o.format); err != nil {
		return nil, err
	}
	options := &push.Options{
		Address: o.to, ChartsTo: o.chartsTo, PlainHTTP: o.plainHTTP, InsecureSkipTLSVerify: o.insecureTLS,
		RequireIndexDigests: o.requireIndex,
		Jobs:                o.jobs, UserAgent: "boxlift/" + version,
	}
	for _, p := range o.platforms {
		platform := lock.Platform(p)
		if err := platform.Validate(); err != nil {
			return nil, fault.Usage.Errorf("--platform: %w", err)
		}
		options.Platforms = append(options.Platforms, platform)
	}
	var err error
	if options.Rewrites, err = parseRewrites(o.rewrites); err != nil {
		return nil, err
	}
	if o.caFile != "" {
		if options.CA, err = os.ReadFile(o.caFile); err != nil {
			return nil, fault.Input.Errorf("read the certificate authority: %w", err)
		}
	}
	return options, nil
}

// parseRewrites reads the values of --rewrite.
func parseRewrites(texts []string) (rewrite.Rules, error) {
	list := make([]rewrite.Rule, len(texts))
	for i, text := range texts {
		var err error
		if list[i], err = parseRewrite(text); err != nil {
			return rewrite.Rules{}, err
		}
	}
	rules, err := rewrite.Parse(list)
	if err != nil {
		return rules, fault.Usage.Errorf("--rewrite: %w", err)
	}
	return rules, nil
}

// parseRewrite reads registry=…,match=…,replace=…, in this order. There may be commas in
// the expression: match ends where ",replace=" comes last.
func parseRewrite(text string) (rewrite.Rule, error) {
	rest, ok := strings.CutPrefix(text, "registry=")
	registry, rest, hasMatch := strings.Cut(rest, ",match=")
	at := strings.LastIndex(rest, ",replace=")
	if !ok || !hasMatch || at < 0 {
		return rewrite.Rule{}, fault.WithHint(fault.Usage.Errorf("--rewrite %q: expected registry=…,match=…,replace=…",
			text),
			`an example: --rewrite 'registry=docker.io,match=^(.*)$,replace=plant/$1', in single quotes because of the $`)
	}
	return rewrite.Rule{Registry: registry, Match: rest[:at], Replace: rest[at+len(",replace="):]}, nil
}

// credentials finds what to log in with.
func (o *registryPushOptions) credentials(ctx context.Context, options *push.Options) error {
	options.Username = o.username
	if options.Username == "" {
		if o.passwordFile != "" {
			return fault.Usage.Errorf("--password-file needs --username")
		}
		options.Username = os.Getenv(pushUsernameVariable)
	}
	if options.Username == "" {
		options.Keychain = authn.DefaultKeychain
		return nil
	}
	var password []byte
	var err error
	switch value, ok := os.LookupEnv(pushPasswordVariable); {
	case o.passwordFile != "":
		if password, err = os.ReadFile(o.passwordFile); err != nil {
			return fault.Input.Errorf("read the registry's password: %w", err)
		}
		password = bytes.TrimRight(password, "\r\n")
	case ok:
		password = []byte(value)
	case !term.IsTerminal(int(os.Stdin.Fd())):
		return fault.WithHint(fault.Usage.Errorf("the password of %s is needed, and there is no terminal to ask on",
			options.Username),
			"set "+pushPasswordVariable+", or name a file that holds it with --password-file")
	default:
		if password, err = prompt(ctx, os.Stdin, "password of "+options.Username+" at "+o.to+": "); err != nil {
			return err
		}
	}
	options.Password = string(password)
	return nil
}

// pushError adds what the exit code depends on.
func pushError(err error) error {
	var names *push.NamesError
	var address *push.AddressError
	var authority *push.AuthorityError
	switch {
	case errors.As(err, &address):
		return fault.Usage.Errorf("--to: %w", err)
	case errors.As(err, &names), errors.As(err, &authority):
		return fault.Input.Wrap(err)
	}
	return damagedHint(err)
}

func printPush(out io.Writer, result *push.Result, dryRun bool) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("IMAGE\tTARGET\tPLATFORMS\tSTATE\tUPLOAD\tDIGEST\n")
	stateOf := func(state push.State, replaces digest.Digest) string {
		if replaces != "" {
			return string(state) + " (the tag stood for something else)"
		}
		return string(state)
	}
	for _, i := range result.Images {
		tagged := i.Digest
		if i.TargetDigest != "" {
			tagged = i.TargetDigest
		}
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Target, joinPlatforms(i.Platforms),
			stateOf(i.State, i.Replaces), progress.Bytes(i.Upload), tagged)
	}
	for _, c := range result.Charts {
		w.printf("%s\t%s\t-\t%s\t%s\t%s\n", c.Name, c.Target, stateOf(c.State, c.Replaces),
			progress.Bytes(c.Upload), c.Digest)
	}
	if w.err != nil {
		return w.err
	}
	if err := t.Flush(); err != nil {
		return err
	}
	w = &errorWriter{w: out}
	sent, mounted := "uploaded", "mounted"
	if dryRun {
		sent, mounted = "to upload", "to mount"
	}
	w.printf("\n%s: %s\n%s: %s\nthere: %s\n", sent, amountOf(result.Upload), mounted, amountOf(result.Mount),
		amountOf(result.Present))
	if dryRun {
		w.printf("nothing was changed\n")
	}
	if changed := result.Changed(); len(changed) > 0 {
		w.printf("\nThe registry takes no image index of which not all is pushed. These tags stand for\nindexes of " +
			"the platforms that are, so that only the manifests of the platforms have\nthe digests that they have " +
			"upstream; the tags have others:\n")
		for _, i := range changed {
			w.printf("  %s: %s instead of %s\n", i.Target, i.TargetDigest, i.Digest)
		}
	}
	return w.err
}

func amountOf(a push.Amount) string {
	noun := "blobs"
	if a.Blobs == 1 {
		noun = "blob"
	}
	return fmt.Sprintf("%d %s, %s", a.Blobs, noun, progress.Bytes(a.Bytes))
}
