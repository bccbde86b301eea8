package site

import (
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/wire"
)

// Paths of k3s on every host (install.sh and docs of k3s v1.36).
const (
	K3sBinary     = "/usr/local/bin/k3s"
	K3sConfigDir  = "/etc/rancher/k3s"
	K3sConfigFile = K3sConfigDir + "/config.yaml"
	// K3sConfigDropIns has files that k3s reads after its config, each over those before
	// (k3s v1.36). boxlift puts none there.
	K3sConfigDropIns = K3sConfigFile + ".d"
	K3sRegistries    = K3sConfigDir + "/registries.yaml"
	// K3sTokenFile is boxlift's own file, which config.yaml names, so that the token is
	// in no file that anybody else may read.
	K3sTokenFile = K3sConfigDir + "/boxlift-token"
	// K3sAgentTokenFile has the password that agents join with. Servers alone have it.
	K3sAgentTokenFile = K3sConfigDir + "/boxlift-agent-token"
	// K3sResolvConf is boxlift's own too, for hosts that know no nameserver.
	K3sResolvConf = K3sConfigDir + "/boxlift-resolv.conf"
	K3sDataDir    = "/var/lib/rancher/k3s"
	// K3sNodeToken is where a server writes the full token that others join with.
	K3sNodeToken = K3sDataDir + "/server/node-token"
	// K3sAgentToken is where a server writes, in full, what agents join with: the token above, unless they have
	// one of their own.
	K3sAgentToken = K3sDataDir + "/server/agent-token"
	// K3sEncryptionKey has the key of Secrets on servers that encrypt them.
	K3sEncryptionKey = K3sServerCredentials + "/encryption-config.json"
	// K3sServerCredentials has what a server shows to others, and that key.
	K3sServerCredentials = K3sDataDir + "/server/cred"
	UnitDir              = "/etc/systemd/system/"
	// StartedFile holds the fingerprint of everything that k3s was last started with,
	// ServiceFile that of what its unit was made from, and of the unit itself.
	StartedFile = wire.FilesDir + "/k3s-started"
	ServiceFile = wire.FilesDir + "/k3s-service"
)

// Unit is the name of k3s' service for a role.
func Unit(role config.Role) string {
	if role == config.Server {
		return "k3s"
	}
	return "k3s-agent"
}

const (
	// PollInterval lies between two looks of those who wait.
	PollInterval = 500 * time.Millisecond
	// MaxRestarts is how often systemd may try again before the start counts as failed.
	MaxRestarts = 3
)
