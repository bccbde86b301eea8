package hosttest

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/tail"
)

// Liar is a host that says of every command that it went well, with the same output, and does nothing.
type Liar struct{ Output []byte }

var _ host.Host = Liar{}

// Name is what messages call the host.
func (Liar) Name() string { return "liar" }

// Run answers.
func (l Liar) Run(context.Context, host.Command) (host.Result, error) {
	kept := tail.New(host.MaxKept)
	_, _ = kept.Write(l.Output) // never fails
	out, cut := kept.Bytes()
	return host.Result{Stdout: out, Truncated: cut}, nil
}

var errLiar = errors.New("a liar does no more than answer")

// Start fails.
func (Liar) Start(context.Context, host.Command) (*host.Process, error) { return nil, errLiar }

// Put changes nothing, and says that it did.
func (Liar) Put(context.Context, host.PutOptions, io.Reader) (bool, error) { return true, nil }

// Get fails.
func (Liar) Get(context.Context, host.GetOptions, io.Writer) error { return errLiar }

// DialContext fails.
func (Liar) DialContext(context.Context, string, string) (net.Conn, error) { return nil, errLiar }
