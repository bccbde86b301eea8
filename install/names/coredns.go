package names

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// What k3s' Corefile imports (k3s, manifests/coredns.yaml): every key of this ConfigMap that ends with .server is a
// further server of CoreDNS. One that ends with .override would be put into the server that k3s has, which has a
// plugin hosts already, and CoreDNS takes no second one there.
const (
	namespace = "kube-system"
	configMap = "coredns-custom"
	ownKey    = "boxlift.server"
	suffix    = ".server"
)

// Pods brings the names to pods, or takes them away.
func (n *Namer) Pods(ctx context.Context) error {
	return n.Engine.RunSteps(ctx, "converge", &n.Engine.Cluster, []run.Step{n.podsStep()})
}

func (n *Namer) podsStep() run.Step {
	return run.Step{
		ID: "name-for-pods", Title: "have CoreDNS answer names of install.yaml",
		Needed: func(ctx context.Context) (string, error) {
			if n.Site.API == nil {
				if n.server(nil) == "" {
					return "", nil
				}
				return "there is no cluster yet", nil
			}
			have, err := n.Site.API.ConfigMap(ctx, namespace, configMap)
			if err != nil {
				return "", err
			}
			text, isThere := have[ownKey]
			wanted := n.server(entries([]byte(text)))
			switch {
			case wanted == "" && isThere:
				return "install.yaml gives pods no names any more", nil
			case wanted == "" || text == wanted:
				return "", nil
			}
			if err := n.checkZones(have); err != nil {
				return "", err
			}
			if !isThere {
				return fmt.Sprintf("the ConfigMap %s has no key %s", configMap, ownKey), nil
			}
			return fmt.Sprintf("the key %s of the ConfigMap %s differs", ownKey, configMap), nil
		},
		Run: func(ctx context.Context) error {
			have, err := n.Site.API.ConfigMap(ctx, namespace, configMap)
			if err != nil {
				return err
			}
			if wanted := n.server(entries([]byte(have[ownKey]))); wanted != "" {
				return n.Site.API.PutConfigMap(ctx, namespace, configMap, map[string]string{ownKey: wanted})
			}
			return n.Site.API.RemoveFromConfigMap(ctx, namespace, configMap, ownKey)
		},
	}
}

// ForPods are the names that CoreDNS is to answer.
func (n *Namer) ForPods() []config.Name { return n.forPods(nil) }

// forPods are these names, where some have addresses already.
func (n *Namer) forPods(have []entry) []config.Name {
	if n.Site.Config.Names == nil || !n.Site.Config.Names.Pods || slices.Contains(n.Cluster.Disabled(), "coredns") {
		return nil
	}
	return given(n.Site, have)
}

// server is the server of CoreDNS with the names, "" for none. What it does not know, such as names below them, it asks
// where the server of k3s asks. have are the addresses that the one which is there has.
func (n *Namer) server(have []entry) string {
	list := n.forPods(have)
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("# Names of install.yaml. boxlift writes this key again where it differs.\n")
	for _, name := range list {
		b.WriteString(name.Name + ":53 ")
	}
	b.WriteString("{\n    errors\n    hosts {\n")
	for _, name := range list {
		fmt.Fprintf(&b, "        %s %s\n", name.Address, name.Name)
	}
	b.WriteString("        ttl 60\n        fallthrough\n    }\n    cache 30\n    forward . /etc/resolv.conf\n}\n")
	return b.String()
}

// checkZones refuses names that another key has a server for: CoreDNS does not start with two of them.
func (n *Namer) checkZones(data map[string]string) error {
	for key, text := range data {
		if key == ownKey || !strings.HasSuffix(key, suffix) {
			continue
		}
		taken := zones(text)
		for _, name := range n.forPods(entries([]byte(data[ownKey]))) {
			if slices.Contains(taken, name.Name) {
				return fault.WithHint(fmt.Errorf("%w: the key %s of the ConfigMap %s/%s has a server for %s "+
					"already, and CoreDNS does not start with "+
					"two", site.ErrRefused, printable.Short(key, 100), namespace, configMap, name.Name),
					"take the name out of one of them: out of the ConfigMap, or out of names in install.yaml "+
						"(names.pods: false keeps all of them out)")
			}
		}
	}
	return nil
}

// zones are those that a part of a Corefile has servers for on port 53, in lower case, as far as it writes them out.
func zones(text string) []string {
	var list []string
	depth := 0
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(strings.ReplaceAll(line, ",", " ")) {
			switch {
			case word == "{":
				depth++
			case word == "}":
				depth--
			case depth == 0:
				word = strings.TrimPrefix(strings.ToLower(word), "dns://")
				zone, port, _ := strings.Cut(word, ":")
				if port == "" || port == "53" {
					list = append(list, strings.TrimSuffix(zone, "."))
				}
			}
		}
	}
	return list
}
