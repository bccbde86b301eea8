// Package hardening knows what the CIS Kubernetes Benchmark asks of k3s, item by item.
//
// Contract: it only computes. [Harden] adds to what a user gives k3s what the benchmark asks for, and says where the
// two contradict each other; the files that this names are [AuditPolicy] and [Admission]; the Judge functions say of
// what was found on hosts and through the API which items are as they are to be. Items have the numbers of version 1.12
// of the benchmark, as in k3s' self assessment for its versions v1.32 to v1.36, and values are those of k3s' hardening
// guide. What has no number there is from the guide alone, and has a name. Neither the documents nor their texts are
// part of this.
package hardening

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile is what a cluster is hardened by.
type Profile string

// The profiles.
const (
	None Profile = ""
	CIS  Profile = "cis"
)

// Files of hosts that what is given to k3s needs. Only root can read them.
const (
	AuditPolicyFile = "/etc/rancher/k3s/boxlift-audit.yaml"
	AdmissionFile   = "/etc/rancher/k3s/boxlift-admission.yaml"
	// AuditLog is where the API server writes who did what. Its folder is k3s' own, and goes with k3s.
	AuditLog = "/var/lib/rancher/k3s/server/logs/audit.log"
	// SysctlFile gives a host that boots the values that the kubelet insists on. Of several files that set a value the
	// last one by name counts (sysctl.d(5)), and hosts often have a 99-sysctl.conf.
	SysctlFile = "/etc/sysctl.d/99-zz-boxlift-kubelet.conf"
)

// Settings of k3s that have arguments for parts of it, and those that are judged themselves.
const (
	apiServer   = "kube-apiserver-arg"
	controllers = "kube-controller-manager-arg"
	scheduler   = "kube-scheduler-arg"
	kubelet     = "kubelet-arg"

	protectKernelDefaults = "protect-kernel-defaults"
	secretsEncryption     = "secrets-encryption"
	kubeconfigMode        = "write-kubeconfig-mode"
)

// argument is one that a part of k3s is given, or, without a name, a setting of k3s itself.
type argument struct {
	item, key, name string
	// give is what boxlift gives; "" for nothing, since k3s does right by itself.
	give string
	// adds tells that give is added to a list of the user's, whatever that is; the rule is one of lists.
	adds bool
	rule rule
}

// rule says which values are good.
type rule struct {
	expected string
	good     func(value string) bool
	// list tells that the value is a list with commas: an argument that is given again adds to it. Of any other, the
	// last value counts.
	list bool
}

func exactly(value string) rule {
	return rule{expected: value, good: func(s string) bool { return s == value }}
}

func atLeast(least int) rule {
	return rule{expected: fmt.Sprintf("%d at least", least), good: func(s string) bool {
		n, err := strconv.Atoi(s)
		return err == nil && n >= least
	}}
}

func between(least, most int) rule {
	return rule{expected: fmt.Sprintf("%d to %d", least, most), good: func(s string) bool {
		n, err := strconv.Atoi(s)
		return err == nil && n >= least && n <= most
	}}
}

func never() rule { return rule{expected: "not to be given", good: func(string) bool { return false }} }

func absolute() rule { return rule{expected: "an absolute path", good: path.IsAbs} }

// including are lists with commas that have all of some words and none of others.
func including(all, none []string) rule {
	expected := strings.Join(all, ",")
	if len(none) > 0 {
		expected = strings.TrimPrefix(expected+", without "+strings.Join(none, ","), ", ")
	}
	return rule{list: true, expected: expected, good: func(s string) bool {
		words := strings.Split(s, ",")
		has := func(word string) bool { return slices.Contains(words, word) }
		return !slices.ContainsFunc(all, func(word string) bool { return !has(word) }) && !slices.ContainsFunc(none,
			has)
	}}
}

// among are lists with commas that have nothing but some words.
func among(words []string) rule {
	return rule{list: true, expected: "only of " + strings.Join(words, ","), good: func(s string) bool {
		list := strings.Split(s, ",")
		return !slices.ContainsFunc(list, func(word string) bool { return !slices.Contains(words, word) })
	}}
}

// limited are lengths of time that are not endless: 0 is.
func limited() rule {
	return rule{expected: "a time above 0, such as 5m", good: func(s string) bool {
		d, err := time.ParseDuration(s)
		return err == nil && d > 0
	}}
}

// ownersOnly are modes of files that only their owner can read and write.
func ownersOnly() rule {
	return rule{expected: "0600 or stricter", good: func(s string) bool {
		mode, err := strconv.ParseUint(s, 8, 32)
		return err == nil && mode&^0o600 == 0
	}}
}

// ciphers are those of TLS 1.2 that count as strong: with ECDHE and AEAD. Those of TLS 1.3 all do, and cannot be
// chosen. CHACHA20 has a short name, too.
var ciphers = []string{
	"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
	"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
	"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
}

// strongCiphers are the ciphers with all their names.
var strongCiphers = slices.Concat(ciphers, []string{
	"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256",
})

// plugins are the admission plugins beside those that an API server has by itself, neededPlugins all that must not be
// turned off.
var (
	plugins       = []string{"NodeRestriction", "EventRateLimit"}
	neededPlugins = slices.Concat(plugins, []string{"ServiceAccount", "NamespaceLifecycle", "PodSecurity"})
)

// ofServers are the arguments of servers, ofNodes those of all hosts.
var (
	ofServers = []argument{
		{item: "1.1.13", key: kubeconfigMode, rule: ownersOnly()},
		{item: "1.2.1", key: apiServer, name: "anonymous-auth", rule: exactly("false")},
		{item: "1.2.2", key: apiServer, name: "token-auth-file", rule: never()},
		{item: "1.2.6, 1.2.7, 1.2.8", key: apiServer, name: "authorization-mode",
			rule: including([]string{"Node", "RBAC"}, []string{"AlwaysAllow"})},
		{item: "1.2.9, 1.2.14", key: apiServer, name: "enable-admission-plugins", give: strings.Join(plugins, ","),
			adds: true, rule: including(plugins, []string{"AlwaysAdmit"})},
		{item: "1.2.12, 1.2.13", key: apiServer, name: "disable-admission-plugins", rule: including(nil, neededPlugins)},
		{item: "1.2.15", key: apiServer, name: "profiling", rule: exactly("false")},
		{item: "1.2.16", key: apiServer, name: "audit-log-path", give: AuditLog, rule: absolute()},
		{item: "1.2.17", key: apiServer, name: "audit-log-maxage", give: "30", rule: atLeast(30)},
		{item: "1.2.18", key: apiServer, name: "audit-log-maxbackup", give: "10", rule: atLeast(10)},
		{item: "1.2.19", key: apiServer, name: "audit-log-maxsize", give: "100", rule: atLeast(100)},
		{item: "1.2.21", key: apiServer, name: "service-account-lookup", rule: exactly("true")},
		{item: "1.2.27, 1.2.28", key: secretsEncryption, rule: exactly("true")},
		{item: "1.2.29", key: apiServer, name: "tls-cipher-suites", rule: among(strongCiphers)},
		{item: "1.2.30", key: apiServer, name: "service-account-extend-token-expiration", give: "false",
			rule: exactly("false")},
		{item: "1.3.1", key: controllers, name: "terminated-pod-gc-threshold", give: "100", rule: between(1, 12500)},
		{item: "1.3.2", key: controllers, name: "profiling", rule: exactly("false")},
		{item: "1.3.3", key: controllers, name: "use-service-account-credentials", rule: exactly("true")},
		{item: "1.3.7", key: controllers, name: "bind-address", rule: exactly("127.0.0.1")},
		{item: "1.4.1", key: scheduler, name: "profiling", rule: exactly("false")},
		{item: "1.4.2", key: scheduler, name: "bind-address", rule: exactly("127.0.0.1")},
		{item: "3.2.1", key: apiServer, name: "audit-policy-file", give: AuditPolicyFile, rule: absolute()},
		{item: "5.2.1", key: apiServer, name: "admission-control-config-file", give: AdmissionFile,
			rule: exactly(AdmissionFile)},
	}
	ofNodes = []argument{
		{item: "kernel", key: protectKernelDefaults, give: "true", rule: exactly("true")},
		{item: "4.2.1", key: kubelet, name: "anonymous-auth", rule: exactly("false")},
		{item: "4.2.2", key: kubelet, name: "authorization-mode", rule: exactly("Webhook")},
		{item: "4.2.4", key: kubelet, name: "read-only-port", rule: exactly("0")},
		{item: "4.2.5", key: kubelet, name: "streaming-connection-idle-timeout", give: "5m", rule: limited()},
		{item: "4.2.6", key: kubelet, name: "make-iptables-util-chains", give: "true", rule: exactly("true")},
		{item: "4.2.12", key: kubelet, name: "tls-cipher-suites", give: strings.Join(ciphers, ","),
			rule: among(strongCiphers)},
	}
)

// argumentsOf are those of a host.
func argumentsOf(server bool) []argument {
	if server {
		return slices.Concat(ofServers, ofNodes)
	}
	return ofNodes
}

// Keys are the keys of k3s' config of a host that [Harden] has to do with.
func Keys(server bool) []string {
	var keys []string
	for _, a := range argumentsOf(server) {
		if !slices.Contains(keys, a.key) {
			keys = append(keys, a.key)
		}
	}
	return keys
}

// Harden adds to what a user gives for a key of k3s' config of a host what is missing. The value is what config.yaml
// takes, true or a list, and nil where the user's own stays as it is. Problems say where that cannot be: one line each,
// without the key.
func Harden(server bool, key string, own []string) (value any, problems []string) {
	merged, changed := slices.Clone(own), false
	for _, a := range argumentsOf(server) {
		if a.key != key {
			continue
		}
		given := a.given(merged)
		switch {
		case a.adds:
			if union := unite(given, a.give); union != given {
				merged, changed = append(a.without(merged), a.text(union)), true
				given = union
			}
		case given == "" && a.give != "" && a.name == "":
			return true, nil // no plain setting has others beside it
		case given == "" && a.give != "":
			merged, changed = append(merged, a.text(a.give)), true
			continue
		}
		if given != "" && !a.rule.good(given) {
			problems = append(problems, fmt.Sprintf("found %s, expected %s, because cluster.hardening is %s (%s)",
				a.found(given), a.rule.expected, CIS, a.item))
		}
	}
	if !changed || len(problems) > 0 {
		return nil, problems
	}
	return merged, nil
}

// text is the argument with a value, as k3s takes it.
func (a argument) text(value string) string { return a.name + "=" + value }

// found is the argument with a value, for messages.
func (a argument) found(value string) string {
	if a.name == "" {
		return value
	}
	return a.text(value)
}

// is reports whether an argument that k3s is given is this one, its value, and whether that comes before the values
// that there are. k3s takes three forms (k3s, pkg/daemons/config, GetArgs): after name=value its own default counts no
// more, name+=value comes after the default, name-=value before it. The parts of k3s take _ for - in names.
func (a argument) is(written string) (value string, before, ok bool) {
	if a.name == "" {
		return written, false, true
	}
	name, value, hasValue := strings.Cut(strings.TrimLeft(written, "-"), "=")
	if !hasValue {
		value = "true"
	}
	name = strings.ReplaceAll(strings.TrimSpace(name), "_", "-")
	return value, strings.HasSuffix(name, "-"), strings.TrimRight(name, "-+") == a.name
}

// given is the value among those that k3s is given, "" for none: of a list all words, of anything else the last one. A
// default of k3s' own that they are added to is not among them: what has to be there has to be written.
func (a argument) given(written []string) string {
	given := ""
	for _, w := range written {
		switch value, before, ok := a.is(w); {
		case ok && a.rule.list:
			given = unite(given, value)
		case ok && (given == "" || !before):
			given = value
		}
	}
	return given
}

// without are the arguments without this one.
func (a argument) without(written []string) []string {
	return slices.DeleteFunc(written, func(w string) bool {
		_, _, ok := a.is(w)
		return ok
	})
}

// unite adds to a list with commas the words of another that it does not have. A word may be in quotes, which are not
// part of it (pflag reads such a list as CSV).
func unite(list, more string) string {
	var words []string
	for word := range strings.SplitSeq(list+","+more, ",") {
		if word = strings.Trim(word, ` "`); word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, ",")
}

// Given is the value of an argument that k3s' API server is given, "" for none.
func Given(settings []string, name string) string {
	return argument{key: apiServer, name: name}.given(settings)
}
