package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/timekeeping"
)

const (
	// maxTimeOffset is by how much a clock may be off: etcd complains about more. Of a host that follows others on a
	// LAN, noteTimeOffset is unusual.
	maxTimeOffset  = time.Second
	noteTimeOffset = 100 * time.Millisecond
)

// checkTimes asks the chrony of every host by which time it goes.
func (e *examination) checkTimes(ctx context.Context) []HealthCheck {
	if e.inspector.Site.Config.Time == nil {
		return []HealthCheck{{Check: checkTime, State: HealthSkipped, Detail: "install.yaml has no section time"}}
	}
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkTime, h.Name)}
		}
		m, err := timekeeping.Measure(ctx, h.Conn)
		if err != nil {
			return []HealthCheck{failedCheck(checkTime, h.Name, err)}
		}
		return []HealthCheck{judgeTime(h.Name, h.Config.ServesTime, len(e.inspector.Site.Config.Time.Upstream) > 0, m)}
	})
}

// judgeTime judges by which time a host goes that serves it or not, where those who serve have others to follow or not.
func judgeTime(subject string, serves, upstream bool, m *timekeeping.Measurement) HealthCheck {
	const lost = "see there whether chrony runs (systemctl status chrony), and whether UDP port 123 is open; boxlift " +
		"install brings it back on hosts of install.yaml"
	c := HealthCheck{Check: checkTime, Subject: subject, State: HealthOK}
	c.Detail = fmt.Sprintf("follows %s, stratum %d", strings.Join(m.Following(), ", "), m.Stratum)
	if m.Own {
		c.Detail = fmt.Sprintf("goes by its own clock, which it serves as stratum %d", m.Stratum)
	}
	c.Detail += fmt.Sprintf("; %v off", m.Offset.Abs().Round(time.Microsecond))
	var wrong []string
	for _, s := range m.Sources {
		switch {
		case !s.Answers:
			wrong = append(wrong, s.Name+" does not answer")
		case s.Refused:
			wrong = append(wrong, fmt.Sprintf("%s has another time (%v) and is not believed", s.Name,
				s.Offset.Round(time.Millisecond)))
		}
	}
	switch {
	case !m.Synchronized, m.Own && !serves:
		c.State, c.Hint = HealthFailed, lost
		c.Detail = "follows nobody"
	case m.Offset.Abs() > maxTimeOffset:
		c.State, c.Hint = HealthFailed, "boxlift install has chrony set the clock; so does chronyc makestep on the "+
			"host. A container has the clock of its machine: set it there"
	case len(wrong) > 0:
		c.State, c.Hint = HealthWarning, lost
	case m.Own && upstream:
		c.State, c.Hint = HealthWarning, lost
		wrong = append(wrong, "no server of time.upstream is followed")
	case m.Offset.Abs() > noteTimeOffset:
		c.State, c.Hint = HealthWarning, "chrony brings it near slowly; chronyc makestep on the host does it at once"
	}
	c.Detail = strings.Join(append([]string{c.Detail}, wrong...), "; ")
	return c
}
