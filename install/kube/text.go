package kube

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Error is a failure that leaves something to do for the operator. It matches its cause
// with errors.Is and errors.As.
type Error struct {
	// Explanation is what the cluster says of the objects concerned, of several lines, made
	// to be shown below the message; it may be empty. Package explain gathers it.
	Explanation string

	err  error
	hint string
}

// Error returns one line: which cluster, what was done, what came back.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Hint says what to do next.
func (e *Error) Hint() string { return e.hint }

// Detail is the Explanation.
func (e *Error) Detail() string { return e.Explanation }

// NewError makes an error of its cause, which is all that its message has, a hint and an explanation; each of these may
// be empty.
func NewError(err error, hint, explanation string) *Error {
	return &Error{Explanation: explanation, err: err, hint: hint}
}

// Fail puts the cluster's name before err.
func (c *Cluster) Fail(err error, hint string) *Error {
	return &Error{err: fmt.Errorf("%s: %w", c.Name, err), hint: hint}
}

// maxBrief bounds the foreign text within one line, in bytes.
const maxBrief = 400

// Brief makes foreign text fit for one line of a message: printable, with no more than one space in a row, and of at
// most 400 bytes.
func Brief(text string) string {
	text = text[:min(len(text), 64*maxBrief)] // what is left out anyway need not be looked at
	return printable.Clip(strings.Join(strings.Fields(printable.Line(text)), " "), maxBrief)
}

// JoinSome joins the first five of a list with commas, and says how many more there are.
func JoinSome(list []string) string {
	const most = 5
	if n := len(list) - most; n > 0 {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", n))
	}
	return strings.Join(list, ", ")
}
