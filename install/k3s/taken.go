package k3s

import (
	"github.com/liteboxd/boxlift/install/site"
)

// IsNew tells whether the host has never been in a cluster, as far as it knows: no run has begun
// to set up k3s there. One that has been goes on as the node that it is, whatever its machine-id
// is now.
func IsNew(h *site.Host) bool {
	return !h.Member && h.Joined == "" && h.Adopted == nil && (h.Facts == nil || !h.Facts.K3s.Managed)
}
