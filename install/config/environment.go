package config

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Variable is a value that does not come from a file, and what messages call the place that it does come from. The zero
// Variable is none.
type Variable struct{ From, Value string }

func (v Variable) isSet() bool { return v.From != "" }

// fail says what is wrong with a variable.
func (v Variable) fail(format string, args ...any) error {
	return fault.Input.Errorf("%s: found %.200q, "+format, append([]any{v.From, v.Value}, args...)...)
}

// Variables are what an install.yaml can be made from. Lists have commas or spaces between their items.
type Variables struct {
	K3sVersion      Variable // of the servers, such as v1.36.4+k3s1
	ClusterCIDR     Variable // the network of the pods
	ServiceCIDR     Variable // that of the services
	ControlPlaneIPs Variable // list of the servers
	WorkerIPs       Variable // list of the agents
	Namespace       Variable // of LiteBoxd's control plane
	// BackendVersion is LiteBoxd's. An install.yaml does not have it: who knows the bundle compares it. LiteBoxd is
	// deployed, then.
	BackendVersion Variable
}

// Composed is an install.yaml that was made.
type Composed struct {
	Content []byte
	// Config is what it says.
	Config   *Config
	Warnings []Warning
	// HoldsSecret tells that a password or token stands in it as it is.
	HoldsSecret bool
	// Relative are the paths in it that are relative to the folder of the file: of base's, where they come from.
	Relative []string
}

// Compose makes an install.yaml of variables, over what stands in base, the content of another one, called name, that
// need not be complete; nil is none. Each variable that is set takes the place of what base says: of lists of hosts,
// those that base has too keep what it says of them, and the others are logged in to with the keys of the SSH agent.
// What it returns was read as [Parse] reads it, in the folder of name, and means what the variables say.
func Compose(name string, base []byte, v Variables, lookupEnv func(string) (string, bool)) (*Composed, error) {
	top, err := baseMapping(base, lookupEnv)
	if err != nil {
		return nil, err
	}
	for _, put := range []func(*yaml.Node, Variables) error{putHosts, putK3sVersion, putNetworks, putLiteBoxd} {
		if err := put(top, v); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	d := &decoder{file: filepath.Join(filepath.Dir(name), "install.yaml from the environment"), lookupEnv: lookupEnv}
	cfg, document, err := d.read(out.Bytes())
	if err != nil {
		return nil, err
	}
	if err := v.checkServices(cfg); err != nil {
		return nil, err
	}
	_, plain := document.PlainSecret()
	return &Composed{Content: out.Bytes(), Config: cfg, Warnings: document.Warnings(), HoldsSecret: plain,
		Relative: d.relative}, nil
}

// baseMapping is the top of the file that is put over, with its comments.
func baseMapping(base []byte, lookupEnv func(string) (string, bool)) (*yaml.Node, error) {
	if base == nil {
		return &yaml.Node{Kind: yaml.MappingNode}, nil
	}
	document := schema.Read("the file to begin with", base, lookupEnv, func(schema.Node) {})
	if problems, more := document.Problems(); len(problems) > 0 {
		return nil, &InvalidError{Problems: problems, More: more}
	}
	var whole yaml.Node
	if err := yaml.Unmarshal(base, &whole); err != nil {
		return nil, fault.Input.Errorf("read the file to begin with: %w", err)
	}
	if len(whole.Content) != 1 || whole.Content[0].Kind != yaml.MappingNode {
		return nil, fault.Input.Errorf("the file to begin with is no mapping: expected an install.yaml")
	}
	return whole.Content[0], nil
}

// valueOf is the value of a key, or nil.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// put sets a key. An older value goes, with its comments.
func put(mapping *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content[i+1] = value
			return
		}
	}
	mapping.Content = append(mapping.Content, textNode(key), value)
}

func remove(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return
		}
	}
}

func textNode(text string) *yaml.Node {
	node := &yaml.Node{}
	node.SetString(text)
	return node
}

// within is the mapping below keys, which are made where they are missing.
func within(mapping *yaml.Node, v Variable, keys ...string) (*yaml.Node, error) {
	for i, key := range keys {
		next := valueOf(mapping, key)
		if next == nil {
			next = &yaml.Node{Kind: yaml.MappingNode}
			put(mapping, key, next)
		}
		if next.Kind != yaml.MappingNode {
			return nil, v.fail("but %s in the file to begin with is no mapping", strings.Join(keys[:i+1], "."))
		}
		if len(next.Content) == 0 {
			next.Style = 0 // {} would keep all that comes into it on one line
		}
		mapping = next
	}
	return mapping, nil
}

// list splits a list, whose items are all hosts.
func (v Variable) list() ([]string, error) {
	var hosts []string
	for _, item := range strings.FieldsFunc(v.Value, func(r rune) bool { return strings.ContainsRune(", \t\n", r) }) {
		host, err := parse.Host(item)
		switch {
		case err != nil:
			return nil, v.fail("of which %.100q cannot be used: %w", item, err)
		case slices.Contains(hosts, host):
			return nil, v.fail("which has %s twice, expected it once", host)
		}
		hosts = append(hosts, host)
	}
	if len(hosts) == 0 {
		return nil, v.fail("expected addresses with commas or spaces between them: leave it unset for none")
	}
	return hosts, nil
}

// putHosts writes who is in the cluster.
func putHosts(top *yaml.Node, v Variables) error {
	if !v.ControlPlaneIPs.isSet() && !v.WorkerIPs.isSet() {
		return nil
	}
	from := v.ControlPlaneIPs
	if !from.isSet() {
		from = v.WorkerIPs
	}
	cluster, err := within(top, from, "cluster")
	if err != nil {
		return err
	}
	known := hostItems(cluster)
	for _, role := range []struct {
		key  string
		from Variable
	}{{"servers", v.ControlPlaneIPs}, {"agents", v.WorkerIPs}} {
		if !role.from.isSet() {
			continue
		}
		hosts, err := role.from.list()
		if err != nil {
			return err
		}
		items := &yaml.Node{Kind: yaml.SequenceNode}
		for _, host := range hosts {
			item := known[host]
			if item == nil {
				login := &yaml.Node{}
				if err := login.Encode(true); err != nil {
					return err
				}
				item = &yaml.Node{Kind: yaml.MappingNode}
				put(item, "host", textNode(host))
				put(item, "agent", login)
			}
			items.Content = append(items.Content, item)
		}
		if role.key == "servers" {
			remove(cluster, "master")
		}
		put(cluster, role.key, items)
	}
	return nil
}

// hostItems are the hosts of a section cluster, by their address.
func hostItems(cluster *yaml.Node) map[string]*yaml.Node {
	all := make(map[string]*yaml.Node)
	add := func(item *yaml.Node) {
		if at := valueOf(item, "host"); at != nil {
			if host, err := parse.Host(at.Value); err == nil {
				all[host] = item
			}
		}
	}
	for _, item := range serverItems(cluster) {
		add(item)
	}
	if agents := valueOf(cluster, "agents"); agents != nil && agents.Kind == yaml.SequenceNode {
		for _, item := range agents.Content {
			add(item)
		}
	}
	return all
}

// serverItems are the servers of a section cluster.
func serverItems(cluster *yaml.Node) []*yaml.Node {
	if master := valueOf(cluster, "master"); master != nil {
		return []*yaml.Node{master}
	}
	if servers := valueOf(cluster, "servers"); servers != nil && servers.Kind == yaml.SequenceNode {
		return servers.Content
	}
	return nil
}

// putK3sVersion writes the version of k3s, which all servers that name one name alike.
func putK3sVersion(top *yaml.Node, v Variables) error {
	if !v.K3sVersion.isSet() {
		return nil
	}
	version, err := parse.K3sVersion(v.K3sVersion.Value)
	if err != nil {
		return v.K3sVersion.fail("%w", err)
	}
	for _, item := range serverItems(valueOf(top, "cluster")) {
		if item.Kind != yaml.MappingNode {
			continue // reading the whole tells
		}
		k3s, err := within(item, v.K3sVersion, "k3s")
		if err != nil {
			return err
		}
		put(k3s, "version", textNode(version))
	}
	return nil
}

func putNetworks(top *yaml.Node, v Variables) error {
	if v.ClusterCIDR.isSet() {
		pods, err := parse.PodCIDR(v.ClusterCIDR.Value)
		if err != nil {
			return v.ClusterCIDR.fail("%w", err)
		}
		cilium, err := within(top, v.ClusterCIDR, "network", "cilium")
		if err != nil {
			return err
		}
		put(cilium, "podCIDR", textNode(pods.String()))
	}
	if !v.ServiceCIDR.isSet() {
		return nil
	}
	services, err := netip.ParsePrefix(v.ServiceCIDR.Value)
	if err != nil || services != services.Masked() {
		return v.ServiceCIDR.fail("expected a network such as %s", DefaultServiceCIDR)
	}
	settings, err := within(top, v.ServiceCIDR, "cluster", "serverConfig")
	if err != nil {
		return err
	}
	put(settings, "service-cidr", textNode(services.String()))
	return nil
}

// checkServices makes sure that no host has settings of its own that count more.
func (v Variables) checkServices(cfg *Config) error {
	if !v.ServiceCIDR.isSet() {
		return nil
	}
	wanted, _ := netip.ParsePrefix(v.ServiceCIDR.Value) // it was read before
	for _, s := range cfg.Cluster.Servers {
		if has := strings.Join(s.K3s.Value("service-cidr"), ","); has != wanted.String() {
			return v.ServiceCIDR.fail("but %s has the service-cidr %s of its own in the file to begin with: take it out "+
				"there", s.Host, has)
		}
	}
	return nil
}

func putLiteBoxd(top *yaml.Node, v Variables) error {
	if v.Namespace.isSet() {
		namespace, err := parse.Namespace(v.Namespace.Value)
		if err != nil {
			return v.Namespace.fail("%w", err)
		}
		section, err := within(top, v.Namespace, "liteboxd")
		if err != nil {
			return err
		}
		put(section, "namespaceSystem", textNode(namespace))
	}
	if v.BackendVersion.isSet() && valueOf(top, "liteboxd") == nil {
		put(top, "liteboxd", &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle})
	}
	return nil
}
