package k3s

import (
	"github.com/liteboxd/boxlift/install/site"
)

// What k3s keeps on servers (k3s v1.36): its data, and the tokens in full.
const (
	K3sDatabases   = site.K3sDataDir + "/server/db"
	K3sStateDB     = K3sDatabases + "/state.db"
	K3sServerToken = site.K3sDataDir + "/server/token"
	// K3sNodePassword is what a node of any role shows to servers.
	K3sNodePassword = "/etc/rancher/node/password"
)
