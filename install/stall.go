package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hold"
)

// stallAPI lets those wait who talk to the API server of a host whose k3s is about to be
// started again, where the cluster has no other: LiteBoxd's gateway asks it for every request
// to a sandbox. With more servers, nodes turn to another at once when one refuses them, which
// waiting would keep them from. It is over when the result is called, if not before (see
// [hold.Stall]).
func (n *k3sNode) stallAPI(ctx context.Context, state machine.Service) (end func()) {
	if n.host.config.Role != config.Server || len(n.cluster.site.servers()) > 1 || state.Active != "active" {
		return func() {}
	}
	p, err := n.host.conn.Start(ctx, machine.Command{Title: "let clients of the API wait", Args: []string{helperPath, "stall"}, Root: true})
	if err == nil {
		if err = hold.AskStall(p.Stdout); err != nil {
			_ = p.Stdin.Close() // fails when it has ended by itself
			if failure := p.Wait(); failure != nil {
				err = failure // it says more than the end of the stream
			}
		}
	}
	if err != nil {
		n.cluster.site.note("%s: requests that need the API fail while it is started again, because they cannot be let wait: %v", n.host.name, err)
		return func() {}
	}
	return func() {
		_ = p.Stdin.Close() // fails when it has ended by itself
		if err := p.Wait(); err != nil && ctx.Err() == nil {
			n.cluster.site.note("%s: let clients of the API through again: %v", n.host.name, err)
		}
	}
}

// note tells the operator at once what is not well and stops nothing.
func (s *Site) note(format string, args ...any) {
	s.Reporter.Message("warning: " + printable.Text(fmt.Sprintf(format, args...)))
}
