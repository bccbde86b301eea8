package k3s

import (
	"context"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/hold"
)

// stallAPI lets those wait who talk to the API server of a host whose k3s is about to be
// started again, where the cluster has no other: LiteBoxd's gateway asks it for every request
// to a sandbox. With more servers, nodes turn to another at once when one refuses them, which
// waiting would keep them from. It is over when the result is called, if not before (see
// [hold.Stall]).
func (n *Node) stallAPI(ctx context.Context, state machine.Service) (end func()) {
	if n.Host.Config.Role != config.Server || len(n.Cluster.Site.Servers()) > 1 || state.Active != "active" {
		return func() {}
	}
	p, err := n.Host.Conn.Start(ctx, machine.Command{Title: "let clients of the API wait",
		Args: []string{site.HelperPath, "stall"}, Root: true})
	if err == nil {
		if err = hold.AskStall(p.Stdout); err != nil {
			_ = p.Stdin.Close() // fails when it has ended by itself
			if failure := p.Wait(); failure != nil {
				err = failure // it says more than the end of the stream
			}
		}
	}
	if err != nil {
		n.Cluster.Site.Note("%s: requests that need the API fail while it is started again, because they cannot be "+
			"let wait: %v", n.Host.Name, err)
		return func() {}
	}
	return func() {
		_ = p.Stdin.Close() // fails when it has ended by itself
		if err := p.Wait(); err != nil && ctx.Err() == nil {
			n.Cluster.Site.Note("%s: let clients of the API through again: %v", n.Host.Name, err)
		}
	}
}
