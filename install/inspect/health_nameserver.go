package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// checkNameservers has all hosts ask each DNS server of boxlift's for a name.
func (e *examination) checkNameservers(ctx context.Context) []HealthCheck {
	section := e.inspector.Site.Config.Names
	if section == nil || section.Serve == nil {
		return []HealthCheck{{Check: checkNameserver, State: HealthSkipped, Detail: "install.yaml has no names.serve"}}
	}
	hosts, servers := e.inspector.Site.Hosts, e.inspector.Nameserver.Servers()
	answers := make([][]error, len(hosts)) // of each host, nil for one that cannot ask
	e.inspector.Site.AtOnce(hosts, func(h *site.Host) {
		if h.Err == nil && e.factless[h] == nil && len(servers) > 0 {
			answers[slices.Index(hosts, h)] = askFrom(ctx, h, servers)
		}
	})
	var checks []HealthCheck
	for i, s := range servers {
		asked, wrong := 0, []string(nil)
		for j, a := range answers {
			if a == nil {
				continue
			}
			asked++
			if a[i] != nil {
				wrong = append(wrong, fmt.Sprintf("from %s: %v", hosts[j].Name, a[i]))
			}
		}
		checks = append(checks, judgeNameserver(s, asked, wrong))
	}
	for _, h := range hosts {
		isKnown := slices.ContainsFunc(servers, func(s nameserver.Server) bool { return s.Host == h })
		if section.ServedOn(h.Config.Address()) && !isKnown {
			checks = append(checks, HealthCheck{Check: checkNameserver, Subject: h.Name, State: HealthSkipped,
				Detail: "the host was not reached, and its address is not known without that"})
		}
	}
	return checks
}

// askFrom asks all servers from one host.
func askFrom(ctx context.Context, h *site.Host, servers []nameserver.Server) []error {
	answers, err := nameserver.Ask(ctx, h, servers...)
	if err != nil {
		answers = slices.Repeat([]error{err}, len(servers))
	}
	return answers
}

func judgeNameserver(s nameserver.Server, asked int, wrong []string) HealthCheck {
	c := HealthCheck{Check: checkNameserver, Subject: s.Host.Name, State: HealthOK}
	switch {
	case asked == 0:
		c.State, c.Detail = HealthSkipped, "no host was reached that could ask it"
	case len(wrong) == 0:
		c.Detail = fmt.Sprintf("%s is %s, over UDP and TCP, asked from %s", s.Name.Name, s.Name.Address,
			printable.Counted(asked, "host"))
	default:
		const most = 3
		c = failedCheck(checkNameserver, s.Host.Name, errors.New(strings.Join(wrong[:min(len(wrong), most)], "; ")))
		if more := len(wrong) - most; more > 0 {
			c.Detail += fmt.Sprintf("; and from %d more", more)
		}
		c.Hint = "see on the host: journalctl -u boxlift-dns; boxlift install brings it back. Where only other hosts " +
			"get no answer, a firewall is in the way of 53/udp or 53/tcp: hosts.prepare opens it"
	}
	return c
}
