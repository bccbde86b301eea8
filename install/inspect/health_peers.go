package inspect

import (
	"context"
	"encoding/json"
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
	checks := make([]HealthCheck, len(e.inspector.Site.Hosts))
	_ = e.inspector.Engine.EachHost(ctx, e.inspector.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		arrived, err := arrived(ctx, h)
		if err != nil {
			checks[slices.Index(e.inspector.Site.Hosts, h)] = failedCheck(checkPeers, h.Name, err)
			return nil
		}
		checks[slices.Index(e.inspector.Site.Hosts, h)] = judgePeers(h.Name, site.Unit(h.Config.Role), arrived)
		return nil
	})
	for i, h := range e.inspector.Site.Hosts {
		if h.Err != nil {
			checks[i] = HealthCheck{Check: checkPeers, Subject: h.Name, State: HealthSkipped,
				Detail: "the host was not reached"}
		}
	}
	return checks
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
	if err := json.Unmarshal(out, &report); err != nil {
		return report, fmt.Errorf("look at the images in containerd: the answer of boxlift-node cannot be read: %w",
			err)
	}
	return report, nil
}
