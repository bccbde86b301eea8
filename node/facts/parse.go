package facts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// MaxSize is the largest document that [Parse] takes, in bytes. What Gather makes
// is far smaller on any host.
const MaxSize = 1 << 20

// Parse reads what boxlift-node facts has printed. The document may come from a
// host that means harm: anything unknown in it, anything too long and any number that
// cannot be is an error. Texts are made fit for a terminal: what cannot be printed
// becomes U+FFFD.
func Parse(document []byte) (*Facts, error) {
	if len(document) > MaxSize {
		return nil, fmt.Errorf("read facts: the document has %d bytes, more than %d", len(document), MaxSize)
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(document, &version); err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	if version.Version != Version {
		return nil, fmt.Errorf("read facts: their version is %d, expected %d: boxlift-node is of another version than "+
			"boxlift; build the bundle with this boxlift, or install with the one that built it", version.Version,
			Version)
	}
	f := &Facts{}
	if err := wire.DecodeStrictly(document, MaxSize, f); err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	if err := wire.Clean(reflect.ValueOf(f).Elem(), ""); err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	return f, nil
}

// check looks at what has a form.
func (f *Facts) check() error {
	for _, p := range f.Ports {
		switch p.Protocol {
		case "tcp", "tcp6", "udp", "udp6":
		default:
			return fmt.Errorf("a port's protocol is %q", p.Protocol)
		}
		if _, err := netip.ParseAddr(p.Address); err != nil || p.Port > 65535 {
			return fmt.Errorf("a port is %q:%d", p.Address, p.Port)
		}
	}
	for _, i := range f.Network.Interfaces {
		for _, a := range i.Addresses {
			if _, err := netip.ParsePrefix(a); err != nil {
				return fmt.Errorf("an address of %s is %q", i.Name, a)
			}
		}
	}
	for _, r := range f.Network.Routes {
		if _, err := netip.ParsePrefix(r.Destination); err != nil {
			return fmt.Errorf("a route's destination is %q", r.Destination)
		}
		if _, err := netip.ParseAddr(r.Gateway); r.Gateway != "" && err != nil {
			return fmt.Errorf("a route's gateway is %q", r.Gateway)
		}
	}
	for _, p := range f.Packs {
		if !wire.IsPackName(p.Name) {
			return fmt.Errorf("a pack's name is %q", p.Name)
		}
	}
	for name, text := range map[string]string{"clock's time": f.Clock.Now,
		"time of the certificate authority": f.K3s.Created} {
		if _, err := time.Parse(time.RFC3339Nano, text); text != "" && err != nil {
			return fmt.Errorf("the %s is %q", name, text)
		}
	}
	switch f.SELinux {
	case "enforcing", "permissive", "disabled":
	default:
		return fmt.Errorf("the state of SELinux is %q", f.SELinux)
	}
	return nil
}
