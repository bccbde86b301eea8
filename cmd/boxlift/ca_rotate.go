package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newCARotateCommand(global *globalOptions) *cobra.Command {
	return group("rotate", "Put another root, or issuing authority, in the place of the present one",
		newCARotateBeginCommand(), newCARotateSwitchCommand(), newCARotateFinishCommand(global))
}

func newCARotateBeginCommand() *cobra.Command {
	var o caOptions
	var certificate string
	c := &cobra.Command{
		Use:   "begin",
		Short: "Have the site trust another root, beside the present one",
		Long: `Make another root, or take that at the end of --certificate, and trust it beside the
present one. boxlift install then brings both to all hosts; boxlift ca rotate switch comes
after it. Nothing is signed by the new root's side before that.`,
		Example: `  boxlift ca rotate begin && boxlift install ...`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := o.open()
			if err != nil {
				return err
			}
			if certificate != "" {
				chain, err := ca.ReadChain(certificate)
				if err != nil {
					return fault.Input.Errorf("--certificate: %w", err)
				}
				err = a.BeginWith(chain)
				if err != nil {
					return err
				}
			} else {
				password, err := o.password(cmd, true)
				if err != nil {
					return err
				}
				if err := a.Begin(password); err != nil {
					return err
				}
			}
			return printStage(cmd.OutOrStdout(), a,
				"boxlift install brings both roots to all hosts; then boxlift ca rotate switch")
		},
	}
	o.addFolder(c)
	o.addPassword(c)
	c.Flags().StringVar(&certificate, "certificate", "", "the other root, or a chain that ends with it, PEM")
	return c
}

func newCARotateSwitchCommand() *cobra.Command {
	var o caOptions
	c := &cobra.Command{
		Use:   "switch",
		Short: "Sign with another issuing authority from now on",
		Long: `Make another issuing authority under the first of the roots, whose password is needed,
or take one of others, and sign with it from then on. boxlift install then gives the
registry and the ingress certificates of it. Without a root that begin has added, this
renews the issuing authority.`,
		Example: `  boxlift ca rotate switch && boxlift install ...`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, isParent, err := o.given.read()
			if err != nil {
				return err
			}
			a, err := o.open()
			if err != nil {
				return err
			}
			switch {
			case given == nil:
				password, err := o.password(cmd, false)
				if err != nil {
					return err
				}
				if err := a.Switch(password); err != nil {
					return err
				}
			case isParent:
				if err := a.SwitchUnder(given); err != nil {
					return err
				}
			default:
				if err := a.SwitchTo(given); err != nil {
					return err
				}
			}
			next := "boxlift install gives registry and ingress certificates of it"
			if len(a.Former()) > 0 {
				next += "; then boxlift ca rotate finish"
			}
			return printStage(cmd.OutOrStdout(), a, next)
		},
	}
	o.addFolder(c)
	o.given.addFlags(c)
	o.addPassword(c)
	return c
}

func printStage(out io.Writer, a *ca.Authority, next string) error {
	w := &errorWriter{w: out}
	for i, root := range a.Roots {
		role := "root:       "
		if i > 0 {
			role = "former root:"
		}
		w.printf("%s %s\n             sha256 %s\n", role, root.Subject, ca.Fingerprint(root))
	}
	w.printf("signs:       %s\nnext:        %s\n", a.Issuer.Chain()[0].Subject, next)
	return w.err
}

func newCARotateFinishCommand(global *globalOptions) *cobra.Command {
	var config configuration
	var state string
	c := &cobra.Command{
		Use:   "finish",
		Short: "Give up the former root, when nothing is under it any more",
		Long: `Ask all hosts and the cluster whether anything is under the former root still, look whether
what boxlift ca issue has signed under it has been issued anew, and give it up if nothing is.
boxlift install then takes it out of the hosts' trust stores. The authorities of a cluster
that has begun under it keep it in use: see k3s certificate rotate-ca.`,
		Example: `  boxlift ca rotate finish -f install.yaml && boxlift install ...`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				options, err := loadConfiguration(config, global.warner(r))
				if err != nil {
					return err
				}
				options.StatePath, options.Reporter, options.Log = config.statePath(state), r, global.logger(r)
				a, err := install.FinishRotation(cmd.Context(), options)
				if err != nil {
					return err
				}
				return printStage(out, a, "boxlift install takes the former root out of all hosts' trust stores")
			})
		},
	}
	config.addFlags(c)
	c.Flags().StringVar(&state, "state", "", "where state.json is (default: beside the configuration)")
	return c
}
