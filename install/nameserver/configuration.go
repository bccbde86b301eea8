package nameserver

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
)

// head are the settings of dnsmasq (dnsmasq(8)) that are the same everywhere. bind-dynamic listens on the address
// alone, also when the interface gets it later. Without no-resolv, what dnsmasq does not know would go to whoever the
// host asks.
const head = `# Written by boxlift; changes made here are lost.
port=53
listen-address=%s
bind-dynamic
no-hosts
no-resolv
no-poll
pid-file
log-facility=-
cache-size=1000
dns-forward-max=150
local-ttl=60
`

// configuration is the dnsmasq.conf of a host that listens on an address.
//
// Each name has one address, and is local: what else is asked of it, such as an address of the other family, is
// answered with nothing and goes nowhere. Names below it are other names: they go the way of all others, to the servers
// in upstream, and where there is none, all are refused.
func configuration(listen netip.Addr, names []config.Name, upstream []netip.Addr) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, head, listen)
	for _, address := range upstream {
		fmt.Fprintf(&b, "server=%s\n", address)
	}
	for _, n := range names {
		fmt.Fprintf(&b, "host-record=%[1]s,%[2]s\nlocal=/%[1]s/\nserver=/*.%[1]s/#\n", n.Name, n.Address)
	}
	return []byte(b.String())
}
