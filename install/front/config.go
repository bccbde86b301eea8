package front

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

//go:embed keepalived.conf
var configTemplate string

//go:embed boxlift-keepalived.service
var unitTemplate string

// settings are what a host's keepalived runs with.
type settings struct {
	Interface string
	Address   netip.Addr   // the host's own
	Peers     []netip.Addr // of the other hosts of the front
	VIP       netip.Addr
	Priority  int
	Secret    string
}

// config renders keepalived.conf(5).
func (s settings) config() []byte {
	var peers strings.Builder
	for _, p := range s.Peers {
		fmt.Fprintf(&peers, "        %s\n", p)
	}
	return []byte(s.fill(configTemplate, "@peers@", peers.String(), "@secret@", s.Secret, "@program@", Program,
		"@priority@", strconv.Itoa(s.Priority), "@id@", strconv.Itoa(s.routerID())))
}

// unit renders the service.
func (s settings) unit() []byte { return []byte(s.fill(unitTemplate)) }

// fill replaces what templates have between @.
func (s settings) fill(template string, more ...string) string {
	return strings.NewReplacer(append(more, "@interface@", s.Interface, "@address@", s.Address.String(),
		"@vip@", netip.PrefixFrom(s.VIP, s.VIP.BitLen()).String())...).Replace(template)
}

// routerID tells several addresses of one network apart (RFC 3768: 1 to 255).
func (s settings) routerID() int { return max(int(s.VIP.As4()[3]), 1) }

// settingsOf are those of a host, without the secret.
func (k *Keeper) settingsOf(h *site.Host) (settings, error) {
	s := settings{VIP: k.vip(), Priority: priority(k.Site.Config.Cluster.Front.On, h.Config.Path)}
	var err error
	if s.Address, err = address(h); err != nil {
		return s, err
	}
	for _, other := range k.Hosts() {
		if other == h {
			continue
		}
		peer, err := address(other)
		if err != nil {
			return s, err
		}
		s.Peers = append(s.Peers, peer)
	}
	if h.Facts == nil {
		return s, fault.OnHost(fmt.Errorf("%w: the host has not told which networks it is in", ErrNetwork), h.Name)
	}
	name, why := preflight.FrontInterface(h.Facts, s.Address, s.VIP)
	if why != "" {
		return s, fault.OnHost(fmt.Errorf("%w: %s", ErrNetwork, why), h.Name)
	}
	s.Interface = name
	return s, nil
}

// content is the config that a host is to have.
func (k *Keeper) content(ctx context.Context, h *site.Host) ([]byte, error) {
	s, err := k.settingsOf(h)
	if err != nil {
		return nil, err
	}
	if s.Secret, err = k.readSecret(ctx); err != nil {
		return nil, err
	}
	return s.config(), nil
}

// unit is the unit that a host is to have.
func (k *Keeper) unit(h *site.Host) ([]byte, error) {
	s, err := k.settingsOf(h)
	if err != nil {
		return nil, err
	}
	return s.unit(), nil
}

// priority is that of a host of the front. What it loses without an API is more than all others differ by.
func priority(on []string, path string) int {
	const highest, step, lowest = 250, 5, 155
	if i := slices.Index(on, path); i >= 0 {
		return max(highest-step*i, lowest)
	}
	return lowest
}
