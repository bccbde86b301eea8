package prepare

import (
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

const fstabFile = "/etc/fstab"

// swapStep switches swap off, now and in /etc/fstab.
func (o *onHost) swapStep() run.Step {
	return run.Step{
		ID: "switch-swap-off", Title: "switch swap off",
		Needed: func(ctx context.Context) (string, error) {
			swaps, err := o.swaps(ctx)
			if err != nil {
				return "", err
			}
			if o.container != "" {
				if len(swaps) > 0 {
					o.warn("the swap that it shows is that of the machine on which this container (%s) runs: "+
						"switch it off there", o.container)
				}
				return "", nil
			}
			if len(swaps) > 0 {
				return printable.Short(swaps[0].Device, 100) + " is in use as swap", nil
			}
			fstab, _, err := machine.Content(ctx, o.Host, fstabFile)
			if err != nil {
				return "", err
			}
			if _, lines := withoutSwap(fstab); len(lines) > 0 {
				return fstabFile + " has " + printable.Short(lines[0], 100), nil
			}
			return "", nil
		},
		Run: o.switchSwapOff,
	}
}

func (o *onHost) switchSwapOff(ctx context.Context) error {
	swaps, err := o.swaps(ctx)
	if err != nil {
		return err
	}
	fstab, _, err := machine.Content(ctx, o.Host, fstabFile)
	if err != nil {
		return err
	}
	after, lines := withoutSwap(fstab)
	if err := o.keep(ctx, func(k *kept) {
		for _, s := range swaps {
			if !slices.ContainsFunc(k.Swaps, func(have keptSwap) bool { return have.Device == s.Device }) {
				k.Swaps = append(k.Swaps, s)
			}
		}
		for _, line := range lines {
			if !slices.Contains(k.Fstab, line) {
				k.Fstab = append(k.Fstab, line)
			}
		}
	}); err != nil {
		return err
	}
	if len(lines) > 0 {
		if err := machine.Replace(ctx, o.Host, fstabFile, fstab, after); err != nil {
			return err
		}
	}
	if len(swaps) == 0 {
		return o.reloadUnits(ctx)
	}
	_, out := withSwap(after)
	if err := o.tellOtherSwap(ctx, swaps, out); err != nil {
		return err
	}
	// Else systemd would bring back what it has made of the lines.
	if err := o.reloadUnits(ctx); err != nil {
		return err
	}
	args := []string{"swapoff"}
	for _, s := range swaps {
		args = append(args, s.Device)
	}
	_, err = o.root(ctx, "switch swap off", args...)
	return fault.WithHint(err, "what is in swap has to fit into memory: see free -m, end what takes much of it, "+
		"and run the same command again")
}

func (o *onHost) reloadUnits(ctx context.Context) error {
	_, err := o.root(ctx, "have systemd read its units again", "systemctl", "daemon-reload")
	return err
}

// tellOtherSwap tells of swap that no line of /etc/fstab makes: it comes back with the next boot.
func (o *onHost) tellOtherSwap(ctx context.Context, swaps []keptSwap, lines []string) error {
	args := make([]string, 0, len(lines))
	for _, line := range lines {
		device, _ := swapFields(line)
		args = append(args, devicePath(device))
	}
	made := ""
	if len(args) > 0 {
		var err error
		const script = `for f in "$@"; do readlink -f "$f" || :; done`
		if made, err = o.script(ctx, "look which devices "+fstabFile+" means", script, args...); err != nil {
			return err
		}
	}
	for _, s := range swaps {
		if slices.Contains(strings.Split(made, "\n"), s.Device) || slices.Contains(args, s.Device) {
			continue
		}
		o.warn("the swap on %s is off until the next boot: %s does not have it, so a unit of systemd or a "+
			"generator makes it. Find it with systemctl list-units --all --type=swap, and mask it (systemctl mask "+
			"UNIT); that on zram comes from zram-generator or zramswap", printable.Short(s.Device, 100), fstabFile)
	}
	return nil
}

// devicePath is where the device of a line of fstab(5) is found.
func devicePath(spec string) string {
	for key, folder := range map[string]string{
		"UUID=": "by-uuid", "LABEL=": "by-label", "PARTUUID=": "by-partuuid", "PARTLABEL=": "by-partlabel",
	} {
		if value, ok := strings.CutPrefix(spec, key); ok {
			return "/dev/disk/" + folder + "/" + strings.Trim(value, `"`)
		}
	}
	return spec
}

// maxSwaps is what the kernel allows at most (MAX_SWAPFILES).
const maxSwaps = 32

// swaps are in use (proc(5), /proc/swaps).
func (o *onHost) swaps(ctx context.Context) ([]keptSwap, error) {
	content, _, err := machine.Content(ctx, o.Host, "/proc/swaps")
	if err != nil {
		return nil, err
	}
	var list []keptSwap
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) != 5 || len(list) == maxSwaps {
			continue
		}
		priority, err := strconv.Atoi(fields[4])
		device := unescaped(fields[0])
		if err == nil && path.IsAbs(device) {
			list = append(list, keptSwap{device, priority})
		}
	}
	return list, nil
}

// unescaped is a name of which the kernel has written some bytes as a backslash and three octal digits.
func unescaped(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+3 < len(name) {
			if n, err := strconv.ParseUint(name[i+1:i+4], 8, 8); err == nil && n != 0 {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// giveBackSwap puts lines of /etc/fstab back and switches on what was on.
func (o *onHost) giveBackSwap(ctx context.Context, k *kept) error {
	if len(k.Swaps) == 0 && len(k.Fstab) == 0 {
		return nil
	}
	fstab, _, err := machine.Content(ctx, o.Host, fstabFile)
	if err != nil {
		return err
	}
	after, back := withSwap(fstab)
	if len(back) > 0 {
		if err := machine.Replace(ctx, o.Host, fstabFile, fstab, after); err != nil {
			return err
		}
	}
	_, there := withoutSwap(after)
	for _, line := range k.Fstab {
		if !slices.Contains(there, line) {
			o.warn("the line %q of %s is not there any more, also not taken out: somebody has removed it since, "+
				"so it does not come back", printable.Short(line, 200), fstabFile)
		}
	}
	if err := o.reloadUnits(ctx); err != nil {
		return err
	}
	return o.switchSwapOn(ctx, k.Swaps)
}

func (o *onHost) switchSwapOn(ctx context.Context, swaps []keptSwap) error {
	now, err := o.swaps(ctx)
	if err != nil {
		return err
	}
	for _, s := range swaps {
		if slices.ContainsFunc(now, func(have keptSwap) bool { return have.Device == s.Device }) {
			continue
		}
		args := []string{"swapon", s.Device}
		if s.Priority >= 0 {
			args = []string{"swapon", "-p", strconv.Itoa(s.Priority), s.Device}
		}
		var exit *machine.ExitError
		if _, err := o.root(ctx, "switch swap on", args...); errors.As(err, &exit) {
			o.warn("the swap on %s was on before boxlift switched it off, and cannot be switched on: %v",
				printable.Short(s.Device, 100), fault.WithoutHost(err))
		} else if err != nil {
			return err
		}
	}
	return nil
}
