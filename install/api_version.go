package install

import (
	"context"
	"errors"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
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

// apiVersions are the versions of the API servers of all servers that are connected to.
func (c *Cluster) apiVersions(ctx context.Context) []string {
	found := make([]string, len(c.site.servers()))
	c.site.atOnce(c.site.servers(), func(h *host) {
		for i, s := range c.site.servers() {
			if s == h && h.conn != nil {
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
func (c *Cluster) apiVersion(ctx context.Context, h *host) string {
	if api, err := c.site.apiThrough(ctx, h); err == nil {
		defer api.Close()
		if version := askVersion(ctx, api); version != "" {
			return version
		}
	}
	version, err := h.k3sVersion(ctx)
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
	// minor tells that Kubernetes moves by a minor version, and moved that a server's API has
	// answered with the new one, or may have written with it unseen: from then on, no server goes
	// back by itself.
	minor, moved bool
}

// minorStep tells whether nodes and API servers have to go to another minor version of
// Kubernetes, and whether an API server has been there already.
func minorStep(nodes []kube.Node, apis []string, to string) (minor, moved bool) {
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

// mayMove tells whether starting k3s on this host may bring the first API server of a newer
// minor version.
func (n *k3sNode) mayMove() bool {
	return n.cluster.crossing.minor && !n.cluster.crossing.moved && !n.goingBack && n.host.config.Role == config.Server
}

// startsUnseen notes that k3s is started, or was, while nobody watches what it does.
func (n *k3sNode) startsUnseen() {
	if n.mayMove() {
		n.cluster.crossing.moved = true
	}
}

// watchAPI sees, while k3s is started, whether its API server has moved to another minor version.
// It has, until it is known that k3s does not start, and that nobody answered all the while: end
// gets what came of the start.
func (n *k3sNode) watchAPI(ctx context.Context) (end func(error)) {
	if !n.mayMove() {
		return func(error) {}
	}
	n.cluster.crossing.moved = true
	api, err := n.cluster.site.apiThrough(ctx, n.host)
	if err != nil {
		return func(error) {} // nobody can look
	}
	over, answered := make(chan struct{}), make(chan bool)
	go func() {
		defer api.Close()
		answered <- answers(ctx, over, func() bool { return gate.SameMinor(askVersion(ctx, api), n.cluster.site.k3s) })
	}()
	return func(err error) {
		close(over)
		n.cluster.crossing.moved = <-answered || ctx.Err() != nil || !failedToStart(err)
	}
}

// failedToStart tells whether k3s is known not to have started. Any other error than systemd's
// may be that of a connection, through which nobody was asked either.
func failedToStart(err error) bool {
	var failed *serviceError
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
