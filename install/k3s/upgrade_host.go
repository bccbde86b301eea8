package k3s

import (
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

const (
	// PreviousDir is where a node keeps what its k3s was before an upgrade, until the upgrade is
	// confirmed or another one begins: the program, its unit and configuration, and keptFile.
	PreviousDir = wire.FilesDir + "/previous"
	KeptFile    = PreviousDir + "/kept.json"
	KeptFormat  = 1
	// MaxKept bounds keptFile, in bytes: a node has some hundred pods.
	MaxKept = 1 << 20
	// SteadyTime is how long pods have to stay well. A kubelet before 1.35 that was started
	// again says of every container that it is not ready, until it has been probed again
	// (Kubernetes pull request 134746), and not at once.
	SteadyTime = 5 * time.Second
	// PodsBackTime is how long a host that went back waits for its pods. What does not come
	// back then is told.
	PodsBackTime = time.Minute
)
