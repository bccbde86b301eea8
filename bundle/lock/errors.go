package lock

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Error is one fault in a lock.
type Error struct {
	File   string
	Line   int    // from 1
	Column int    // from 1, in characters; 0 when not known
	Path   string // for example components.k3s.files[0].sha256; "" for the whole file
	Reason string // what was found and what was expected
}

// Error returns the fault in one line: FILE:LINE:COLUMN: PATH: REASON.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:", e.File, e.Line)
	if e.Column > 0 {
		fmt.Fprintf(&b, "%d:", e.Column)
	}
	if e.Path != "" {
		b.WriteString(" " + e.Path + ":")
	}
	b.WriteString(" " + e.Reason)
	return b.String()
}

// Errors is every fault of one lock, in the order of the file. It is never empty.
type Errors []*Error

// maxShown keeps a file that is no lock at all from filling the screen.
const maxShown = 50

// Error returns the faults one per line.
func (e Errors) Error() string {
	var lines []string
	for _, one := range e[:min(len(e), maxShown)] {
		lines = append(lines, one.Error())
	}
	if more := len(e) - maxShown; more > 0 {
		lines = append(lines, fmt.Sprintf("%s: %d more errors", e[0].File, more))
	}
	return strings.Join(lines, "\n")
}

// Class makes a lock with faults wrong input.
func (e Errors) Class() fault.Class { return fault.Input }

// Unwrap lets errors.As find an [*Error].
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
