package k3s

import (
	"context"
	"errors"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
)

// What has written to a cluster's data decides whether a server may go back: an API server of a
// newer minor version leaves what the older one cannot read. Neither the kubelet's version tells
// it, which is reported later or never, nor systemd, for which k3s is ready later still.

const (
	// versionTimeout bounds each question for an API server's version.
	versionTimeout = 3 * time.Second
	// watchInterval lies between two of them while k3s is started: an API server that k3s takes
	// down with it at once has answered for at least as long.
	watchInterval = 200 * time.Millisecond
)

// APIVersions are the versions of the API servers of all servers that are connected to.
func (c *Cluster) APIVersions(ctx context.Context) []string {
	found := make([]string, len(c.Site.Servers()))
	c.Site.AtOnce(c.Site.Servers(), func(h *site.Host) {
		for i, s := range c.Site.Servers() {
			if s == h && h.Conn != nil {
				found[i] = c.apiVersion(ctx, h)
			}
		}
	})
	var versions []string
	for _, version := range found {
		if version != "" {
			versions = append(versions, version)
		}
	}
	return versions
}

// apiVersion is that of a server's API server. When that does not answer, it is that of the
// program in its place, which may have been started by anybody, a reboot included; "" when there
// is none that runs.
func (c *Cluster) apiVersion(ctx context.Context, h *site.Host) string {
	if api, err := c.Site.APIThrough(ctx, h); err == nil {
		defer api.Close()
		if version := askVersion(ctx, api); version != "" {
			return version
		}
	}
	version, err := h.K3sVersion(ctx)
	if err != nil {
		return ""
	}
	return version
}

// askVersion is "" when the API server does not answer.
func askVersion(ctx context.Context, api *kube.Cluster) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	version, err := api.Version(ctx)
	if err != nil {
		return ""
	}
	return version
}

// crossing is how far a cluster is on its way to another minor version of Kubernetes.
type crossing struct {
	// Minor tells that Kubernetes moves by a minor version, and moved that a server's API has
	// answered with the new one, or may have written with it unseen: from then on, no server goes
	// back by itself.
	Minor, Moved bool
}

// MinorStep reports whether nodes and API servers have to go to another minor version of
// Kubernetes, and whether an API server has been there already.
func MinorStep(nodes []kube.Node, apis []string, to string) (minor, moved bool) {
	see := func(version string, server bool) {
		same := gate.SameMinor(version, to)
		minor, moved = minor || !same, moved || same && server
	}
	for _, n := range nodes {
		see(n.Kubelet, n.Server)
	}
	for _, version := range apis {
		see(version, true)
	}
	return minor, moved && minor
}

// mayMove reports whether starting k3s on this host may bring the first API server of a newer
// minor version.
func (n *Node) mayMove() bool {
	return n.Cluster.Crossing.Minor && !n.Cluster.Crossing.Moved && !n.GoingBack && n.Host.Config.Role == config.Server
}

// startsUnseen notes that k3s is started, or was, while nobody watches what it does.
func (n *Node) startsUnseen() {
	if n.mayMove() {
		n.Cluster.Crossing.Moved = true
	}
}

// watchAPI sees, while k3s is started, whether its API server has moved to another minor version.
// It has, until it is known that k3s does not start, and that nobody answered all the while: end
// gets what came of the start.
func (n *Node) watchAPI(ctx context.Context) (end func(error)) {
	if !n.mayMove() {
		return func(error) {}
	}
	n.Cluster.Crossing.Moved = true
	api, err := n.Cluster.Site.APIThrough(ctx, n.Host)
	if err != nil {
		return func(error) {} // nobody can look
	}
	over, answered := make(chan struct{}), make(chan bool)
	go func() {
		defer api.Close()
		answered <- answers(ctx, over, func() bool { return gate.SameMinor(askVersion(ctx, api), n.Cluster.Site.K3s) })
	}()
	return func(err error) {
		close(over)
		n.Cluster.Crossing.Moved = <-answered || ctx.Err() != nil || !failedToStart(err)
	}
}

// failedToStart reports whether k3s is known not to have started. Any other error than systemd's
// may be that of a connection, through which nobody was asked either.
func failedToStart(err error) bool {
	var failed *setup.ServiceError
	return errors.As(err, &failed)
}

// answers asks until the answer is yes, or until it is over, and then once more.
func answers(ctx context.Context, over <-chan struct{}, ask func() bool) bool {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		if ask() {
			return true
		}
		select {
		case <-ticker.C:
		case <-over:
			return ask()
		case <-ctx.Done():
			return false
		}
	}
}
