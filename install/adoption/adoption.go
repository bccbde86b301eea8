// Package adoption judges whether a k3s that somebody else has set up can stay as it is in a cluster of boxlift's.
//
// Contract: such a k3s keeps its unit and its settings; boxlift replaces its program when the cluster is upgraded, and
// no more. [Read] finds out what it runs with, by what k3s goes by: its command line, its config files, its
// environment. [Found.Compare] says what boxlift cannot keep, and what install.yaml asks for in vain. Both are
// functions of their arguments alone. No text holds the value of a setting that may be a secret.
package adoption

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Setup is what a host says of how its k3s is set up.
type Setup struct {
	// ExecStart is what systemctl show says of that property of its unit.
	ExecStart string
	// Environment are the lines of the unit's environment and of its files, NAME=value.
	Environment []string
	// Config are the contents of config.yaml and of the files in config.yaml.d, in the order of their names.
	Config []string
}

// Found is what a k3s runs with.
type Found struct {
	// Role is that of its command line, Program its path.
	Role    config.Role
	Program string
	// Settings are its settings as keys of config.yaml, as texts. A flag without a value is "true".
	Settings map[string][]string
}

// shortNames are the flags of k3s with one letter (k3s v1.36).
var shortNames = map[string]string{
	"c": "config", "d": "data-dir", "i": "node-ip", "o": "write-kubeconfig", "s": "server", "t": "token", "v": "v",
}

// variables are the settings that k3s takes from its environment (k3s v1.36), those of proxies left out.
var variables = map[string]string{
	"K3S_AGENT_TOKEN": "agent-token", "K3S_AGENT_TOKEN_FILE": "agent-token-file", "K3S_CLUSTER_INIT": "cluster-init",
	"K3S_CONFIG_FILE": "config", "K3S_DATA_DIR": "data-dir", "K3S_DATASTORE_ENDPOINT": "datastore-endpoint",
	"K3S_KUBECONFIG_MODE": "write-kubeconfig-mode", "K3S_KUBECONFIG_OUTPUT": "write-kubeconfig",
	"K3S_LB_SERVER_PORT": "lb-server-port",
	"K3S_NODE_NAME":      "node-name", "K3S_RESOLV_CONF": "resolv-conf", "K3S_SELINUX": "selinux",
	"K3S_SYSTEM_DEFAULT_REGISTRY": "system-default-registry", "K3S_TOKEN": "token", "K3S_TOKEN_FILE": "token-file",
	"K3S_URL": "server", "K3S_VPN_AUTH": "vpn-auth", "K3S_VPN_AUTH_FILE": "vpn-auth-file",
}

// Read finds out what a k3s runs with. Like k3s, it takes the command line over the config files, and these over the
// environment; a later file over an earlier one.
func Read(s Setup) (*Found, error) {
	words, err := commandLine(s.ExecStart)
	if err != nil {
		return nil, fmt.Errorf("read the command line of its unit: %w", err)
	}
	f := &Found{Program: words[0], Settings: make(map[string][]string)}
	for _, line := range s.Environment {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if key := variables[name]; ok && key != "" {
			f.Settings[key] = []string{strings.Trim(value, `"'`)}
		}
	}
	for _, text := range s.Config {
		if err := f.addConfig(text); err != nil {
			return nil, fmt.Errorf("read its config: %w", err)
		}
	}
	if len(words) > 1 {
		f.Role = config.Role(words[1])
	}
	if f.Role != config.Server && f.Role != config.Agent {
		return nil, errors.New("read the command line of its unit: it runs neither k3s server nor k3s agent")
	}
	return f, f.addFlags(words[2:])
}

// commandLine are the words of the only command of a unit. systemd does not tell spaces in words from those between.
func commandLine(execStart string) ([]string, error) {
	_, rest, ok := strings.Cut(execStart, "argv[]=")
	line, others, ended := strings.Cut(rest, " ; ignore_errors=")
	if !ok || !ended || strings.Contains(others, "argv[]=") {
		return nil, errors.New("it has no command, or several")
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil, errors.New("it is empty")
	}
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "$") }) {
		return nil, errors.New("parts of it come from variables")
	}
	return words, nil
}

// addFlags adds the flags of a command line. A list there takes the place of one in a file.
func (f *Found) addFlags(words []string) error {
	given := make(map[string][]string)
	for i := 0; i < len(words); i++ {
		key, isFlag := strings.CutPrefix(words[i], "-")
		key, _ = strings.CutPrefix(key, "-")
		key, value, hasValue := strings.Cut(key, "=")
		if !isFlag || key == "" {
			return errors.New("read the command line of its unit: it has something that is no flag")
		}
		if !hasValue {
			if value = "true"; i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				i++
				value = words[i]
			}
		}
		if long := shortNames[key]; long != "" {
			key = long
		}
		given[key] = append(given[key], value)
	}
	maps.Copy(f.Settings, given)
	return nil
}

// addConfig adds the settings of a config file.
func (f *Found) addConfig(text string) error {
	var settings map[string]any
	if err := outsideyaml.Unmarshal([]byte(text), &settings); err != nil {
		if refusal := (*outsideyaml.Refusal)(nil); errors.As(err, &refusal) {
			return refusal
		}
		return errors.New("it is no YAML") // the text may hold a token
	}
	for key, value := range settings {
		key, appended := strings.CutSuffix(key, "+")
		if !appended {
			f.Settings[key] = texts(value)
			continue
		}
		f.Settings[key] = slices.Concat(f.Settings[key], texts(value))
	}
	return nil
}

// texts are the values of a setting.
func texts(value any) []string {
	switch v := value.(type) {
	case nil:
		return nil
	case []string:
		return v
	case []any:
		all := make([]string, 0, len(v))
		for _, item := range v {
			all = append(all, fmt.Sprint(item))
		}
		return all
	}
	return []string{fmt.Sprint(value)}
}

// network are the settings of servers that make Cilium the cluster's network, with k3s' defaults. All servers agree on
// them, as on config.CriticalSettings.
var network = map[string]string{
	"cluster-cidr": "10.42.0.0/16", "disable-kube-proxy": "false", "disable-network-policy": "false",
	"flannel-backend": "vxlan",
}

// needed are settings in which boxlift relies on k3s' defaults, which are given here, and why. Those without a default
// must not be there.
var needed = map[string]struct{ fallback, why string }{
	"bind-address":               {"", "boxlift reaches the API at 127.0.0.1"},
	"cluster-reset":              {"false", "it belongs to a repair by hand"},
	"config":                     {"/etc/rancher/k3s/config.yaml", "boxlift reads k3s' config there"},
	"container-runtime-endpoint": {"", "boxlift places images in k3s' own containerd"},
	"data-dir":                   {"/var/lib/rancher/k3s", "boxlift places images there"},
	"datastore-endpoint":         {"", "boxlift backs up k3s' own datastore, and no other"},
	"disable-agent":              {"false", "boxlift expects every server to be a node"},
	"disable-apiserver":          {"false", "boxlift reaches the API on every server"},
	"disable-etcd":               {"false", "boxlift expects etcd on every server"},
	"docker":                     {"false", "boxlift places images in k3s' own containerd"},
	"https-listen-port":          {"6443", "boxlift reaches the API at that port"},
	"lb-server-port":             {"6444", "Cilium reaches the API at that port"},
	"private-registry":           {"/etc/rancher/k3s/registries.yaml", "boxlift looks there"},
	"rootless":                   {"false", "boxlift works as root"},
	"vpn-auth":                   {"", "boxlift reaches nodes by their own addresses"},
	"vpn-auth-file":              {"", "boxlift reaches nodes by their own addresses"},
	"with-node-id":               {"false", "boxlift must know every node's name"},
	"write-kubeconfig":           {"/etc/rancher/k3s/k3s.yaml", "boxlift reads it there"},
}

// hidden are settings whose values are secrets, or may hold one.
var hidden = []string{"agent-token", "datastore-endpoint", "token", "vpn-auth"}

// own are the settings by which a k3s has become what it is: its tokens, whom it has joined, its name, and what
// Kubernetes is told besides.
var own = []string{
	"agent-token", "agent-token-file", "cluster-init", "node-label", "node-name", "node-taint", "server", "token",
	"token-file",
}

// Refusal is what boxlift cannot keep.
type Refusal struct {
	// Reason says what it is, Way how to go on.
	Reason, Way string
}

// Compare judges what a k3s runs with beside what boxlift would write into its config.yaml for that role. What is
// refused would break the cluster, or boxlift. Differences are what install.yaml asks for and that k3s does not have:
// it stays without. What k3s has besides stays, too, and is no difference.
func (f *Found) Compare(role config.Role, program string,
	wanted map[string]any) (refused []Refusal, differences []string) {
	refuse := func(way, reason string, args ...any) {
		refused = append(refused, Refusal{printable.Line(fmt.Sprintf(reason, args...)), printable.Line(way)})
	}
	if f.Role != role {
		refuse("list the host among the "+string(f.Role)+"s of install.yaml", "it runs k3s %s, and is to be a %s",
			f.Role, role)
		return refused, nil
	}
	if path.Clean(f.Program) != program {
		refuse("set k3s up with its own install.sh, which places it there", "its k3s is %s, and boxlift replaces %s",
			f.Program, program)
	}
	for _, key := range slices.Sorted(maps.Keys(needed)) {
		n := needed[key]
		got := f.one(key, n.fallback)
		if strings.HasPrefix(got, "/") {
			got = path.Clean(got)
		}
		if got != n.fallback {
			reason := key + " is set"
			if !slices.Contains(hidden, key) {
				reason = key + " is " + got
			}
			refuse(wayOf(key, n.fallback), "%s: %s", reason, n.why)
		}
	}
	same := maps.Clone(network)
	maps.Copy(same, config.CriticalSettings())
	if role == config.Server {
		for _, key := range slices.Sorted(maps.Keys(same)) {
			got, want := f.one(key, same[key]), canonical(texts(wanted[key]), same[key])
			if got == want {
				continue
			}
			refuse(agreeOn(key, got), "%s is %s, and install.yaml makes it %s: all servers have to agree on it", key,
				orNothing(got), orNothing(want))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		_, isNeeded := needed[key]
		if _, isSame := same[key]; isSame || isNeeded || slices.Contains(own, key) {
			continue
		}
		if got, want := canonical(f.Settings[key], ""), canonical(texts(wanted[key]), ""); got != want {
			differences = append(differences, printable.Line(fmt.Sprintf("%s is %s, and install.yaml makes it %s", key,
				orNothing(got), orNothing(want))))
		}
	}
	return refused, differences
}

// wayOf says how to mend a setting in which boxlift relies on a default.
func wayOf(key, fallback string) string {
	switch key {
	case "data-dir":
		return "move the data to " + fallback + " while k3s is stopped, and take data-dir out; a larger disk can be " +
			"mounted there"
	case "datastore-endpoint":
		return "boxlift cannot take this cluster over: install another one, and move what runs on it"
	}
	return "take it out, and start k3s again"
}

// agreeOn says how install.yaml and servers come to agree on a setting.
func agreeOn(key, got string) string {
	switch key {
	case "flannel-backend", "disable-network-policy":
		return "make Cilium the cluster's only network first, as its documentation says for k3s: flannel-backend " +
			"none, and disable-network-policy true"
	case "disable-kube-proxy":
		return "write network.cilium.kubeProxyReplacement: " + got
	case "cluster-cidr":
		return "write network.cilium.podCIDR: " + got
	case "embedded-registry":
		return "write seeding.peerToPeer: " + got
	case "disable":
		return "write cluster.serverConfig: {disable: [" + got + "]}"
	}
	if got == "" {
		return "take " + key + " out of install.yaml"
	}
	return "write cluster.serverConfig: {" + key + ": " + got + "}"
}

// one is the value of a setting in one form.
func (f *Found) one(key, fallback string) string { return canonical(f.Settings[key], fallback) }

// canonical is one text for all ways to write the values of a setting, or a default when there are none.
func canonical(values []string, fallback string) string {
	var all []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	if len(all) == 0 {
		return fallback
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func orNothing(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}
