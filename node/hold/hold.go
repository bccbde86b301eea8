package hold

import (
	"fmt"
	"io"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// Dir and File are where a file is locked as long as a run of boxlift holds the
// node. It stays until the next boot when nobody does: a lock has no business on a disk.
const (
	Dir  = "/run/boxlift"
	File = "run.lock"
)

const (
	// maxHolderName is the longest name of a holder, in bytes.
	maxHolderName = 200
	// Interval is how often the holder has to give a sign of life, any line. Without one
	// for several times as long the node takes it to be gone.
	Interval = 20 * time.Second
)

// Holder is a run of boxlift that works on a node.
type Holder struct {
	// Run tells runs apart, Name tells people who it is: user, host and process.
	Run  string `json:"run"`
	Name string `json:"name"`
	// Since is when it began to hold the node, by the node's clock. The operator leaves it
	// out.
	Since time.Time `json:"since,omitzero"`
}

// holdAnswer is the one line that a node says: that the node is held from now on, or by
// whom it is held already.
type holdAnswer struct {
	Held bool    `json:"held"`
	By   *Holder `json:"by,omitempty"`
}

// HeldError says that another run of boxlift holds a node.
type HeldError struct{ By Holder }

func (e *HeldError) Error() string {
	if e.By.Name == "" {
		return "another boxlift is working on this host"
	}
	text := "another boxlift is working on this host: " + e.By.Name
	if !e.By.Since.IsZero() {
		text += ", since " + e.By.Since.UTC().Format(time.RFC3339) + " by the host's clock"
	}
	return text
}

// Ask is the operator's end of [Run]; in and out are the standard input and output
// of "boxlift-node hold". When it returns nil, the node is held until in is closed, or
// nothing was written to it for too long: see [Interval]. The error is a [*HeldError]
// when another run holds the node.
func Ask(in io.Writer, out io.Reader, who Holder) error {
	if err := wire.WriteLine(in, who); err != nil {
		return fmt.Errorf("ask boxlift-node to hold the host: %w", err)
	}
	var answer holdAnswer
	if _, err := wire.ReadLine(out, &answer); err != nil {
		return fmt.Errorf("read what boxlift-node says of holding the host: %w", err)
	}
	if answer.Held {
		return nil
	}
	if answer.By == nil {
		answer.By = &Holder{}
	}
	return &HeldError{By: answer.By.clean()}
}

// clean makes what somebody says of himself fit to be shown.
func (h *Holder) clean() Holder {
	text := func(s string) string { return printable.Short(s, maxHolderName) }
	return Holder{Run: text(h.Run), Name: text(h.Name), Since: h.Since}
}
