// Package renewal renews k3s' certificates on a node ahead of their end.
//
// Contract: k3s renews its own certificates when it starts, and at no other time: those within 120 days of their end
// (k3s documentation, "k3s certificate"; within 90 days before the releases of May 2025). [Run] is what a timer starts
// once a day. It does nothing while no certificate ends within a time that is well within what any k3s renews. Else it
// has systemd start k3s again, which leaves pods running, and proves that the certificates on the disk and those that
// are shown to clients are new.
//
// Servers go one after the other: one takes a Lease in the cluster, and goes on only while the others are Ready and
// none of them has failed. Agents have no credentials for a Lease and need none, since none of them is missed by the
// others; they come later than servers, because some of their certificates are copies of a server's. In the last days
// before the end nothing of others keeps anybody: then all would end.
//
// What came of it is in a file on the node, [File], which [ParseState] reads.
package renewal

import (
	"errors"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

const day = 24 * time.Hour

// How long before the end of a certificate something happens.
const (
	// ServerThreshold is when a server renews its own.
	ServerThreshold = 80 * day
	// AgentThreshold is when an agent does. Those that it copies from a server (client-kube-proxy and
	// client-k3s-controller: k3s, pkg/agent/config) are new there by then.
	AgentThreshold = 70 * day
	// Late is when a certificate should have been renewed long ago.
	Late = 60 * day
	// Urgent is when neither a server that is not Ready nor one that has failed keeps others any more.
	Urgent = 30 * day
)

// RetryAfter is how long after a renewal that failed the next one is tried: each starts k3s again.
const RetryAfter = 7 * day

// File has the [State] of a node.
const File = wire.FilesDir + "/renewal.json"

// StateVersion is the version of the form of [State].
const StateVersion = 1

// MaxState bounds a state, in bytes.
const MaxState = 16 << 10

// maxText bounds a text in a state, in bytes.
const maxText = 2000

// State is what came of looking at a node's certificates. Times are by the node's clock, in whole seconds of UTC.
type State struct {
	Version int `json:"version"`
	// Looked is when it was looked last.
	Looked time.Time `json:"looked"`
	// Ends is when the first of the certificates ends that k3s renews; zero when there are none.
	Ends time.Time `json:"ends,omitzero"`
	// Renewed is when they were renewed last, by this package.
	Renewed time.Time `json:"renewed,omitzero"`
	// Waits says why those that end soon were not renewed yet, without anything having failed.
	Waits string `json:"waits,omitempty"`
	// Failed is when k3s was started again for it last, in vain.
	Failed time.Time `json:"failed,omitzero"`
	// Error says what failed when it was looked last, or why k3s was started again in vain.
	Error string `json:"error,omitempty"`
}

// ParseState reads what a node says of itself.
func ParseState(document []byte) (State, error) {
	var s State
	err := wire.DecodeStrictly(document, MaxState, &s)
	switch {
	case err != nil:
	case s.Version != StateVersion:
		err = fmt.Errorf("its version is %d, expected %d: it is of another boxlift", s.Version, StateVersion)
	case s.Looked.IsZero():
		err = errors.New("it does not say when it was looked")
	}
	if err != nil {
		return State{}, fmt.Errorf("read what came of the renewal of certificates: %w", err)
	}
	s.Waits, s.Error = printable.Short(s.Waits, maxText), printable.Short(s.Error, maxText)
	return s, nil
}
