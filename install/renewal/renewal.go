// Package renewal has k3s' certificates renewed on hosts ahead of their end, by a timer of systemd on each of them.
//
// Contract: k3s renews its certificates only when it starts, so that a cluster which nobody starts again stops after a
// year. Every host gets a copy of boxlift-node as [Program], which needs neither boxlift nor a bundle, and a timer that
// starts it once a day; what it does is in package node/renewal. Both come and go by steps: they go where install.yaml
// has cluster.renewCertificates: false, and when the host leaves. What came of it is on the host, and [Look] reads it.
package renewal

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/renewal"
)

// Phase is the name of the phase that keeps the timers.
const Phase = "renewal"

// What hosts have.
const (
	Service     = "boxlift-renewal"
	timer       = Service + ".timer"
	serviceFile = site.UnitDir + Service + ".service"
	timerFile   = site.UnitDir + timer
	// Program is a copy of boxlift-node, which itself is replaced by every run of a bundle. Programs in this folder may
	// be run as services where SELinux is in force.
	Program = "/usr/local/libexec/boxlift-renewal"
	// stampFile is where systemd notes when the timer went off (systemd.timer(5), Persistent=).
	stampFile = "/var/lib/systemd/timers/stamp-" + timer
)

//go:embed boxlift-renewal.service
var serviceTemplate string

//go:embed boxlift-renewal.timer
var timerText string

// Keeper keeps the timers of the hosts.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine
}

// Keep brings the timer to all hosts, or takes it away.
func (k *Keeper) Keep(ctx context.Context) error {
	return k.Engine.EachHost(ctx, k.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		steps, err := k.steps(h)
		if err != nil {
			return err
		}
		return k.Engine.RunSteps(ctx, Phase, &h.Subject, steps)
	})
}

func (k *Keeper) steps(h *site.Host) ([]run.Step, error) {
	if !k.Site.Config.Cluster.RenewCertificates {
		return []run.Step{removeStep(h.Conn, ", and install.yaml turns the renewal of certificates off")}, nil
	}
	service, err := serviceText(h)
	if err != nil {
		return nil, err
	}
	program := setup.ProgramStep(k.Site, h, "place-renewal", "place the program that renews certificates", Program)
	program.Alone = true // the next day begins with it
	return []run.Step{
		program,
		setup.UnitStep(h, Service+".service", []byte(service)),
		setup.UnitStep(h, timer, []byte(timerText)),
		startStep(h),
		k.proveStep(h),
	}, nil
}

// nodeName is what Kubernetes takes for a node's name (RFC 1123), and systemd for a word.
var nodeName = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// serviceText is the unit of a host.
func serviceText(h *site.Host) (string, error) {
	name := h.NodeName()
	if !nodeName.MatchString(name) {
		err := fault.Host.Errorf("the host calls itself %.100q, which is no name of a node", name)
		return "", fault.OnHost(fault.WithHint(err, "give it a name in install.yaml"), h.Name)
	}
	unit := site.Unit(h.Config.Role)
	arguments := "-unit " + unit + " -name " + name
	if kubelet := kubeletAddress(h); kubelet != "" {
		arguments += " -kubelet " + kubelet
	}
	return strings.NewReplacer("@unit@", unit, "@arguments@", arguments).Replace(serviceTemplate), nil
}

// kubeletAddress is where the kubelet of a host answers, "" where there is none. The last argument of a name counts.
func kubeletAddress(h *site.Host) string {
	value := h.Config.K3s.Value
	if h.Adopted != nil {
		value = func(key string) []string { return h.Adopted.Settings[key] }
	}
	if slices.Contains(value("disable-agent"), "true") {
		return ""
	}
	address, port := netip.MustParseAddr("127.0.0.1"), uint64(10250)
	for _, arg := range value("kubelet-arg") {
		switch name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name {
		case "address":
			if ip, err := netip.ParseAddr(value); err == nil && !ip.IsUnspecified() && ip.Zone() == "" {
				address = ip
			}
		case "port":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				port = n
			}
		}
	}
	return net.JoinHostPort(address.String(), strconv.FormatUint(port, 10))
}

// startStep has systemd start the program every day.
func startStep(h *site.Host) run.Step {
	return run.Step{
		ID: "start-renewal", Title: setup.StartTitle(timer), Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			for _, name := range []string{timer, Service + ".service"} {
				state, err := machine.FindUnit(ctx, h.Conn, name)
				switch {
				case err != nil:
					return "", err
				case state.NeedsReload:
					return "systemd has not read " + name + " as it is now", nil
				case name != timer:
				case state.Active != "active":
					return "the timer is " + site.OrUnknown(state.Active), nil
				case !state.Enabled:
					return "the timer does not start with the host", nil
				}
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
systemctl daemon-reload
systemctl enable --quiet "$1"
systemctl restart "$1"`
			_, err := h.Root(ctx, "start "+timer, "/bin/sh", "-c", script, "sh", timer)
			return err
		},
	}
}

// proveStep tells of a renewal that failed. It does not let a run fail: what k3s shows to clients is good for weeks.
func (k *Keeper) proveStep(h *site.Host) run.Step {
	failure := func(ctx context.Context) (string, error) {
		found, err := Look(ctx, h)
		if err != nil {
			return "", err
		}
		return found.Failure(), nil
	}
	return run.Step{
		ID: "prove-renewal", Title: "look what came of the renewal of certificates", Proves: true,
		Needed: failure,
		Run: func(ctx context.Context) error {
			text, err := failure(ctx)
			if text != "" {
				k.Site.Warn("%s: %s; %s", h.Name, text, Hint)
			}
			return err
		},
	}
}

// Hint says what to do about a renewal that failed.
const Hint = "see journalctl -u " + Service + " on the host; boxlift certs rotate renews all certificates"

// TakeAway takes the timer away from a host that leaves.
func (k *Keeper) TakeAway(conn machine.Host) run.Step { return removeStep(conn, "") }

// removeStep takes all away. The program comes last: until it has gone, a run that was broken off is not done.
func removeStep(conn machine.Host, why string) run.Step {
	return run.Step{
		ID: "remove-renewal", Title: "remove the timer that renews certificates",
		Needed: func(ctx context.Context) (string, error) {
			name, err := machine.FirstThere(ctx, conn, "look for the timer that renews certificates", timerFile, serviceFile,
				renewal.File, Program)
			if name != "" && err == nil {
				return name + " is there" + why, nil
			}
			return "", err
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
[ ! -e "$1" ] || systemctl disable --now --quiet "${1##*/}"
rm -f "$1" "$2" "$3" "$5"
systemctl daemon-reload
rm -f "$4"`
			_, err := machine.Root(ctx, conn, "remove the timer that renews certificates", "/bin/sh", "-c", script,
				"sh", timerFile, serviceFile, renewal.File, Program, stampFile)
			return err
		},
	}
}

// Found is what a host says of its renewal.
type Found struct {
	// Timer is that of systemd, and Result how the last look ended: "success", "exit-code" and the like.
	Timer  machine.Service
	Result string
	// State is nil where nothing has been looked at yet.
	State *renewal.State
}

// Look asks a host. A state that cannot be read is an error.
func Look(ctx context.Context, h *site.Host) (*Found, error) {
	var found Found
	var err error
	if found.Timer, err = machine.FindUnit(ctx, h.Conn, timer); err != nil {
		return nil, err
	}
	service, err := machine.FindUnit(ctx, h.Conn, Service+".service")
	if err != nil {
		return nil, err
	}
	found.Result = service.Result
	const script = `[ ! -f "$1" ] || head -c "$2" "$1"`
	content, err := h.Root(ctx, "read "+renewal.File, "/bin/sh", "-c", script, "sh", renewal.File,
		strconv.Itoa(renewal.MaxState+1))
	if err != nil || len(content) == 0 {
		return &found, err
	}
	state, err := renewal.ParseState(content)
	if err != nil {
		return nil, fault.OnHost(fault.WithHint(fault.Host.Wrap(fmt.Errorf("%s: %w", renewal.File, err)),
			"remove it on the host: the next look of the timer makes it anew"), h.Name)
	}
	found.State = &state
	return &found, nil
}

// Failure says what failed, "" for nothing.
func (f *Found) Failure() string {
	switch {
	case f.State != nil && f.State.Error != "":
		return "the renewal of certificates failed: " + f.State.Error
	case f.Result != "" && f.Result != "success":
		return "the program that renews certificates failed: " + f.Result
	}
	return ""
}

// Idle says why nobody looks after a host's certificates, "" when somebody does.
func (f *Found) Idle() string {
	switch {
	case f.Timer.Load != "loaded":
		return timer + " is not there"
	case f.Timer.Active != "active":
		return timer + " is " + site.OrUnknown(f.Timer.Active)
	}
	return ""
}
