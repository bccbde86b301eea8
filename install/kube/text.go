package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Error is a failure that leaves something to do for the operator. It matches its cause
// with errors.Is and errors.As.
type Error struct {
	// Explanation is what the cluster says of the objects concerned, of several lines, made
	// to be shown below the message; it may be empty. See Explain.
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

// fail puts the cluster's name before err.
func (c *Cluster) fail(err error, hint string) *Error {
	return &Error{err: fmt.Errorf("%s: %w", c.name, err), hint: hint}
}

// late is a wait that has ended. That a deadline has passed goes without saying.
type late struct {
	text  string
	cause error
}

func (l *late) Error() string { return l.text }
func (l *late) Unwrap() error { return l.cause }

// timeUp says what was waited for when ctx ended; another reason than a deadline is said.
func timeUp(ctx context.Context, text string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &late{text, context.Cause(ctx)}
	}
	return fmt.Errorf("%w: %s", context.Cause(ctx), text)
}

const maxBrief = 400 // bytes of foreign text within one line

// brief makes foreign text fit for one line of a message.
func brief(text string) string { return shorten(text, maxBrief) }

func shorten(text string, most int) string {
	text = text[:min(len(text), 64*most)] // what is left out anyway need not be looked at
	return printable.Clip(strings.Join(strings.Fields(printable.Line(text)), " "), most)
}

// yamlBase64 is base64 in a YAML string. Its errors do not quote it.
type yamlBase64 []byte

func (b *yamlBase64) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode {
		return errors.New("not a string")
	}
	data, err := base64.StdEncoding.DecodeString(node.Value)
	if err != nil {
		return errors.New("not base64")
	}
	*b = data
	return nil
}
