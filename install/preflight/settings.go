package preflight

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// settings returns the values of a key of k3s' config.yaml, as text.
func settings(values map[string]any, key string) []string {
	switch v := values[key].(type) {
	case nil:
		return nil
	case []string:
		return v
	case []any:
		var list []string
		for _, item := range v {
			list = append(list, fmt.Sprint(item))
		}
		return list
	default:
		return []string{fmt.Sprint(v)}
	}
}

// setting returns the only or last value of a key, or "".
func setting(values map[string]any, key string) string {
	list := settings(values, key)
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

func settingOn(values map[string]any, key string) bool {
	on, err := strconv.ParseBool(setting(values, key))
	return err == nil && on
}

func settingPort(values map[string]any, key string, otherwise int) int {
	if port, err := strconv.Atoi(setting(values, key)); err == nil && port > 0 && port < 65536 {
		return port
	}
	return otherwise
}

// kubeletArg returns what config.yaml passes to the kubelet for a flag.
func kubeletArg(values map[string]any, flag string) (value string, given bool) {
	for _, arg := range settings(values, "kubelet-arg") {
		if rest, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), flag+"="); ok {
			value, given = rest, true
		}
	}
	return value, given
}

// chartValue returns the value at a path of keys in the values of a chart, or nil.
func chartValue(values map[string]any, path ...string) any {
	var v any = values
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// serverConfig is the config.yaml of the first server, which the others' has to match.
func (j *judgement) serverConfig() map[string]any {
	for _, s := range j.subjects {
		if s.Config.Role == config.Server {
			return s.K3sConfig
		}
	}
	return nil
}

// network is a network of the cluster's own.
type network struct {
	name   string
	prefix netip.Prefix
}

// networks are those that pods and services take.
func (j *judgement) networks() []network {
	list := []network{{"the pods' network", j.Need.Config.Network.Cilium.PodCIDR}}
	services := settings(j.serverConfig(), "service-cidr")
	if len(services) == 0 {
		services = []string{config.DefaultServiceCIDR.String()}
	}
	for _, text := range services {
		for part := range strings.SplitSeq(text, ",") {
			// What cannot be read is for k3s to refuse.
			if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil {
				list = append(list, network{"the services' network", p.Masked()})
			}
		}
	}
	return list
}

var minorVersion = lazyregexp.New(`^v?([0-9]+)\.([0-9]+)`)

// minor returns the first two numbers of a version.
func minor(version string) (first, second int, ok bool) {
	m := minorVersion.FindStringSubmatch(version)
	if m == nil {
		return 0, 0, false
	}
	first, err := strconv.Atoi(m[1])
	second, err2 := strconv.Atoi(m[2])
	return first, second, err == nil && err2 == nil
}

func before(version string, first, second int) bool {
	a, b, ok := minor(version)
	return ok && (a < first || a == first && b < second)
}
