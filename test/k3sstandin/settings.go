package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// settings are what the program uses of its configuration.
type settings struct {
	server         bool // not an agent
	dataDir        string
	configDir      string   // of config.yaml; k3s.yaml is written there
	join           string   // URL of the server to join, "" on the first server
	token          string   // as given, "" when there is none
	names          []string // tls-san and node-ip: further names of the server's certificate
	port           string
	kubeconfig     string
	kubeconfigMode string
}

const configFile = "/etc/rancher/k3s/config.yaml"

// Flags, which are also the keys of config.yaml. A flag that a server or agent
// does not know stops it, as it stops k3s.
var (
	nodeFlags = strings.Fields(`config debug v token token-file data-dir node-name with-node-id node-label node-taint
		node-ip node-external-ip lb-server-port private-registry system-default-registry airgap-extra-registry
		disable-default-registry-endpoint pause-image snapshotter resolv-conf kubelet-arg kube-proxy-arg
		protect-kernel-defaults selinux prefer-bundled-bin server flannel-iface bind-address`)
	serverFlags = strings.Fields(`cluster-init agent-token agent-token-file tls-san tls-san-security advertise-address
		https-listen-port cluster-cidr service-cidr cluster-dns cluster-domain
		service-node-port-range flannel-backend egress-selector-mode disable disable-kube-proxy disable-network-policy
		disable-helm-controller disable-cloud-controller disable-apiserver disable-controller-manager disable-scheduler
		write-kubeconfig write-kubeconfig-mode write-kubeconfig-group helm-job-image embedded-registry
		kube-apiserver-arg kube-controller-manager-arg kube-scheduler-arg etcd-arg secrets-encryption
		etcd-snapshot-name etcd-snapshot-schedule-cron etcd-snapshot-retention etcd-snapshot-dir etcd-snapshot-compress
		etcd-disable-snapshots etcd-expose-metrics default-local-storage-path datastore-endpoint`)
	// switches take no value on the command line.
	switches = strings.Fields(`debug with-node-id disable-default-registry-endpoint protect-kernel-defaults selinux prefer-bundled-bin
		cluster-init tls-san-security disable-kube-proxy disable-network-policy disable-helm-controller disable-cloud-controller
		disable-apiserver disable-controller-manager disable-scheduler embedded-registry secrets-encryption
		etcd-snapshot-compress etcd-disable-snapshots etcd-expose-metrics`)
	environment = map[string]string{
		"K3S_CONFIG_FILE": "config", "K3S_TOKEN": "token", "K3S_TOKEN_FILE": "token-file", "K3S_URL": "server",
		"K3S_DATA_DIR": "data-dir", "K3S_NODE_NAME": "node-name", "K3S_RESOLV_CONF": "resolv-conf",
		"K3S_SELINUX": "selinux", "K3S_SYSTEM_DEFAULT_REGISTRY": "system-default-registry",
		"K3S_KUBECONFIG_OUTPUT": "write-kubeconfig", "K3S_KUBECONFIG_MODE": "write-kubeconfig-mode",
	}
)

// readSettings merges, the first wins: command line, environment, config.yaml with config.yaml.d.
func readSettings(command string, args, environ []string) (settings, error) {
	known := nodeFlags
	if command == "server" {
		known = slices.Concat(nodeFlags, serverFlags)
	}
	given := map[string][]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if flag := environment[name]; flag != "" && slices.Contains(known, flag) {
			given[flag] = []string{value}
		}
	}
	flags, err := parseFlags(known, args)
	if err != nil {
		return settings{}, err
	}
	for flag, values := range flags {
		given[flag] = values
	}
	config := last(given["config"], configFile)
	values, err := readConfig(known, config)
	if err != nil {
		return settings{}, err
	}
	for flag, v := range given {
		values[flag] = v
	}
	s := settings{
		server: command == "server", configDir: filepath.Dir(config),
		dataDir: last(values["data-dir"], "/var/lib/rancher/k3s"),
		join:    strings.TrimSuffix(last(values["server"], ""), "/"), token: last(values["token"], ""),
		names: slices.Concat(values["tls-san"], values["node-ip"]), port: last(values["https-listen-port"], "6443"),
		kubeconfigMode: last(values["write-kubeconfig-mode"], "600"),
	}
	s.kubeconfig = last(values["write-kubeconfig"], filepath.Join(s.configDir, "k3s.yaml"))
	if file := last(values["token-file"], ""); file != "" && s.token == "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return settings{}, fmt.Errorf("read token file: %w", err)
		}
		s.token = strings.TrimSpace(string(token))
	}
	switch {
	case s.join != "" && !strings.HasPrefix(s.join, "https://"):
		return settings{}, fmt.Errorf("server %q: only https:// URLs are supported", s.join)
	case s.join == "" && !s.server:
		return settings{}, errors.New("--server is required")
	case s.join != "" && s.token == "":
		return settings{}, errors.New("--token is required")
	}
	return s, nil
}

func last(values []string, otherwise string) string {
	if len(values) == 0 {
		return otherwise
	}
	return values[len(values)-1]
}

func parseFlags(known, args []string) (map[string][]string, error) {
	flags := map[string][]string{}
	for len(args) > 0 {
		name, value, hasValue := strings.Cut(args[0], "=")
		flag := strings.TrimLeft(name, "-")
		if !strings.HasPrefix(name, "-") || !slices.Contains(known, flag) {
			return nil, fmt.Errorf("flag provided but not defined: %s", args[0])
		}
		args = args[1:]
		if !hasValue {
			if value = "true"; !slices.Contains(switches, flag) {
				if len(args) == 0 {
					return nil, fmt.Errorf("flag needs an argument: %s", name)
				}
				value, args = args[0], args[1:]
			}
		}
		flags[flag] = append(flags[flag], value)
	}
	return flags, nil
}

// readConfig reads a configuration file and the folder beside it. Files in
// the folder go after each other by name; a key takes the place of an earlier
// one, and "key+" adds to it. The file itself may be absent.
func readConfig(known []string, config string) (map[string][]string, error) {
	files, err := filepath.Glob(config + ".d/*.yaml")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	values := map[string][]string{}
	for _, file := range append([]string{config}, files...) {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		var entries map[string]any
		if err := yaml.Unmarshal(text, &entries); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		for key, entry := range entries {
			flag, adds := strings.CutSuffix(key, "+")
			if !slices.Contains(known, flag) {
				return nil, fmt.Errorf("read %s: flag provided but not defined: -%s", file, flag)
			}
			list, ok := entry.([]any)
			if !ok {
				list = []any{entry}
			}
			var texts []string
			for _, item := range list {
				texts = append(texts, fmt.Sprint(item))
			}
			if adds {
				texts = append(values[flag], texts...)
			}
			values[flag] = texts
		}
	}
	return values, nil
}
