package prepare

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

// rule is one thing that a firewall lets through, as words that begin with the firewall's name:
//
//	ufw allow 6443/tcp
//	ufw [route] allow from|to 10.42.0.0/16
//	firewalld permanent|runtime ZONE port 6443/tcp
//	firewalld permanent|runtime ZONE source 10.42.0.0/16
type rule []string

func (r rule) String() string { return strings.Join(r, " ") }

// firewall is one that is active on a host, and what it has to let through.
type firewall struct {
	name  string // ufw or firewalld
	rules []rule
	// zone is that of firewalld whose interfaces other hosts come in by; "" until it was asked for.
	zone, iface string
	open        preflight.Preparation
}

// firewalls are those that are active.
func (o *onHost) firewalls(w preflight.Preparation) []firewall {
	var list []firewall
	if w.UFW {
		list = append(list, firewall{name: ufw, rules: ufwRules(w)})
	}
	if w.Firewalld {
		list = append(list, firewall{name: firewalld, iface: w.Interface, open: w})
	}
	return list
}

const (
	ufw       = "ufw"
	firewalld = "firewalld"
	permanent = "permanent"
	runtime   = "runtime"
	// trusted is firewalld's zone that lets everything through.
	trusted = "trusted"
)

func ufwRules(w preflight.Preparation) []rule {
	var rules []rule
	for _, p := range w.Ports {
		rules = append(rules, rule{ufw, "allow", p.String()})
	}
	for _, n := range w.Networks {
		rules = append(rules, rule{ufw, "allow", "from", n.String()}, rule{ufw, "route", "allow", "from", n.String()},
			rule{ufw, "route", "allow", "to", n.String()})
	}
	return rules
}

func firewalldRules(w preflight.Preparation, zone string) []rule {
	var rules []rule
	for _, scope := range []string{permanent, runtime} {
		for _, p := range w.Ports {
			rules = append(rules, rule{firewalld, scope, zone, "port", p.String()})
		}
		for _, n := range w.Networks {
			rules = append(rules, rule{firewalld, scope, trusted, "source", n.String()})
		}
	}
	return rules
}

// zoneName is what firewalld allows (firewalld.zone(5)).
var zoneName = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,16}$`)

// portRange is a port or a range of ports of a protocol.
type portRange struct {
	first, last int
	protocol    string
}

func parsePorts(text string) (portRange, bool) {
	ports, protocol, ok := strings.Cut(text, "/")
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return portRange{int(a), int(b), protocol},
		ok && err == nil && err2 == nil && a > 0 && a <= b && (protocol == "tcp" || protocol == "udp")
}

// parseRule reads a rule strictly.
func parseRule(text string) (rule, bool) {
	r := rule(strings.Fields(text))
	network := func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p.String() == s
	}
	port := func(s string) bool {
		p, ok := parsePorts(s)
		return ok && p.first == p.last
	}
	ok := false
	switch {
	case r.String() != text:
	case len(r) == 3 && r[0] == ufw:
		ok = r[1] == "allow" && port(r[2])
	case len(r) == 4 && r[0] == ufw:
		ok = r[1] == "allow" && r[2] == "from" && network(r[3])
	case len(r) == 5 && r[0] == ufw:
		ok = r[1] == "route" && r[2] == "allow" && (r[3] == "from" || r[3] == "to") && network(r[4])
	case len(r) == 5 && r[0] == firewalld:
		ok = (r[1] == permanent || r[1] == runtime) && zoneName.MatchString(r[2]) &&
			(r[3] == "port" && port(r[4]) || r[3] == "source" && network(r[4]))
	}
	return r, ok
}

// command adds or removes a rule.
func (r rule) command(add bool) []string {
	if r[0] == firewalld {
		verb := "remove"
		if add {
			verb = "add"
		}
		args := []string{"firewall-cmd", "--zone=" + r[2], "--" + verb + "-" + r[3] + "=" + r[4]}
		if r[1] == permanent {
			args = slices.Insert(args, 1, "--permanent")
		}
		return args
	}
	switch {
	case add:
		return r
	case r[1] == "route":
		return slices.Concat(rule{ufw, "route", "delete"}, r[2:])
	}
	return slices.Concat(rule{ufw, "delete"}, r[1:])
}

// isIn reports whether a firewall that says that it has rules lets through what the rule does.
func (r rule) isIn(list []rule) bool {
	return slices.ContainsFunc(list, func(have rule) bool {
		if r[0] != firewalld || r[3] != "port" || len(have) != len(r) {
			return slices.Equal(have, r)
		}
		// firewalld makes one range of ports that follow on each other.
		wanted, _ := parsePorts(r[4])
		ports, ok := parsePorts(have[4])
		return ok && slices.Equal(have[:4], r[:4]) && ports.protocol == wanted.protocol &&
			ports.first <= wanted.first && wanted.last <= ports.last
	})
}

// firewallStep has a firewall let through what hosts and pods need, and nothing any more that boxlift has let through
// before and that is not needed now.
func (o *onHost) firewallStep(f firewall) run.Step {
	return run.Step{
		ID: "open-" + f.name, Title: "open " + f.name + " for hosts and pods",
		Needed: func(ctx context.Context) (string, error) {
			missing, stale, err := o.compareRules(ctx, &f)
			switch {
			case err != nil:
				return "", err
			case len(missing) > 0:
				return fmt.Sprintf("%s does not have %d rules, such as: %s", f.name, len(missing), missing[0]), nil
			case len(stale) > 0:
				return fmt.Sprintf("boxlift has added what is not needed any more: %s", stale[0]), nil
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			missing, stale, err := o.compareRules(ctx, &f)
			if err != nil {
				return err
			}
			if err := o.keep(ctx, func(k *kept) {
				for _, r := range missing {
					if !slices.Contains(k.Firewall, r.String()) {
						k.Firewall = append(k.Firewall, r.String())
					}
				}
			}); err != nil {
				return err
			}
			if err := o.changeRules(ctx, missing, true); err != nil {
				return err
			}
			if err := o.changeRules(ctx, stale, false); err != nil {
				return err
			}
			return o.keep(ctx, func(k *kept) {
				k.Firewall = slices.DeleteFunc(k.Firewall, func(text string) bool {
					return slices.ContainsFunc(stale, func(r rule) bool { return r.String() == text })
				})
			})
		},
	}
}

// compareRules says which rules a firewall lacks, and which boxlift has added that are not needed.
func (o *onHost) compareRules(ctx context.Context, f *firewall) (missing, stale []rule, err error) {
	k, err := o.readKept(ctx)
	if err != nil {
		return nil, nil, err
	}
	if f.name == firewalld && f.zone == "" {
		if f.zone, err = o.firewalldZone(ctx, f.iface); err != nil {
			return nil, nil, err
		}
		f.rules = firewalldRules(f.open, f.zone)
	}
	added := k.rules(f.name)
	have, err := o.listRules(ctx, f.name, slices.Concat(f.rules, added))
	if err != nil {
		return nil, nil, err
	}
	for _, r := range f.rules {
		if !r.isIn(have) {
			missing = append(missing, r)
		}
	}
	for _, r := range added {
		if !slices.ContainsFunc(f.rules, func(wanted rule) bool { return slices.Equal(wanted, r) }) {
			stale = append(stale, r)
		}
	}
	return missing, stale, nil
}

// rules are those that boxlift has added to a firewall.
func (k *kept) rules(name string) []rule {
	var list []rule
	for _, text := range k.Firewall {
		if r, _ := parseRule(text); r[0] == name {
			list = append(list, r)
		}
	}
	return list
}

// firewalldZone is the zone of an interface, or else the default one.
func (o *onHost) firewalldZone(ctx context.Context, iface string) (string, error) {
	const script = `{ [ -n "$1" ] && firewall-cmd --get-zone-of-interface="$1" 2>/dev/null; } ||
    firewall-cmd --get-default-zone`
	out, err := o.script(ctx, "ask firewalld for the zone", script, iface)
	zone := strings.TrimSpace(out)
	if err == nil && !zoneName.MatchString(zone) {
		err = fault.OnHost(fault.Host.Wrap(fmt.Errorf("ask firewalld for the zone: it says %.50q", zone)), o.Name())
	}
	return zone, err
}

// listRules asks a firewall what it lets through, of the zones that some rules are about.
func (o *onHost) listRules(ctx context.Context, name string, about []rule) ([]rule, error) {
	var have []rule
	if name == ufw {
		out, err := o.root(ctx, "ask ufw for its rules", "env", "LC_ALL=C", "ufw", "show", "added")
		for line := range strings.Lines(out) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), ufw+" "); ok {
				text, _, _ = strings.Cut(text, " comment ")
				have = append(have, append(rule{ufw}, strings.Fields(text)...))
			}
		}
		return have, err
	}
	var zones []string
	for _, r := range about {
		if !slices.Contains(zones, r[2]) {
			zones = append(zones, r[2])
		}
	}
	// A command substitution that fails counts for set -e where it is assigned, and nowhere else. 112 is firewall-cmd's
	// INVALID_ZONE (firewall-cmd(1), EXIT CODES): a zone that is not there lets nothing through.
	const script = `set -e
list() {
    words=$(firewall-cmd $option --zone="$zone" --list-"$1"s) || { code=$?; [ "$code" = 112 ] || exit "$code"; words=; }
    for word in $words; do echo "$scope $zone $1 $word"; done
}
for zone in "$@"; do
    for scope in permanent runtime; do
        option=; [ "$scope" = runtime ] || option=--permanent
        list port
        list source
    done
done`
	out, err := o.script(ctx, "ask firewalld for its rules", script, zones...)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 4 {
			have = append(have, append(rule{firewalld}, fields...))
		}
	}
	return have, err
}

func (o *onHost) changeRules(ctx context.Context, rules []rule, add bool) error {
	verb := "close"
	if add {
		verb = "open"
	}
	for _, r := range rules {
		if _, err := o.root(ctx, verb+" "+r.String(), r.command(add)...); err != nil {
			return fault.WithHint(err, "see what "+r[0]+" says on the host, or open it by hand and set "+
				"hosts.prepare to false")
		}
	}
	return nil
}

// closeFirewalls takes away the rules that boxlift has added and that are still there.
func (o *onHost) closeFirewalls(ctx context.Context, k *kept) error {
	for _, name := range []string{ufw, firewalld} {
		added := k.rules(name)
		if len(added) == 0 {
			continue
		}
		const script = `command -v "$1" >/dev/null 2>&1 && echo there || :`
		program := map[string]string{ufw: "ufw", firewalld: "firewall-cmd"}[name]
		out, err := o.script(ctx, "look for "+program, script, program)
		if err != nil {
			return err
		}
		if strings.TrimSpace(out) == "" {
			continue // its rules have gone with it
		}
		if name == firewalld {
			if added, err = o.changeable(ctx, added); err != nil {
				return err
			}
		}
		have, err := o.listRules(ctx, name, added)
		if err != nil {
			return err
		}
		added = slices.DeleteFunc(added, func(r rule) bool { return !r.isIn(have) })
		if err := o.changeRules(ctx, added, false); err != nil {
			return err
		}
	}
	return nil
}

// changeable are the rules of firewalld that can be changed: none while it does not run, which is told of.
func (o *onHost) changeable(ctx context.Context, rules []rule) ([]rule, error) {
	out, err := o.script(ctx, "ask for firewalld's state", `firewall-cmd --state 2>/dev/null || :`)
	if err != nil || strings.TrimSpace(out) == "running" {
		return rules, err
	}
	texts := make([]string, 0, len(rules))
	for _, r := range rules {
		if r[1] == permanent {
			texts = append(texts, strings.Join(r.command(false)[1:], " "))
		}
	}
	o.warn("firewalld does not run any more, so that what boxlift has opened cannot be closed: "+
		"firewall-offline-cmd does, with %s",
		strings.ReplaceAll(strings.Join(texts, " "), "--permanent ", ""))
	return nil, nil
}

// chains are what nft lists with -j (libnftables-json(5)).
type chains struct {
	Nftables []struct {
		Chain *struct {
			Family, Table, Name, Hook, Policy string
		}
	}
}

// tellNftables tells of chains that drop what comes in, which boxlift cannot open: in nftables a packet has to be
// accepted by every chain of a hook, so that a table of boxlift's own could accept what it wants and the other chain
// would drop it all the same; and a rule in the chain itself would be gone with the next reload of whatever has made
// it.
func (o *onHost) tellNftables(ctx context.Context, w preflight.Preparation) error {
	const script = `! command -v nft >/dev/null 2>&1 || nft -j list chains 2>/dev/null || :`
	out, err := o.script(ctx, "look for chains of nftables", script)
	if err != nil || out == "" {
		return err
	}
	var list chains
	if json.Unmarshal([]byte(out), &list) != nil {
		return nil // an nft without JSON, of which nothing is known
	}
	var found []string
	for _, entry := range list.Nftables {
		if c := entry.Chain; c != nil && c.Hook == "input" && c.Policy == "drop" && len(found) < 5 {
			found = append(found, printable.Short(c.Family+" "+c.Table+" "+c.Name, 100))
		}
	}
	if found == nil {
		return nil
	}
	tcp, udp := []string{}, []string{}
	for _, p := range w.Ports {
		if p.Protocol == "udp" {
			udp = append(udp, strconv.Itoa(p.Port))
		} else {
			tcp = append(tcp, strconv.Itoa(p.Port))
		}
	}
	rules := []string{"tcp dport { " + strings.Join(tcp, ", ") + " } accept"}
	if len(udp) > 0 {
		rules = append(rules, "udp dport { "+strings.Join(udp, ", ")+" } accept")
	}
	for _, n := range w.Networks {
		family := "ip"
		if n.Addr().Is6() {
			family = "ip6"
		}
		rules = append(rules, fmt.Sprintf("%s saddr %s accept", family, n))
	}
	o.warn("the chain %s of nftables drops what it does not accept, and boxlift does not change it: what another "+
		"table accepts, this one drops all the same, and what is added to it goes when whoever has made it loads "+
		"it anew. Add these where it comes from, such as /etc/nftables.conf: %s", strings.Join(found, ", "),
		strings.Join(rules, "; "))
	return nil
}
