package sitetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/lookup"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// NewHost is a host that says who it is. Its boxlift-node, where it lies in its place, holds the host, says that it has
// cleaned, asks registries, and tells these facts, nil for none.
func NewHost(t testing.TB, hostname string, told *facts.Facts) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, hostname)
	f.WriteFile(t, "/etc/machine-id", machineID(hostname)+"\n", 0o444)
	f.Program("true", hosttest.Prints(""))
	f.Program("test", func(_ context.Context, c *hosttest.Call) int { // -x FILE
		if info, err := os.Stat(c.Host.Path(c.Args[1])); err != nil || info.Mode()&0o111 == 0 {
			return 1
		}
		return 0
	})
	f.Program("uname", func(ctx context.Context, c *hosttest.Call) int {
		text := map[string]string{"-sm": "Linux x86_64\n", "-n": hostname + "\n"}[strings.Join(c.Args, " ")]
		return hosttest.Prints(text)(ctx, c)
	})
	f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
		if _, err := os.Stat(c.Host.Path(site.HelperPath)); err != nil {
			return 127
		}
		var err error
		switch {
		case c.Args[0] == "hold":
			err = hold.Run(ctx, c.Stdin, c.Stdout, hold.Options{Dir: c.Host.Path(hold.Dir)})
		case c.Args[0] == "facts" && told != nil:
			err = json.NewEncoder(c.Stdout).Encode(told)
		case c.Args[0] == "lookup":
			err = lookup.Run(ctx, c.Stdin, c.Stdout)
		case c.Args[0] == "clean":
		default:
			err = fmt.Errorf("it does not know %q", c.Args)
		}
		if err != nil {
			_, _ = fmt.Fprintln(c.Stderr, "boxlift-node:", err) // the caller may have gone
			return 1
		}
		return 0
	})
	return f
}

// machineID is that of a host whose name ends with a digit of its own.
func machineID(hostname string) string { return strings.Repeat("0", 31) + hostname[len(hostname)-1:] }

// Server is a host whose k3s serves the API of a cluster in memory, for whom a connection from there leads to it.
type Server struct {
	*hosttest.Fake
	Cluster *kubetest.Memory
}

// NewServer is a server's host, with boxlift-node in its place.
func NewServer(t testing.TB, hostname string, told *facts.Facts, m *kubetest.Memory) Server {
	t.Helper()
	f := NewHost(t, hostname, told)
	f.WriteFile(t, site.K3sKubeconfig, string(m.Kubeconfig), 0o600)
	f.WriteFile(t, site.HelperPath, "", 0o755)
	return Server{f, m}
}

// DialContext connects with the API.
func (s Server) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return s.Cluster.Dial(ctx, network, address)
}

// ErrNoRoute is the error of hosts that cannot be reached.
var ErrNoRoute = fault.NewKind(fault.Host, "no route to host")

// DialTo reaches the hosts given, by their addresses, and no others.
func DialTo(hosts map[string]host.Host) site.Dial {
	return func(_ context.Context, h config.Host) (host.Host, error) {
		if hosts[h.Host] == nil {
			return nil, fault.OnHost(ErrNoRoute, site.HostName(h))
		}
		return hosts[h.Host], nil
	}
}

// Saying is a host that answers one command, by its title, with a text, and is a fake in all others.
type Saying struct {
	host.Host
	Title, Text string
}

// Run answers.
func (s Saying) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	if cmd.Title != s.Title {
		return s.Host.Run(ctx, cmd)
	}
	if cmd.Stdin != nil {
		if _, err := io.Copy(io.Discard, cmd.Stdin); err != nil {
			return host.Result{ExitCode: -1}, err
		}
	}
	return host.Result{Stdout: []byte(s.Text)}, nil
}
