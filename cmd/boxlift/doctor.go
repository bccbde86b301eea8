package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/doctor"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

type doctorOptions struct {
	config configuration
	format string
	// from is a file with an observation to judge instead of the platform, save one to write.
	from, save string
}

// diagnosed is what doctor prints.
type diagnosed struct {
	Cluster  string              `json:"cluster"`
	Taken    time.Time           `json:"taken"`
	Findings []diagnosis.Finding `json:"findings"`
	// Problems are what could not be looked at, so that nothing is known of it.
	Problems []string `json:"problems"`
}

func newDoctorCommand(global *globalOptions) *cobra.Command {
	var o doctorOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong with a platform, why, and what to do",
		Long: `Look at the hosts of install.yaml and at the cluster, and name the faults of which something
is seen: the symptom, on which host and by what it was recognised, the cause, and the remedy,
in commands that need no network outside. docs/doctor.md lists the faults. What other
faults explain comes after them, and says so.

It makes all checks of boxlift health, and looks besides at conditions of nodes, pods in
trouble, events, k3s' units and journals, the health of etcd, and the ends of certificates.
It works while the API does not answer and hosts are not reached, and tells of the rest.
The bundle is not needed. Nothing is changed but that health's pods come and go.

--save FILE keeps what was observed, without tokens, which --from FILE judges elsewhere
and later, without hosts and install.yaml. --from takes a support bundle as well.

Exit code 7 means that something critical was found, 6 that a host or the cluster cannot be
reached. Warnings do not count.`,
		Example: `  boxlift doctor -f install.yaml
  boxlift doctor -f install.yaml -o json
  boxlift doctor -f install.yaml --save observed.json
  boxlift doctor --from observed.json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runDoctor(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
	c.Flags().StringVar(&o.from, "from", "", "judge what --save has written or a support bundle, instead of looking at hosts")
	c.Flags().StringVar(&o.save, "save", "", "file to write what was observed to")
	return c
}

func runDoctor(ctx context.Context, out io.Writer, global *globalOptions, o doctorOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	if o.from != "" && o.save != "" {
		return fault.Usage.Errorf("--from and --save: expected one of them")
	}
	seen, unreached := (*diagnosis.Observation)(nil), error(nil)
	if o.from != "" {
		var err error
		if seen, err = readObservation(o.from); err != nil {
			return err
		}
	} else {
		options, err := loadTrusting(o.config, global.warner(reporter))
		if err != nil {
			return err
		}
		options.Reporter, options.Log = reporter, global.logger(reporter)
		if seen, unreached = install.Observe(ctx, options); seen == nil {
			return unreached
		}
	}
	if o.save != "" {
		document, err := seen.Encode()
		if err == nil {
			err = ownfile.Replace(o.save, document, 0o600)
		}
		if err != nil {
			unreached = errors.Join(unreached, fmt.Errorf("write %s: %w", o.save, err))
		}
	}
	found := diagnosed{Cluster: seen.Cluster, Taken: seen.Taken, Findings: append([]diagnosis.Finding{},
		diagnosis.Judge(seen)...), Problems: append([]string{}, seen.Problems...)}
	err := unreached
	if err == nil { // an exit code for each
		err = doctor.Verdict(found.Findings)
	}
	return errors.Join(err, printDiagnosis(out, found, o.format))
}

// readObservation reads what --save has written, or what a support bundle has of it.
func readObservation(file string) (*diagnosis.Observation, error) {
	document, err := observationOf(file)
	if err != nil {
		return nil, err
	}
	seen, err := diagnosis.Read(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return seen, nil
}

func observationOf(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fault.Input.Wrap(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	content := bufio.NewReader(f)
	if magic, _ := content.Peek(2); string(magic) != "\x1f\x8b" { // gzip (RFC 1952); what cannot be read shows below
		document, err := boundedfile.Read(file, diagnosis.MaxSize)
		if err != nil {
			return nil, fault.Input.Wrap(err)
		}
		return document, nil
	}
	var document []byte
	_, err = archive.Read(content, func(name string, in io.Reader) (err error) {
		if name == archive.Observation {
			document, err = io.ReadAll(io.LimitReader(in, diagnosis.MaxSize+1))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(document) == 0 {
		return nil, fault.Input.Errorf("%s has no %s: it was made with --no-health, or doctor has seen nothing", file,
			archive.Observation)
	}
	return document, nil
}

func printDiagnosis(out io.Writer, d diagnosed, format string) error {
	if format == "json" {
		return printJSON(out, d)
	}
	w := &errorWriter{w: out}
	counts := make(map[diagnosis.Severity]int)
	for _, f := range d.Findings {
		if counts[f.Severity] == 0 {
			w.printf("%s\n\n", strings.ToUpper(string(f.Severity)))
		}
		counts[f.Severity]++
		printFault(w, f)
	}
	if len(d.Problems) > 0 {
		w.printf("NOT KNOWN\n\n")
		for _, p := range d.Problems {
			w.printf("  %s\n", p)
		}
		w.printf("\n")
	}
	w.printf("cluster %s, %s: %d critical, %d warnings\n", d.Cluster, d.Taken.UTC().Format(time.RFC3339),
		counts[diagnosis.Critical], counts[diagnosis.Warning])
	if w.err != nil {
		return fmt.Errorf("print what was found: %w", w.err)
	}
	return nil
}

// printFault prints one finding, and an empty line after it.
func printFault(w *errorWriter, f diagnosis.Finding) {
	where := "the cluster"
	if f.Host != "" {
		where = f.Host
	}
	if f.Subject != "" {
		where += ", " + f.Subject
	}
	w.printf("%s: %s\n", f.ID, where)
	if len(f.FollowsFrom) > 0 {
		w.printf("  follows from: %s\n", strings.Join(f.FollowsFrom, ", "))
	}
	w.printf("  symptom: %s\n  cause:   %s\n", f.Symptom, f.Cause)
	for i, line := range f.Evidence {
		head := "         "
		if i == 0 {
			head = "seen:    "
		}
		w.printf("  %s%s\n", head, line)
	}
	for i, step := range f.Remedy {
		head := "         "
		if i == 0 {
			head = "remedy:  "
		}
		w.printf("  %s%d. %s\n", head, i+1, step)
	}
	w.printf("\n")
}
