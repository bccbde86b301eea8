package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/backup"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The exit codes. exitHelp says the same to users.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInput       = 3
	exitBundle      = 4
	exitSource      = 5
	exitHost        = 6
	exitDifferent   = 7
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

// usageError is an error of the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// inputError is an error of a file that the user has to supply.
type inputError struct{ err error }

func (e *inputError) Error() string { return e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// hinted adds advice to an error.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }
func (e *hinted) Hint() string  { return e.hint }

func withHint(err error, hint string) error { return &hinted{err, hint} }

// exitCode maps an error to the code of the table.
func exitCode(err error) int {
	var (
		usage    *usageError
		input    *inputError
		locked   lock.Errors
		unpinned *bundle.UnpinnedError
		invalid  *config.InvalidError
		upstream *source.Error
		disk     *source.DiskError
		builder  *bundle.OtherBuilderError
	)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, install.ErrDifferent), errors.Is(err, install.ErrUnhealthy), errors.Is(err, install.ErrCertificates), errors.Is(err, errOutdated), errors.Is(err, errBundlesDiffer):
		return exitDifferent
	case errors.Is(err, install.ErrHosts), errors.Is(err, install.ErrCluster):
		return exitHost
	case errors.Is(err, ocitar.ErrMalformed), errors.Is(err, bundle.ErrInvalid), errors.Is(err, bundle.ErrIncomplete), errors.Is(err, bundle.ErrNotRebuilt), errors.Is(err, volume.ErrDamaged),
		errors.Is(err, errOtherBundle),
		errors.Is(err, signature.ErrNotSigned), errors.Is(err, signature.ErrWrongKey), errors.Is(err, signature.ErrInvalid):
		return exitBundle
	case errors.As(err, &input), errors.As(err, &locked), errors.As(err, &unpinned), errors.As(err, &invalid), errors.As(err, &builder), errors.Is(err, signature.ErrWrongPassword), errors.Is(err, volume.ErrNoIdentity),
		errors.Is(err, install.ErrConfig), errors.Is(err, install.ErrLock), errors.Is(err, install.ErrRefused), errors.Is(err, install.ErrNothingToResume), errors.Is(err, install.ErrChanged),
		errors.Is(err, journal.ErrInvalid), errors.Is(err, journal.ErrLocked), errors.Is(err, bundle.ErrThere), errors.Is(err, have.ErrInvalid), errors.Is(err, bundle.ErrWhole),
		errors.Is(err, backup.ErrInvalid), errors.Is(err, backup.ErrEncrypted), errors.Is(err, backup.ErrWrongKey):
		return exitInput
	case errors.As(err, &upstream), errors.As(err, &disk), errors.Is(err, bundle.ErrUpstream):
		return exitSource
	}
	return exitFailure
}

// printError writes an error and the hints that it carries, each hint once.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "boxlift: error: %s\n", indented(err.Error()))
	seen := make(map[string]bool)
	walkErrors(err, func(err error) {
		e, ok := err.(*kube.Error) //nolint:errorlint // this is the walk over the wrapped errors
		if !ok || e.Explanation == "" || seen[e.Explanation] {
			return
		}
		seen[e.Explanation] = true
		fmt.Fprintf(w, "  %s\n", indented(strings.TrimSpace(e.Explanation)))
	})
	clear(seen)
	walkErrors(err, func(err error) {
		h, ok := err.(interface{ Hint() string })
		if !ok || h.Hint() == "" || seen[h.Hint()] {
			return
		}
		seen[h.Hint()] = true
		fmt.Fprintf(w, "boxlift: hint: %s\n", indented(h.Hint()))
	})
	var usage *usageError
	if errors.As(err, &usage) && len(seen) == 0 {
		fmt.Fprintln(w, "boxlift: hint: `boxlift --help` and `boxlift COMMAND --help` show what there is")
	}
}

// indented makes a text that may quote servers and hosts fit for a terminal.
func indented(text string) string {
	return strings.ReplaceAll(printable.Text(text), "\n", "\n  ")
}

// walkErrors visits an error and all that it wraps.
func walkErrors(err error, visit func(error)) {
	if err == nil {
		return
	}
	visit(err)
	switch e := err.(type) { //nolint:errorlint // this is the walk over the wrapped errors
	case interface{ Unwrap() error }:
		walkErrors(e.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			walkErrors(inner, visit)
		}
	}
}
