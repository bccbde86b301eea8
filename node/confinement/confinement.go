package confinement

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

const (
	// Interval is how often the operator has to give a sign of life, or to ask for the counts.
	Interval = 20 * time.Second
	// Lease is how long packets are dropped after the last sign of life when the process that would take the tables
	// away was killed.
	Lease = 10 * time.Minute

	// maxInside is how many networks a request has.
	maxInside = 4096
	// maxFlows is how many flows of each version of IP and place are told apart. What comes above is in the total.
	maxFlows = 512
)

// Request is the first line that the operator writes.
type Request struct {
	// Inside are the networks that packets may go to, in their masked form. Those that the host's devices are in, its
	// own addresses, multicast and what no router passes on are inside without being named.
	Inside []netip.Prefix `json:"inside"`
}

func (r Request) check() error {
	if len(r.Inside) > maxInside {
		return fmt.Errorf("%d networks are too many, %d is the most", len(r.Inside), maxInside)
	}
	for _, p := range r.Inside {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			return fmt.Errorf("%v is no network", p)
		}
		if p.Bits() == 0 {
			return fmt.Errorf("%v is everything: nothing would be outside", p)
		}
	}
	return nil
}

// Flow is packets that one sender has sent to one place outside.
type Flow struct {
	From     netip.Addr `json:"from"`
	To       netip.Addr `json:"to"`
	Protocol uint8      `json:"protocol"` // IANA's number; 6 is TCP, 17 UDP
	Port     uint16     `json:"port"`     // of TCP and UDP, else 0
	Packets  uint64     `json:"packets"`
	// Forwarded tells that the host has passed them on, for a pod: From is the pod's address.
	Forwarded bool `json:"forwarded,omitempty"`
}

// Counts are what was counted so far.
type Counts struct {
	// Packets are all that were dropped. Flows may have less where there are too many of them.
	Packets uint64 `json:"packets"`
	Flows   []Flow `json:"flows"`
}

func (c Counts) check() error {
	if len(c.Flows) > 4*maxFlows {
		return fmt.Errorf("%d flows are too many", len(c.Flows))
	}
	for _, f := range c.Flows {
		if !f.From.IsValid() || !f.To.IsValid() || f.From.Zone() != "" || f.To.Zone() != "" {
			return errors.New("a flow lacks an address")
		}
	}
	return nil
}

// sign is a line that the operator writes after the request.
type sign struct {
	// Count asks for the counts. Without, the line is a sign of life and nothing else.
	Count bool `json:"count,omitempty"`
}

// answer is a line that the host writes: one at the beginning, then one for each time that it is asked.
type answer struct {
	Confined bool   `json:"confined"`
	Counts   Counts `json:"counts"`
}

// Confined is a host that is confined, for the operator. Its methods are for one goroutine at a time.
type Confined struct {
	in  io.Writer
	out *bufio.Reader
}

// Ask is the operator's end of [Run]; in and out are the standard input and output of "boxlift-node confine". When it
// returns, the host is confined until in is closed, or nothing was written to it for several times [Interval].
func Ask(in io.Writer, out io.Reader, r Request) (*Confined, error) {
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("confine the host: %w", err)
	}
	if err := wire.WriteLine(in, r); err != nil {
		return nil, fmt.Errorf("ask boxlift-node to confine the host: %w", err)
	}
	c := &Confined{in: in, out: bufio.NewReaderSize(out, 4<<10)}
	_, err := c.read()
	return c, err
}

// KeepAlive gives a sign of life.
func (c *Confined) KeepAlive() error { return wire.WriteLine(c.in, sign{}) }

// Counts asks for what was counted so far. It fails where the host is no longer confined.
func (c *Confined) Counts() (Counts, error) {
	if err := wire.WriteLine(c.in, sign{Count: true}); err != nil {
		return Counts{}, fmt.Errorf("ask boxlift-node for packets that tried to leave: %w", err)
	}
	return c.read()
}

func (c *Confined) read() (Counts, error) {
	var a answer
	var err error
	if c.out, err = wire.ReadLine(c.out, &a); err != nil {
		return Counts{}, fmt.Errorf("read what boxlift-node says of packets that tried to leave: %w", err)
	}
	if !a.Confined {
		return Counts{}, fmt.Errorf("%w: the host is not confined", wire.ErrProtocol)
	}
	if err := a.Counts.check(); err != nil {
		return Counts{}, fmt.Errorf("%w: packets that tried to leave: %w", wire.ErrProtocol, err)
	}
	return a.Counts, nil
}
