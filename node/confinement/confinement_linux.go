package confinement

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/node/stream"
	"github.com/liteboxd/boxlift/node/wire"
)

// Options are the parts of [Run] that tests change.
type Options struct {
	// IdleTimeout is how long the operator may give no sign of life; 0 means two minutes.
	IdleTimeout time.Duration
}

// Run confines this host; in and out are its standard input and output. It reads a [Request], says that the host is
// confined from now on, and answers how many packets were counted when it is asked. It ends, and lets packets pass
// again, when in or ctx ends, or nothing comes for too long. It fails when somebody else has taken its tables away.
func Run(ctx context.Context, in io.Reader, out io.Writer, o Options) (err error) {
	input, err := stream.Open(ctx, in, cmp.Or(o.IdleTimeout, 6*Interval))
	if err != nil {
		return err
	}
	defer input.Close()
	var asked Request
	rest, err := wire.ReadLine(input, &asked)
	if err != nil {
		return fmt.Errorf("read what is inside: %w", err)
	}
	if err := asked.check(); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	devices, own, err := surroundings()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := confine(devices, disjoint(slices.Concat(everywhere, own, asked.Inside))); err != nil {
		return fmt.Errorf("have the kernel drop packets that leave: %w", err)
	}
	if err := wire.WriteLine(out, answer{Confined: true}); err != nil {
		return err
	}
	for {
		var s sign
		if rest, err = next(rest, &s); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		counts, err := count()
		if err == nil {
			err = renew()
		}
		if err != nil {
			return fmt.Errorf("the host is no longer confined, something else has changed the kernel's tables: %w", err)
		}
		if s.Count {
			if err := wire.WriteLine(out, answer{Confined: true, Counts: counts}); err != nil {
				return err
			}
		}
	}
}

// next reads a line, or says io.EOF where there is none.
func next(r *bufio.Reader, s *sign) (*bufio.Reader, error) {
	if _, err := r.Peek(1); err != nil {
		return r, err
	}
	return wire.ReadLine(r, s)
}

// everywhere is inside on every host: the host itself, what is for all hosts on a link, and what no router passes on.
// IPv4's link-local network is not, since clouds answer there: it is only where a device is in it.
var everywhere = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/128"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// surroundings are the devices that packets leave this host by, and the networks that it is in.
func surroundings() (devices []string, networks []netip.Prefix, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, nil, fmt.Errorf("list devices: %w", err)
	}
	for _, device := range all {
		if device.Flags&net.FlagLoopback != 0 {
			continue
		}
		devices = append(devices, device.Name)
		addresses, err := device.Addrs()
		if err != nil {
			return nil, nil, fmt.Errorf("list addresses of %s: %w", device.Name, err)
		}
		for _, address := range addresses {
			if p, err := netip.ParsePrefix(address.String()); err == nil && p.Bits() > 0 {
				networks = append(networks, p.Masked())
			}
		}
	}
	if len(devices) == 0 {
		return nil, nil, errors.New("the host has no device but its loopback: nothing can leave it")
	}
	return devices, networks, nil
}

// disjoint leaves out networks that others hold. Two networks are either apart, or one holds the other.
func disjoint(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var apart []netip.Prefix
	for _, p := range list {
		if len(apart) == 0 || !apart[len(apart)-1].Overlaps(p) {
			apart = append(apart, p)
		}
	}
	return apart
}
