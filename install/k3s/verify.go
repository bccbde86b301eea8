package k3s

import (
	"strings"
)

// Disabled are the parts of k3s that install.yaml turns off.
func (c *Cluster) Disabled() []string {
	n := &Node{Cluster: c, Host: c.Site.Servers()[0]}
	switch v := n.Settings()["disable"].(type) {
	case string:
		return strings.Split(v, ",")
	case []string:
		return v
	}
	return nil
}
