// Package front gives the cluster an address (the VIP) at which one of several servers answers, by VRRP with keepalived
// of the distribution.
//
// Contract: each server of the front runs keepalived as boxlift's own service, with a config of boxlift's own; the
// distribution's service and its files are not touched. k3s and the ingress listen on all addresses of a server, so
// whoever has the VIP answers there by itself: nothing stands between. Servers have the VIP in the order of
// install.yaml; one whose API server does not say that it is ready (/readyz) comes after all that say so. A config is
// tried out by keepalived's own test before it gets its name, and keepalived goes on with the address while it reads
// another one. What keepalived is told by the others it takes only with the secret that the cluster carries in the
// Secret [SecretName] of kube-system; on hosts it stands in a file that root alone can read.
package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/wire"
)

// Phase is the name of the phase that sets the front up.
const Phase = "front"

// Package is the distribution's package that servers of the front need.
const Package = "keepalived"

// What there is on a host.
const (
	Service    = "boxlift-keepalived"
	UnitFile   = site.UnitDir + Service + ".service"
	Dir        = run.FrontDir
	ConfigFile = Dir + "/keepalived.conf"
	draftFile  = Dir + "/keepalived.conf.boxlift-new"
	// Program is a copy of boxlift-node that keepalived runs to learn whether the API server is ready: boxlift-node
	// itself is replaced before anything else, and this one when the config that runs it is. Programs in this folder
	// may be run by services where SELinux is in force.
	Program = "/usr/local/libexec/boxlift-front"
	// startedFile holds the fingerprint of what the service was last started with, loadedFile that of the config that
	// it has read last.
	startedFile = wire.FilesDir + "/front-started"
	loadedFile  = wire.FilesDir + "/front-loaded"
)

var (
	// ErrNetwork is wrapped by errors that say that a host cannot have the VIP in its network.
	ErrNetwork = fault.NewKind(fault.Host, "the front's address does not fit the host's network")
	// ErrConfig is wrapped by errors that say that keepalived does not take its config.
	ErrConfig = fault.NewKind(fault.Host, "keepalived refuses its config")
	// ErrHolders is wrapped by errors that say that not one host has the VIP, but none or several.
	ErrHolders = fault.NewKind(fault.Host, "the front's address is not on one host")
)

// Keeper sets up the front.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine

	secret string // once it is known
}

// Hosts are the hosts of the front, in the order in which they are to have the VIP.
func (k *Keeper) Hosts() []*site.Host {
	if k.Site.Config.Cluster.Front == nil {
		return nil
	}
	var list []*site.Host
	for _, path := range k.Site.Config.Cluster.Front.On {
		if i := slices.IndexFunc(k.Site.Hosts, func(h *site.Host) bool { return h.Config.Path == path }); i >= 0 {
			list = append(list, k.Site.Hosts[i])
		}
	}
	return list
}

// vip is the front's address.
func (k *Keeper) vip() netip.Addr { return k.Site.Config.Cluster.Front.VIP }

// Keep brings up the front, one host after the other, and waits until one of them has the VIP.
func (k *Keeper) Keep(ctx context.Context) error {
	if k.Site.Config.Cluster.Front == nil {
		return nil
	}
	if err := k.Engine.RunSteps(ctx, Phase, &k.Engine.Cluster, []run.Step{k.secretStep()}); err != nil {
		return err
	}
	failed := k.Engine.InTurn(ctx, k.Hosts(), func(ctx context.Context, h *site.Host) error {
		return k.Engine.RunSteps(ctx, Phase, &h.Subject, k.steps(h))
	})
	if failed != nil && !k.Engine.GoesOn(failed) {
		return failed
	}
	return cmp.Or(failed, k.Engine.RunSteps(ctx, Phase, &k.Engine.Cluster, []run.Step{k.heldStep()}))
}

func (k *Keeper) steps(h *site.Host) []run.Step {
	program := setup.ProgramStep(k.Site, h, "place-front-program", "place the program that asks whether the API is ready",
		Program)
	program.Alone = true
	return []run.Step{
		program,
		setup.Restarting(h, loadedFile, k.configStep(h)),
		setup.Restarting(h, startedFile, k.unitStep(h)),
		k.startStep(h),
	}
}

// configStep writes keepalived's config, once keepalived has said that it takes it.
func (k *Keeper) configStep(h *site.Host) run.Step {
	return run.Step{
		ID: setup.FileID(ConfigFile), Title: "write the config of keepalived",
		Needed: func(ctx context.Context) (string, error) {
			digests, err := machine.Digests(ctx, h.Conn, ConfigFile)
			if err != nil || digests[ConfigFile] == "" {
				return setup.Differs(ConfigFile, "", "?"), err
			}
			content, err := k.content(ctx, h)
			if err != nil {
				return "", err
			}
			return setup.FileReason(ctx, h.Conn, ConfigFile, 0o600, content)
		},
		Run: func(ctx context.Context) error {
			content, err := k.content(ctx, h)
			if err != nil {
				return err
			}
			return k.writeConfig(ctx, h, content)
		},
	}
}

// acceptScript gives a draft its name, once keepalived has tried it out.
const acceptScript = `set -e
trap 'rm -f "$1"' EXIT
[ -x /usr/sbin/keepalived ] || { echo "there is no /usr/sbin/keepalived" >&2; exit 1; }
/usr/sbin/keepalived --config-test --vrrp "--use-file=$1" >&2
sync "$1"
mv -f "$1" "$2"`

func (k *Keeper) writeConfig(ctx context.Context, h *site.Host, content []byte) error {
	if _, err := h.Root(ctx, "make the front's folder", "mkdir", "-p", "-m", "0700", Dir); err != nil {
		return err
	}
	if err := h.Put(ctx, draftFile, 0o600, content); err != nil {
		return err
	}
	_, err := h.Root(ctx, "try out the config of keepalived", "/bin/sh", "-c", acceptScript, "sh", draftFile, ConfigFile)
	var exit *machine.ExitError
	if errors.As(err, &exit) {
		for i, line := range exit.Lines { // keepalived may quote what it does not take
			exit.Lines[i] = strings.ReplaceAll(line, k.secret, "[secret]")
		}
		err = fault.WithHint(fmt.Errorf("%w: %w", ErrConfig, err), "boxlift's config is for keepalived 2.2.4 and newer; "+
			"keepalived -v on the host shows which it has")
	}
	return err
}

// unitStep writes the service's unit.
func (k *Keeper) unitStep(h *site.Host) run.Step {
	return run.Step{
		ID: "write-front-unit", Title: "write the unit " + Service + ".service",
		Needed: func(ctx context.Context) (string, error) {
			digests, err := machine.Digests(ctx, h.Conn, UnitFile)
			if err != nil || digests[UnitFile] == "" {
				return setup.Differs(UnitFile, "", "?"), err
			}
			content, err := k.unit(h)
			if err != nil {
				return "", err
			}
			return setup.FileReason(ctx, h.Conn, UnitFile, 0o644, content)
		},
		Run: func(ctx context.Context) error {
			content, err := k.unit(h)
			if err != nil {
				return err
			}
			return h.Put(ctx, UnitFile, 0o644, content)
		},
	}
}

// startStep starts keepalived, or has it read its config again.
func (k *Keeper) startStep(h *site.Host) run.Step {
	return run.Step{
		ID: "start-front", Title: setup.StartTitle(Service), Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			reason, err := setup.StartReason(ctx, h, Service, startedFile, func(ctx context.Context) (string, error) {
				return started(ctx, h)
			})
			if reason != "" || err != nil {
				return reason, err
			}
			return reloadReason(ctx, h)
		},
		Run: func(ctx context.Context) error { return k.start(ctx, h) },
	}
}

// started is the fingerprint of what the service is started with. Its config is not among it, which it reads again.
func started(ctx context.Context, h *site.Host) (string, error) {
	files, err := machine.DropIns(ctx, h.Conn, Service)
	if err != nil {
		return "", err
	}
	return machine.Fingerprint(ctx, h.Conn, append(files, UnitFile)...)
}

func reloadReason(ctx context.Context, h *site.Host) (string, error) {
	want, err := machine.Fingerprint(ctx, h.Conn, ConfigFile)
	if err != nil {
		return "", err
	}
	have, err := h.Read(ctx, loadedFile)
	if err != nil || have == want {
		return "", err
	}
	return "its config changed since it was read", nil
}

// startWait is how long keepalived may take to run.
const startWait = 30 * time.Second

func (k *Keeper) start(ctx context.Context, h *site.Host) error {
	if _, err := h.Root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	fingerprint, err := started(ctx, h)
	if err != nil {
		return err
	}
	loaded, err := machine.Fingerprint(ctx, h.Conn, ConfigFile)
	if err != nil {
		return err
	}
	reason, err := setup.StartReason(ctx, h, Service, startedFile, func(context.Context) (string, error) {
		return fingerprint, nil
	})
	if err != nil {
		return err
	}
	if reason == "" {
		_, err = h.Root(ctx, "reload "+Service, "systemctl", "reload", Service+".service")
	} else {
		var state machine.Service
		if state, err = machine.FindService(ctx, h.Conn, Service); err == nil {
			err = machine.Restart(ctx, h.Conn, Service, state)
		}
	}
	if err != nil {
		return err
	}
	err = k.Site.WaitingFor(ctx, startWait, "wait for keepalived on "+h.Name, func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			state, err := machine.FindService(ctx, h.Conn, Service)
			return err != nil || state.IsReady(), err
		})
	})
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return setup.StartError(ctx, h, Service, "keepalived does not run: "+err.Error(), k.redact)
	}
	if err := h.Put(ctx, loadedFile, 0o600, []byte(loaded+"\n")); err != nil {
		return err
	}
	return h.Put(ctx, startedFile, 0o600, []byte(fingerprint+"\n"))
}

func (k *Keeper) redact(text string) string {
	if k.secret == "" {
		return text
	}
	return strings.ReplaceAll(text, k.secret, "[secret]")
}

// leftovers are the files of a front on a host.
var leftovers = []string{UnitFile, Dir, Program, startedFile, loadedFile}

// Retire takes the front away from servers that install.yaml has none for any more. By then nobody goes by it.
func (k *Keeper) Retire(ctx context.Context) error {
	if k.Engine.Only != nil {
		return nil
	}
	stay := k.Hosts()
	return k.Engine.EachHost(ctx, k.Site.Servers(), func(ctx context.Context, h *site.Host) error {
		if slices.Contains(stay, h) {
			return nil
		}
		return k.Engine.RunSteps(ctx, "retire", &h.Subject, []run.Step{removeStep(h.Conn,
			" is there, and install.yaml does not ask for it")})
	})
}

// TakeAway takes the front away from a host that leaves. The VIP goes to another one at once.
func (k *Keeper) TakeAway(conn machine.Host) run.Step {
	return removeStep(conn, " is there, of the address that servers have in turn")
}

func removeStep(conn machine.Host, why string) run.Step {
	return run.Step{
		ID: "remove-front", Title: "take the front's address away",
		Needed: func(ctx context.Context) (string, error) {
			found, err := machine.FirstThere(ctx, conn, "look for the front", leftovers...)
			if err != nil || found == "" {
				return "", err
			}
			return found + why, nil
		},
		Run: func(ctx context.Context) error {
			_, err := machine.Root(ctx, conn, "take the front's address away", "/bin/sh", "-c", removeScript)
			return err
		},
	}
}

// removeScript removes all of the front. Each part may have been removed before. The folder goes last, so that a run
// that was broken off goes on.
const removeScript = `set -e
if [ -e ` + UnitFile + ` ]; then systemctl disable --now ` + Service + `.service; fi
rm -f ` + UnitFile + `
systemctl daemon-reload
rm -f ` + Program + ` ` + startedFile + ` ` + loadedFile + `
rm -rf ` + Dir + `
`

// address is where the others reach a host of the front. It does not depend on whether the host answers, where
// install.yaml says it.
func address(h *site.Host) (netip.Addr, error) {
	if h.Config.NodeIP.IsValid() {
		return h.Config.NodeIP, nil
	}
	if a, err := netip.ParseAddr(h.Config.Host); err == nil {
		return a, nil
	}
	if h.IP.IsValid() {
		return h.IP, nil
	}
	return netip.Addr{}, fault.WithHint(fault.OnHost(fmt.Errorf("%w: the host's address is not known", ErrNetwork), h.Name),
		"give nodeIP to the host in install.yaml")
}
