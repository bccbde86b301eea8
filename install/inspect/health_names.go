package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/reach"
)

// maxProbedNames is how many names of install.yaml are looked up from a pod.
const maxProbedNames = 10

// checkNames looks names up on every host, as its programs do.
func (e *examination) checkNames(ctx context.Context) []HealthCheck {
	if e.inspector.Site.Config.Names == nil {
		return []HealthCheck{{Check: checkNames, State: HealthSkipped, Detail: "install.yaml has no section names"}}
	}
	wanted := e.inspector.Namer.Wanted()
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkNames, h.Name)}
		}
		// Its own name may well be a loopback address.
		others := slices.DeleteFunc(slices.Clone(wanted), func(n config.Name) bool { return n.Name == h.NodeName() })
		found, err := lookUp(ctx, h, others)
		if err != nil {
			return []HealthCheck{failedCheck(checkNames, h.Name, err)}
		}
		return []HealthCheck{judgeNames(h.Name, others, found)}
	})
}

// lookUp are the addresses of names as a host finds them; nil where it has no getent.
func lookUp(ctx context.Context, h *site.Host, wanted []config.Name) (map[string][]string, error) {
	const script = `command -v getent >/dev/null 2>&1 || exit 0
echo found
for name in "$@"; do echo "$name" $(getent ahosts "$name" | cut -d ' ' -f 1); done`
	args := []string{"/bin/sh", "-c", script, "sh"}
	for _, n := range wanted {
		args = append(args, n.Name)
	}
	out, err := machine.Root(ctx, h.Conn, "look names up", args...)
	text, known := strings.CutPrefix(string(out), "found\n")
	if err != nil || !known {
		return nil, err
	}
	found := make(map[string][]string)
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			found[fields[0]] = slices.Compact(fields[1:])
		}
	}
	return found, nil
}

func judgeNames(subject string, wanted []config.Name, found map[string][]string) HealthCheck {
	c := HealthCheck{Check: checkNames, Subject: subject, State: HealthOK}
	if found == nil {
		c.State, c.Detail = HealthSkipped, "the host has no getent to look names up with"
		return c
	}
	var wrong []string
	for _, n := range wanted {
		switch has := found[n.Name]; {
		case slices.Contains(has, n.Address.String()):
		case len(has) == 0:
			wrong = append(wrong, n.Name+" is not found")
		default:
			wrong = append(wrong, fmt.Sprintf("%s is %s and not %s", n.Name, printable.Short(strings.Join(has, ", "), 200),
				n.Address))
		}
	}
	if wrong == nil {
		c.Detail = printable.Counted(len(wanted), "name") + " of install.yaml found"
		return c
	}
	const most = 5
	c.State, c.Detail = HealthFailed, strings.Join(wrong[:min(len(wrong), most)], "; ")
	if more := len(wrong) - most; more > 0 {
		c.Detail += fmt.Sprintf("; and %d more", more)
	}
	c.Hint = "boxlift install writes them into /etc/hosts again; see on the host whether another line there has " +
		"the name, and whether hosts in /etc/nsswitch.conf begins with files. cloud-init with manage_etc_hosts " +
		"writes the file anew at each boot"
	return c
}

// judgeNamed judges what a pod found for a name of install.yaml.
func judgeNamed(subject string, name config.Name, r reach.ProbeResult) HealthCheck {
	const hint = "after a change, CoreDNS takes up to two minutes to read it; then see what it says, on a server: " +
		"k3s kubectl -n kube-system logs deployment/coredns, and the ConfigMap coredns-custom; boxlift install " +
		"writes it again"
	c := judgeName(checkDNS, subject+", "+name.Name, r, hint)
	if r.State == reach.OK && !slices.Contains(r.Addresses, name.Address) {
		c.State, c.Hint = HealthFailed, hint
		c.Detail += ", and not " + name.Address.String()
	}
	return c
}
