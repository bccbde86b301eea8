// Package nameserver has hosts answer the names of install.yaml for the LAN, as DNS servers, where names.serve says so.
//
// Contract: a host that serves runs dnsmasq, of the distribution's package [Package], as a service of boxlift's own
// with a configuration of its own; those of the distribution are neither used nor changed. It listens on port 53 of the
// host's address in the LAN alone, and answers the names that the host has in its block of /etc/hosts (package names);
// all others go to the servers that install.yaml names, or are refused. dnsmasq has checked a configuration before it
// gets its name, and the service is started again when that, the unit or the program differs from what it was started
// with. A host that is not to serve any more, or leaves, loses service and configuration; the package is the affair of
// package packages.
package nameserver

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// Package is the one that has the program, without a service of the distribution's.
const Package = "dnsmasq-base"

const (
	program = "/usr/sbin/dnsmasq"
	service = "boxlift-dns"
	unit    = site.UnitDir + service + ".service"
	// configFile is what the service runs with. It is no secret, and its user reads it.
	configFile = run.DNSDir + "/dnsmasq.conf"
	// started holds the fingerprint of what the service was last started with.
	started = wire.FilesDir + "/dns-started"
	// startWait is how long the service may take to answer after its start.
	startWait = 30 * time.Second
)

// ErrServe is wrapped by errors that say that a host cannot serve names.
var ErrServe = fault.NewKind(fault.Host, "the DNS server of the host")

//go:embed boxlift-dns.service
var unitText []byte

// Keeper keeps the DNS servers.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine
	Namer  *names.Namer
}

// NeedPackages says of each host that is to serve which package it needs.
func (k *Keeper) NeedPackages(need func(h *site.Host, names ...string)) {
	for _, h := range k.Site.Hosts {
		if k.Site.Config.Names.ServedOn(h.Config.Address()) {
			need(h, Package)
		}
	}
}

// Keep brings up the servers that are asked for, one after the other, so that one answers meanwhile, and takes away all
// others. It comes after the hosts have their names.
func (k *Keeper) Keep(ctx context.Context) error {
	var serving, others []*site.Host
	var failed error
	for _, h := range k.Site.Hosts {
		switch {
		case h.Err != nil:
			failed = cmp.Or(failed, h.Err)
		case k.Site.Config.Names.ServedOn(h.Config.Address()):
			serving = append(serving, h)
		default:
			others = append(others, h)
		}
	}
	err := k.Engine.InTurn(ctx, serving, func(ctx context.Context, h *site.Host) error {
		steps, err := k.steps(ctx, h)
		if err != nil {
			return err
		}
		return k.Engine.RunSteps(ctx, "prepare", &h.Subject, steps)
	})
	if err != nil && !k.Engine.GoesOn(err) {
		return err
	}
	return cmp.Or(failed, err, k.Engine.EachHost(ctx, others, func(ctx context.Context, h *site.Host) error {
		return k.Engine.RunSteps(ctx, "prepare", &h.Subject, []run.Step{TakeAway(h.Conn)})
	}))
}

// steps bring up the server on a host. What it is to answer is known once the host has its names.
func (k *Keeper) steps(ctx context.Context, h *site.Host) ([]run.Step, error) {
	if err := k.checkAddress(h); err != nil {
		return nil, err
	}
	names, err := k.Namer.Of(ctx, h)
	if err != nil {
		return nil, err
	}
	if names = fit(names); len(names) == 0 {
		return nil, fmt.Errorf("%w: there is no name that %s could serve", site.ErrRefused, h.Name)
	}
	content := configuration(h.IP, names, k.Site.Config.Names.Serve.Upstream)
	s := Server{Host: h, Address: h.IP, Name: names[len(names)-1]}
	return []run.Step{
		setup.Restarting(h, started, configStep(h, content)),
		setup.Restarting(h, started, setup.UnitStep(h, service+".service", unitText)),
		{
			ID: "start-dns", Title: setup.StartTitle(service),
			Needed:  func(ctx context.Context) (string, error) { return startReason(ctx, s) },
			Run:     func(ctx context.Context) error { return k.start(ctx, s) },
			Follows: true,
		},
	}, nil
}

// checkAddress refuses a host that has no address to listen on, and questions that would go round.
func (k *Keeper) checkAddress(h *site.Host) error {
	if !h.IP.IsValid() {
		return fault.WithHint(fmt.Errorf("%w: the address by which others reach %s is not known, and a DNS server "+
			"listens there alone", site.ErrRefused, h.Name), "give the host its nodeIP in install.yaml")
	}
	if slices.Contains(k.Site.Config.Names.Serve.Upstream, h.IP) {
		return fault.WithHint(fmt.Errorf("%w: names.serve.upstream has %s, which is %s, and it serves names itself: "+
			"questions would go round", site.ErrRefused, h.IP, h.Name), "take it out of names.serve.upstream, or the "+
			"host out of names.serve.on")
	}
	return nil
}

// configStep writes the configuration, once dnsmasq has found nothing wrong with it.
func configStep(h *site.Host, content []byte) run.Step {
	return run.Step{
		ID: setup.FileID(configFile), Title: "write the configuration of the DNS server",
		Needed: func(ctx context.Context) (string, error) {
			return setup.FileReason(ctx, h.Conn, configFile, 0o644, content)
		},
		Run: func(ctx context.Context) error {
			if _, err := h.Root(ctx, "make the folder of the DNS server", "mkdir", "-p", "-m", "0755",
				run.DNSDir); err != nil {
				return err
			}
			draft := configFile + ".boxlift-new"
			if err := h.Put(ctx, draft, 0o644, content); err != nil {
				return err
			}
			const script = `set -e
trap 'rm -f "$2"' EXIT
"$1" --test --conf-file="$2"
mv -f "$2" "$3"`
			_, err := h.Root(ctx, "have dnsmasq check its configuration", "/bin/sh", "-c", script, "sh", program, draft,
				configFile)
			var exit *machine.ExitError
			if errors.As(err, &exit) {
				err = fault.WithHint(fmt.Errorf("%w: %w", ErrServe, err), "see whether "+program+" on the host is that "+
					"of the package "+Package+", in version 2.86 or newer")
			}
			return err
		},
	}
}

// fingerprint is that of what the service runs with.
func fingerprint(ctx context.Context, h *site.Host) (string, error) {
	files, err := machine.DropIns(ctx, h.Conn, service)
	if err != nil {
		return "", err
	}
	return machine.Fingerprint(ctx, h.Conn, append(files, unit, program, configFile)...)
}

// startReason says why the service has to be started (again). Who only looks may meet a boxlift-node that cannot ask.
func startReason(ctx context.Context, s Server) (string, error) {
	reason, err := setup.StartReason(ctx, s.Host, service, started,
		func(ctx context.Context) (string, error) { return fingerprint(ctx, s.Host) })
	if err != nil || reason != "" || s.Facts == nil {
		return reason, err
	}
	if err := s.ask(ctx); err != nil {
		return "it does not answer: " + printable.Clip(printable.Text(err.Error()), 300), nil
	}
	return "", nil
}

// ask asks the server from its own host.
func (s Server) ask(ctx context.Context) error {
	wrong, err := Ask(ctx, s.Host, s)
	if err != nil {
		return err
	}
	return wrong[0]
}

// start starts the service again and waits until it answers.
func (k *Keeper) start(ctx context.Context, s Server) error {
	if _, err := s.Root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	with, err := fingerprint(ctx, s.Host)
	if err != nil {
		return err
	}
	state, err := machine.FindService(ctx, s.Conn, service)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, s.Conn, service, state); err != nil {
		return err
	}
	if err := s.Put(ctx, started, 0o600, []byte(with+"\n")); err != nil {
		return err
	}
	err = k.Site.WaitingFor(ctx, startWait, "wait for the DNS server on "+s.Host.Name, func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			if err := s.ask(ctx); err != nil {
				return false, err
			}
			state, err := machine.FindService(ctx, s.Conn, service)
			return state.IsReady() || err != nil, err
		})
	})
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return setup.StartError(context.WithoutCancel(ctx), s.Host, service, "the DNS server does not answer: "+err.Error(),
		func(text string) string { return text })
}

// TakeAway takes the server off a host that serves no more, or leaves.
func TakeAway(conn machine.Host) run.Step {
	return run.Step{
		ID: "remove-dns", Title: "remove " + service,
		Needed: func(ctx context.Context) (string, error) {
			found, err := machine.FirstThere(ctx, conn, "look for the DNS server", unit, run.DNSDir)
			if err != nil || found == "" {
				return "", err
			}
			return found + " is there, and the host is not to serve names", nil
		},
		Run: func(ctx context.Context) error {
			// The folder goes last: with it, a run that goes on finds what is left to do.
			const script = `set -e
[ ! -e "$2" ] || systemctl disable --now --quiet "$1"
rm -f "$2" "$4"
systemctl daemon-reload
rm -rf "$3"`
			_, err := machine.Root(ctx, conn, "remove the DNS server", "/bin/sh", "-c", script, "sh",
				service+".service", unit, run.DNSDir, started)
			return err
		},
	}
}
