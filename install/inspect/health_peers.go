package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/images"
)

// checkPeers finds out whether nodes offer others all images that came to them in files. The embedded registry of k3s
// misses a part of what is imported while it runs, until it is started again.
func (e *examination) checkPeers(ctx context.Context) []HealthCheck {
	if !e.inspector.Site.Config.Seeding.PeerToPeer {
		return []HealthCheck{{Check: checkPeers, State: HealthSkipped, Detail: "seeding.peerToPeer is not set"}}
	}
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkPeers, h.Name)}
		}
		arrived, err := arrived(ctx, h)
		if err != nil {
			return []HealthCheck{failedCheck(checkPeers, h.Name, err)}
		}
		return []HealthCheck{judgePeers(h.Name, site.Unit(h.Config.Role), arrived)}
	})
}

func judgePeers(host, service string, r images.ArrivedReport) HealthCheck {
	c := HealthCheck{Check: checkPeers, Subject: host, State: HealthOK,
		Detail: fmt.Sprintf("%s was started after the images of the packs had come", service)}
	if r.After == 0 {
		return c
	}
	c.State = HealthWarning
	c.Detail = fmt.Sprintf("%d of %d blobs of the packs' images came after %s was started: other nodes may not get "+
		"these images from here", r.After, r.Blobs, service)
	c.Hint = "start it again when that suits you, one server at a time: systemctl restart " + service + " on the host"
	return c
}

// warnOfPeers tells of hosts that do not offer others all images that came to them in files. It is told with each run
// that acts, since each may have brought some: who sets seeding.peerToPeer counts on them.
func (ins *Inspector) warnOfPeers(ctx context.Context) {
	if !ins.Site.Config.Seeding.PeerToPeer {
		return
	}
	reports := make([]images.ArrivedReport, len(ins.Site.Hosts))
	unknown := make([]error, len(ins.Site.Hosts))
	_ = ins.Engine.EachHost(ctx, ins.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		i := slices.Index(ins.Site.Hosts, h)
		reports[i], unknown[i] = arrived(ctx, h)
		return nil
	})
	var late []string
	for i, h := range ins.Site.Hosts {
		if err := unknown[i]; err != nil {
			ins.Site.Warn("%s: whether other nodes get all its images (seeding.peerToPeer) was not found out: %v", h.Name,
				err)
		}
		if reports[i].After > 0 {
			late = append(late, h.Name)
		}
	}
	if len(late) > 0 {
		ins.Site.Warn("%s: images came after k3s was started there, and other nodes may not get these from there "+
			"(seeding.peerToPeer) until it is started again: systemctl restart k3s, on agents k3s-agent, one server at "+
			"a time", strings.Join(late, ", "))
	}
}

// arrived lets the helper count what came to a host after its k3s was started.
func arrived(ctx context.Context, h *site.Host) (images.ArrivedReport, error) {
	var report images.ArrivedReport
	service := site.Unit(h.Config.Role)
	out, err := h.Root(ctx, "ask systemd about "+service, "systemctl", "show", "-p", "MainPID", "--value", service+
		".service")
	if err != nil {
		return report, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || pid <= 0 {
		return report, fmt.Errorf("%s does not run", service)
	}
	if out, err = h.Root(ctx, "look at the images in containerd", site.HelperPath, "check", "--after",
		strconv.Itoa(pid)); err != nil {
		return report, err
	}
	if report, err = images.ParseArrived(out); err != nil {
		return report, fmt.Errorf("look at the images in containerd: the answer of boxlift-node cannot be read: %w",
			err)
	}
	return report, nil
}
