package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type historyOptions struct {
	config configuration
	state  string
	format string
	lock   int
	export string
	sign   bool
}

func newHistoryCommand(global *globalOptions) *cobra.Command {
	var o historyOptions
	c := &cobra.Command{
		Use:   "history",
		Short: "List the releases of a cluster",
		Long: `List what was installed on the cluster: the last ten releases, each with its state, bundle,
versions, who, when and what came of it; and between them, without a number, what was done
besides: hosts removed, certificates and tokens renewed, backups, upgrades confirmed. The cluster keeps the record itself; when it
cannot be asked, the copy beside the state is shown, and the exit code is 6. No bundle is
needed, and nothing is changed.

--export writes which bundles the cluster has had, and when, for those who build the next
one: without operators, flags and failures, and without secrets. With --sign the cluster's
key signs it: the signature goes into the file FILE` + siteSignatureSuffix + ` beside it. Both need the
cluster's own answer.

States: created (nothing of what runs was changed yet), running, succeeded, failed,
rolled_back.`,
		Example: `  boxlift history -f install.yaml
  boxlift history -f install.yaml --lock 3 >versions.lock
  boxlift history -f install.yaml --export history.json --sign`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runHistory(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where state.json is, beside which the copy lies (default: beside the "+
		"configuration)")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
	c.Flags().IntVar(&o.lock, "lock", 0, "print the lock of this release instead")
	c.Flags().StringVar(&o.export, "export", "", "file to write for those who build bundles instead")
	c.Flags().BoolVar(&o.sign, "sign", false, "sign what is exported with the key of the site")
	c.MarkFlagsMutuallyExclusive("lock", "export")
	c.MarkFlagsMutuallyExclusive("output", "export")
	return c
}

func runHistory(ctx context.Context, out io.Writer, global *globalOptions, o historyOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	if o.sign && o.export == "" {
		return fault.Usage.Errorf("--sign is for what is exported: name a file with --export")
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.StatePath, options.Reporter, options.Log = o.config.statePath(o.state), reporter, global.logger(reporter)
	if o.export != "" {
		return exportHistory(ctx, out, options, o)
	}
	record, err := install.History(ctx, options)
	if err != nil && record != nil {
		err = fault.WithHint(err, "what is shown is the copy beside the state: others may have changed the cluster "+
			"since")
	}
	if record == nil && err != nil {
		return err
	}
	if o.lock != 0 {
		return errors.Join(printLock(out, record, o.lock), err)
	}
	return errors.Join(printHistory(out, options.Config.Cluster.Name, record, o.format), err)
}

// exportHistory writes what the cluster has had. A copy of its record may be behind, and is not exported.
func exportHistory(ctx context.Context, out io.Writer, options install.Options, o historyOptions) error {
	var identity install.Identity
	if o.sign {
		found, err := install.ReadIdentity(ctx, options)
		if err != nil {
			return err
		}
		identity = *found
	} else {
		var err error
		if identity.Record, err = install.History(ctx, options); err != nil {
			return err
		}
	}
	if identity.Record.Newest() == nil {
		return errNoRecord(options)
	}
	document, err := identity.Record.History(time.Now())
	if err != nil {
		return err
	}
	content, err := document.Encode()
	if err != nil {
		return err
	}
	if err := writeSiteDocument(o.export, content, identity.Signer); err != nil {
		return err
	}
	w := &errorWriter{w: out}
	w.printf("%s written: %d releases of %s\n", o.export, len(identity.Record.Releases), identity.Record.Cluster)
	printSiteSignature(w, o.export, identity.Signer)
	return w.err
}

// printLock prints the lock that a release was made from, as the bundle had it.
func printLock(out io.Writer, record *release.Record, number int) error {
	var one *release.Release
	if record != nil {
		one = record.Find(number)
	}
	if one == nil {
		return fault.Input.Errorf("the record has no release %d: boxlift history lists those that it has", number)
	}
	_, text, err := record.Lock(one)
	if err != nil {
		return fault.Input.Wrap(err)
	}
	_, err = out.Write(text)
	return err
}

// historyEntry is a release for programs.
type historyEntry struct {
	release.Release
	// Current tells that it is the one that runs, as far as the record goes.
	Current bool `json:"current"`
	// Revoked is what the trust file that the cluster keeps has against it.
	Revoked []string `json:"revoked,omitempty"`
}

// historyListing is what history prints for programs.
type historyListing struct {
	Cluster string `json:"cluster"`
	// Serial is the highest that the cluster has had, 0 for none.
	Serial int64 `json:"serial,omitempty"`
	// Trust is the version of the trust file that the cluster keeps, 0 for none, and TrustDigest its digest.
	Trust       int64          `json:"trust,omitempty"`
	TrustDigest string         `json:"trustDigest,omitempty"`
	Releases    []historyEntry `json:"releases"`
	// Events are work that made no release, the newest first.
	Events []release.Event `json:"events"`
}

// printHistory shows the releases, the newest first.
func printHistory(out io.Writer, cluster string, record *release.Record, format string) error {
	h := historyListing{Cluster: cluster, Releases: []historyEntry{}, Events: []release.Event{}}
	if record != nil {
		h.Serial = record.Serial
		kept, err := record.KeptTrust()
		if err != nil {
			return err
		}
		if kept != nil {
			h.Trust, h.TrustDigest = kept.Version().Number, kept.Digest().String()
		}
		for i := range slices.Backward(record.Releases) {
			one := &record.Releases[i]
			entry := historyEntry{Release: *one, Current: one == record.Current()}
			if kept != nil {
				entry.Revoked = one.Revocations(kept.Version())
			}
			h.Releases = append(h.Releases, entry)
		}
		for _, e := range slices.Backward(record.Events) {
			h.Events = append(h.Events, e)
		}
	}
	if format == "json" {
		return printJSON(out, h)
	}
	if len(h.Releases)+len(h.Events) == 0 {
		w := &errorWriter{w: out}
		w.printf("cluster %s has no record of releases: boxlift adopt makes one\n", cluster)
		return w.err
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("RELEASE\tSTATE\tSTARTED\tTOOK\tBY\tCOMMAND\tBUNDLE\tSIGNED BY\tVERSIONS\tRESULT\n")
	events := h.Events
	before := func(t time.Time) { // prints the events that began later
		for ; len(events) > 0 && events[0].Started.After(t); events = events[1:] {
			printEvent(w, events[0])
		}
	}
	for _, r := range h.Releases {
		before(r.Started)
		state := string(r.State)
		if r.Current {
			state += " *"
		}
		took := "-"
		if !r.Ended.IsZero() {
			took = progress.Duration(r.Ended.Sub(r.Started))
		}
		first, _, _ := strings.Cut(r.Result, "\n")
		w.printf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Number, state, r.Started.Format(time.RFC3339), took, r.By,
			r.Command,
			shortDigest(r.Bundle.String()), signersOf(r.Signers), versionsOf(r.Components), orDash(shortened(first)))
	}
	before(time.Time{})
	if w.err == nil {
		w.err = t.Flush()
	}
	if w.w = out; h.Serial != 0 {
		w.printf("the highest serial of a bundle that the cluster has had is %d\n", h.Serial)
	}
	if h.Trust != 0 {
		w.printf("the cluster keeps version %d of the trust file, %s\n", h.Trust, h.TrustDigest)
	}
	for _, r := range h.Releases {
		for _, text := range r.Revoked {
			w.printf("release %d: %s\n", r.Number, text)
		}
	}
	return w.err
}

// printEvent shows an event as a release without a number.
func printEvent(w *errorWriter, e release.Event) {
	state := release.Succeeded
	if e.Failed {
		state = release.Failed
	}
	first, _, _ := strings.Cut(e.Result, "\n")
	w.printf("-\t%s\t%s\t%s\t%s\t%s\t-\t-\t-\t%s\n", state, e.Started.Format(time.RFC3339),
		progress.Duration(e.Ended.Sub(e.Started)), e.By, e.Command, orDash(shortened(first)))
}

// maxShownResult bounds a result in a table, in characters.
const maxShownResult = 80

func shortened(text string) string {
	if runes := []rune(text); len(runes) > maxShownResult {
		return string(runes[:maxShownResult]) + "…"
	}
	return text
}

// signersOf are the names of those who signed a bundle, and the beginning of the key's id where there is no name.
func signersOf(signers []approval.Signer) string {
	var texts []string
	for _, s := range signers {
		text := s.Name
		if text == "" {
			text = "key " + s.Key[:min(len(s.Key), 8)]
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return orDash(strings.Join(texts, ", "))
}

func versionsOf(components []release.Component) string {
	texts := make([]string, 0, len(components))
	for _, c := range components {
		texts = append(texts, c.Name+" "+c.Version)
	}
	return strings.Join(texts, ", ")
}
