package timekeeping

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
)

// What boxlift writes on hosts. The distribution's files stay as they are.
const (
	// ConfigurationFile is chronyd's, in the place of /etc/chrony/chrony.conf: that of the distribution follows public
	// time servers. chronyd reads files below /etc/chrony alone where AppArmor confines it.
	ConfigurationFile = "/etc/chrony/boxlift.conf"
	// UnitFile has the distribution's unit start chronyd with it.
	UnitFile = "/etc/systemd/system/" + service + ".service.d/boxlift.conf"
)

// head is the first line of what boxlift writes.
const head = "# Written by boxlift for the section time of install.yaml, and written again where it differs.\n"

const (
	// localStratum is that of a host which serves its own clock: further away than any that knows the time, and as
	// much as others count as no real time in orphan mode (chrony.conf(5), local).
	localStratum = 10
	// stepFrom is the difference from which on a clock is set and not brought near slowly, in seconds: etcd complains
	// about more. It is done while chronyd is new, before others go by the clock.
	stepFrom = 1
	// Whoever is asked on the LAN is asked every 16 to 64 s: that a server is lost has to be noticed.
	polling = "iburst minpoll 4 maxpoll 6"
)

// plan is what chronyd is to do on a host.
type plan struct {
	serves bool
	// upstream is what those who serve follow; servers are the other hosts that serve, in the order of install.yaml.
	upstream, servers []string
	// allowed are those that are served, sorted.
	allowed []netip.Prefix
	// unknown says that the address of a host could not be told, which was allowed before perhaps.
	unknown bool
	// fixed says that the host cannot set its clock: chronyd watches it and serves.
	fixed bool
}

// sources are all that chronyd asks.
func (p *plan) sources() []string { return slices.Concat(p.upstream, p.servers) }

// planFor is the plan for a host that has told its facts.
func (k *Keeper) planFor(h *site.Host) plan {
	p := plan{serves: h.Config.ServesTime}
	if p.serves {
		p.upstream = k.Site.Config.Time.Upstream
	}
	own := networks(h)
	for _, c := range k.Site.Config.Hosts() {
		name, address := k.addressOf(c)
		if c.ServesTime && c.Path != h.Config.Path {
			p.servers = append(p.servers, name)
		}
		if !p.serves {
			continue
		}
		if !address.IsValid() {
			p.unknown = true
			continue
		}
		p.allow(within(own, address))
	}
	return p
}

// allow serves a network, too.
func (p *plan) allow(network netip.Prefix) {
	if !slices.Contains(p.allowed, network) {
		p.allowed = append(p.allowed, network)
		slices.SortFunc(p.allowed, netip.Prefix.Compare)
	}
}

// addressOf is where other hosts reach a host: as install.yaml has it, and as an IP address if that is known. It is the
// same whether a run works on the host or not.
func (k *Keeper) addressOf(c config.Host) (name string, address netip.Addr) {
	i := slices.IndexFunc(k.Site.Hosts, func(h *site.Host) bool { return h.Config.Path == c.Path })
	if i < 0 {
		h := site.Host{Config: c}
		name = h.LanAddress()
	} else {
		name, address = k.Site.Hosts[i].LanAddress(), k.Site.Hosts[i].IP
	}
	if literal, err := netip.ParseAddr(name); err == nil {
		address = literal
	}
	return name, address.Unmap()
}

// networks are those that a host is in.
func networks(h *site.Host) []netip.Prefix {
	var list []netip.Prefix
	if h.Facts == nil {
		return nil
	}
	for _, i := range h.Facts.Network.Interfaces {
		for _, text := range i.Addresses {
			if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
				list = append(list, p.Masked())
			}
		}
	}
	return list
}

// within is the smallest of some networks that an address is in, or else the address alone.
func within(list []netip.Prefix, address netip.Addr) netip.Prefix {
	var best netip.Prefix
	for _, p := range list {
		if p.Contains(address) && (!best.IsValid() || p.Bits() > best.Bits()) {
			best = p
		}
	}
	if !best.IsValid() {
		best = netip.PrefixFrom(address, address.BitLen())
	}
	return best
}

// allowedIn are the networks that a configuration of boxlift's serves.
func allowedIn(content []byte) []netip.Prefix {
	var list []netip.Prefix
	for line := range strings.Lines(string(content)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "allow ")
		if p, err := netip.ParsePrefix(text); ok && err == nil && len(list) < maxSources {
			list = append(list, p)
		}
	}
	return list
}

// configuration is chronyd's (chrony.conf(5)).
func (p *plan) configuration() []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	b.WriteString(head)
	for _, s := range p.upstream {
		line("server %s iburst", s)
	}
	for _, s := range p.servers {
		line("server %s "+polling, s)
	}
	if p.serves {
		if len(p.servers) > 0 {
			// One that comes back, perhaps with a clock that has stood still, takes the time from those who have kept
			// it before it serves its own. A name that cannot be resolved yet is passed over.
			line("initstepslew %d %s", stepFrom, strings.Join(p.servers, " "))
		}
		// Of several that have no other time, one serves its own and the others follow it.
		line("local stratum %d orphan", localStratum)
		for _, n := range p.allowed {
			line("allow %s", n)
		}
	} else {
		line("port 0") // nobody is served
	}
	if !p.fixed {
		// Where it cannot be done, chronyd would take it for done, and not say by how much the clock is off.
		line("makestep %d 3", stepFrom)
	}
	line("driftfile /var/lib/chrony/chrony.drift")
	line("rtcsync")
	line("cmdport 0") // root asks by a socket
	return []byte(b.String())
}

// unit is what changes the distribution's unit, which starts chronyd with $DAEMON_OPTS. -F 1 is the filter for system
// calls that the distribution has it start with as well.
func (p *plan) unit() []byte {
	options := "-F 1"
	text := head
	if p.fixed {
		text += "# The host cannot set its clock, being a container: chronyd watches it.\n[Unit]\nConditionCapability=\n"
		options += " -x"
	}
	options += " -f " + ConfigurationFile
	return []byte(text + "[Service]\nEnvironmentFile=\nEnvironment=\"DAEMON_OPTS=" + options + "\"\n")
}
