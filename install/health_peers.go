package install

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/node/images"
)

// checkPeers finds out whether nodes offer others all images that came to them in files. The embedded registry of k3s
// misses a part of what is imported while it runs, until it is started again.
func (e *examination) checkPeers(ctx context.Context) []HealthCheck {
	if !e.inspector.site.Config.Seeding.PeerToPeer {
		return []HealthCheck{{Check: checkPeers, State: HealthSkipped, Detail: "seeding.peerToPeer is not set"}}
	}
	checks := make([]HealthCheck, len(e.inspector.site.hosts))
	_ = e.inspector.engine.eachHost(ctx, e.inspector.site.hosts, func(ctx context.Context, h *host) error {
		arrived, err := arrived(ctx, h)
		if err != nil {
			checks[slices.Index(e.inspector.site.hosts, h)] = failedCheck(checkPeers, h.name, err)
			return nil
		}
		checks[slices.Index(e.inspector.site.hosts, h)] = judgePeers(h.name, unit(h.config.Role), arrived)
		return nil
	})
	for i, h := range e.inspector.site.hosts {
		if h.err != nil {
			checks[i] = HealthCheck{Check: checkPeers, Subject: h.name, State: HealthSkipped, Detail: "the host was not reached"}
		}
	}
	return checks
}

func judgePeers(host, service string, r images.ArrivedReport) HealthCheck {
	c := HealthCheck{Check: checkPeers, Subject: host, State: HealthOK, Detail: fmt.Sprintf("%s was started after the images of the packs had come", service)}
	if r.After == 0 {
		return c
	}
	c.State = HealthWarning
	c.Detail = fmt.Sprintf("%d of %d blobs of the packs' images came after %s was started: other nodes may not get these images from here", r.After, r.Blobs, service)
	c.Hint = "start it again when that suits you, one server at a time: systemctl restart " + service + " on the host"
	return c
}

// arrived lets the helper count what came to a host after its k3s was started.
func arrived(ctx context.Context, h *host) (images.ArrivedReport, error) {
	var report images.ArrivedReport
	service := unit(h.config.Role)
	out, err := h.root(ctx, "ask systemd about "+service, "systemctl", "show", "-p", "MainPID", "--value", service+".service")
	if err != nil {
		return report, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || pid <= 0 {
		return report, fmt.Errorf("%s does not run", service)
	}
	if out, err = h.root(ctx, "look at the images in containerd", helperPath, "check", "--after", strconv.Itoa(pid)); err != nil {
		return report, err
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return report, fmt.Errorf("look at the images in containerd: the answer of boxlift-node cannot be read: %w", err)
	}
	return report, nil
}
