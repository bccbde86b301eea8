// Package packages installs packages of the distribution, which the bundle brings, on hosts of Debian's family.
//
// Contract: apt itself installs them, from a repository that lies on the host for as long, and knows no other source:
// no network is needed, and the host's own sources, lists, preferences and hooks are neither used nor changed. What
// is in the way is found out before anything is changed. Nothing that the host has is removed, unless the bundle's
// lock says that it may be, and what it has in any version is left as it is, unless a package that comes needs a
// newer one. Services that packages bring are not started. Which packages boxlift has put on a host stands in a file
// there ([MarkFile]), written before they are, so that [Remove] takes away these and no others.
package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrPackages is wrapped by errors that say that packages cannot be installed on a host, or removed from it.
var ErrPackages = fault.NewKind(fault.Host, "the host's packages")

// ErrCarried is wrapped by errors that say that a package of the bundle is not what it is said to be.
var ErrCarried = fault.NewKind(fault.Bundle, "a package of the bundle cannot be used")

// Package is one .deb of a bundle.
type Package struct {
	Name, Version, Architecture string
	// Filename is the name of the file, for messages.
	Filename string
	Size     int64 // in bytes
	SHA256   digest.Digest
}

// Set is what a bundle has for one release of a distribution on one architecture: all that it takes to install what it
// is for on a host that has what the release's base system has.
type Set struct {
	// ID, Codename and Version are those of os-release(5), such as debian, bookworm and 12. Version is compared where
	// there is no codename.
	ID, Codename, Version string
	Architecture          string // as dpkg has it, such as amd64
	Packages              []Package
	// Removable are the packages that a host may lose for them.
	Removable []string
}

// release is what messages call the set.
func (s Set) release() string {
	return strings.Join(strings.Fields(s.ID+" "+s.Version+" "+s.Codename+" "+s.Architecture), " ")
}

// fits reports whether the set is for a host.
func (s Set) fits(h apt.Host) bool {
	switch {
	case s.ID != h.ID || s.Architecture != h.Architecture:
		return false
	case s.Codename != "":
		return s.Codename == h.Codename
	}
	return s.Version != "" && s.Version == h.Version
}

// Room installs packages. Its steps are those of the phase "packages".
type Room struct {
	Site   *site.Site
	Engine *run.Engine
	// Sets are what the bundle has, and Open opens the file of a package; what is read is proven at its end.
	Sets []Set
	Open func(Package) (io.Reader, error)

	mu      sync.Mutex
	needs   map[*site.Host][]string
	carried map[int][]apt.Carried // by the index of the set
}

// Need says that a host needs packages, by name, beside those of install.yaml. It is said before phases are gone
// through.
func (r *Room) Need(h *site.Host, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needs == nil {
		r.needs = make(map[*site.Host][]string)
	}
	r.needs[h] = append(r.needs[h], names...)
}

// wanted are the packages that a host is to have, sorted.
func (r *Room) wanted(h *site.Host) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Concat(r.Site.Config.Packages, r.needs[h])
	slices.Sort(names)
	return slices.Compact(names)
}

// setFor is which of the sets is for a host, -1 for none.
func (r *Room) setFor(h apt.Host) int {
	return slices.IndexFunc(r.Sets, func(s Set) bool { return s.fits(h) })
}

// carry are the packages of a set, without what they say of themselves: none of them is read.
func (s Set) carry() ([]apt.Carried, error) {
	carried := make([]apt.Carried, 0, len(s.Packages))
	for _, p := range s.Packages {
		c := apt.Carried{Name: p.Name, Version: p.Version, Architecture: p.Architecture, Size: p.Size}
		if err := errors.Join(c.Check(), p.SHA256.Validate()); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrCarried, p.Filename, err)
		}
		c.SHA256 = p.SHA256.Encoded()
		c.Filename = fmt.Sprintf("%s_%s.deb", p.Name, c.SHA256[:12])
		carried = append(carried, c)
	}
	return carried, nil
}

// describe are the packages that the bundle has for a host, with what they say of themselves. It reads all of them,
// once for all hosts of a release.
func (r *Room) describe(h apt.Host) ([]apt.Carried, error) {
	i := r.setFor(h)
	if i < 0 {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.carried[i] != nil {
		return r.carried[i], nil
	}
	carried, err := r.Sets[i].carry()
	if err != nil {
		return nil, err
	}
	for j, p := range r.Sets[i].Packages {
		if carried[j].Control, err = r.control(p); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrCarried, p.Filename, err)
		}
	}
	if _, err := apt.Index(carried); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCarried, err)
	}
	if r.carried == nil {
		r.carried = make(map[int][]apt.Carried)
	}
	r.carried[i] = carried
	return carried, nil
}

// control reads what a package says of itself. All of it is read: only then it is proven.
func (r *Room) control(p Package) (string, error) {
	content, err := r.Open(p)
	if err != nil {
		return "", err
	}
	control, err := apt.ReadControl(content)
	if _, unread := io.Copy(io.Discard, content); unread != nil {
		return "", unread
	}
	return control, err
}

// state looks at a host: what it has, what of it boxlift has put there, and what the bundle has for it. apt is not
// asked what it would do.
func (r *Room) state(ctx context.Context, h *site.Host) (o apt.Outlook, m mark, err error) {
	o.Wanted = r.wanted(h)
	if len(o.Wanted) == 0 {
		return o, m, nil
	}
	if o.Host, err = look(ctx, h.Conn); err != nil {
		return o, m, err
	}
	if m, err = readMark(ctx, h.Conn); err != nil {
		return o, m, err
	}
	o.Own = m.names()
	for _, s := range r.Sets {
		o.Releases = append(o.Releases, s.release())
	}
	if i := r.setFor(o.Host); i >= 0 {
		o.Removable = r.Sets[i].Removable
		o.Carried, err = r.Sets[i].carry()
	}
	return o, m, err
}

// outlook looks at a host, and has apt try out what is lacking.
func (r *Room) outlook(ctx context.Context, h *site.Host) (apt.Outlook, mark, error) {
	o, m, err := r.state(ctx, h)
	if err != nil {
		return o, m, err
	}
	lacking := o.Lacking()
	if len(lacking) == 0 || len(o.Absent()) > 0 || !o.Host.IsDebian() {
		return o, m, nil
	}
	carried, err := r.describe(o.Host)
	if err != nil {
		return o, m, err
	}
	o.Trial, o.Refusal, err = try(ctx, h.Conn, carried, lacking)
	return o, m, err
}

// Look notes of a host what apt says of the packages that it needs, for who judges it. A host that needs none is not
// asked.
func (r *Room) Look(ctx context.Context, h *site.Host) error {
	if len(r.wanted(h)) == 0 {
		return nil
	}
	o, _, err := r.outlook(ctx, h)
	if err != nil {
		return fmt.Errorf("look at packages: %w", err)
	}
	h.Packages = &o
	return nil
}

// Install brings all hosts the packages that they need.
func (r *Room) Install(ctx context.Context) error {
	return r.Engine.EachHost(ctx, r.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		return r.Engine.RunSteps(ctx, "packages", &h.Subject, r.steps(h))
	})
}

// steps bring a host the packages that it needs. A host that needs none is not asked.
func (r *Room) steps(h *site.Host) []run.Step {
	if len(r.wanted(h)) == 0 {
		return nil
	}
	return []run.Step{r.finishStep(h), r.placeStep(h), r.installStep(h), r.tidyStep(h)}
}

// finishStep finishes what dpkg was interrupted with, by whomever.
func (r *Room) finishStep(h *site.Host) run.Step {
	return run.Step{
		ID: "finish-dpkg", Title: "finish what dpkg was interrupted with",
		Needed: func(ctx context.Context) (string, error) {
			seen, err := look(ctx, h.Conn)
			return seen.Interrupted(), err
		},
		Run: func(ctx context.Context) error { return r.finish(ctx, h.Conn) },
	}
}

// placeStep brings the packages to the host, where some are lacking.
func (r *Room) placeStep(h *site.Host) run.Step {
	return run.Step{
		ID: "place-packages", Title: "place packages for apt",
		Needed: func(ctx context.Context) (string, error) {
			o, _, err := r.state(ctx, h)
			if err != nil || o.Reason() == "" {
				return "", err
			}
			carried, err := r.describe(o.Host)
			if err != nil {
				return "", err
			}
			there, err := repository(ctx, h.Conn, carried)
			if err != nil || there {
				return "", err
			}
			return o.Reason(), nil
		},
		Run: func(ctx context.Context) error {
			seen, err := look(ctx, h.Conn)
			if err != nil {
				return err
			}
			carried, err := r.describe(seen)
			if err != nil {
				return err
			}
			return r.place(ctx, h, seen, carried)
		},
	}
}

// installStep has apt install what is lacking.
func (r *Room) installStep(h *site.Host) run.Step {
	return run.Step{
		ID: "install-packages", Title: "install packages",
		Needed: func(ctx context.Context) (string, error) {
			o, m, err := r.state(ctx, h)
			if reason := o.Reason(); err != nil || reason != "" || len(m.Renewed) == 0 {
				return reason, err
			}
			return "apt may have these as asked for by name, since they were renewed: " + apt.List(m.Renewed), nil
		},
		Run: func(ctx context.Context) error { return r.install(ctx, h) },
	}
}

// tidyStep removes the repository, which serves nobody any more.
func (r *Room) tidyStep(h *site.Host) run.Step {
	return run.Step{
		ID: "remove-package-files", Title: "remove the files of packages",
		Needed: func(ctx context.Context) (string, error) {
			out, err := h.Root(ctx, "look for files of packages", "/bin/sh", "-c", `[ ! -e "$1" ] || echo there`, "sh",
				RepositoryDir)
			if err != nil || len(out) == 0 {
				return "", err
			}
			return "the packages that lie in " + RepositoryDir + " are installed", nil
		},
		Run: func(ctx context.Context) error {
			_, err := h.Root(ctx, "remove the files of packages", "rm", "-rf", RepositoryDir)
			return err
		},
	}
}

// place brings packages to the host, and then the index. What is there already, proven, is left alone.
func (r *Room) place(ctx context.Context, h *site.Host, seen apt.Host, carried []apt.Carried) error {
	index, err := apt.Index(carried)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCarried, err)
	}
	if _, err := h.Root(ctx, "make the folder of packages", "mkdir", "-p", "-m", "0755", RepositoryDir); err != nil {
		return err
	}
	i := r.setFor(seen)
	var total int64
	for _, c := range carried {
		total += c.Size
	}
	task := r.Site.Reporter.Task("place packages on "+h.Name, total)
	for j, c := range carried {
		var content io.Reader
		if content, err = r.Open(r.Sets[i].Packages[j]); err != nil {
			break
		}
		if _, err = h.Conn.Put(ctx, machine.PutOptions{Path: RepositoryDir + "/" + c.Filename, Mode: 0o644,
			Size: c.Size, SHA256: c.SHA256, Root: true, Progress: task.Add}, content); err != nil {
			break
		}
	}
	task.Done(err)
	if err != nil {
		return err
	}
	return h.Put(ctx, RepositoryDir+"/"+indexName, 0o644, index)
}

// install has apt install what is lacking, and proves that it is there then.
func (r *Room) install(ctx context.Context, h *site.Host) error {
	if err := r.awaitOthers(ctx, h.Conn); err != nil {
		return err
	}
	o, m, err := r.outlook(ctx, h)
	if err != nil {
		return err
	}
	if err := refused(o); err != nil {
		return err
	}
	if lacking := o.Lacking(); len(lacking) > 0 {
		manual, err := manualOf(ctx, h.Conn, o.Host)
		if err != nil {
			return err
		}
		if m, err = m.noteAdded(ctx, h.Conn, o, manual); err != nil {
			return err
		}
		if err := r.installLacking(ctx, h, lacking, o.Trial.Remove); err != nil {
			return err
		}
	}
	return r.markAutomatic(ctx, h, m)
}

// installLacking has apt install packages from the repository on the host, for which these others go, and looks whether
// they are there then.
func (r *Room) installLacking(ctx context.Context, h *site.Host, lacking, going []string) error {
	err := r.Site.Meter.Wait(func() error { return installFrom(ctx, h.Conn, RepositoryDir, lacking, going) })
	if err != nil {
		return explain(err)
	}
	o, _, err := r.state(ctx, h)
	if err != nil {
		return err
	}
	if reason := o.Reason(); reason != "" {
		return fmt.Errorf("%w: apt-get says that all is done, and yet: %s", ErrPackages, reason)
	}
	return nil
}

// markAutomatic takes back that apt-get was asked by name for newer versions of packages that others need.
func (r *Room) markAutomatic(ctx context.Context, h *site.Host, m mark) error {
	if len(m.Renewed) == 0 {
		return nil
	}
	wanted := r.wanted(h)
	var names []string
	for _, p := range m.Packages { // without those that are asked for by now
		if slices.Contains(m.Renewed, p.Name) && !slices.Contains(wanted, p.Name) {
			names = append(names, p.Name)
		}
	}
	if len(names) > 0 {
		if err := locked(ctx, h.Conn, "apt-mark auto", automaticScript, names...); err != nil {
			return explain(err)
		}
	}
	m.Renewed = nil
	return m.write(ctx, h.Conn)
}

// refused is what is in the way of installing.
func refused(o apt.Outlook) error {
	for _, f := range apt.Judge(o) {
		if !f.Warning {
			return fault.WithHint(fmt.Errorf("%w: %s; needed: %s", ErrPackages, f.Found, f.Needed), f.Hint)
		}
	}
	return nil
}

// explain adds what to do about an error of apt's or dpkg's.
func explain(err error) error {
	var exit *machine.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	return fault.WithHint(fmt.Errorf("%w: %w", ErrPackages, err), "see /var/log/apt/term.log and /var/log/dpkg.log on "+
		"the host, and mend the cause; the same command then goes on from there")
}
