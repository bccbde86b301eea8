package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// Seeding says how images come to the hosts.
type Seeding struct {
	Mode   SeedingMode  // SeedImages unless given
	Agents AgentSeeding // AgentsFull unless given
	// PeerToPeer turns on the embedded registry of k3s, by which nodes get from each other
	// what they do not have. Only with the versions that CheckPeerToPeer accepts.
	PeerToPeer bool
	Registry   SeedingRegistry   // of SeedRegistry; has its defaults in every mode
	External   *ExternalRegistry // not nil with SeedExternal, and only then
}

// SeedingMode says where nodes get images from that do not lie on them.
type SeedingMode string

// The modes.
const (
	SeedImages   SeedingMode = "images"   // nowhere: every node has what it needs
	SeedRegistry SeedingMode = "registry" // the servers run a registry with what lies on them
	SeedExternal SeedingMode = "external" // a registry that is there already, to which everything is pushed
)

// AgentSeeding says what is put on agents before they start.
type AgentSeeding string

// What agents get.
const (
	AgentsFull AgentSeeding = "full" // everything
	AgentsBoot AgentSeeding = "boot" // what a node needs to start; the rest is pulled. Not with SeedImages
)

// SeedingRegistry is the registry that servers run.
type SeedingRegistry struct {
	Port int // 5443 unless given, on every server
	// CAFile and CAKeyFile are PEM files of an authority to sign the servers' certificates:
	// both or none. Relative to the folder of install.yaml, ~/ is $HOME. "" means an
	// authority that boxlift makes.
	CAFile, CAKeyFile string
}

// ExternalRegistry is a registry that is there already, such as Harbor.
type ExternalRegistry struct {
	Address  string            // host or host:port, as the file has it
	Rewrites []rewrite.Rule    // what rewrite.Parse accepts; nil for none
	Push     *registries.Login // nil: nothing is pushed
	Pull     *registries.Login // nil: nodes pull without a login
	// CAFile is a PEM file of the authority that signed the registry's certificate. Relative
	// to the folder of install.yaml, ~/ is $HOME. "" means those that each machine trusts.
	CAFile                string
	PlainHTTP             bool
	InsecureSkipTLSVerify bool
}

// URL returns the address with its scheme and without a path.
func (e ExternalRegistry) URL() string {
	if e.PlainHTTP {
		return "http://" + e.Address
	}
	return "https://" + e.Address
}

// HostPort returns the host, an IP address without brackets, and the port.
func (e ExternalRegistry) HostPort() (host string, port int) {
	host, text, err := net.SplitHostPort(e.Address)
	if err != nil {
		host = strings.Trim(e.Address, "[]")
		if e.PlainHTTP {
			return host, 80
		}
		return host, 443
	}
	port, _ = strconv.Atoi(text) // parseRegistryAddress has seen to it
	return host, port
}

// seedingCA stands for the path on the hosts while a file is checked, where only counts
// whether there is one.
const seedingCA = "/ca.crt"

// Origin returns where nodes pull from with this registry; caFile is where CAFile was put
// on the hosts.
func (e ExternalRegistry) Origin(rules rewrite.Rules, caFile string) registries.Origin {
	s := registries.Origin{Endpoints: []string{e.URL()}, Login: e.Pull, InsecureSkipTLSVerify: e.InsecureSkipTLSVerify,
		Rewrites: rules}
	if e.CAFile != "" {
		s.CAFile = caFile
	}
	return s
}

// defaultRegistryPort is no port of k3s, Cilium or the usual registries.
const defaultRegistryPort = 5443

// K3sConfig returns the keys of k3s' config.yaml that follow from the seeding, for hosts
// of a role. Nobody else may set them.
func (s Seeding) K3sConfig(role Role) map[string]any {
	keys := map[string]any{}
	if s.Mode != SeedImages {
		// Without it every image that is nowhere is asked for on the internet, which takes
		// the time-out of a connection.
		keys["disable-default-registry-endpoint"] = true
	}
	if s.PeerToPeer && role == Server {
		keys["embedded-registry"] = true
	}
	return keys
}

// sharing has the first release of each minor version of k3s whose embedded registry
// shares images that came from a file. Later minor versions all do.
var sharing = [][3]int{{1, 32, 11}, {1, 33, 7}, {1, 34, 3}, {1, 35, 0}}

// CheckPeerToPeer accepts the versions of k3s, such as v1.36.4+k3s1, whose embedded registry
// shares images that came from a file. The error names them.
func CheckPeerToPeer(k3s string) error {
	v, err := parseRelease(k3s)
	if err != nil {
		return err
	}
	newest := sharing[len(sharing)-1]
	if slices.Compare(v[:], newest[:]) >= 0 {
		return nil
	}
	var names []string
	for _, first := range sharing {
		if slices.Equal(v[:2], first[:2]) && v[2] >= first[2] {
			return nil
		}
		names = append(names, fmt.Sprintf("v%d.%d.%d", first[0], first[1], first[2]))
	}
	last := len(names) - 1
	return fmt.Errorf("found k3s %s, expected %s or %s, or a newer one of these: older ones do not share images that "+
		"came from a file",
		k3s, strings.Join(names[:last], ", "), names[last])
}

var release = lazyregexp.New(`^v([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(-[0-9A-Za-z.]+)?\+k3s[0-9]+$`)

// parseRelease returns the numbers of a version of k3s. What comes before a release has the
// numbers of the one before.
func parseRelease(k3s string) (v [3]int, err error) {
	m := release.FindStringSubmatch(k3s)
	if m == nil {
		return v, fmt.Errorf("found k3s %.100q, expected a version such as v1.36.4+k3s1", k3s)
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // at most six digits
	}
	if m[4] != "" {
		v[2]--
	}
	return v, nil
}

// meaning is what counts for the cluster: nil for the default.
func (s Seeding) meaning() *Seeding {
	if s == defaultSeeding() {
		return nil
	}
	s.Registry.CAFile, s.Registry.CAKeyFile = "", ""
	if s.External != nil {
		e := *s.External
		e.CAFile, e.Push = "", nil
		s.External = &e
	}
	return &s
}

func defaultSeeding() Seeding {
	return Seeding{Mode: SeedImages, Agents: AgentsFull, Registry: SeedingRegistry{Port: defaultRegistryPort}}
}

// seedingNode is the seeding section as it was read.
type seedingNode struct {
	at     schema.Node
	fields map[string]schema.Node
}

// field returns the place of a key, or the section's when it was not written.
func (s seedingNode) field(key string) schema.Node {
	if n, ok := s.fields[key]; ok {
		return n
	}
	return s.at
}

func (d *decoder) seeding(n schema.Node, s *Seeding) seedingNode {
	present := n.Mapping(
		schema.Optional("mode", "Where nodes get images from that do not lie on them: images (nowhere, all lie on "+
			"them), registry (the servers run one), or external (one that is there already). Default: images.",
			func(n schema.Node) { s.Mode = schema.OneOf(n, SeedImages, SeedRegistry, SeedExternal) }),
		schema.Optional("agents", "What is put on agents: full (everything), or boot (what a node needs to start, "+
			"the rest is pulled). Default: full.",
			func(n schema.Node) { s.Agents = schema.OneOf(n, AgentsFull, AgentsBoot) }),
		schema.Optional("peerToPeer", "Nodes get from each other what they do not have, by the embedded registry of "+
			"k3s. Default: false.", func(n schema.Node) { s.PeerToPeer = n.Boolean() }),
		schema.Optional("registry", "The registry that the servers run, for mode registry.",
			func(n schema.Node) { d.seedingRegistry(n, &s.Registry) }),
		schema.Optional("external", "The registry that is there already, for mode external.",
			func(n schema.Node) { s.External = d.externalRegistry(n) }),
	)
	return seedingNode{at: n, fields: present}
}

func (d *decoder) seedingRegistry(n schema.Node, r *SeedingRegistry) {
	present := n.Mapping(
		schema.Optional("port", "Port of the registry on every server. Default: 5443.",
			func(n schema.Node) { r.Port = n.Number(1, 65535) }),
		schema.Optional("caFile", "Authority to sign the servers' certificates with, PEM; relative to the folder of "+
			"this file. Default: one that boxlift makes.",
			func(n schema.Node) { r.CAFile = schema.Text(n, d.parsePath) }),
		schema.Optional("caKeyFile", "Key of caFile, PEM.",
			func(n schema.Node) { r.CAKeyFile = schema.Text(n, d.parsePath) }),
	)
	_, certificate := present["caFile"]
	_, key := present["caKeyFile"]
	if certificate != key {
		n.Fail("found one of caFile and caKeyFile, expected both")
	}
}

func (d *decoder) externalRegistry(n schema.Node) *ExternalRegistry {
	e := &ExternalRegistry{}
	present := n.Mapping(
		schema.Required("address", "Host and port of the registry, without https:// and path.",
			func(n schema.Node) { e.Address = schema.Text(n, parseRegistryAddress) }),
		schema.Optional("rewrites",
			"Other names for repositories there. For each repository one rule at most may change it.",
			func(n schema.Node) { e.Rewrites = d.rewrites(n) }),
		schema.Optional("push",
			"Login to push images with. Default: nothing is pushed, and everything has to be there.",
			func(n schema.Node) { e.Push = d.registryLogin(n) }),
		schema.Optional("pull", "Login that nodes pull with. Default: none.",
			func(n schema.Node) { e.Pull = d.registryLogin(n) }),
		schema.Optional("caFile", "Authority that signed the registry's certificate, PEM; relative to the folder of "+
			"this file. boxlift places it on the hosts. Default: those that each machine trusts.",
			func(n schema.Node) { e.CAFile = schema.Text(n, d.parsePath) }),
		schema.Optional("plainHTTP", "The registry has no TLS. Default: false.",
			func(n schema.Node) { e.PlainHTTP = n.Boolean() }),
		schema.Optional("insecureSkipTLSVerify", "Accept any certificate. Default: false.",
			func(n schema.Node) { e.InsecureSkipTLSVerify = n.Boolean() }),
	)
	if n.Describes() {
		return e
	}
	switch {
	case e.PlainHTTP && e.InsecureSkipTLSVerify:
		present["insecureSkipTLSVerify"].Fail("found true, expected false because plainHTTP is true: there is no " +
			"certificate")
	case e.PlainHTTP && e.CAFile != "":
		present["caFile"].Fail("found an authority, expected none because plainHTTP is true: there is no certificate")
	case e.InsecureSkipTLSVerify && e.CAFile != "":
		present["caFile"].Fail("found an authority, expected none because insecureSkipTLSVerify is true: it would " +
			"not be looked at")
	}
	if e.PlainHTTP && (e.Push != nil || e.Pull != nil) {
		present["plainHTTP"].Warn("everybody between here and the registry can read the passwords")
	}
	return e
}

func (d *decoder) registryLogin(n schema.Node) *registries.Login {
	l := &registries.Login{}
	n.Mapping(
		schema.Required("username", "User, such as a robot account.",
			func(n schema.Node) { l.Username = schema.Text(n, parseRegistryUser) }),
		schema.Required("password", "Password. Better a ${NAME} than the password itself.",
			func(n schema.Node) { l.Password = n.Secret() }),
	)
	return l
}

// parseRegistryUser accepts what fits into HTTP's basic authentication.
func parseRegistryUser(s string) (string, error) {
	if len(s) > 255 || strings.Contains(s, ":") || strings.ContainsFunc(s, unicode.IsControl) {
		return "", errors.New("expected a user name without a colon")
	}
	return s, nil
}

func (d *decoder) rewrites(n schema.Node) []rewrite.Rule {
	var rules []rewrite.Rule
	var items []schema.Node
	n.List(func(_ int, item schema.Node) {
		rule := rewrite.Rule{Registry: rewrite.All}
		sound := item.Sound(func() {
			item.Mapping(
				schema.Optional("registry", `Registry whose repositories are meant, such as docker.io, or "*" for `+
					`those without rules of their own. Default: "*".`,
					func(n schema.Node) { rule.Registry = schema.Text(n, anyLine) }),
				schema.Required("match", "Regular expression (Go's) for the repository without the registry.",
					func(n schema.Node) { rule.Match = schema.Text(n, anyLine) }),
				schema.Required("replace", "What to put in place of every match; $1 is the first group.",
					func(n schema.Node) { rule.Replace, _ = n.LineOrEmpty() }),
			)
		})
		if sound && !item.Describes() && checkRule(item, rule) {
			rules, items = append(rules, rule), append(items, item)
		}
	})
	_, err := rewrite.Parse(rules)
	var faulty *rewrite.RuleError
	if errors.As(err, &faulty) {
		items[faulty.Index].Fail("%s", faulty.Text)
	}
	return rules
}

// checkRule checks one rule by itself.
func checkRule(n schema.Node, r rewrite.Rule) bool {
	_, err := rewrite.Parse([]rewrite.Rule{r})
	var faulty *rewrite.RuleError
	if errors.As(err, &faulty) {
		n.Fail("%s", faulty.Text)
	}
	return err == nil
}

// anyLine accepts every text that is no value of its own kind.
func anyLine(s string) (string, error) { return s, nil }

// parseRegistryAddress accepts host or host:port.
func parseRegistryAddress(s string) (string, error) {
	switch {
	case strings.Contains(s, "://"):
		return "", errors.New("expected a host and port without https:// or http://: write plainHTTP: true for a " +
			"registry without TLS")
	case strings.Contains(s, "@"):
		return "", errors.New("expected a host and port without a user: write push and pull")
	case strings.Contains(s, "/"):
		return "", errors.New("expected a host and port without a path: rewrites put repositories into a project")
	}
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || port[0] == '0' {
			return "", errors.New("expected a port from 1 to 65535")
		}
		host = h
	} else if inner, ok := strings.CutPrefix(s, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	} else if strings.Count(s, ":") > 1 {
		return "", errors.New("expected an IPv6 address in brackets, such as [fd00::5]:5000")
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" && !addr.IsUnspecified() &&
		!addr.IsMulticast() {
		return s, nil
	}
	if !parse.IsName(host) {
		return "", errors.New("expected a host in lower case, and a port where it is not 443: harbor.example.lan or " +
			"192.0.2.5:5000")
	}
	return s, nil
}

// checkSeeding reports what does not go together, in the section and with others.
func checkSeeding(s seedingNode, section schema.Node, cfg *Config, cluster clusterNode) {
	seeding := cfg.Seeding
	_, hasRegistry := s.fields["registry"]
	external, hasExternal := s.fields["external"]
	mode := seeding.Mode
	if mode == "" {
		return // has been reported
	}
	if hasRegistry && mode != SeedRegistry {
		s.field("registry").Fail("found the registry that servers run, expected none in mode %s: write mode: registry",
			mode)
	}
	if hasExternal && mode != SeedExternal {
		external.Fail("found a registry that is there already, expected none in mode %s: write mode: external", mode)
	}
	if !hasExternal && mode == SeedExternal {
		s.field("mode").Fail("found external, expected external in seeding too: address says where the registry is")
	}
	if seeding.Agents == AgentsBoot && mode == SeedImages {
		s.field("agents").Fail("found boot, expected full in mode images: agents would have nowhere to pull the rest " +
			"from")
	}
	if v := cfg.K3sVersion(); seeding.PeerToPeer && v != "" {
		if err := CheckPeerToPeer(v); err != nil {
			s.field("peerToPeer").Fail("%v", err)
		}
	}
	seeding.checkK3sConfig(cluster)
	if e := seeding.External; mode == SeedExternal && e != nil && e.Address != "" && cfg.Registries != nil {
		rules, err := rewrite.Parse(e.Rewrites)
		if err != nil {
			return // has been reported
		}
		origin := e.Origin(rules, seedingCA)
		if _, err := origin.Merge(cfg.Registries); err != nil {
			section.Fail("%v", err)
		}
	}
}

// checkK3sConfig reports settings of k3s that follow from the seeding.
func (s Seeding) checkK3sConfig(cluster clusterNode) {
	refuse := func(at schema.Node, key string) {
		at.Fail("%s cannot be given here: boxlift sets it because of seeding", key)
	}
	for _, group := range []struct {
		role     Role
		hosts    []hostNode
		settings []k3sSetting
	}{{Server, cluster.servers, cluster.serverConfig}, {Agent, cluster.agents, cluster.agentConfig}} {
		owned := s.K3sConfig(group.role)
		for _, setting := range group.settings {
			if _, ok := owned[setting.key]; ok {
				refuse(setting.at, setting.key)
			}
		}
		for _, h := range group.hosts {
			for _, setting := range h.config {
				if _, ok := owned[setting.key]; ok {
					refuse(setting.at, setting.key)
				}
			}
			for _, setting := range h.K3s.Settings {
				if _, ok := owned[setting.Key]; ok {
					refuse(h.field("k3s"), "--"+setting.Key)
				}
			}
		}
	}
}
