package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

func runBackupListScheduled(ctx context.Context, out io.Writer, global *globalOptions, o backupListOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.StatePath, options.Reporter, options.Log = o.config.statePath(o.state), reporter, global.logger(reporter)
	list, err := install.ScheduledBackups(ctx, options)
	if list == nil {
		return err
	}
	if o.format == "json" {
		return errors.Join(err, printJSON(out, list))
	}
	return errors.Join(err, printScheduled(out, list, time.Now()))
}

// printScheduled shows the backups of all servers, and below them what is wrong and where they were carried to.
func printScheduled(out io.Writer, list []schedule.OnServer, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("TIME\tAGE\tSERVER\tFILE\tSIZE\tPROVEN\tWITHOUT\n")
	for _, one := range list {
		if one.Status == nil {
			continue
		}
		for _, k := range one.Status.Backups {
			proven := k.Problem
			if proven == "" {
				proven = k.Proven.Format(time.RFC3339)
			}
			w.printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.Time.Format(time.RFC3339),
				progress.Duration(max(0, now.Sub(k.Time))), one.Server, k.File, progress.Bytes(k.Bytes), proven,
				orDash(strings.Join(k.Without, "; ")))
		}
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, one := range list {
		switch s := one.Status; {
		case one.Error != "":
			w.printf("%s: cannot be asked: %s\n", one.Server, one.Error)
		case s == nil:
			w.printf("%s: has made no backup yet\n", one.Server)
		default:
			if s.Error != "" {
				w.printf("%s: made none at %s: %s\n", one.Server, s.Time.Format(time.RFC3339), s.Error)
			}
			for _, p := range s.Targets {
				newest := "none"
				if !p.Newest.IsZero() {
					newest = "the newest of " + p.Newest.Format(time.RFC3339)
				}
				w.printf("%s: at %s: %s, %s", one.Server, p.Name, printable.Counted(p.Files, "backup"), newest)
				if p.Error != "" {
					w.printf("; not all: %s", p.Error)
				}
				w.printf("\n")
			}
		}
	}
	return w.err
}
