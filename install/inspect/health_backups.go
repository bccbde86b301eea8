package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config/backups"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
	node "github.com/liteboxd/boxlift/node/backups"
)

// checkBackups judges, server by server, the backups that they make by themselves.
func (e *examination) checkBackups(ctx context.Context) []HealthCheck {
	wanted := e.inspector.Site.Config.Backups
	if wanted == nil {
		return []HealthCheck{{Check: checkBackup, State: HealthSkipped, Detail: "install.yaml has no section backups"}}
	}
	servers := e.inspector.Site.Servers()
	statuses := make([]*node.Status, len(servers))
	checks := eachHost(e.inspector.Site, servers, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkBackup, h.Name)}
		}
		status, err := schedule.Read(ctx, h)
		if err != nil {
			return []HealthCheck{failedCheck(checkBackup, h.Name, err)}
		}
		statuses[slices.Index(servers, h)] = status
		return []HealthCheck{judgeBackups(h.Name, status, wanted, time.Now())}
	})
	var all []schedule.OnServer
	for i, status := range statuses {
		if status != nil {
			all = append(all, schedule.OnServer{Server: servers[i].Name, Status: status})
		}
	}
	if lacks := incomplete(all); lacks != "" {
		checks = append(checks, HealthCheck{Check: checkBackup, State: HealthWarning,
			Detail: "no newest backup of a server has all that belongs to it: " + lacks,
			Hint: "boxlift backup create has it; a volume on a server is in that server's own backups: boxlift " +
				"liteboxd move --to takes the database there"})
	}
	return checks
}

// incomplete says what each server's newest backup lacks, "" where one of them has all: a restore takes one.
func incomplete(servers []schedule.OnServer) string {
	var texts []string
	for _, one := range servers {
		k := one.Status.Newest()
		switch {
		case k == nil:
			continue
		case len(k.Without) == 0:
			return ""
		}
		texts = append(texts, "that of "+one.Server+" is without "+strings.Join(k.Without, "; "))
	}
	return strings.Join(texts, ", ")
}

const (
	nowHint = "on the server: systemctl start " + node.Service + " makes one now, and journalctl -u " +
		node.Service + " tells what comes of it"
	targetHint = "see whether the place is there and has room, and what journalctl -u " + node.Service +
		" says on the server; what it lacks is carried there with the next backup"
)

// judgeBackups says how a server's backups are, nil for one that has made none.
func judgeBackups(subject string, s *node.Status, wanted *backups.Plan, now time.Time) HealthCheck {
	c := HealthCheck{Check: checkBackup, Subject: subject, State: HealthFailed, Hint: nowHint}
	var newest *node.Kept
	if s != nil {
		newest = s.Newest()
	}
	// A server that was off once, or could not make one, has another try before that.
	stale := 2 * wanted.Interval()
	age := func(t time.Time) string { return progress.Duration(max(0, now.Sub(t))) + " old" }
	switch {
	case s == nil:
		c.State, c.Detail = HealthWarning, "the server has made no backup yet"
		return c
	case newest == nil:
		c.Detail = "there is no proven backup"
	case now.Sub(newest.Time) > stale:
		c.Detail = fmt.Sprintf("the newest proven backup is %s, more than twice the time between two", age(newest.Time))
	default:
		c.State, c.Detail = HealthOK, fmt.Sprintf("the newest backup is %s and proven, of %s", age(newest.Time),
			printable.Counted(len(s.Backups), "backup"))
	}
	worse := func(state State, detail, hint string) {
		if c.State == HealthOK {
			c.State, c.Hint = state, hint
		} else if state == HealthFailed {
			c.State = state
		}
		c.Detail += "; " + detail
	}
	if s.Error != "" {
		worse(HealthWarning, "the last one was not made: "+s.Error, nowHint)
	}
	for _, k := range s.Backups {
		if k.Problem != "" {
			worse(HealthWarning, k.File+": "+k.Problem, "do not rely on that file; smartctl tells how the disk is")
			break
		}
	}
	for _, t := range s.Targets {
		switch {
		case t.Newest.IsZero() || now.Sub(t.Newest) > stale:
			has := "has none"
			if !t.Newest.IsZero() {
				has = "has none that is newer than " + age(t.Newest)
			}
			worse(HealthFailed, t.Name+" "+has+orError(t.Error), targetHint)
		case t.Error != "":
			worse(HealthWarning, t.Name+" lacks some"+orError(t.Error), targetHint)
		}
	}
	if c.State == HealthOK {
		c.Hint = ""
		if n := len(s.Targets); n > 0 {
			c.Detail += ", carried to " + printable.Counted(n, "place")
		}
	}
	return c
}

func orError(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}
