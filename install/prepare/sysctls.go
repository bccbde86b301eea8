package prepare

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
)

// sysctlsFile sets sysctls when the host boots (sysctl.d(5)).
const sysctlsFile = "/etc/sysctl.d/90-boxlift.conf"

// sysctlState is a sysctl as the host has it.
type sysctlState struct {
	value    string
	readOnly bool
}

// sysctlChange is what is to be done: the file is to have all, and short do not fit.
type sysctlChange struct {
	all, short []preflight.Sysctl
	before     map[string]string
}

// sysctlsStep sets sysctls that do not fit, now and with each boot. What boxlift has set stays in the file, also when
// it fits now: that is why it does.
func (o *onHost) sysctlsStep(wanted []preflight.Sysctl) run.Step {
	return run.Step{
		ID: "set-sysctls", Title: "set sysctls",
		Needed: func(ctx context.Context) (string, error) {
			c, err := o.sysctlChange(ctx, wanted)
			if err != nil || len(c.all) == 0 {
				return "", err
			}
			if len(c.short) == 0 {
				return o.ownReason(ctx, sysctlsFile, sysctlText(c.all))
			}
			reasons := make([]string, 0, len(c.short))
			for _, s := range c.short {
				reasons = append(reasons, s.Name+" is "+c.before[s.Name])
			}
			return strings.Join(reasons, ", "), nil
		},
		Run: func(ctx context.Context) error {
			c, err := o.sysctlChange(ctx, wanted)
			if err != nil || len(c.all) == 0 {
				return err
			}
			if err := o.keep(ctx, func(k *kept) {
				for _, s := range c.all {
					value := strconv.FormatInt(s.Value, 10)
					i := slices.IndexFunc(k.Sysctls, func(have keptSysctl) bool { return have.Name == s.Name })
					if i < 0 {
						k.Sysctls = append(k.Sysctls, keptSysctl{s.Name, c.before[s.Name], value})
					} else {
						k.Sysctls[i].Set = value
					}
				}
			}); err != nil {
				return err
			}
			if err := o.writeOwn(ctx, sysctlsFile, sysctlText(c.all)); err != nil {
				return err
			}
			values := make(map[string]string)
			for _, s := range c.short {
				values[s.Name] = strconv.FormatInt(s.Value, 10)
			}
			return o.setSysctls(ctx, values)
		},
	}
}

func sysctlText(list []preflight.Sysctl) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%s = %d\n", s.Name, s.Value)
	}
	return b.String()
}

// sysctlChange compares the host with what is wanted. What the host does not let be changed is told of, and is an error
// where k3s would not work with it.
func (o *onHost) sysctlChange(ctx context.Context, wanted []preflight.Sysctl) (sysctlChange, error) {
	c := sysctlChange{before: make(map[string]string)}
	names := make([]string, 0, len(wanted))
	for _, s := range wanted {
		names = append(names, s.Name)
	}
	states, err := o.readSysctls(ctx, names)
	if err != nil {
		return c, err
	}
	k, err := o.readKept(ctx)
	if err != nil {
		return c, err
	}
	for _, s := range wanted {
		state, known := states[s.Name]
		n, err := strconv.ParseInt(state.value, 10, 64)
		if !known || err != nil {
			continue
		}
		fits := s.Fits(n)
		if state.readOnly {
			const found = "%s = %d cannot be changed there, /proc/sys is read-only, as in a container"
			const hint = "set it to %d on the machine that it runs on"
			switch {
			case fits:
			case s.Required:
				return c, fault.OnHost(fault.WithHint(fault.Host.Errorf(found, s.Name, n), fmt.Sprintf(hint, s.Value)),
					o.Name())
			default:
				o.warn(found+": "+hint, s.Name, n, s.Value)
			}
			continue
		}
		_, isOwn := k.sysctl(s.Name)
		if !fits {
			c.short = append(c.short, s)
		}
		if !fits || isOwn {
			c.all = append(c.all, s)
			c.before[s.Name] = state.value
		}
	}
	return c, nil
}

// readSysctls asks for sysctls by their names. Those that are not there, or are no numbers, are missing.
func (o *onHost) readSysctls(ctx context.Context, names []string) (map[string]sysctlState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	paths := make(map[string]string)
	args := make([]string, 0, len(names))
	for _, name := range names {
		args = append(args, sysctlPath(name))
		paths[sysctlPath(name)] = name
	}
	const script = `for f in "$@"; do
    value=$(cat "$f" 2>/dev/null) || continue
    echo "sysctl $f $value"
done
grep -s ' /proc' /proc/self/mounts || :`
	out, err := o.script(ctx, "look at sysctls", script, args...)
	if err != nil {
		return nil, err
	}
	states := make(map[string]sysctlState)
	mounts := make(map[string]bool) // read-only, by mount point; the last one counts
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 3 && fields[0] == "sysctl" && sysctlValue.MatchString(fields[2]) && paths[fields[1]] != "":
			states[paths[fields[1]]] = sysctlState{value: fields[2]}
		case len(fields) == 6 && strings.HasPrefix(fields[1], "/proc"):
			mounts[fields[1]] = slices.Contains(strings.Split(fields[3], ","), "ro")
		}
	}
	for name, state := range states {
		path := sysctlPath(name)
		longest := ""
		for point := range mounts {
			if (path == point || strings.HasPrefix(path, point+"/")) && len(point) > len(longest) {
				longest = point
			}
		}
		state.readOnly = mounts[longest]
		states[name] = state
	}
	return states, nil
}

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// setSysctls gives sysctls values, in the order of their names.
func (o *onHost) setSysctls(ctx context.Context, values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	args := make([]string, 0, len(values))
	for name, value := range values {
		args = append(args, sysctlPath(name)+"="+value)
	}
	slices.Sort(args)
	const script = `set -e; for pair in "$@"; do printf '%s\n' "${pair#*=}" >"${pair%%=*}"; done`
	_, err := o.script(ctx, "set sysctls", script, args...)
	return err
}

// giveBackSysctls puts values back that are still boxlift's.
func (o *onHost) giveBackSysctls(ctx context.Context, k *kept) error {
	names := make([]string, 0, len(k.Sysctls))
	for _, s := range k.Sysctls {
		names = append(names, s.Name)
	}
	states, err := o.readSysctls(ctx, names)
	if err != nil {
		return err
	}
	values := make(map[string]string)
	for _, s := range k.Sysctls {
		switch state, known := states[s.Name]; {
		case !known, state.value == s.Before: // it has gone, or is back already
		case state.value == s.Set:
			values[s.Name] = s.Before
		default:
			o.warn("%s is %s, and was %s before boxlift set it to %s: somebody has changed it since, so it "+
				"stays", s.Name,
				state.value, s.Before, s.Set)
		}
	}
	return o.setSysctls(ctx, values)
}
