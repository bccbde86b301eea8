// Package k3s is k3s on the hosts: what each of them runs it with, the steps that bring it there, servers one by
// one and agents at once, tokens and their rotation, clusters that somebody else has set up, and what has to be
// true before k3s may be started again.
//
// k3s is started in place, under its pods. Secrets reach hosts through standard input and files that only root can
// read.
package k3s

import (
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// Cluster is k3s on all hosts.
type Cluster struct {
	Site   *site.Site
	Engine *run.Engine
	Record *run.Record
	Seeder *seed.Seeder

	Crossing crossing
	// Restoration is what a restore gives to k3s, nil for none.
	Restoration *Restoration
	// agentsPassword is what agents join with, once that is known.
	agentsPassword agentsPassword
	// SharesToken tells that agents have the servers' token, splitsToken that they are to get one of their own.
	SharesToken, SplitsToken bool
}

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

// Uninstaller is the script of k3s' own that removes it from a server, or from an agent.
func Uninstaller(server bool) string {
	if server {
		return "/usr/local/bin/k3s-uninstall.sh"
	}
	return "/usr/local/bin/k3s-agent-uninstall.sh"
}

// IsNew reports whether the host has never been in a cluster, as far as it knows: no run has begun
// to set up k3s there. One that has been goes on as the node that it is, whatever its machine-id
// is now.
func IsNew(h *site.Host) bool {
	return !h.Member && h.Joined == "" && h.Adopted == nil && (h.Facts == nil || !h.Facts.K3s.Managed)
}

// What k3s keeps on servers (k3s v1.36): its data, and the tokens in full.
const (
	K3sDatabases   = site.K3sDataDir + "/server/db"
	K3sStateDB     = K3sDatabases + "/state.db"
	K3sServerToken = site.K3sDataDir + "/server/token"
	// K3sNodePassword is what a node of any role shows to servers.
	K3sNodePassword = "/etc/rancher/node/password"
)

const (
	// PreviousDir is where a node keeps what its k3s was before an upgrade, until the upgrade is
	// confirmed or another one begins: the program, its unit and configuration, and KeptFile.
	PreviousDir = wire.FilesDir + "/previous"
	// KeptFile describes what is in PreviousDir.
	KeptFile = PreviousDir + "/kept.json"
	// KeptFormat is the version of the form of KeptFile.
	KeptFormat = 1
	// MaxKept bounds KeptFile, in bytes: a node has some hundred pods.
	MaxKept = 1 << 20
	// SteadyTime is how long pods have to stay well. A kubelet before 1.35 that was started
	// again says of every container that it is not ready, until it has been probed again
	// (Kubernetes pull request 134746), and not at once.
	SteadyTime = 5 * time.Second
	// PodsBackTime is how long a host that went back waits for its pods. What does not come
	// back then is told.
	PodsBackTime = time.Minute
)
