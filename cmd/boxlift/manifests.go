package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/manifests/lint"
)

func newManifestsCommand(global *globalOptions) *cobra.Command {
	return group("manifests", "Show and check LiteBoxd's Kubernetes manifests", newManifestsRenderCommand(global),
		newManifestsCheckCommand())
}

func newManifestsRenderCommand(global *globalOptions) *cobra.Command {
	var o clusterOptions
	var diff bool
	c := &cobra.Command{
		Use:   "render",
		Short: "Print LiteBoxd's manifests as boxlift install would apply them",
		Long: `Print the Kubernetes objects that boxlift install would apply: the manifests of the
bundle with what install.yaml and its liteboxd.configDir say. No host is asked.

With --diff, the running cluster is compared with them, through the first server that
answers, and what an installation would change is shown; nothing is changed. The exit
code is 7 when something differs.

Secrets are no part of the manifests: boxlift install makes them in the cluster.`,
		Example: `  boxlift manifests render --bundle bundle.tar --key boxlift.pub -f install.yaml
  boxlift manifests render --bundle bundle.tar --key boxlift.pub -f install.yaml --diff`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runManifestsRender(cmd.Context(), out, global, o, diff, r)
			})
		},
	}
	o.addSourceFlags(c)
	c.Flags().BoolVar(&diff, "diff", false, "compare the running cluster with them instead")
	return c
}

func runManifestsRender(ctx context.Context, out io.Writer, global *globalOptions, o clusterOptions, diff bool,
	reporter progress.Reporter) error {
	warn := global.warner(reporter)
	options, err := o.load(ctx, warn)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.ConfigPath, options.Reporter, options.Log = o.config.String(), reporter, global.logger(reporter)
	if diff {
		return printDiff(ctx, out, options)
	}
	d, err := install.RenderLiteBoxd(options)
	if err != nil {
		return err
	}
	for _, f := range d.Findings {
		warn(fmt.Sprintf("%s: %s", f.Severity, f))
	}
	_, err = out.Write(d.Rendered.YAML())
	return err
}

// printDiff shows what an installation would change.
func printDiff(ctx context.Context, out io.Writer, options install.Options) error {
	diffs, err := install.DiffLiteBoxd(ctx, options)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	for _, d := range diffs {
		w.printf("# %s: %s\n", d.Object, map[helm.Change]string{
			helm.Create: "would be made", helm.Update: "would be changed", helm.Remove: "would be removed",
			helm.Refused: "cannot be changed: " + d.Problem,
		}[d.Change])
		w.printf("%s", d.Diff)
	}
	if w.err == nil && len(diffs) > 0 {
		return site.ErrDifferent
	}
	return w.err
}

func newManifestsCheckCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "check DIR",
		Short: "Check a folder of patches for LiteBoxd's manifests",
		Long: `Check a folder that is to be liteboxd.configDir in install.yaml: that every patch
fits the manifests of this boxlift, and that nothing in the result is known to go wrong on
a cluster, from images without a version to budgets that block every drain. No bundle and
no cluster is needed: that the bundle carries all images, boxlift install checks.

The exit code is 3 when something is wrong; warnings do not change it.`,
		Example: `  boxlift manifests check ./deploy-config/prod`,
		Args:    arguments("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runManifestsCheck(cmd.OutOrStdout(), args[0], format)
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// anyImage stands for images that only the bundle can name.
const anyImage = "bundle.invalid/image:checked-with-the-bundle"

func runManifestsCheck(out io.Writer, dir, format string) error {
	if err := checkFormat(format); err != nil {
		return err
	}
	if info, err := os.Stat(dir); err != nil {
		return fault.Input.Wrap(err)
	} else if !info.IsDir() {
		return fault.Input.Errorf("%s is not a folder", dir)
	}
	const namespace = "liteboxd-system"
	rendered, err := manifests.Render(manifests.Overlay{
		Bases: manifests.Embedded(), Site: os.DirFS(dir),
		Parameters: manifests.Parameters{
			Images:           manifests.Images{API: anyImage, Gateway: anyImage, Web: anyImage, Helper: anyImage},
			SystemNamespace:  namespace,
			SandboxResources: true,
		},
	})
	if err != nil {
		return fault.Input.Errorf("%s: %w", dir, err)
	}
	findings := lint.Check(rendered.Objects(), lint.Options{Known: manifests.MadeByInstaller(namespace)})
	if err := printLintFindings(out, findings, format); err != nil {
		return err
	}
	wrong := 0
	for _, f := range findings {
		if f.Severity == lint.Error {
			wrong++
		}
	}
	if wrong > 0 {
		return fault.Input.Errorf("%s: %d of what was found will not work", dir, wrong)
	}
	return nil
}

func printLintFindings(out io.Writer, findings []lint.Finding, format string) error {
	if format == "json" {
		if findings == nil {
			findings = []lint.Finding{}
		}
		return printJSON(out, findings)
	}
	if len(findings) == 0 {
		_, err := fmt.Fprintln(out, "nothing to find fault with")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("SEVERITY\tOBJECT\tWHERE\tPROBLEM\tWHAT TO DO\n")
	for _, f := range findings {
		w.printf("%s\t%s\t%s\t%s\t%s\n", f.Severity, f.Object, f.Path, f.Problem, f.Mend)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}
