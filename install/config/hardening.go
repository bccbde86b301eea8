package config

import (
	"slices"

	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/hardening"
)

// hardenK3s gives every host's k3s what hardening asks for, beside what the file gives it, and reports where the file
// gives something else. What stands in serverConfig or agentConfig is reported once.
func hardenK3s(c *clusterNode) {
	if c.Hardening == hardening.None {
		return
	}
	for _, group := range []struct {
		hosts  []hostNode
		common []k3sSetting
	}{{c.servers, c.serverConfig}, {c.agents, c.agentConfig}} {
		reported := map[string]bool{}
		for i := range group.hosts {
			h := &group.hosts[i]
			for _, key := range hardening.Keys(h.Role == Server) {
				value, problems := hardening.Harden(h.Role == Server, key, h.K3s.Value(key))
				at, shared := h.source(key, group.common)
				for _, p := range problems {
					if text := at.Path() + p; !shared || !reported[text] {
						at.Fail("%s: %s", key, p)
						reported[text] = shared
					}
				}
				if value != nil {
					h.give(key, value)
				}
			}
		}
	}
}

// source is where a setting of the host's k3s was written, and whether other hosts have it from there, too.
func (h hostNode) source(key string, common []k3sSetting) (at schema.Node, shared bool) {
	for _, s := range h.config {
		if s.key == key {
			return s.at, false
		}
	}
	i := slices.IndexFunc(common, func(s k3sSetting) bool { return s.key == key })
	if i >= 0 && !hasFlag(h.K3s.Settings, key) {
		return common[i].at, true
	}
	return h.field("k3s"), false
}

// give puts a value, true or a list, in the place of what the host's k3s has for a key.
func (h *hostNode) give(key string, value any) {
	list, _ := value.([]string)
	for i, s := range h.K3s.Settings {
		if s.Key == key {
			h.K3s.Settings[i].Values = list
			return
		}
	}
	if h.K3s.Config == nil {
		h.K3s.Config = map[string]any{}
	}
	h.K3s.Config[key] = value
}
