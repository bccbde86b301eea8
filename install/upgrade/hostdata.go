package upgrade

import (
	"context"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/site"
)

// checkData judges once more what would be down while the host is drained: the gates were asked before the first
// host was touched.
func (m *move) checkData(ctx context.Context) error {
	mayWait := func(name string) bool { return name == m.host.NodeName() || site.IsCalled(m.host.Config, name) }
	if slices.ContainsFunc(m.upgrader.Upgrade.Accept.Interrupt, mayWait) {
		return nil
	}
	facts, err := m.upgrader.Members.StorageFacts(ctx)
	if err != nil {
		return err
	}
	held := localdata.Judge(facts, []localdata.Host{{Name: m.host.Name, Node: m.host.NodeName()}})
	if len(held) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the node is not drained, because of data that is on no other: "+
		"give %s %s to let what uses it be down meanwhile:%s", site.ErrRefused, gate.InterruptFlag, m.host.NodeName(), members.HeldText(held))
}
