package members

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// remains are what a host has of a cluster. install.yaml does not tell: it may name a host that
// is in another one.
type remains struct {
	ca      string // the digest of the authority that its token is of, or ""
	service bool   // k3s is set up as a service
	server  bool   // it has a server's data
}

// errUntold says that what cluster a host is in is not known.
var errUntold = errors.New("k3s is set up on it, and it has no token that says for which cluster")

// check says why they are not those of the cluster with the authority own. Without a token there
// is only what an uninstall that was broken off has left, or a run that had just begun with the
// host; needsToken does not let that pass either.
func (r remains) check(own string, needsToken bool) error {
	switch {
	case own == "":
		return errors.New("the server that the API was reached through has no token of its cluster to compare with")
	case r.ca == own:
		return nil
	case r.ca != "":
		return &k3s.ForeignError{Server: r.server}
	case r.service || r.server:
		return errUntold
	case needsToken:
		return errors.New("it has no token of this cluster")
	}
	return nil
}

// findRemains looks at what a host has.
func findRemains(ctx context.Context, h *site.Host) (remains, error) {
	ca, err := k3s.ClusterCA(ctx, h)
	if err != nil {
		return remains{}, err
	}
	r := remains{ca: ca}
	const script = `for name in k3s k3s-agent; do [ ! -e "$1$name.service" ] || echo service; done
[ ! -e "$1k3s.service" ] && [ ! -d "$2" ] || echo server`
	out, err := h.Root(ctx, "look for what is left of k3s", "/bin/sh", "-c", script, "sh", site.UnitDir,
		k3s.K3sDatabases)
	if err != nil {
		return remains{}, err
	}
	for line := range strings.Lines(string(out)) {
		switch strings.TrimSpace(line) {
		case "service":
			r.service = true
		case "server":
			r.server = true
		}
	}
	return r, nil
}

// ownRemains is what a host has of the cluster whose API was reached. The error wraps
// [site.ErrRefused] when that is of another cluster, or may be.
func (m *Members) ownRemains(ctx context.Context, h *site.Host, needsToken bool) (remains, error) {
	own, err := k3s.ClusterCA(ctx, m.Site.APIServer)
	if err != nil {
		return remains{}, fmt.Errorf("%w: read the cluster's token from %s: %w", site.ErrHosts, m.Site.APIServer.Name,
			err)
	}
	r, err := findRemains(ctx, h)
	if err != nil {
		return remains{}, fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(err, h.Name))
	}
	if err := r.check(own, needsToken); err != nil {
		return remains{}, &strangerError{host: h.Name, server: r.server, err: err}
	}
	return r, nil
}

// strangerError says why k3s is not uninstalled from a host that has no node of its own in the
// cluster.
type strangerError struct {
	host   string
	server bool
	err    error
}

func (e *strangerError) Error() string {
	return fmt.Sprintf("%v: remove %s: the cluster has no node of it by its name, and nothing was changed: %v",
		site.ErrRefused, e.host, e.err)
}

func (e *strangerError) Unwrap() error { return site.ErrRefused }

// Hint leaves the decision to people: what goes with k3s does not come back.
func (e *strangerError) Hint() string {
	return "take the host out of install.yaml; if it is to be emptied all the same, whatever cluster it is in, run " +
		k3s.Uninstaller(e.server) + " on it"
}
