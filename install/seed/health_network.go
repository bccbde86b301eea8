package seed

import (
	"context"
	"net"
	"time"
)

// AskTimeout bounds one question to a server of the cluster.
const AskTimeout = 15 * time.Second

// Dialer opens connections as a host does (remote.Host.DialContext).
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)
