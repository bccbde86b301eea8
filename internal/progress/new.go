package progress

import (
	"fmt"
	"os"

	"golang.org/x/term"
)

// Kinds are the names that [New] knows, for the help of a flag.
const Kinds = "auto, tty, plain, json, none"

// New returns the Display called kind that writes to w, usually standard error:
// tty is [NewTerminal], plain is [NewPlain], json is [NewJSON], none shows nothing,
// and auto, or "", is tty where w is a terminal that can move its cursor, and plain
// elsewhere and where NO_COLOR asks for plain output.
func New(kind string, w *os.File) (Display, error) {
	switch kind {
	case "auto", "":
		t := os.Getenv("TERM")
		if t == "" || t == "dumb" || os.Getenv("NO_COLOR") != "" || !term.IsTerminal(int(w.Fd())) {
			return NewPlain(w, 0), nil
		}
		fallthrough
	case "tty":
		return NewTerminal(w, func() Size {
			columns, rows, err := term.GetSize(int(w.Fd()))
			if err != nil {
				return Size{}
			}
			return Size{columns, rows}
		}), nil
	case "plain":
		return NewPlain(w, 0), nil
	case "json":
		return NewJSON(w), nil
	case "none":
		return silent{Discard}, nil
	}
	return nil, fmt.Errorf("progress: found %q, expected one of %s", kind, Kinds)
}

type silent struct{ Reporter }

func (silent) Close() error { return nil }
