package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/extract"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/install/backup"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The exit codes that are of no error's class. exitHelp tells users of all.
const (
	exitOK          = 0
	exitInterrupted = 130
)

const exitHelp = `Exit codes:
    0  done
    1  failed for a reason that has no code of its own
    2  the command line is wrong
    3  versions.lock, install.yaml, a key, a backup or the state is wrong or incomplete, or
       boxlift refuses to do this
    4  the bundle is refused: damaged, unsigned or signed with another key, a delta without
       what it leaves out, not what its lock makes, or not the one that --expect-digest names
    5  upstream could not supply an entry, or supplied other bytes
    6  at least one host failed, or the cluster as a whole
    7  status: the cluster differs from config and bundle; health: something is not well;
       bundle lock --check: upstream has something else or newer than the lock;
       bundle diff: the bundles differ;
       certs check: certificates end soon
  130  interrupted; the same command goes on from there, and so does boxlift resume after
       install, node add, upgrade and rollback --to`

// exitCode maps an error to the code of the table.
func exitCode(err error) int {
	return fault.ClassOf(errors.Join(err, unsaid(err).Wrap(err))).ExitCode()
}

// unsaid is the class of errors that do not say it yet.
func unsaid(err error) fault.Class {
	var (
		locked   lock.Errors
		unpinned *plan.UnpinnedError
		invalid  *config.InvalidError
		upstream *source.Error
		disk     *source.DiskError
		builder  *rebuild.OtherBuilderError
	)
	switch {
	case errors.Is(err, site.ErrDifferent), errors.Is(err, inspect.ErrUnhealthy),
		errors.Is(err, certificates.ErrCertificates):
		return fault.Different
	case errors.Is(err, site.ErrHosts), errors.Is(err, site.ErrCluster):
		return fault.Host
	case errors.Is(err, ocitar.ErrMalformed), errors.Is(err, bundle.ErrInvalid), errors.Is(err, bundle.ErrIncomplete),
		errors.Is(err, rebuild.ErrDiffers), errors.Is(err, volume.ErrDamaged),
		errors.Is(err, signature.ErrNotSigned), errors.Is(err, signature.ErrWrongKey),
		errors.Is(err, signature.ErrInvalid):
		return fault.Bundle
	case errors.As(err, &locked), errors.As(err, &unpinned), errors.As(err, &invalid), errors.As(err, &builder),
		errors.Is(err, signature.ErrWrongPassword), errors.Is(err, volume.ErrNoIdentity),
		errors.Is(err, site.ErrConfig), errors.Is(err, site.ErrLock), errors.Is(err, site.ErrRefused),
		errors.Is(err, site.ErrNothingToResume), errors.Is(err, site.ErrChanged),
		errors.Is(err, journal.ErrInvalid), errors.Is(err, journal.ErrLocked), errors.Is(err, extract.ErrThere),
		errors.Is(err, have.ErrInvalid), errors.Is(err, build.ErrWhole),
		errors.Is(err, backup.ErrInvalid), errors.Is(err, backup.ErrEncrypted), errors.Is(err, backup.ErrWrongKey):
		return fault.Input
	case errors.As(err, &upstream), errors.As(err, &disk), errors.Is(err, format.ErrUpstream):
		return fault.Source
	}
	return 0
}

// printError writes an error, the details and the hints that it carries.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "boxlift: error: %s\n", indented(err.Error()))
	for _, detail := range fault.Details(err) {
		fmt.Fprintf(w, "  %s\n", indented(strings.TrimSpace(detail)))
	}
	hints := fault.Hints(err)
	if len(hints) == 0 && fault.ClassOf(err) == fault.Usage {
		hints = []string{"`boxlift --help` and `boxlift COMMAND --help` show what there is"}
	}
	for _, hint := range hints {
		fmt.Fprintf(w, "boxlift: hint: %s\n", indented(hint))
	}
}

// indented makes a text that may quote servers and hosts fit for a terminal.
func indented(text string) string {
	return strings.ReplaceAll(printable.Text(text), "\n", "\n  ")
}
