package nameserver

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
)

// askWait is how long a server may take to answer.
const askWait = 5 * time.Second

// Server is a host that serves names, as others reach it.
type Server struct {
	*site.Host
	Address netip.Addr
	// Name is one that it has to know, whichever.
	Name config.Name
}

// Servers are the hosts that are to serve names and whose addresses are known.
func (k *Keeper) Servers() []Server {
	names := fit(k.Namer.Wanted())
	var list []Server
	for _, h := range k.Site.Hosts {
		address := addressOf(h)
		if len(names) > 0 && k.Site.Config.Names.ServedOn(h.Config.Address()) && address.IsValid() {
			list = append(list, Server{Host: h, Address: address, Name: names[len(names)-1]})
		}
	}
	return list
}

// fit are the names that can be asked for. What a host has said of itself may be anything.
func fit(names []config.Name) []config.Name {
	return slices.DeleteFunc(names, func(n config.Name) bool { return !parse.IsName(n.Name) })
}

// addressOf is the address by which others reach a host, whether it was connected to or not.
func addressOf(h *site.Host) netip.Addr {
	if h.IP.IsValid() {
		return h.IP
	}
	address, _ := netip.ParseAddr(h.LanAddress()) // of a host that is called by a name, it is not known
	return address
}

// Ask has boxlift-node on a host ask servers for their names, over UDP and TCP, and returns what is wrong with each:
// nil for a server that answers as it is to.
func Ask(ctx context.Context, from *site.Host, servers ...Server) ([]error, error) {
	args := []string{site.HelperPath, "probe", "-wait", askWait.String()}
	var targets []reach.ProbeTarget
	for _, s := range servers {
		target := s.Name.Name + "@" + netip.AddrPortFrom(s.Address, 53).String()
		for _, kind := range []reach.ProbeKind{reach.ProbeDNSUDP, reach.ProbeDNSTCP} {
			args = append(args, "-"+string(kind), target)
			targets = append(targets, reach.ProbeTarget{Kind: kind, Target: target})
		}
	}
	out, err := from.Root(ctx, "ask for a name", args...)
	if err != nil {
		return nil, site.HelperError(err)
	}
	report, err := reach.ReadProbeReport(bytes.NewReader(out), targets)
	if err != nil {
		return nil, fmt.Errorf("ask for a name: read the answer of boxlift-node: %w", err)
	}
	wrong := make([]error, len(servers))
	for i, r := range report.Results {
		if s := servers[i/2]; wrong[i/2] == nil {
			wrong[i/2] = s.judge(r)
		}
	}
	return wrong, nil
}

func (s Server) judge(r reach.ProbeResult) error {
	over := strings.ToUpper(strings.TrimPrefix(string(r.Kind), "dns-"))
	switch {
	case r.State != reach.OK:
		return fmt.Errorf("asked for %s over %s: %s", s.Name.Name, over, r.Detail)
	case !slices.Contains(r.Addresses, s.Name.Address):
		return fmt.Errorf("asked for %s over %s, it says %s, and not %s", s.Name.Name, over, r.Addresses,
			s.Name.Address)
	}
	return nil
}
