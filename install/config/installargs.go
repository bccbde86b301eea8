package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Setting is one key of k3s' config.yaml, made from a flag of the same name.
type Setting struct {
	Key    string   // the flag without its dashes, such as "flannel-backend"
	Values []string // one for each time the flag was given; empty for a flag without a value, which means true
}

// Value returns what config.yaml takes for the key: true, a string, or a list.
func (s Setting) Value() any {
	switch len(s.Values) {
	case 0:
		return true
	case 1:
		return s.Values[0]
	}
	return s.Values
}

// reservedFlags are those that neither installArgs nor a k3s config can have, with the
// reason.
var reservedFlags = map[string]string{
	"agent-token":           "it is a secret, which boxlift would show",
	"agent-token-file":      "boxlift makes the token",
	"bind-address":          "boxlift reaches the API at 127.0.0.1",
	"cluster-cidr":          "write network.cilium.podCIDR",
	"cluster-init":          "boxlift sets it when there is more than one server",
	"cluster-reset":         "it belongs to a repair by hand",
	"config":                "boxlift writes k3s' config file",
	"data-dir":              "boxlift places images in /var/lib/rancher/k3s",
	"datastore-endpoint":    "boxlift uses k3s' own datastore",
	"disable-agent":         "boxlift expects every server to be a node",
	"disable-apiserver":     "boxlift reaches the API on every server",
	"disable-etcd":          "boxlift expects etcd on every server",
	"etcd-s3-access-key":    "it is a secret, which boxlift would show",
	"etcd-s3-secret-key":    "it is a secret, which boxlift would show",
	"etcd-s3-session-token": "it is a secret, which boxlift would show",
	"https-listen-port": "boxlift reaches the API at port 6443; write cluster.apiEndpoint for a load balancer " +
		"with another one",
	"lb-server-port":   "Cilium reaches the API at port 6444",
	"node-ip":          "write nodeIP",
	"node-name":        "write name",
	"private-registry": "write registries: boxlift writes registries.yaml",
	"server":           "boxlift sets it; write cluster.apiEndpoint for a load balancer",
	"token":            "boxlift makes the token",
	"token-file":       "boxlift makes the token",
	"vpn-auth":         "it is a secret, which boxlift would show",
	"vpn-auth-file":    "boxlift reaches nodes by their own addresses",
	"with-node-id":     "boxlift must know every node's name",
	"write-kubeconfig": "boxlift reads /etc/rancher/k3s/k3s.yaml; install has --kubeconfig to export it",

	"container-runtime-endpoint": "boxlift places images in k3s' own containerd",
	"docker":                     "boxlift places images in k3s' own containerd",
	"rootless":                   "boxlift installs k3s as root",

	// The short names of some of these flags.
	"c": "boxlift writes k3s' config file",
	"d": "boxlift places images in /var/lib/rancher/k3s",
	"i": "write nodeIP",
	"o": "boxlift reads /etc/rancher/k3s/k3s.yaml; install has --kubeconfig to export it",
	"s": "boxlift sets it; write cluster.apiEndpoint for a load balancer",
	"t": "boxlift makes the token",
}

// neededValues are the flags that Cilium leaves only one value.
var neededValues = map[string]string{"flannel-backend": "none", "disable-network-policy": "true"}

var flagName = lazyregexp.New(`^[a-z0-9]+(-[a-z0-9]+)*$`)

type argProblem struct {
	index int // in the arguments
	text  string
}

// parseInstallArgs turns arguments of k3s into settings for its config.yaml, in the
// order in which their flags first appear. A value may follow its flag after "=",
// after a space, or as the next argument. Everything that is not a long flag, and
// every flag that boxlift sets itself, is a problem.
func parseInstallArgs(args []string) (settings []Setting, problems []argProblem) {
	for i := 0; i < len(args); i++ {
		at, arg := i, args[i]
		fail := func(format string, a ...any) {
			problems = append(problems, argProblem{at, fmt.Sprintf(format, a...)})
		}
		flag, isLong := strings.CutPrefix(arg, "--")
		key, value, hasValue := flag, "", false
		if end := strings.IndexAny(flag, "= "); end >= 0 {
			key, value, hasValue = flag[:end], flag[end+1:], true
			if flag[end] == ' ' {
				value = strings.TrimLeft(value, " ")
			}
		} else if i+1 < len(args) && isLong && !strings.HasPrefix(args[i+1], "-") {
			i++
			value, hasValue = args[i], true
		}
		reason, reserved := reservedFlags[key]
		needed, fixed := neededValues[key]
		switch {
		case !isLong || !flagName.MatchString(key):
			// Not shown: it may be a value whose flag has been lost.
			fail("found something that is not a flag, expected --flag, --flag=value or --flag value")
			continue
		case reserved:
			fail("--%s cannot be given here: %s", key, reason)
			continue
		case hasValue && value == "":
			fail("found --%s with an empty value", key)
			continue
		case strings.HasPrefix(value, "--"):
			fail("found two flags in one argument after --%s, expected one", key)
			continue
		case strings.HasPrefix(value, `"`) || strings.HasPrefix(value, "'"):
			fail("found quotes around the value of --%s, expected none: no shell takes them off", key)
			continue
		case fixed && value != needed && (hasValue || needed != "true"):
			fail("found --%s=%s, expected %s: Cilium is the cluster's network", key, value, needed)
			continue
		}
		s := slices.IndexFunc(settings, func(s Setting) bool { return s.Key == key })
		switch {
		case s < 0 && hasValue:
			settings = append(settings, Setting{Key: key, Values: []string{value}})
		case s < 0:
			settings = append(settings, Setting{Key: key})
		case hasValue != (len(settings[s].Values) > 0):
			fail("found --%s both with and without a value", key)
		case hasValue && slices.Contains(settings[s].Values, value):
			fail("found --%s=%s again, expected it once", key, value)
		case hasValue:
			settings[s].Values = append(settings[s].Values, value)
		}
	}
	return settings, problems
}
