package install

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/printable"
)

// stallAPI lets those wait who talk to the API server of a host whose k3s is about to be
// started again, where the cluster has no other: LiteBoxd's gateway asks it for every request
// to a sandbox. With more servers, nodes turn to another at once when one refuses them, which
// waiting would keep them from. It is over when the result is called, if not
// before (see [node.Stall]).
func (n *k3sNode) stallAPI(ctx context.Context, state map[string]string) (end func()) {
	if n.host.config.Role != config.Server || len(n.servers()) > 1 || state["ActiveState"] != "active" {
		return func() {}
	}
	p, err := n.conn.Start(ctx, remote.Command{Title: "let clients of the API wait", Args: []string{helperPath, "stall"}, Root: true})
	if err == nil {
		if err = node.AskStall(p.Stdout); err != nil {
			_ = p.Stdin.Close() // fails when it has ended by itself
			if failure := p.Wait(); failure != nil {
				err = failure // it says more than the end of the stream
			}
		}
	}
	if err != nil {
		n.note("%s: requests that need the API failed while it was started again, because they could not be let wait: %v", n.name, err)
		return func() {}
	}
	return func() {
		_ = p.Stdin.Close() // fails when it has ended by itself
		if err := p.Wait(); err != nil && ctx.Err() == nil {
			n.note("%s: let clients of the API through again: %v", n.name, err)
		}
	}
}

// keepsReadiness is the first version of Kubernetes whose kubelet, started again, leaves pods
// as ready as they were (Kubernetes pull request 134746).
const keepsReadiness = "v1.35.0"

// keepEndpoints lets the Services of the pods on the node that is moved go on sending to them,
// although its kubelet will say for some seconds that they are not ready.
func (m *move) keepEndpoints(ctx context.Context) (end func()) {
	if !m.moves || m.api == nil || !gate.Older(m.installer.k3s, keepsReadiness) {
		return func() {}
	}
	name := m.host.node
	if name == "" {
		name = m.nodeName()
	}
	if err := m.api.KeepEndpoints(ctx, name); err != nil {
		m.note("%s: requests to services with one pod may have failed while its kubelet was started again: %v", m.name, err)
	}
	return func() {
		// A run that is told to end takes this back, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		m.letEndpoints(ctx, name)
	}
}

// letEndpoints undoes keepEndpoints for a node, or, of earlier runs that were killed, for all
// when the name is "".
func (in *installer) letEndpoints(ctx context.Context, name string) {
	if in.api == nil {
		return
	}
	if err := in.api.LetEndpoints(ctx, name); err != nil && !errors.Is(err, context.Canceled) {
		in.note("services still send to pods that are not ready: %v; an upgrade that is run again takes that back", err)
	}
}

// note tells the operator at once what is not well and stops nothing.
func (in *installer) note(format string, args ...any) {
	in.Reporter.Message("warning: " + printable.Text(fmt.Sprintf(format, args...)))
}
