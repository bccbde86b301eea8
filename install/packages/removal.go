package packages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
)

// Placed are the names of the packages that boxlift has put on a host.
func Placed(ctx context.Context, h machine.Host) ([]string, error) {
	m, err := readMark(ctx, h)
	return m.names(), err
}

// Remove takes away the packages that boxlift has put on a host, with their configuration, unless that was there
// before. notes say what is not as it was before boxlift: packages of boxlift's that stay, since they are the host's
// own by now (somebody has marked them as manually installed or to be held, or something else needs them), and
// packages of the host's that went for them and are not put back.
func (r *Room) Remove(ctx context.Context, h machine.Host) (notes []string, err error) {
	m, err := readMark(ctx, h)
	if err != nil || len(m.Packages) == 0 {
		return nil, err
	}
	seen, err := look(ctx, h)
	if err != nil {
		return nil, err
	}
	if seen.Interrupted() != "" {
		if err := r.finish(ctx, h); err != nil {
			return nil, err
		}
		if seen, err = look(ctx, h); err != nil {
			return nil, err
		}
	}
	going, kept, err := leaving(ctx, h, seen, m)
	if err != nil {
		return nil, err
	}
	if len(going) > 0 {
		if err := r.awaitOthers(ctx, h); err != nil {
			return nil, err
		}
		err := r.Site.Meter.Wait(func() error { return remove(ctx, h, going) })
		if err != nil {
			return nil, explain(err)
		}
		if seen, err = look(ctx, h); err != nil {
			return nil, err
		}
		if left := present(seen, going); len(left) > 0 {
			return nil, fmt.Errorf("%w: apt-get says that all is done, and %s is still there", ErrPackages,
				apt.List(namesOf(left)))
		}
	}
	if _, err := machine.Root(ctx, h, "forget which packages boxlift has installed", "rm", "-rf", MarkFile,
		RepositoryDir); err != nil {
		return nil, err
	}
	for _, text := range kept {
		notes = append(notes, "a package that boxlift has installed stays: "+text)
	}
	for _, name := range m.Removed {
		if !seen.Find(name).There() {
			notes = append(notes, fmt.Sprintf("the package %s, which went for those of boxlift's, is not put back: the "+
				"host's own sources have it", name))
		}
	}
	return notes, nil
}

// leaving are the packages that go, and texts about those that stay.
func leaving(ctx context.Context, h machine.Host, seen apt.Host, m mark) (going []marked, kept []string, err error) {
	manual, err := manualOf(ctx, h, seen)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range present(seen, m.Packages) {
		switch {
		case seen.Find(p.Name).Hold:
			kept = append(kept, p.Name+": it is held (apt-mark hold)")
		case p.Automatic && manual[p.Name] && !slices.Contains(m.Renewed, p.Name):
			kept = append(kept, p.Name+": it was marked as manually installed since")
		default:
			going = append(going, p)
		}
	}
	others, err := othersGoing(ctx, h, going)
	if err != nil || len(others) == 0 {
		return going, kept, err
	}
	all := going
	going = nil
	for _, p := range all {
		needed, err := othersGoing(ctx, h, []marked{p}, all...)
		if err != nil {
			return nil, nil, err
		}
		if len(needed) > 0 {
			kept = append(kept, fmt.Sprintf("%s: it is needed by %s", p.Name, apt.List(needed)))
		} else {
			going = append(going, p)
		}
	}
	return going, kept, nil
}

// manualOf are the packages that apt has as manually installed.
func manualOf(ctx context.Context, h machine.Host, seen apt.Host) (map[string]bool, error) {
	out, err := machine.Root(ctx, h, "ask apt which packages were asked for", "/bin/sh", "-c", manualScript)
	if err != nil {
		return nil, err
	}
	manual := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		name, arch, _ := strings.Cut(strings.TrimSpace(line), ":")
		if arch == "" || arch == seen.Architecture {
			manual[name] = true
		}
	}
	return manual, nil
}

// othersGoing are the packages that apt would remove with these, beside these and the ones allowed.
func othersGoing(ctx context.Context, h machine.Host, going []marked, allowed ...marked) ([]string, error) {
	if len(going) == 0 {
		return nil, nil
	}
	out, err := machine.Root(ctx, h, "try out the removal of packages", append([]string{"/bin/sh", "-c",
		tryRemoveScript, "sh"}, namesOf(going)...)...)
	if err != nil {
		return nil, explain(err)
	}
	t, err := apt.ParseTransaction(string(out))
	if err != nil {
		return nil, unreadable(h, err)
	}
	own := slices.Concat(namesOf(going), namesOf(allowed))
	others := slices.DeleteFunc(t.Remove, func(name string) bool { return slices.Contains(own, name) })
	if len(t.Install) > 0 {
		return nil, fmt.Errorf("%w: apt-get would install %s to remove others", ErrPackages, t.Install[0].Name)
	}
	return others, nil
}

// manualScript prints the packages that somebody has asked for by name. tryRemoveScript has apt say what removing would
// do, removeScript removes: those before the word -- with their configuration, those after it without.
const (
	manualScript    = isolate + `quietly apt-mark showmanual`
	tryRemoveScript = isolate + `update ""
apt --simulate --no-auto-remove remove "$@"`
	removeScript = isolate + `update ""
purge=
for name in "$@"; do
    shift
    [ "$name" != -- ] || break
    purge="$purge $name"
done
apt -o DPkg::Lock::Timeout=` + lockSeconds + ` --no-auto-remove remove $purge "$@" </dev/null
[ -z "$purge" ] || quietly dpkg --purge $purge </dev/null`
)

// remove has apt remove packages.
func remove(ctx context.Context, h machine.Host, going []marked) error {
	var purged, removed []string
	for _, p := range going {
		if p.KeepsConfig {
			removed = append(removed, p.Name)
		} else {
			purged = append(purged, p.Name)
		}
	}
	err := locked(ctx, h, "apt-get remove", removeScript, slices.Concat(purged, []string{"--"}, removed)...)
	var exit *machine.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", apt.List(namesOf(going)), err)
	}
	return err
}

// present are those of which a host still has something that goes.
func present(seen apt.Host, packages []marked) []marked {
	return slices.DeleteFunc(slices.Clone(packages), func(p marked) bool {
		switch have := seen.Find(p.Name); have.State {
		case apt.NotInstalled:
			return true
		case apt.ConfigFiles:
			return p.KeepsConfig
		}
		return false
	})
}

func namesOf(packages []marked) []string {
	names := make([]string, 0, len(packages))
	for _, p := range packages {
		names = append(names, p.Name)
	}
	return names
}
