package run

import (
	"time"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// boxlift's registry on a server. Its user can read the packs and the folder, and nothing
// that is not for everybody.
const (
	RegistryService = "boxlift-registry"
	RegistryUser    = RegistryService
	RegistryUnit    = site.UnitDir + RegistryService + ".service"
	RegistryDir     = "/etc/boxlift-registry"
	RegistryConfig  = RegistryDir + "/config.json"
	// RegistryPair is certificate and key in one file, so that they change together.
	RegistryPair = RegistryDir + "/tls.pem"
	// RegistryProgram is a copy of boxlift-node: its config and it change together, while
	// boxlift-node is replaced before anything else. Programs in this folder may be run as
	// services where SELinux is in force.
	RegistryProgram = "/usr/local/libexec/boxlift-registry"
	// RegistryImages is where the service finds the packs, also where their folder is below
	// one that only root may enter.
	RegistryImages = "/run/boxlift-registry/images"
	// RegistryStarted holds the fingerprint of what the service was last started with.
	RegistryStarted = wire.FilesDir + "/registry-started"
	// RegistryUsername is the one that nodes log in with.
	RegistryUsername = "boxlift"
	// FrontDir has the config of the front, with its secret.
	FrontDir = "/etc/boxlift-front"
	// RegistryWait is how long a registry may take to answer after its start.
	RegistryWait = time.Minute
)

// DNSDir is the folder of the DNS server on a host that serves names.
const DNSDir = "/etc/boxlift-dns"
