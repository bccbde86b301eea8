package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/packages"
	bundlereport "github.com/liteboxd/boxlift/bundle/report"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/report"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	htmlpage "github.com/liteboxd/boxlift/internal/page"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

type reportOptions struct {
	clusterOptions
	cacheOptions
	state    string
	output   string
	language string
}

func newReportCommand(global *globalOptions) *cobra.Command {
	var o reportOptions
	c := &cobra.Command{
		Use:   "report",
		Short: "Write what is in a bundle, or how a cluster is, as one HTML page",
		Long: `Write one HTML file for people, in English or Chinese, to be read, printed and kept with the
release. It refers to nothing outside of itself and has no script.

With --bundle alone it is about the bundle: components, sizes by layer, images, files, and
the software in them with licences, as "boxlift bundle sbom" finds it. The same bundle gives
the same file. Without --key or --trust it says that the signatures were not checked.

With -f or --local it is about the cluster: what history, doctor, certs status and, where
--bundle names what it is to run, status find; with the bundle's own pages after them. What
cannot be read is named in the report, and is no failure of the whole. Nothing is changed,
but that doctor's checks make a few pods that are gone at the end.

Exit code 6 means that neither a host nor the API was reached. The report is written all the
same, of what lies beside the state.`,
		Example: `  boxlift report --bundle bundle.tar --key boxlift.pub -o bundle.html
  boxlift report --bundle bundle.tar --trust trust.json --language zh -o bundle.zh.html
  boxlift report -f install.yaml -o cluster.html
  boxlift report -f install.yaml --bundle bundle.tar --key boxlift.pub -o cluster.html`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runReport(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addSourceFlags(c)
	c.Flags().Lookup("bundle").Usage = "the bundle to report of, or, with -f or --local, that the cluster is to run"
	c.Flags().Lookup("file").Usage = "report of the cluster of this configuration"
	c.Flags().StringVar(&o.state, "state", "", "where state.json is (default: beside the configuration)")
	c.Flags().StringVarP(&o.output, "output", "o", "report.html", "the file to write")
	c.Flags().StringVar(&o.language, "language", string(htmlpage.English), "language: en or zh")
	o.addCacheFlags(c)
	return c
}

func runReport(ctx context.Context, out io.Writer, global *globalOptions, o reportOptions, reporter progress.Reporter,
) error {
	language, err := htmlpage.ParseLanguage(o.language)
	if err != nil {
		return err
	}
	if _, err := o.folder(); err != nil {
		return err
	}
	ofCluster := o.config.local || o.config.file.Changed
	var document *htmlpage.Document
	var problems []report.Problem
	switch {
	case ofCluster:
		document, problems, err = o.ofCluster(ctx, global, reporter)
	case o.bundle == "":
		return fault.Usage.Errorf("expected --bundle for a report of a bundle, or -f or --local for one of a cluster")
	default:
		document, err = o.ofBundle(ctx, reporter)
	}
	if document == nil {
		return err
	}
	w := &errorWriter{w: out}
	for _, p := range problems {
		w.printf("not read, or not as a whole: %s: %s\n", p.Part, printable.Short(p.Err.Error(), maxShownProblem))
	}
	return errors.Join(err, w.err, writeReport(w, o.output, document, language))
}

// maxShownProblem is how much of a problem is printed, in bytes; the report has more of it.
const maxShownProblem = 300

func writeReport(w *errorWriter, path string, d *htmlpage.Document, l htmlpage.Language) error {
	var content bytes.Buffer
	if err := htmlpage.Write(&content, d, l); err != nil {
		return err
	}
	if err := ownfile.Replace(path, content.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	w.printf("%s written: %s\n", path, progress.Bytes(int64(content.Len())))
	return w.err
}

// ofBundle makes the document of a bundle.
func (o *reportOptions) ofBundle(ctx context.Context, reporter progress.Reporter) (*htmlpage.Document, error) {
	if o.key != "" || o.trust != "" || o.insecure {
		if _, err := o.demanded(ctx); err != nil {
			return nil, err
		}
	}
	r, a, err := o.openApproved(ctx, o.bundle)
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := errors.Join(o.checkBases(r), o.checkDigest(r)); err != nil {
		return nil, err
	}
	about, err := o.about(ctx, r, a, reporter)
	if err != nil {
		return nil, err
	}
	document, err := bundlereport.Make(*about, version)
	return document, damagedHint(err)
}

// about reads the list of a bundle's software. A delta without its base has none.
func (o *reportOptions) about(ctx context.Context, r *bundle.Reader, a *approval.Approval, reporter progress.Reporter,
) (*bundlereport.Bundle, error) {
	about := &bundlereport.Bundle{Reader: r, Approval: a}
	text, isStored, err := r.SBOM()
	if err == nil && !isStored {
		if err = r.RequireAll(); err == nil {
			var folder string
			if folder, err = o.folder(); err == nil {
				text, err = softwareList(packages.Cache{Folder: folder}, reporter)(ctx, r)
			}
		}
	}
	if err == nil {
		about.Software, err = sbom.ReadSoftware(text)
	}
	if errors.Is(err, bundle.ErrIncomplete) {
		about.Unread, err = err, nil
	}
	if err != nil {
		return nil, damagedHint(err)
	}
	return about, nil
}

// ofCluster makes the document of a cluster. It is there with an error when nothing of the cluster was reached.
func (o *reportOptions) ofCluster(ctx context.Context, global *globalOptions, reporter progress.Reporter) (
	*htmlpage.Document, []report.Problem, error,
) {
	var options install.Options
	var about *bundlereport.Bundle
	var err error
	if o.bundle == "" {
		options, err = loadTrusting(o.config, global.warner(reporter))
	} else {
		if options, err = o.load(ctx, global.warner(reporter)); err == nil {
			defer options.Bundle.Close() //nolint:errcheck // it was only read
			about, err = o.about(ctx, options.Bundle, options.Approval, reporter)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if options.ConfigPath, err = o.config.absolute(); err != nil {
		return nil, nil, err
	}
	options.StatePath, options.Version = o.config.statePath(o.state), version
	options.Reporter, options.Log = reporter, global.logger(reporter)
	c, unreached := install.Report(ctx, options, about)
	if c == nil {
		return nil, nil, unreached
	}
	document, err := report.Make(c, version)
	if err != nil {
		return nil, nil, damagedHint(err)
	}
	return document, c.Problems, unreached
}
