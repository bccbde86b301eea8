package k3s

import (
	"fmt"

	"github.com/liteboxd/boxlift/install/atrest"
)

// IsSet reports whether a value of k3s' config is true, however it is written.
func IsSet(value any) bool { return value != nil && fmt.Sprint(value) == "true" }

// Encrypts reports whether the servers are to encrypt Secrets in their datastores.
func (c *Cluster) Encrypts() bool {
	f := atrest.Facts{Asked: c.AsksToEncrypt(), Restoring: c.Restoration != nil}
	if f.Restoring {
		f.Backup = c.Restoration.Encrypts
	}
	for _, h := range c.Site.Servers() {
		f.Servers = append(f.Servers, h.AtRest)
	}
	return f.Encrypts()
}

// AsksToEncrypt is what install.yaml says of it, nil for nothing. What one server is given is meant for all.
func (c *Cluster) AsksToEncrypt() *bool {
	for _, s := range c.Site.Config.Cluster.Servers {
		if values := s.K3s.Value(atrest.Setting); len(values) > 0 {
			asked := IsSet(values[len(values)-1])
			return &asked
		}
	}
	return nil
}
