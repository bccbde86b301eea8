package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	node "github.com/liteboxd/boxlift/node/renewal"
)

// checkRenewals looks whether somebody looks after the certificates of each host.
func (e *examination) checkRenewals(ctx context.Context) []HealthCheck {
	if !e.inspector.Site.Config.Cluster.RenewCertificates {
		return []HealthCheck{{Check: checkRenewal, State: HealthSkipped,
			Detail: "install.yaml turns the renewal of certificates off (cluster.renewCertificates)"}}
	}
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkRenewal, h.Name)}
		}
		found, err := renewal.Look(ctx, h)
		if err != nil {
			return []HealthCheck{failedCheck(checkRenewal, h.Name, err)}
		}
		return []HealthCheck{judgeRenewal(h.Name, found, time.Now())}
	})
}

// judgeRenewal says how the renewal of a host's certificates goes. Its timer looks once a day.
func judgeRenewal(subject string, found *renewal.Found, now time.Time) HealthCheck {
	const day, silent = 24 * time.Hour, 10 * 24 * time.Hour // a host may have been off
	c := HealthCheck{Check: checkRenewal, Subject: subject, State: HealthFailed}
	failure, idle, s := found.Failure(), found.Idle(), found.State
	switch {
	case idle != "":
		c.Detail, c.Hint = idle+": nobody renews the certificates ahead of their end", "boxlift install brings it back"
	case failure != "":
		c.Detail, c.Hint = failure, renewal.Hint
	case s == nil:
		c.State, c.Detail = HealthOK, "the timer runs, and has not looked yet"
	case now.Sub(s.Looked) > silent:
		c.Detail = "the certificates were looked at last on " + s.Looked.Format(time.DateOnly)
		c.Hint = "see on the host: systemctl list-timers " + renewal.Service + ".timer"
	case s.Waits != "" && s.Ends.Sub(now) <= node.Late:
		c.State, c.Detail = HealthWarning, fmt.Sprintf("certificates end in %s and are not renewed yet: %s",
			printable.Counted(int(s.Ends.Sub(now)/day), "day"), s.Waits)
		c.Hint = "boxlift certs rotate renews all certificates"
	default:
		c.State, c.Detail = HealthOK, "looked on "+s.Looked.Format(time.DateOnly)
		if !s.Ends.IsZero() {
			c.Detail += ", the first certificate of k3s ends on " + s.Ends.Format(time.DateOnly)
		}
		if s.Waits != "" {
			c.Detail += "; it waits to renew: " + s.Waits
		}
	}
	return c
}
