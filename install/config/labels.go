package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Taint is a taint of a Kubernetes node.
type Taint struct {
	Key    string
	Value  string // "" for none
	Effect string // NoSchedule, PreferNoSchedule or NoExecute
}

// String returns the taint as kubectl writes it: key=value:Effect or key:Effect.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

var effects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// The limits are those of k8s.io/apimachinery's validation: the API server refuses what
// exceeds them.
var (
	qualifiedName = lazyregexp.New(`^([A-Za-z0-9][A-Za-z0-9_.-]{0,61})?[A-Za-z0-9]$`)
	labelKey      = lazyregexp.New(`^[A-Za-z0-9_./-]{1,317}$`)
)

// parseKey checks the key of a label or taint: an optional DNS name and a slash, then a
// name.
func parseKey(s string) error {
	prefix, name, hasPrefix := strings.Cut(s, "/")
	if !hasPrefix {
		prefix, name = "", s
	}
	switch {
	case hasPrefix && !isSubdomain(prefix):
		return errors.New("expected a DNS name in lower case before the /")
	case !qualifiedName.MatchString(name):
		return errors.New("expected a name of at most 63 letters, digits, -, _ and ., with a letter or digit at both " +
			"ends")
	}
	return nil
}

// isSubdomain is isDomain without a limit for each part, as Kubernetes has it.
func isSubdomain(s string) bool {
	return len(s) <= 253 && subdomain.MatchString(s)
}

var subdomain = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// parseValue checks the value of a label or taint.
func parseValue(s string) (string, error) {
	if s != "" && !qualifiedName.MatchString(s) {
		return "", errors.New("expected at most 63 letters, digits, -, _ and ., with a letter or digit at both ends")
	}
	return s, nil
}

// ownedLabels are set by k3s, the kubelet or boxlift itself, which would set them back or
// be led astray by them.
var ownedLabels = map[string]string{
	"kubernetes.io/arch":                       "the kubelet sets it",
	"kubernetes.io/hostname":                   "the kubelet sets it from the node's name",
	"kubernetes.io/os":                         "the kubelet sets it",
	"node-role.kubernetes.io/control-plane":    "k3s sets it on servers",
	"node-role.kubernetes.io/etcd":             "k3s sets it on servers",
	"node-role.kubernetes.io/master":           "k3s sets it on servers",
	"node.kubernetes.io/instance-type":         "k3s sets it, and others know k3s by it",
	"failure-domain.beta.kubernetes.io/region": "it has been replaced by topology.kubernetes.io/region",
	"failure-domain.beta.kubernetes.io/zone":   "it has been replaced by topology.kubernetes.io/zone",
}

// openPrefixes are the parts of Kubernetes' own namespaces that are meant for users.
// Those that begin with a dot stand for all DNS names that end so.
var openPrefixes = []string{
	"node-role.kubernetes.io", "topology.kubernetes.io", "node-restriction.kubernetes.io",
	"node.kubernetes.io", ".node.kubernetes.io", "kubelet.kubernetes.io", ".kubelet.kubernetes.io",
}

// labelReserved says why a label is not the user's to set, or "".
func labelReserved(key string) string {
	if reason, owned := ownedLabels[key]; owned {
		return reason
	}
	prefix, _, hasPrefix := strings.Cut(key, "/")
	switch {
	case !hasPrefix:
		return ""
	case prefix == "boxlift.dev" || strings.HasSuffix(prefix, ".boxlift.dev"):
		return "boxlift.dev/ is boxlift's own"
	case !isKubernetes(prefix), slices.ContainsFunc(openPrefixes, func(p string) bool {
		return prefix == p || p[0] == '.' && strings.HasSuffix(prefix, p)
	}):
		return ""
	}
	return prefix + "/ is Kubernetes' own; open to users are node-role.kubernetes.io/, topology.kubernetes.io/, " +
		"node.kubernetes.io/, node-restriction.kubernetes.io/ and every name of your own"
}

func isKubernetes(prefix string) bool {
	for _, own := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == own || strings.HasSuffix(prefix, "."+own) {
			return true
		}
	}
	return false
}

func (d *decoder) labels(n schema.Node) map[string]string {
	labels := map[string]string{}
	n.Entries("a label's key such as example.com/rack", labelKey, func(key string, at, value schema.Node) {
		v, ok := labelText(value)
		if value.Describes() {
			return
		}
		if err := parseKey(key); err != nil {
			at.Fail("found the key %q, %v", key, err)
		} else if reason := labelReserved(key); reason != "" {
			at.Fail("found the label %s, which cannot be set: %s", key, reason)
		}
		if ok {
			labels[key] = v
		}
	})
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// labelText reads the value of a label or taint, which may be empty.
func labelText(n schema.Node) (string, bool) {
	if !n.Describes() && n.IsNothing() {
		n.Fail(`found nothing, expected text: write "" for an empty value`)
		return "", false
	}
	s, ok := n.LineOrEmpty()
	if !ok {
		return "", false
	}
	if _, err := parseValue(s); err != nil {
		n.Fail("found %s, %v", n.Found(), err)
		return "", false
	}
	return s, true
}

func (d *decoder) taints(n schema.Node) []Taint {
	var taints []Taint
	first := map[[2]string]int{}
	n.List(func(_ int, item schema.Node) {
		t, ok := d.taint(item)
		if !ok || item.Describes() {
			return
		}
		if reason := taintReserved(t.Key); reason != "" {
			item.Fail("found the taint %s, which cannot be set: %s", t.Key, reason)
		}
		same := [2]string{t.Key, t.Effect}
		if line, again := first[same]; again {
			item.Fail("found %s:%s again, expected it once: it is on line %d already", t.Key, t.Effect, line)
			return
		}
		first[same] = item.Line()
		taints = append(taints, t)
	})
	return taints
}

func (d *decoder) taint(n schema.Node) (t Taint, ok bool) {
	n.Either(
		func(n schema.Node) {
			t = schema.Text(n, parseTaint)
			ok = t.Key != ""
		},
		func(n schema.Node) {
			present := n.Mapping(
				schema.Required("key", "Key, such as example.com/dedicated.", func(n schema.Node) {
					t.Key = schema.Text(n, func(s string) (string, error) { return s, parseKey(s) })
				}),
				schema.Optional("value", "Value. Default: none.", func(n schema.Node) { t.Value, _ = labelText(n) }),
				schema.Required("effect", "What happens to pods that do not tolerate the taint.", func(n schema.Node) {
					t.Effect = schema.Text(n, parseEffect)
					n.Among(effects...)
				}),
			)
			_, hasKey := present["key"]
			_, hasEffect := present["effect"]
			ok = hasKey && hasEffect && t.Key != "" && t.Effect != ""
		},
	)
	return t, ok
}

// parseTaint reads key=value:Effect or key:Effect.
func parseTaint(s string) (Taint, error) {
	const form = "expected key=value:Effect or key:Effect"
	if strings.HasSuffix(s, "-") {
		return Taint{}, errors.New(form + ": a taint that is not in the list is taken off, the - is not needed")
	}
	rest, effect, found := strings.Cut(s, ":")
	if !found {
		return Taint{}, errors.New(form + " with one of " + strings.Join(effects, ", "))
	}
	key, value, _ := strings.Cut(rest, "=")
	if err := parseKey(key); err != nil {
		return Taint{}, fmt.Errorf("%s: the key: %w", form, err)
	}
	if _, err := parseValue(value); err != nil {
		return Taint{}, fmt.Errorf("%s: the value: %w", form, err)
	}
	if _, err := parseEffect(effect); err != nil {
		return Taint{}, fmt.Errorf("%s: the effect: %w", form, err)
	}
	return Taint{key, value, effect}, nil
}

func parseEffect(s string) (string, error) {
	if !slices.Contains(effects, s) {
		return "", errors.New("expected one of " + strings.Join(effects, ", "))
	}
	return s, nil
}

// taintReserved says why a taint is not the user's to set, or "". Kubernetes puts those
// of node.kubernetes.io on nodes by what it finds, and takes them off again.
func taintReserved(key string) string {
	prefix, _, _ := strings.Cut(key, "/")
	switch {
	case prefix == "node.kubernetes.io" || prefix == "node.cloudprovider.kubernetes.io":
		return "Kubernetes sets the taints of " + prefix + "/ by what it finds"
	case key == "node.cilium.io/agent-not-ready":
		return "Cilium takes it off each time it starts"
	case prefix == "boxlift.dev" || strings.HasSuffix(prefix, ".boxlift.dev"):
		return "boxlift.dev/ is boxlift's own"
	}
	return ""
}

// warnOfTaints warns when no host is left that Cilium's operator may run on: it tolerates
// only the taints of the control plane (chart 1.18 and later).
func warnOfTaints(hosts []hostNode, values map[string]any) {
	if operator, ok := values["operator"].(map[string]any); ok && operator["tolerations"] != nil || len(hosts) == 0 {
		return
	}
	for _, h := range hosts {
		if !slices.ContainsFunc(h.Taints, func(t Taint) bool {
			return t.Effect != "PreferNoSchedule" && t.Key != "node-role.kubernetes.io/control-plane" &&
				t.Key != "node-role.kubernetes.io/master"
		}) {
			return
		}
	}
	hosts[0].field("taints").Warn("all hosts have taints that Cilium's operator does not tolerate: give it " +
		"tolerations with network.cilium.values.operator.tolerations")
}
