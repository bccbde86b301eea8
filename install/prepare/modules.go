package prepare

import (
	"context"
	"strings"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// modulesFile has the modules be loaded when the host boots (modules-load.d(5)).
const modulesFile = "/etc/modules-load.d/boxlift.conf"

// modulesStep loads modules of the kernel, now and with each boot.
func (o *onHost) modulesStep(modules []string) run.Step {
	body := strings.Join(modules, "\n") + "\n"
	return run.Step{
		ID: "load-modules", Title: "load modules of the kernel",
		Needed: func(ctx context.Context) (string, error) {
			// In a container, the kernel and its modules are the machine's.
			if len(modules) == 0 || o.container != "" {
				return "", nil
			}
			reason, err := o.ownReason(ctx, modulesFile, body)
			if err != nil || reason != "" {
				return reason, err
			}
			missing, err := o.notLoaded(ctx, modules)
			if err != nil || len(missing) == 0 {
				return "", err
			}
			return "not loaded: " + printable.Short(strings.Join(missing, ", "), 300), nil
		},
		Run: func(ctx context.Context) error {
			if err := o.writeOwn(ctx, modulesFile, body); err != nil {
				return err
			}
			missing, err := o.notLoaded(ctx, modules)
			if err != nil || len(missing) == 0 {
				return err
			}
			_, err = o.root(ctx, "load modules", append([]string{"modprobe", "-a"}, missing...)...)
			return fault.WithHint(err, "see what the kernel says of it: dmesg | tail; where modules are locked or "+
				"blacklisted, allow them, or set hosts.prepare to false")
		},
	}
}

// notLoaded are those of some modules that are not loaded (sysfs).
func (o *onHost) notLoaded(ctx context.Context, modules []string) ([]string, error) {
	const script = `for m in "$@"; do [ -d "/sys/module/$m" ] || echo "$m"; done`
	out, err := o.script(ctx, "look which modules are loaded", script, modules...)
	return strings.Fields(out), err
}
