package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/bundle/vulnerability"
	"github.com/liteboxd/boxlift/bundle/vulnerability/osv"
	"github.com/liteboxd/boxlift/bundle/vulnerability/vex"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

type bundleScanOptions struct {
	readOptions
	// what is looked at: a bundle, the list of its software, or a release of a cluster
	path      string
	list      string
	cluster   configuration
	state     string
	release   int
	isRelease bool

	databases []string
	vex       []string
	format    string
	failOn    string
}

func newBundleScanCommand(global *globalOptions) *cobra.Command {
	var o bundleScanOptions
	c := &cobra.Command{
		Use:   "scan [FILE]",
		Short: "Look for known vulnerabilities in a bundle or a cluster's release, without a network",
		Long: `Look for known vulnerabilities in the software of a bundle, as "boxlift bundle sbom" lists it,
with a database that was carried along: advisories in OSV's format, in the zips that OSV
exports for each ecosystem, in folders, or in single files. Without --db the database is what
the bundle carries itself, in its component "` + vulnerability.Component + `". Needs no network.

With -f or --release it is the software of a cluster's release, the one that runs or the one
with that number. The cluster's record says which bundle that is, and has the list of its
software when the bundle was built with --sbom; otherwise give the bundle too, or the list
with --sbom. Either is refused when it is not that of the release. Nothing is changed. When
the cluster cannot be asked, the copy of its record beside the state is used, and the exit
code is 6.

What OpenVEX documents say is not affected or fixed is shown as settled, with the reason, and
does not count for --fail-on. The newest statement counts. Who signed a document or the bundle
is not checked: see "boxlift bundle verify".

What was not looked at is named: packages that the database has no advisories about, packages
whose version says nothing, images that could not be read wholly. They are not clean; nobody
knows.

With --fail-on the exit code is 7 when there are findings of that severity or a higher one that
VEX does not settle. "any" counts those as well of which nobody says how severe they are.`,
		Example: `  boxlift bundle scan bundle.tar --db osv/Go.zip --db osv/Debian.zip --fail-on high
  boxlift bundle scan bundle.tar --vex our.vex.json --format sarif > bundle.sarif
  boxlift bundle scan -f install.yaml --db osv/ --fail-on critical
  boxlift bundle scan -f install.yaml --release 7 --sbom bundle.cdx.json --db osv/`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return arguments("FILE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.path = args[0]
			}
			o.isRelease = o.cluster.local || cmd.Flags().Changed("file") || cmd.Flags().Changed("release")
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleScan(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addReadFlags(c)
	o.addBaseFlag(c)
	o.cluster.addFlags(c)
	c.Flags().Lookup("file").Usage = "the configuration of a cluster whose release is looked at"
	c.Flags().StringVar(&o.state, "state", "", "where state.json is, beside which the copy of the record lies (default: "+
		"beside the configuration)")
	c.Flags().IntVar(&o.release, "release", 0, "the release that is looked at (default: the one that runs)")
	c.Flags().StringVar(&o.list, "sbom", "",
		`the list of the software, as "boxlift bundle sbom" has written it, in place of the bundle`)
	c.Flags().StringArrayVar(&o.databases, "db", nil,
		"advisories in OSV's format: a zip, a folder, or a file (repeatable; default: what the bundle carries)")
	c.Flags().StringArrayVar(&o.vex, "vex", nil, "OpenVEX document (repeatable)")
	c.Flags().StringVar(&o.format, "format", "table", "format: table, json or sarif")
	c.Flags().StringVar(&o.failOn, "fail-on", "",
		"exit with 7 when there are findings of this severity or a higher one: critical, high, medium, low or any")
	return c
}

func runBundleScan(
	ctx context.Context, out io.Writer, global *globalOptions, o bundleScanOptions, reporter progress.Reporter,
) error {
	if err := o.check(); err != nil {
		return err
	}
	threshold := vulnerability.Unknown
	if o.failOn != "" {
		var err error
		if threshold, err = vulnerability.ParseLevel(o.failOn); err != nil {
			return fault.Usage.Errorf("--fail-on %w", err)
		}
	}
	if o.format != "table" && o.format != "json" && o.format != "sarif" {
		return fault.Usage.Errorf("--format %q: expected table, json or sarif", o.format)
	}
	var cluster *scannedRelease
	if o.isRelease {
		options, err := loadConfiguration(o.cluster, global.warner(reporter))
		if err != nil {
			return err
		}
		options.StatePath, options.Reporter, options.Log = o.cluster.statePath(o.state), reporter, global.logger(reporter)
		if cluster, err = findRelease(ctx, options, o.release); cluster == nil {
			return err
		}
		for _, text := range cluster.doubts {
			global.warner(reporter)("warning: " + text)
		}
	}
	return o.scan(ctx, out, cluster, reporter, threshold)
}

// check refuses flags that contradict each other.
func (o *bundleScanOptions) check() error {
	switch {
	case o.path == "" && o.list == "" && !o.isRelease:
		return fault.WithHint(fault.Usage.Errorf("boxlift bundle scan: FILE is missing"),
			"name a bundle, the list of its software with --sbom, or a cluster with -f")
	case o.path != "" && o.list != "":
		return fault.Usage.Errorf("%s and --sbom: expected one of them", o.path)
	case o.path == "" && len(o.bases) > 0:
		return fault.Usage.Errorf("--base is for a bundle, and none is named")
	case o.release < 0:
		return fault.Usage.Errorf("--release %d: expected a number that boxlift history lists", o.release)
	}
	return nil
}

// scan holds the software against the database. A release is nil where none is asked for.
func (o *bundleScanOptions) scan(
	ctx context.Context, out io.Writer, cluster *scannedRelease, reporter progress.Reporter, threshold vulnerability.Level,
) error {
	var r *bundle.Reader
	if o.path != "" {
		var err error
		if r, err = o.openBundle(ctx, o.path); err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // it was only read
		if err := errors.Join(o.checkBases(r), cluster.checkBundle(r)); err != nil {
			return err
		}
	}
	carried, err := carriedDatabase(r)
	if err != nil {
		return damagedHint(err)
	}
	if len(o.databases) == 0 && len(carried.databases) == 0 {
		err := fault.Input.Errorf("--db names no vulnerability database, and there is no bundle that could carry one")
		if r != nil {
			err = fault.Input.Errorf("%s carries no vulnerability database, and --db names none", o.path)
		}
		return fault.WithHint(err,
			"export one on the connected side, see docs/scan.md, and name it with --db or in versions.lock")
	}
	statements, err := o.readVEX(r, carried)
	if err != nil {
		return damagedHint(err)
	}
	software, err := o.readSoftware(ctx, r, cluster, reporter)
	if err != nil {
		return damagedHint(err)
	}
	m := vulnerability.NewMatcher(software)
	if err := o.readDatabases(ctx, r, carried, m, reporter); err != nil {
		return damagedHint(err)
	}
	of := software.Subject
	switch {
	case cluster != nil:
		of = cluster.release.Bundle
	case r != nil:
		of = r.Digest()
	}
	report := m.Report(of, statements)
	if cluster != nil {
		report.Cluster, report.Release = cluster.name, cluster.release.Number
	}
	if err := o.print(out, report); err != nil {
		return err
	}
	var found error
	if n := report.AtLeast(threshold); o.failOn != "" && n > 0 {
		found = fault.Different.Errorf("%s has %s of severity %s", o.subject(report), printable.Counted(n, "finding"),
			orWorse(threshold))
	}
	return errors.Join(cluster.unasked(), found)
}

// subject is what messages call what is looked at.
func (o *bundleScanOptions) subject(report *vulnerability.Report) string {
	if report.Release > 0 {
		return fmt.Sprintf("release %d of %s", report.Release, report.Cluster)
	}
	return cmp.Or(o.path, o.list)
}

func orWorse(l vulnerability.Level) string {
	switch l {
	case vulnerability.Unknown:
		return "any"
	case vulnerability.Critical:
		return l.String()
	}
	return l.String() + " or above"
}

// readSoftware reads the list of software: the one that is named, the one that the bundle carries or that is made of
// it, or the one that a cluster's record has.
func (o *bundleScanOptions) readSoftware(ctx context.Context, r *bundle.Reader, cluster *scannedRelease,
	reporter progress.Reporter) (*sbom.Software, error) {
	switch {
	case r != nil:
		// Without such a folder, nothing is kept.
		folder, _ := packagesFolder()
		document, err := softwareOf(ctx, r, packages.Cache{Folder: folder}, reporter)
		if err != nil {
			return nil, err
		}
		return sbom.ReadSoftware(document)
	case o.list == "":
		return cluster.software()
	}
	document, err := boundedfile.Read(o.list, format.MaxSBOM)
	if err != nil {
		return nil, fault.Input.Errorf("read the list of software: %w", err)
	}
	s, err := sbom.ReadSoftware(document)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.list, err)
	}
	if err := cluster.checkSoftware(s, o.list); err != nil {
		return nil, err
	}
	return s, nil
}

// carriedFiles are those of the component that is a database.
type carriedFiles struct{ databases, vex []bundle.File }

// carriedDatabase finds them in a bundle, nil for none.
func carriedDatabase(r *bundle.Reader) (carriedFiles, error) {
	if r == nil {
		return carriedFiles{}, nil
	}
	contents, err := r.Contents()
	if err != nil {
		return carriedFiles{}, err
	}
	var files carriedFiles
	for _, f := range contents.Files {
		switch {
		case f.Component != vulnerability.Component || f.IsOSPackage():
		case strings.HasSuffix(f.Name, vulnerability.VEXSuffix):
			files.vex = append(files.vex, f)
		default:
			files.databases = append(files.databases, f)
		}
	}
	return files, nil
}

// readVEX reads the documents that are named, and those that the bundle carries.
func (o *bundleScanOptions) readVEX(r *bundle.Reader, carried carriedFiles) (*vex.Statements, error) {
	statements := &vex.Statements{}
	for _, f := range carried.vex {
		if f.Size > vex.MaxDocument {
			return nil, fmt.Errorf("%w: %s, which the bundle carries, has %d bytes, %d are the most", vex.ErrDocument,
				f.Name, f.Size, vex.MaxDocument)
		}
		content, err := r.Content(f.Digest, f.Size)
		if err != nil {
			return nil, err
		}
		document := make([]byte, f.Size)
		if _, err := io.ReadFull(content, document); err != nil {
			return nil, err
		}
		if err := statements.Add(document); err != nil {
			return nil, fmt.Errorf("read %s, which the bundle carries: %w", f.Name, err)
		}
	}
	for _, path := range o.vex {
		document, err := boundedfile.Read(path, vex.MaxDocument)
		if err != nil {
			return nil, fault.Input.Errorf("read the VEX document: %w", err)
		}
		if err := statements.Add(document); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	return statements, nil
}

// readDatabases gives all advisories to m.
func (o *bundleScanOptions) readDatabases(
	ctx context.Context, r *bundle.Reader, carried carriedFiles, m *vulnerability.Matcher, reporter progress.Reporter,
) error {
	task := reporter.Task("read the vulnerability database", 0)
	visit := func(name string, content []byte) error {
		task.Add(int64(len(content)))
		return m.Add(name, content)
	}
	err := func() error {
		for _, path := range o.databases {
			if err := osv.Walk(ctx, path, visit); err != nil {
				return err
			}
		}
		if len(o.databases) > 0 {
			return nil
		}
		for _, f := range carried.databases {
			if err := walkCarried(ctx, r, f, visit); err != nil {
				return err
			}
		}
		return nil
	}()
	task.Done(err)
	return err
}

// walkCarried reads a database that the bundle carries. Its directory is at its end, so it is proven into a temporary
// file first.
func walkCarried(ctx context.Context, r *bundle.Reader, f bundle.File, visit osv.Visit) (err error) {
	content, err := r.Content(f.Digest, f.Size)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "boxlift-vulnerabilities-")
	if err != nil {
		return fmt.Errorf("make room for %s, which the bundle carries: %w", f.Name, err)
	}
	defer func() {
		err = errors.Join(err, file.Close(), os.Remove(file.Name()))
	}()
	if _, err := io.Copy(file, content); err != nil {
		return fmt.Errorf("copy %s out of the bundle: %w", f.Name, err)
	}
	return osv.WalkFile(ctx, file, f.Size, f.Name, visit)
}

func (o *bundleScanOptions) print(out io.Writer, report *vulnerability.Report) error {
	switch o.format {
	case "json":
		return printJSON(out, report)
	case "sarif":
		return vulnerability.WriteSARIF(out, report, version, cmp.Or(o.path, o.list, o.cluster.path))
	}
	return printScan(out, report, o.subject(report))
}

func printScan(out io.Writer, report *vulnerability.Report, subject string) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	heading := "SEVERITY\tID\tPACKAGE\tVERSION\tFIXED IN\tIN\n"
	for i := range report.Findings {
		f := &report.Findings[i]
		if f.IsSettled() {
			break
		}
		w.printf("%s%s\t%s\t%s\t%s\t%s\t%s%s\n", heading, severityText(f.Severity), f.ID, f.Name, f.Version,
			orDash(strings.Join(f.FixedIn, ", ")), placesText(f.In), stateText(f.VEX))
		heading = ""
	}
	heading = "\nSETTLED BY VEX\tID\tPACKAGE\tVERSION\tIN\tWHY\n"
	for i := range report.Findings {
		f := &report.Findings[i]
		if !f.IsSettled() {
			continue
		}
		why := f.VEX.Justification
		if f.VEX.Impact != "" {
			why = strings.TrimPrefix(why+": "+f.VEX.Impact, ": ")
		}
		w.printf("%s%s\t%s\t%s\t%s\t%s\t%s\n", heading, f.VEX.Status, f.ID, f.Name, f.Version, placesText(f.In),
			orDash(why))
		heading = ""
	}
	heading = "ECOSYSTEM\tPACKAGES\tNEWEST ADVISORY\n"
	if len(report.Findings) > 0 {
		heading = "\n" + heading
	}
	for _, e := range report.Ecosystems {
		newest := orDash(e.Newest)
		if !e.IsCovered {
			newest = "none: not looked at"
		}
		w.printf("%s%s\t%d\t%s\n", heading, e.Name, e.Packages, newest)
		heading = ""
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	if gaps := report.Gaps(); len(gaps) > 0 {
		w.printf("\nNobody knows about these:\n")
		for _, text := range gaps {
			w.printf("  %s\n", text)
		}
	}
	open, settled := report.Counts()
	total := report.AtLeast(vulnerability.Unknown)
	var levels []string
	for l := vulnerability.Critical; l >= vulnerability.Unknown; l-- {
		if open[l] > 0 {
			levels = append(levels, fmt.Sprintf("%d %s", open[l], l))
		}
	}
	text := ""
	if len(levels) > 0 {
		text = " (" + strings.Join(levels, ", ") + ")"
	}
	w.printf("\n%s: %s%s, %d settled by VEX, by a database of %d advisories\n", subject, printable.Counted(total, "finding"), text,
		settled, report.Advisories)
	return w.err
}

func severityText(s vulnerability.Severity) string {
	if s.Score > 0 {
		return fmt.Sprintf("%s %.1f", s.Level, s.Score)
	}
	return s.Level.String()
}

// placesText names the first place, and how many more there are.
func placesText(in []vulnerability.Where) string {
	text := in[0].String()
	if len(in) > 1 {
		text += fmt.Sprintf(" and %d more", len(in)-1)
	}
	return text
}

// stateText is what VEX says of a finding that it does not settle.
func stateText(s *vulnerability.Statement) string {
	if s == nil {
		return ""
	}
	text := " (VEX: " + string(s.Status)
	if s.Action != "" {
		text += ": " + s.Action
	}
	return text + ")"
}
