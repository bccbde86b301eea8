package main

import (
	"fmt"
	"io"
	"strings"

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
       doctor: something critical was found;
       bundle lock --check: upstream has something else or newer than the lock;
       bundle diff: the bundles differ;
       bundle scan --fail-on: there are findings of that severity;
       certs status: certificates end soon
  130  interrupted; the same command goes on from there, and so does boxlift resume after
       install, node add, upgrade and rollback --to`

// exitCode is the code of an error's class.
func exitCode(err error) int { return fault.ClassOf(err).ExitCode() }

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
