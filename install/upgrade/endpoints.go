package upgrade

import (
	"context"

	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/site"
)

// keepsReadiness is the first version of Kubernetes whose kubelet, started again, leaves pods
// as ready as they were (Kubernetes pull request 134746).
const keepsReadiness = "v1.35.0"

// keepEndpoints lets the Services of the pods on the node that is moved go on sending to them,
// although its kubelet will say for some seconds that they are not ready.
func (m *move) keepEndpoints(ctx context.Context) (end func()) {
	if !m.moves || m.upgrader.Site.API == nil || !gate.Older(m.upgrader.Site.K3s, keepsReadiness) {
		return func() {}
	}
	name := m.host.Node
	if name == "" {
		name = m.host.NodeName()
	}
	if err := m.upgrader.Site.API.KeepEndpoints(ctx, name); err != nil {
		m.upgrader.Site.Note("%s: requests to services with one pod may fail while its kubelet is started again: %v", m.host.Name, err)
	}
	return func() {
		// A run that is told to end takes this back, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.LookTimeout)
		defer cancel()
		m.upgrader.letEndpoints(ctx, name)
	}
}

// letEndpoints undoes keepEndpoints for a node, or, of earlier runs that were killed, for all
// when the name is "".
func (u *Upgrader) letEndpoints(ctx context.Context, name string) {
	if u.Site.API == nil {
		return
	}
	if err := u.Site.API.LetEndpoints(ctx, name); err != nil && ctx.Err() == nil {
		u.Site.Note("services still send to pods that are not ready: %v; an upgrade that is run again takes that back", err)
	}
}
