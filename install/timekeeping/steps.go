package timekeeping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/wire"
)

// startedFile is what chronyd was last started with, as a fingerprint.
const startedFile = wire.FilesDir + "/time-started"

// steps have a host keep time.
func (k *Keeper) steps(ctx context.Context, h *site.Host) ([]run.Step, error) {
	p := k.planFor(h)
	var err error
	if p.fixed, err = isFixed(ctx, h.Conn); err != nil {
		return nil, err
	}
	if p.unknown { // nobody loses the time because a run does not see him
		content, _, err := machine.Content(ctx, h.Conn, ConfigurationFile)
		if err != nil {
			return nil, err
		}
		for _, n := range allowedIn(content) {
			p.allow(n)
		}
	}
	configuration := fileStep(h.Conn, "write-time-configuration", "write chrony's configuration", ConfigurationFile,
		p.configuration(), func(ctx context.Context) error { return writeConfiguration(ctx, h.Conn, p.configuration()) })
	unit := fileStep(h.Conn, "write-time-unit", "have chrony start with it", UnitFile, p.unit(),
		func(ctx context.Context) error { return machine.Write(ctx, h.Conn, UnitFile, 0o644, p.unit()) })
	return []run.Step{
		setup.Restarting(h, startedFile, configuration), setup.Restarting(h, startedFile, unit), k.startStep(h, &p),
		{
			ID: "follow-time", Title: "go by the time of those who serve it", Proves: true,
			Needed: func(ctx context.Context) (string, error) {
				return seen(ctx, h.Conn, p.difference)
			},
			Run: func(ctx context.Context) error { return k.await(ctx, h, &p) },
		},
		k.setStep(h, &p),
	}, nil
}

// seen says what there is to say of what a host's chronyd says, or that it says nothing.
func seen(ctx context.Context, h machine.Host, say func(*Measurement) string) (string, error) {
	m, err := Measure(ctx, h)
	var exit *machine.ExitError
	switch {
	case errors.As(err, &exit):
		return "chronyd does not answer", nil
	case err != nil:
		return "", err
	}
	return say(m), nil
}

// fileStep writes a file that everybody can read, after it was noted what chrony did before.
func fileStep(h machine.Host, id, title, name string, content []byte, write func(context.Context) error) run.Step {
	return run.Step{
		ID: id, Title: title,
		Needed: func(ctx context.Context) (string, error) { return setup.FileReason(ctx, h, name, 0o644, content) },
		Run: func(ctx context.Context) error {
			if err := note(ctx, h); err != nil {
				return err
			}
			folder := path.Dir(name)
			if _, err := machine.Root(ctx, h, "make "+folder, "mkdir", "-p", "-m", "0755", folder); err != nil {
				return err
			}
			return write(ctx)
		},
	}
}

// writeConfiguration writes chronyd's configuration. It has its name once chronyd takes it for one.
func writeConfiguration(ctx context.Context, h machine.Host, content []byte) error {
	const draft = ConfigurationFile + ".boxlift-new"
	if err := machine.Write(ctx, h, draft, 0o644, content); err != nil {
		return err
	}
	const script = `set -e
trap 'rm -f "$1"' EXIT
chronyd -p -f "$1" >/dev/null
sync "$1"
mv -f "$1" "$2"`
	_, err := machine.Root(ctx, h, "have chronyd check its configuration", "/bin/sh", "-c", script, "sh", draft,
		ConfigurationFile)
	return err
}

// startStep has chronyd run with what there is for it.
func (k *Keeper) startStep(h *site.Host, p *plan) run.Step {
	fingerprint := func(ctx context.Context) (string, error) {
		return machine.Fingerprint(ctx, h.Conn, ConfigurationFile, UnitFile)
	}
	return run.Step{
		ID: "start-chrony", Title: setup.StartTitle(service), Starts: true,
		Needed: func(ctx context.Context) (string, error) {
			reason, err := setup.StartReason(ctx, h, service, startedFile, fingerprint)
			if reason != "" || err != nil {
				return reason, err
			}
			return seen(ctx, h.Conn, p.unlike)
		},
		Run: func(ctx context.Context) error {
			now, err := fingerprint(ctx)
			if err != nil {
				return err
			}
			err = k.Site.Meter.Wait(func() error { return start(ctx, h.Conn) })
			var exit *machine.ExitError
			var notRunning *notRunningError
			switch {
			case errors.As(err, &exit), errors.As(err, &notRunning):
				asIs := func(text string) string { return text } // it holds no secrets
				return fmt.Errorf("%w: %w", ErrClock, setup.StartError(ctx, h, service, err.Error(), asIs))
			case err != nil:
				return err
			}
			return h.Put(ctx, startedFile, 0o600, []byte(now+"\n"))
		},
	}
}

// start starts chronyd again, with the host, too, and waits until it runs. What is left running of systemd-timesyncd,
// whose package has gone for chrony's and whose service packages do not stop, ends: a clock is set by one.
func start(ctx context.Context, h machine.Host) error {
	const script = `set -e
if systemctl is-active --quiet systemd-timesyncd.service; then systemctl stop systemd-timesyncd.service; fi
systemctl daemon-reload
systemctl enable --quiet "$1"
systemctl restart "$1"`
	if _, err := machine.Root(ctx, h, "start "+service, "/bin/sh", "-c", script, "sh", service+".service"); err != nil {
		return err
	}
	state, err := machine.FindService(ctx, h, service)
	if err == nil && state.Active != "active" {
		err = &notRunningError{state.Active}
	}
	return err
}

// notRunningError says that chronyd does not run although it was started.
type notRunningError struct{ state string }

func (e *notRunningError) Error() string {
	return fmt.Sprintf("start %s: it is %s", service, site.OrUnknown(e.state))
}

// unlike says in what the sources that chronyd asks are not those of install.yaml, "" when they are.
func (p *plan) unlike(m *Measurement) string {
	wanted := p.sources()
	var addresses []netip.Addr
	for _, s := range wanted {
		if !m.asks(s) {
			return "chronyd does not ask " + s
		}
		if a, err := netip.ParseAddr(s); err == nil {
			addresses = append(addresses, a)
		}
	}
	if len(addresses) < len(wanted) {
		return "" // which addresses names have, is not known here
	}
	for _, s := range m.Sources {
		if a, err := netip.ParseAddr(s.Name); err != nil || !slices.Contains(addresses, a) {
			return "chronyd asks " + s.Name + ", and install.yaml does not have it"
		}
	}
	return ""
}

// setStep sets a clock that is off. That of a host that cannot set its own has to be right.
func (k *Keeper) setStep(h *site.Host, p *plan) run.Step {
	needed := func(ctx context.Context) (string, error) {
		state, err := machine.FindService(ctx, h.Conn, service)
		if err != nil || state.Active != "active" {
			return "", err // it is said elsewhere
		}
		return seen(ctx, h.Conn, off)
	}
	if p.fixed {
		return run.Step{
			ID: "clock-is-right", Title: "compare the clock", Proves: true, Needed: needed,
			Run: func(ctx context.Context) error {
				reason, err := needed(ctx)
				if err != nil || reason == "" {
					return err
				}
				err = fmt.Errorf("%w: %s, and the host is not let set it", ErrClock, reason)
				return fault.WithHint(fault.OnHost(err, h.Name), "set the clock of the machine that the host is a "+
					"container on, or let it follow the same time servers")
			},
		}
	}
	return run.Step{
		ID: "set-clock", Title: "set the clock", Needed: needed,
		Run: func(ctx context.Context) error {
			if _, err := h.Root(ctx, "have chronyd set the clock", "chronyc", "makestep"); err != nil {
				return err
			}
			reason, err := seen(ctx, h.Conn, off)
			if err == nil && reason != "" {
				err = fmt.Errorf("%w: chronyd was told to set it, and %s", ErrClock, reason)
				err = fault.WithHint(fault.OnHost(err, h.Name),
					"see on the host: chronyc -n tracking, and journalctl -u "+service)
			}
			return err
		},
	}
}
