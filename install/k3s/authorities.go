package k3s

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

const (
	// Authorities is the folder in which k3s looks for the authorities of a cluster that it begins.
	Authorities = site.K3sDataDir + "/server/tls"
	// ServerAuthority signs what the cluster's servers and kubelets show. Its file has the chain up to the root.
	ServerAuthority = Authorities + "/server-ca.crt"

	stagedAuthorities = site.K3sDataDir + "/server/boxlift-authorities"
)

// authoritiesSteps bring the authorities that are under the site's to the server that begins the cluster, before k3s is
// started there for the first time: from then on it keeps to what it found. Servers that join get them from k3s. A
// cluster that has begun with others keeps these; it is told of.
func (n *Node) authoritiesSteps() []run.Step {
	if n.Cluster.Site.Config.Authority.Folder == "" || n.Host.Config.Role != config.Server || n.Server != "" ||
		n.Cluster.Restoration != nil {
		return nil
	}
	return []run.Step{{
		ID: "place-authorities", Title: "place the cluster's authorities",
		Needed: n.authoritiesReason,
		Run:    func(ctx context.Context) error { return placeAuthorities(ctx, n) },
	}}
}

func (n *Node) authoritiesReason(ctx context.Context) (string, error) {
	have, err := n.Host.Read(ctx, ServerAuthority)
	if err != nil {
		return "", err
	}
	if have == "" {
		out, err := n.Host.Root(ctx, "look for k3s' datastore", "/bin/sh", "-c", `[ ! -e "$1" ] || echo there`, "sh",
			K3sDatabases)
		if err != nil || len(out) > 0 { // which has them, and k3s takes them from there
			return "", err
		}
		return "k3s would begin the cluster with authorities of its own", nil
	}
	authority, err := n.Cluster.Site.Authority()
	if err != nil {
		return "", err
	}
	if authority.RootOf([]byte(have)) == nil {
		n.Cluster.Site.Warn("the cluster has begun with authorities of its own, which stay: nobody who trusts the site's " +
			"authority trusts its API because of that; `k3s certificate rotate-ca` changes them, by hand")
	}
	return "", nil
}

// placeAuthorities makes them, and gives them their name when all are there: k3s makes what is missing itself.
func placeAuthorities(ctx context.Context, n *Node) error {
	authority, err := n.Cluster.Site.Authority()
	if err != nil {
		return err
	}
	files, err := authority.Issuer.ClusterAuthorities()
	if err != nil {
		return err
	}
	const prepare = `set -e
rm -rf "$1"
mkdir -p -m 0700 "${1%/*}" "$1" "$1/etcd"`
	if _, err := n.Host.Root(ctx, "make a folder for the cluster's authorities", "/bin/sh", "-c", prepare, "sh",
		stagedAuthorities); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := n.Host.Put(ctx, path.Join(stagedAuthorities, name), 0o600, files[name]); err != nil {
			return err
		}
	}
	const place = `set -e
if [ -e "$2" ]; then rmdir "$2"; fi
mv "$1" "$2"`
	_, err = n.Host.Root(ctx, "place the cluster's authorities", "/bin/sh", "-c", place, "sh", stagedAuthorities,
		Authorities)
	if err != nil {
		return fault.WithHint(err, "there is something in "+Authorities+", and no "+strings.TrimPrefix(ServerAuthority,
			Authorities+"/")+": k3s did not get to its end there; k3s-uninstall.sh makes the host free")
	}
	return nil
}
