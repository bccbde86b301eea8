package k3s

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// A server whose k3s is started again is missing from etcd for some seconds. That another one has
// failed in the meantime shows in no node yet, and costs the majority then.

// majorityTime is how long other servers are waited for: one that was started again, or has lost
// its leader, answers long before.
const majorityTime = time.Minute

// member is another server of the cluster. lacks says why it cannot be counted on, "" when it can.
type member struct{ name, lacks string }

// majorityError says which servers keep another one from being started again.
type majorityError struct {
	well, members int
	down          []string
}

func (e *majorityError) Error() string {
	return fmt.Sprintf("without this server, %d of %s would be left that answer, and etcd needs a majority of %d: %s",
		e.well, printable.Counted(e.members, "server"), e.members/2+1, strings.Join(e.down, "; "))
}

func (*majorityError) Hint() string {
	return "see `journalctl -u k3s` on the server that does not answer, and bring it back; then the same command " +
		"goes on"
}

// checkMajority returns an error when etcd would lose its majority without one more server. Of
// two it does so in any case: they have to be well both.
func checkMajority(others []member) *majorityError {
	e := &majorityError{members: len(others) + 1}
	for _, m := range others {
		if m.lacks == "" {
			e.well++
		} else {
			e.down = append(e.down, m.name+": "+m.lacks)
		}
	}
	if len(e.down) == 0 || e.well > e.members/2 {
		return nil
	}
	return e
}

// AwaitMajority waits, before k3s is stopped or started again on a host that runs it, until etcd
// can do without that host. Where the host itself does not answer for as long, there is nothing to
// lose: starting it again may be what mends the cluster.
func (c *Cluster) AwaitMajority(ctx context.Context, h *site.Host) error {
	if h.Config.Role != config.Server {
		return nil
	}
	if runs, err := runsEtcd(ctx, h); err != nil || !runs {
		return err
	}
	lacking := checkMajority(c.othersThan(ctx, h))
	if lacking == nil {
		return nil
	}
	limit := min(c.Site.Config.Runtime.CommandTimeout, majorityTime)
	err := c.Site.WaitingFor(ctx, limit, "wait for the other servers, before "+h.Name+" is started again",
		func(ctx context.Context) error {
			return site.Poll(ctx, func(ctx context.Context) (bool, error) {
				now := checkMajority(c.othersThan(ctx, h))
				if now == nil && ctx.Err() == nil {
					return true, nil
				}
				if now != nil && ctx.Err() == nil { // else it is the end of the wait that it tells of
					lacking = now
				}
				return false, lacking
			})
		})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if lacks := c.lacks(ctx, h); lacks != "" {
		c.Site.Note("%s does not answer either, so that starting it again costs nothing: %s", h.Name, lacks)
		return nil
	}
	return err
}

// runsEtcd reports whether the host is a server that runs and has etcd's data.
func runsEtcd(ctx context.Context, h *site.Host) (bool, error) {
	const script = `[ ! -d "$1/etcd/member" ] || ! systemctl is-active --quiet "$2" || echo member`
	out, err := h.Root(ctx, "look for etcd", "/bin/sh", "-c", script, "sh", K3sDatabases, site.Unit(config.Server)+
		".service")
	return len(out) > 0, err
}

// othersThan are the other servers of the cluster. Of one that is not in install.yaml, its node
// alone tells how it is.
func (c *Cluster) othersThan(ctx context.Context, h *site.Host) []member {
	nodes := c.nodesSeenBy(ctx, h)
	var others []member
	for _, s := range c.Site.Servers() {
		if s != h && (s.Member || c.Site.NodeOf(s, nodes) != nil) {
			others = append(others, member{s.Name, c.lacks(ctx, s)})
		}
	}
	for _, n := range c.Site.Absent(nodes) {
		switch {
		case !n.Server:
		case n.Ready:
			others = append(others, member{name: n.Name})
		default:
			others = append(others, member{n.Name, "its node is not Ready: " + n.Reason})
		}
	}
	return others
}

// nodesSeenBy are the nodes by a server's API, none when it does not answer.
func (c *Cluster) nodesSeenBy(ctx context.Context, h *site.Host) []kube.Node {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	api, err := c.Site.APIThrough(ctx, h)
	if err != nil {
		return nil
	}
	defer api.Close()
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return nil
	}
	return nodes
}

// lacks says why a server's API, which needs its etcd and a majority, is not ready; "" when it is.
func (c *Cluster) lacks(ctx context.Context, h *site.Host) string {
	err := errors.New("it is not connected to")
	if h.Conn != nil {
		var api *kube.Cluster
		if api, err = c.Site.APIThrough(ctx, h); err == nil {
			defer api.Close()
			err = api.Ready(ctx)
		}
	}
	if err == nil {
		return ""
	}
	return printable.Clip(printable.Text(err.Error()), maxLacks)
}

// maxLacks bounds what an error says of each server that does not answer, in bytes.
const maxLacks = 300
