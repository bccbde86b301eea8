package prepare

import (
	"context"
	"slices"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
)

// interfacesFile tells NetworkManager which interfaces are none of its (NetworkManager.conf(5)).
const interfacesFile = "/etc/NetworkManager/conf.d/90-boxlift.conf"

// interfacesText adds to what other files say. The names are those of Cilium and of the networks that k3s can have.
const interfacesText = `[keyfile]
unmanaged-devices+=interface-name:cilium*;interface-name:lxc*;interface-name:cni*;interface-name:flannel*;interface-name:kube-*;interface-name:nodelocaldns*
`

// networkManager is its unit.
const networkManager = "NetworkManager"

// interfacesStep keeps NetworkManager away from interfaces of pods.
func (o *onHost) interfacesStep() run.Step {
	return run.Step{
		ID: "keep-networkmanager-away", Title: "keep NetworkManager away from interfaces of pods",
		Needed: func(ctx context.Context) (string, error) {
			state, err := machine.FindService(ctx, o.Host, networkManager)
			if err != nil || state.Active != "active" {
				return "", err
			}
			reason, err := o.ownReason(ctx, interfacesFile, interfacesText)
			if err != nil || reason != "" {
				return reason, err
			}
			k, err := o.readKept(ctx)
			if err != nil || !k.Unread {
				return "", err
			}
			return "NetworkManager has not read " + interfacesFile + " yet", nil
		},
		Run: func(ctx context.Context) error {
			if err := o.keep(ctx, func(k *kept) { k.Unread = true }); err != nil {
				return err
			}
			if err := o.writeOwn(ctx, interfacesFile, interfacesText); err != nil {
				return err
			}
			if err := o.reloadNetworkManager(ctx); err != nil {
				return err
			}
			return o.keep(ctx, func(k *kept) { k.Unread = false })
		},
	}
}

func (o *onHost) reloadNetworkManager(ctx context.Context) error {
	const script = `! systemctl is-active --quiet NetworkManager.service || systemctl reload NetworkManager.service`
	_, err := o.script(ctx, "have NetworkManager read its files again", script)
	return err
}

// giveBackInterfaces gives interfaces back to NetworkManager. Until it has read that the file is gone, it is kept that
// it has not: a run that is broken off in between leaves nothing else to tell by.
func (o *onHost) giveBackInterfaces(ctx context.Context, k *kept) error {
	_, isThere, err := machine.Content(ctx, o.Host, interfacesFile)
	if err != nil || !isThere && !k.Unread {
		return err
	}
	if err := o.keep(ctx, func(k *kept) { k.Unread = true }); err != nil {
		return err
	}
	if err := o.removeOwn(ctx, interfacesFile); err != nil {
		return err
	}
	return o.reloadNetworkManager(ctx)
}

// cloudSetupStep switches nm-cloud-setup off, which takes the routes of pods away.
func (o *onHost) cloudSetupStep(units []string) run.Step {
	return run.Step{
		ID: "switch-nm-cloud-setup-off", Title: "switch nm-cloud-setup off",
		Needed: func(ctx context.Context) (string, error) {
			on, err := o.unitsOn(ctx, units)
			if err != nil || len(on) == 0 {
				return "", err
			}
			return on[0].Name + " is enabled or active", nil
		},
		Run: func(ctx context.Context) error {
			on, err := o.unitsOn(ctx, units)
			if err != nil || len(on) == 0 {
				return err
			}
			if err := o.keep(ctx, func(k *kept) {
				for _, u := range on {
					if !slices.ContainsFunc(k.Units, func(have keptUnit) bool { return have.Name == u.Name }) {
						k.Units = append(k.Units, u)
					}
				}
			}); err != nil {
				return err
			}
			args := []string{"systemctl", "disable", "--now"}
			for _, u := range on {
				args = append(args, u.Name)
			}
			if _, err := o.root(ctx, "switch nm-cloud-setup off", args...); err != nil {
				return err
			}
			o.warn("nm-cloud-setup was switched off; the rules and routes that it has set (ip rule, 30200 and " +
				"above) go with the next boot: reboot the host when it suits")
			return nil
		},
	}
}

// unitsOn are those of some units that are enabled or active.
func (o *onHost) unitsOn(ctx context.Context, units []string) ([]keptUnit, error) {
	const script = `for unit in "$@"; do
    echo "$unit $(systemctl show -p ActiveState --value "$unit") $(systemctl show -p UnitFileState --value "$unit")"
done`
	out, err := o.script(ctx, "ask systemd about nm-cloud-setup", script, units...)
	var on []keptUnit
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !slices.Contains(units, fields[0]) {
			continue
		}
		u := keptUnit{Name: fields[0], Enabled: slices.Contains(fields[1:], "enabled"),
			Active: fields[1] == "active" || fields[1] == "activating"}
		if u.Enabled || u.Active {
			on = append(on, u)
		}
	}
	return on, err
}

// giveBackCloudSetup switches on what was on.
func (o *onHost) giveBackCloudSetup(ctx context.Context, k *kept) error {
	for _, u := range k.Units {
		if u.Enabled {
			if _, err := o.root(ctx, "enable "+u.Name, "systemctl", "enable", "--quiet", u.Name); err != nil {
				return err
			}
		}
		if u.Active && strings.HasSuffix(u.Name, ".timer") { // the service runs when the timer says so
			if _, err := o.root(ctx, "start "+u.Name, "systemctl", "start", u.Name); err != nil {
				return err
			}
		}
	}
	return nil
}
