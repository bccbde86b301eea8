package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

type bundleRehearseOptions struct {
	clusterOptions
	from         string
	throwAway    bool
	inside       []string
	watch        time.Duration
	signWith     string
	passwordFile string
	predicate    string
}

// throwAwayFlag is the consent to all that a rehearsal does to hosts.
const throwAwayFlag = "all-hosts-are-thrown-away-afterwards"

func newBundleRehearseCommand(global *globalOptions) *cobra.Command {
	var o bundleRehearseOptions
	c := &cobra.Command{
		Use:   "rehearse",
		Short: "Install a bundle on hosts that are thrown away, and state what came of it",
		Long: `Find out, before a bundle leaves, whether it makes a platform where there is no internet.
The hosts of install.yaml are new virtual machines that are thrown away afterwards. They must
not have, or have had, a cluster: then nothing is done. boxlift takes their way out, so that
they reach each other and nothing else, installs the bundle on them as "boxlift install"
does, LiteBoxd and workloads included, and makes the checks of "boxlift health". With
--upgrade-from another bundle is installed first, and upgraded. At the end it counts the
packets that tried to leave, and names who sent them.

What came of it is a test result of in-toto about the bundle, signed with --sign-with, in the
file NAME` + attestation.Suffix + ` beside the bundle, which travels with it: also when the rehearsal
failed. Sites ask for one that passed with --require-rehearsal, or in install.yaml. Where the
key is not at hand, --predicate writes what there is to sign, for
"boxlift bundle attest --type rehearsal".

Inside are the networks that the hosts are in, each host's address, those of pods and
services, and where boxlift comes from. --inside adds others: every packet to anywhere else
makes the rehearsal fail, whoever sends it. So turn off on the hosts what asks the internet
by itself, such as timers of apt, or clocks that follow servers outside.

The hosts need Linux 5.16 or newer. Their way out is back at the end; when boxlift or its
connection is lost, after two minutes. All else stays on them: throw them away.

Exit code 7 means that the rehearsal failed, 6 that a host cannot be reached.`,
		Example: `  boxlift bundle rehearse --bundle next.tar --trust trust.json -f lab.yaml \
      --sign-with tests.key --` + throwAwayFlag + `
  boxlift bundle rehearse --bundle next.tar --upgrade-from platform.tar --trust trust.json -f lab.yaml \
      --predicate rehearsal.json --` + throwAwayFlag,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleRehearse(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.clusterOptions.addFlags(c)
	c.Flags().BoolVar(&o.throwAway, throwAwayFlag, false,
		"the hosts of the configuration have nothing that anybody needs (required)")
	c.Flags().StringVar(&o.from, "upgrade-from", "", "bundle to install first, and to upgrade from")
	c.Flags().StringSliceVar(&o.inside, "inside", nil,
		"network that belongs to the site, such as 192.0.2.0/24 (repeatable)")
	c.Flags().DurationVar(&o.watch, "watch", time.Minute, "time to leave the platform running at the end")
	c.Flags().StringVar(&o.signWith, "sign-with", "", "private key to sign what came of it with: a file, or "+keyURIs)
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", passwordFileHelp)
	c.Flags().StringVar(&o.predicate, "predicate", "", "write what there is to sign to this file")
	return c
}

// check reads the networks and refuses flags that do not go together.
func (o *bundleRehearseOptions) check() (inside []netip.Prefix, err error) {
	switch {
	case !o.throwAway:
		return nil, fault.WithHint(fault.Usage.Errorf("--%s is needed: a rehearsal makes a cluster of all hosts of "+
			"the configuration, cuts them off, and gives nothing back", throwAwayFlag),
			"name a configuration with new virtual machines, and nothing else, with -f")
	case o.watch < 0:
		return nil, fault.Usage.Errorf("--watch %v: expected a time such as 5m", o.watch)
	}
	for _, text := range o.inside {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Bits() == 0 || p != p.Masked() {
			return nil, fault.Usage.Errorf("--inside %.100q: expected a network such as 192.0.2.0/24", text)
		}
		inside = append(inside, p)
	}
	return inside, nil
}

func runBundleRehearse(ctx context.Context, out io.Writer, global *globalOptions, o bundleRehearseOptions,
	reporter progress.Reporter) error {
	inside, err := o.check()
	if err != nil {
		return err
	}
	o.rehearses = true
	options, err := o.open(ctx, global.warner(reporter), reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	// What is asked for at the end is asked before an hour has gone by.
	list, err := approval.StatementsOf(options.Bundle)
	if err != nil {
		return err
	}
	if n := list.Strays(options.Bundle.Digest()); n > 0 && o.signWith != "" {
		return fault.WithHint(fault.Input.Errorf("%s has %d statements about something else", list.Path, n),
			"move it away if another bundle had this name")
	}
	sign, err := o.signature(ctx)
	if err != nil {
		return err
	}
	rehearse := install.RehearseOptions{Options: options, Inside: inside, Watch: o.watch}
	if o.from != "" {
		demand, err := o.withCarried(o.from)
		if err != nil {
			return err
		}
		if rehearse.From, rehearse.FromApproval, err = o.openDemanded(ctx, o.from, demand); err != nil {
			return err
		}
		defer rehearse.From.Close() //nolint:errcheck // it was only read
		if err := rehearse.From.Verify(ctx, reporter); err != nil {
			return damagedHint(err)
		}
	}
	folder, err := os.MkdirTemp("", "boxlift-rehearsal-")
	if err != nil {
		return fmt.Errorf("make a folder for the state of the rehearsal: %w", err)
	}
	defer os.RemoveAll(folder) //nolint:errcheck // what is in it is of a cluster that is thrown away
	rehearse.StatePath, rehearse.Log = filepath.Join(folder, "state.json"), global.logger(reporter)
	rehearsal, failed := install.Rehearse(ctx, rehearse)
	if rehearsal == nil {
		return failed
	}
	predicate := rehearsal.Predicate(o.configurationOf(options.Config, rehearse.From))
	return errors.Join(failed, o.keep(options.Bundle, list, predicate, sign),
		o.print(out, rehearsal, list.Path, predicate))
}

// signature signs statements; nil where nobody is to.
func (o *bundleRehearseOptions) signature(ctx context.Context) (func(statement []byte) ([]byte, error), error) {
	if o.signWith == "" {
		return nil, nil //nolint:nilnil // nobody signs
	}
	signer, err := loadSigner(ctx, o.signWith, o.passwordFile)
	if err != nil {
		return nil, err
	}
	return signer.Attest, nil
}

// configurationOf is what a rehearsal was made with.
func (o *bundleRehearseOptions) configurationOf(c *config.Config, from *bundle.Reader) []attestation.Resource {
	// Not the file's own digest: it may have passwords, which could be tried out on it.
	list := []attestation.Resource{{Name: "install.yaml, without what is secret",
		Digest: map[string]string{"sha256": c.Fingerprint()}}}
	if from != nil {
		list = append(list, attestation.Resource{Name: "index.json of the bundle that is upgraded from",
			Digest: attestation.DigestSet(from.Digest())})
	}
	return list
}

// keep writes what came of it: signed to what others have stated about the bundle, and as it is.
func (o *bundleRehearseOptions) keep(r *bundle.Reader, list *attestation.List, predicate any,
	sign func([]byte) ([]byte, error)) error {
	if o.predicate != "" {
		text, err := json.MarshalIndent(predicate, "", "  ")
		if err != nil {
			return err
		}
		if err := ownfile.Replace(o.predicate, append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", o.predicate, err)
		}
	}
	if sign == nil {
		return nil
	}
	statement, err := attestation.Make(r.Digest(), attestation.TestResult, predicate)
	if err != nil {
		return err
	}
	signed, err := sign(statement)
	if err != nil {
		return err
	}
	a, err := attestation.Read(signed)
	if err != nil {
		return err
	}
	_, err = list.Add(r.Digest(), a)
	return err
}

func (o *bundleRehearseOptions) print(out io.Writer, r *attestation.Rehearsal, statements string,
	predicate any) error {
	if o.format == "json" {
		return printJSON(out, predicate)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	printRehearsal(w, r)
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, s := range r.Stages {
		if s.Error != "" {
			w.printf("%s failed: %s\n", s.Name, s.Error)
		}
	}
	for i, f := range r.Flows {
		if i == maxShownFlows {
			w.printf("and %d more\n", len(r.Flows)-i)
			break
		}
		w.printf("tried to leave: %s\n", f)
	}
	if !r.Confined {
		w.printf("not all hosts were without a way out until the end: what they have sent is not known\n")
	}
	if o.predicate != "" {
		w.printf("%s written: what there is to sign\n", o.predicate)
	}
	switch {
	case o.signWith != "":
		w.printf("%s written: it goes where the bundle goes\n", statements)
	case o.predicate == "":
		w.printf("nothing was written: --sign-with signs what came of it\n")
	}
	if r.Failed() == nil {
		w.printf("PASSED: %s\n", r)
	} else {
		w.printf("FAILED: %s\n", r)
	}
	return w.err
}

// maxShownFlows is how many flows are shown to people.
const maxShownFlows = 20

// printRehearsal lists what was done, and what the checks have found that is not well.
func printRehearsal(w *errorWriter, r *attestation.Rehearsal) {
	w.printf("STAGE\tRESULT\tTOOK\n")
	for _, s := range r.Stages {
		result := "ok"
		if s.Error != "" {
			result = "failed"
		}
		w.printf("%s\t%s\t%s\n", s.Name, result, progress.Duration(time.Duration(s.Seconds)*time.Second))
	}
	notWell := slices.DeleteFunc(slices.Clone(r.Checks), func(c attestation.Check) bool {
		return c.State != "failed" && c.State != "warning"
	})
	if len(notWell) > 0 {
		w.printf("\nCHECK\tSTATE\tWHERE\tFOUND\n")
	}
	for _, c := range notWell {
		w.printf("%s\t%s\t%s\t%s\n", c.Check, c.State, orDash(c.Subject), c.Detail)
	}
	w.printf("\n")
}
