// Package fault says what an error means to the operator: of which class it is, on which host
// it arose, and what can be done about it.
//
// Errors carry that from where they are born: everybody between there and the command line wraps
// them with fmt.Errorf, errors.Join or own types, and need not know. Kinds ([NewKind]) are for what
// callers ask for with [errors.Is]; the methods of [Class], [OnHost], [WithHint] and [WithDetail] say
// the rest:
//
//	var ErrRefused = fault.NewKind(fault.Input, "refused")
//
//	return fmt.Errorf("%w: the folder is not empty", ErrRefused)
//	return fault.Usage.Errorf("--at and --no-at exclude each other")
//	return fault.WithHint(fault.OnHost(err, name), "is the host switched on?")
//
// A type of errors that carries data for [errors.As] may say its class and its hint itself, by
// methods Class() [Class] and Hint() string.
//
// [ClassOf], [HostOf], [Hints] and [Details] find it again in all that an error wraps and joins.
package fault

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Class is what an error means to whoever has to act on it. Its number is the exit code of a
// command that ends with such an error. The zero Class is that of no error, and of errors that
// leave it to what they wrap.
type Class int

// The classes.
const (
	// Failure has no class of its own.
	Failure Class = 1
	// Usage is a wrong command line.
	Usage Class = 2
	// Input is something wrong with what the operator supplied, or something that boxlift
	// refuses to do.
	Input Class = 3
	// Bundle is a bundle that is refused.
	Bundle Class = 4
	// Source is an upstream that did not supply what was asked for.
	Source Class = 5
	// Host is a host that failed, or the cluster.
	Host Class = 6
	// Different is no failure: what was compared differs.
	Different Class = 7
)

// precedence is which class an error is of that wraps or joins several.
var precedence = []Class{Usage, Different, Host, Bundle, Input, Source, Failure}

// ExitCode is what a command exits with that ends with an error of the class.
func (c Class) ExitCode() int { return int(c) }

// Errorf makes an error of the class; the rest is as with [fmt.Errorf].
func (c Class) Errorf(format string, args ...any) error { return c.Wrap(fmt.Errorf(format, args...)) }

// Wrap makes err one of the class. Its text stays. It is nil when err is.
func (c Class) Wrap(err error) error {
	if err == nil {
		return nil
	}
	return &fault{class: c, err: err}
}

// NewKind makes a kind of errors of a class: errors of it wrap it, and [errors.Is] finds it. Two
// kinds are never the same, whatever they say. The text is what errors of the kind usually begin
// with.
func NewKind(c Class, text string) error { return &kind{c, text} }

type kind struct {
	class Class
	text  string
}

func (k *kind) Error() string { return k.text }

// OnHost says on which host err arose, and puts the host's name and a colon before the text,
// unless the text begins with an error of OnHost's for that host: whoever wraps it in a text that
// begins otherwise gives up that place. It is nil when err is.
func OnHost(err error, host string) error {
	if err == nil {
		return nil
	}
	if headHost(err) == host {
		return err
	}
	return &fault{host: host, err: err}
}

// WithHint says what the operator can do about err, in one or more lines that are shown apart
// from its text. An empty hint adds nothing. It is nil when err is.
func WithHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &fault{hint: hint, err: err}
}

// WithDetail adds lines that are shown below err's text, such as what a cluster says of the
// objects concerned. An empty detail adds nothing. It is nil when err is.
func WithDetail(err error, detail string) error {
	if err == nil || detail == "" {
		return err
	}
	return &fault{detail: detail, err: err}
}

// fault adds to an error what the functions above say.
type fault struct {
	class  Class  // 0: what err says
	host   string // "": what err says
	hint   string
	detail string
	err    error
}

func (f *fault) Error() string {
	if f.host != "" {
		return f.host + ": " + f.err.Error()
	}
	return f.err.Error()
}

func (f *fault) Unwrap() error { return f.err }

// headHost is the host that the text of err begins with because of [OnHost]; "" for none.
func headHost(err error) string {
	if f, ok := err.(*fault); ok && f.host != "" { //nolint:errorlint // this is the walk over the wrapped errors
		return f.host
	}
	text := err.Error()
	for _, inner := range wrapped(err) {
		if head := inner.Error(); head != "" && strings.HasPrefix(text, head) {
			return headHost(inner)
		}
	}
	return ""
}

// ClassOf is the class of an error: of those in all that it wraps and joins, the one that says
// most to the operator, [Failure] where there is none, and zero for nil.
func ClassOf(err error) Class {
	if err == nil {
		return 0
	}
	best := len(precedence) - 1
	walk(err, func(err error) {
		var class Class
		switch e := err.(type) { //nolint:errorlint // this is the walk over the wrapped errors
		case *kind:
			class = e.class
		case *fault:
			class = e.class
		case interface{ Class() Class }:
			class = e.Class()
		}
		if i := slices.Index(precedence, class); i >= 0 {
			best = min(best, i)
		}
	})
	return precedence[best]
}

// HostOf is the host on which an error arose: the outermost that it names, the first where it
// joins several; "" for none.
func HostOf(err error) string {
	host := ""
	walk(err, func(err error) {
		if f, ok := err.(*fault); ok && host == "" { //nolint:errorlint // this is the walk over the wrapped errors
			host = f.host
		}
	})
	return host
}

// WithoutHost is an error's text without the name of the host at its head.
func WithoutHost(err error) string {
	text := err.Error()
	if host := headHost(err); host != "" {
		text = strings.TrimPrefix(text, host+": ")
	}
	return text
}

// Hints are what can be done about an error, the outermost first, each once, fit for a terminal.
func Hints(err error) []string {
	return texts(err, func(err error) string {
		switch e := err.(type) { //nolint:errorlint // this is the walk over the wrapped errors
		case *fault:
			return e.hint
		case interface{ Hint() string }:
			return e.Hint()
		}
		return ""
	})
}

// Details are what errors add below their text, as Hints.
func Details(err error) []string {
	return texts(err, func(err error) string {
		if f, ok := err.(*fault); ok { //nolint:errorlint // this is the walk over the wrapped errors
			return f.detail
		}
		return ""
	})
}

func texts(err error, of func(error) string) []string {
	var list []string
	walk(err, func(err error) {
		// It may quote servers and hosts.
		if text := printable.Text(of(err)); text != "" && !slices.Contains(list, text) {
			list = append(list, text)
		}
	})
	return list
}

// walk visits an error and all that it wraps, depth first.
func walk(err error, visit func(error)) {
	if err == nil {
		return
	}
	visit(err)
	for _, inner := range wrapped(err) {
		walk(inner, visit)
	}
}

// wrapped are the errors that an error wraps itself.
func wrapped(err error) []error {
	switch e := err.(type) { //nolint:errorlint // this is the walk over the wrapped errors
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return []error{inner}
		}
	case interface{ Unwrap() []error }:
		return slices.DeleteFunc(slices.Clone(e.Unwrap()), func(inner error) bool { return inner == nil })
	}
	return nil
}
