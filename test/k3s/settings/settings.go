// Package settings merges the configuration of a k3s server or agent by k3s'
// rules: command line before environment before files; config.yaml and then the
// files of config.yaml.d by name, where a later value replaces an earlier one
// and "key+" adds to it. A list on the command line replaces the files' list. A
// key is a flag's name, and a flag that the command does not have is refused,
// in files too.
package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// DefaultFile is read when neither --config nor K3S_CONFIG_FILE names another.
const DefaultFile = "/etc/rancher/k3s/config.yaml"

var (
	nodeFlags = strings.Fields(`config debug v vmodule log alsologtostderr token token-file data-dir node-name with-node-id
		node-label node-taint node-ip node-external-ip node-internal-dns node-external-dns lb-server-port private-registry system-default-registry
		airgap-extra-registry disable-default-registry-endpoint pause-image snapshotter resolv-conf kubelet-arg
		kube-proxy-arg protect-kernel-defaults selinux prefer-bundled-bin server flannel-iface flannel-conf
		bind-address container-runtime-endpoint default-runtime image-service-endpoint image-credential-provider-bin-dir
		image-credential-provider-config enable-pprof rootless vpn-auth disable-apiserver-lb nonroot-devices`)
	serverFlags = strings.Fields(`cluster-init cluster-reset cluster-reset-restore-path agent-token agent-token-file tls-san
		tls-san-security advertise-address advertise-port https-listen-port cluster-cidr service-cidr cluster-dns
		cluster-domain service-node-port-range flannel-backend flannel-ipv6-masq flannel-external-ip egress-selector-mode
		servicelb-namespace disable disable-kube-proxy disable-network-policy disable-helm-controller
		disable-cloud-controller disable-agent disable-apiserver disable-controller-manager disable-scheduler disable-etcd
		write-kubeconfig write-kubeconfig-mode write-kubeconfig-group helm-job-image embedded-registry
		supervisor-metrics kube-apiserver-arg kube-controller-manager-arg kube-scheduler-arg
		kube-cloud-controller-manager-arg etcd-arg secrets-encryption secrets-encryption-provider etcd-snapshot-name
		etcd-snapshot-schedule-cron etcd-snapshot-retention etcd-snapshot-dir etcd-snapshot-compress etcd-disable-snapshots
		etcd-expose-metrics etcd-s3 default-local-storage-path datastore-endpoint kine-tls`)
	switches = strings.Fields(`debug alsologtostderr with-node-id disable-default-registry-endpoint protect-kernel-defaults
		selinux prefer-bundled-bin enable-pprof rootless disable-apiserver-lb nonroot-devices cluster-init cluster-reset
		tls-san-security flannel-ipv6-masq flannel-external-ip disable-kube-proxy disable-network-policy
		disable-helm-controller disable-cloud-controller disable-agent disable-apiserver disable-controller-manager
		disable-scheduler disable-etcd embedded-registry supervisor-metrics secrets-encryption etcd-snapshot-compress
		etcd-disable-snapshots etcd-expose-metrics etcd-s3 kine-tls`)
	// unsupported are flags of k3s that this distribution has no part for. The
	// others that it does not use are accepted without effect.
	unsupported = strings.Fields(`datastore-endpoint container-runtime-endpoint image-service-endpoint rootless vpn-auth
		etcd-s3 kine-tls disable-apiserver disable-controller-manager disable-scheduler disable-etcd with-node-id`)
	environment = map[string]string{
		"K3S_CONFIG_FILE": "config", "K3S_DEBUG": "debug", "K3S_TOKEN": "token", "K3S_TOKEN_FILE": "token-file",
		"K3S_AGENT_TOKEN": "agent-token", "K3S_AGENT_TOKEN_FILE": "agent-token-file", "K3S_URL": "server",
		"K3S_DATA_DIR": "data-dir", "K3S_NODE_NAME": "node-name", "K3S_RESOLV_CONF": "resolv-conf",
		"K3S_SELINUX": "selinux", "K3S_SYSTEM_DEFAULT_REGISTRY": "system-default-registry",
		"K3S_KUBECONFIG_OUTPUT": "write-kubeconfig", "K3S_KUBECONFIG_MODE": "write-kubeconfig-mode",
		"K3S_KUBECONFIG_GROUP": "write-kubeconfig-group", "K3S_LB_SERVER_PORT": "lb-server-port",
		"K3S_CLUSTER_INIT": "cluster-init", "K3S_CLUSTER_RESET": "cluster-reset", "K3S_DATASTORE_ENDPOINT": "datastore-endpoint",
	}
)

// Settings are the values by flag. A flag that is not given has none.
type Settings struct {
	Server bool // not an agent
	Values map[string][]string
}

// Read merges the settings of a command, "server" or "agent".
func Read(command string, args, environ []string) (Settings, error) {
	s := Settings{Server: command == "server"}
	known := nodeFlags
	if s.Server {
		known = slices.Concat(nodeFlags, serverFlags)
	}
	given := map[string][]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if flag := environment[name]; value != "" && slices.Contains(known, flag) {
			given[flag] = []string{value}
		}
	}
	flags, err := parseFlags(known, args)
	if err != nil {
		return s, err
	}
	for flag, values := range flags {
		given[flag] = values
	}
	file := DefaultFile
	if v := given["config"]; len(v) > 0 {
		file = v[len(v)-1]
	}
	if s.Values, err = readFiles(known, file); err != nil {
		return s, err
	}
	for flag, values := range given {
		s.Values[flag] = values
	}
	return s, s.check()
}

func (s Settings) check() error {
	for flag, values := range s.Values {
		if slices.Contains(switches, flag) && len(values) > 0 {
			if _, err := strconv.ParseBool(values[len(values)-1]); err != nil {
				return fmt.Errorf("invalid boolean value %q for -%s", values[len(values)-1], flag)
			}
		}
		if slices.Contains(unsupported, flag) && s.Get(flag, "false") != "false" {
			return fmt.Errorf("-%s: this distribution, which is for tests, does not have it", flag)
		}
	}
	server := s.Get("server", "")
	switch {
	case server != "" && !strings.HasPrefix(server, "https://"):
		return fmt.Errorf("server %q: only https:// URLs are supported", server)
	case server == "" && !s.Server:
		return errors.New("--server is required")
	}
	return nil
}

// Get is the value of a flag, the last one when there are several.
func (s Settings) Get(flag, otherwise string) string {
	if v := s.Values[flag]; len(v) > 0 {
		return v[len(v)-1]
	}
	return otherwise
}

// List is all values of a flag, as they were given.
func (s Settings) List(flag string) []string { return s.Values[flag] }

// Split is all values of a flag, those with commas taken apart.
func (s Settings) Split(flag string, otherwise ...string) []string {
	var all []string
	for _, value := range s.Values[flag] {
		for _, part := range strings.Split(value, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	if len(all) == 0 {
		return otherwise
	}
	return all
}

// Bool says whether a switch is on. Switches are off unless said otherwise.
func (s Settings) Bool(flag string) bool {
	on, err := strconv.ParseBool(s.Get(flag, "false"))
	return err == nil && on // Read refuses what is no boolean
}

// Token is the token, from --token or the file that --token-file names; empty
// when neither is given. With "agent-", it is that of agents.
func (s Settings) Token(prefix string) (string, error) {
	if token := s.Get(prefix+"token", ""); token != "" {
		return token, nil
	}
	file := s.Get(prefix+"token-file", "")
	if file == "" {
		return "", nil
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

func parseFlags(known, args []string) (map[string][]string, error) {
	flags := map[string][]string{}
	for len(args) > 0 {
		name, value, hasValue := strings.Cut(args[0], "=")
		flag := strings.TrimLeft(name, "-")
		switch flag {
		case "t":
			flag = "token"
		case "s":
			flag = "server"
		case "d":
			flag = "data-dir"
		case "c":
			flag = "config"
		}
		if !strings.HasPrefix(name, "-") || !slices.Contains(known, flag) {
			return nil, fmt.Errorf("flag provided but not defined: -%s", flag)
		}
		args = args[1:]
		if !hasValue {
			if value = "true"; !slices.Contains(switches, flag) {
				if len(args) == 0 {
					return nil, fmt.Errorf("flag needs an argument: -%s", flag)
				}
				value, args = args[0], args[1:]
			}
		}
		flags[flag] = append(flags[flag], value)
	}
	return flags, nil
}

// readFiles reads a configuration file, which may be absent, and the folder beside it.
func readFiles(known []string, config string) (map[string][]string, error) {
	files, err := filepath.Glob(config + ".d/*.yaml")
	if err != nil {
		return nil, err
	}
	more, err := filepath.Glob(config + ".d/*.yml")
	if err != nil {
		return nil, err
	}
	files = append(files, more...)
	slices.Sort(files)
	values := map[string][]string{}
	for _, file := range append([]string{config}, files...) {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		if err := merge(known, values, text); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return values, nil
}

func merge(known []string, values map[string][]string, text []byte) error {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	var entries map[string]any
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber() // 1000000 must not become 1e+06
	if err := decoder.Decode(&entries); err != nil {
		return err
	}
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	slices.Sort(keys) // "key" goes before "key+"
	for _, key := range keys {
		flag, adds := strings.CutSuffix(key, "+")
		if !slices.Contains(known, flag) {
			return fmt.Errorf("flag provided but not defined: -%s", flag)
		}
		list, ok := entries[key].([]any)
		if !ok {
			list = []any{entries[key]}
		}
		var texts []string
		for _, item := range list {
			if item != nil {
				texts = append(texts, fmt.Sprint(item))
			}
		}
		if adds {
			texts = slices.Concat(values[flag], texts)
		}
		values[flag] = texts
	}
	return nil
}
