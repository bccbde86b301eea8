// Package apt judges what apt and dpkg say about a host: which packages it has, what installing some more would do to
// it, and what is in the way of that. It also writes the index of a repository of packages.
//
// Contract: it only computes. What a host has said is bounded and read strictly, and texts of it that are quoted are
// fit to be shown. The rules are those of Debian and its family: deb-control(5), dpkg-query(1), apt-get(8) and Debian's
// policy manual; what apt prints is that of apt 2.0 to 3.0 with LC_ALL=C.
package apt

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Host is what a host has said about its packages.
type Host struct {
	// ID, Codename and Version are those of os-release, such as debian, bookworm and 12; Pretty is for people.
	ID, Codename, Version, Pretty string
	// Architecture is what dpkg calls the host's, such as amd64; "" where there is no dpkg or no apt.
	Architecture string
	// Packages are all that dpkg knows anything of.
	Packages []Package
	// Journal tells that dpkg was ended while it changed its database (/var/lib/dpkg/updates).
	Journal bool
}

// Package is a package as dpkg has it.
type Package struct {
	Name, Architecture, Version string
	// Hold tells that the package is to stay as it is (apt-mark hold).
	Hold bool
	// State is what dpkg has come to.
	State State
	// Reinstall tells that the package's files may be broken, and that only installing it again helps.
	Reinstall bool
}

// State is the state of a package, by the letter of dpkg-query's db:Status-Abbrev.
type State byte

// The states of dpkg(1).
const (
	NotInstalled    State = 'n'
	ConfigFiles     State = 'c' // it was removed, and its configuration is still there
	HalfInstalled   State = 'H'
	Unpacked        State = 'U'
	HalfConfigured  State = 'F'
	TriggersAwaited State = 'W'
	TriggersPending State = 't'
	Installed       State = 'i'
)

// Unfinished reports whether dpkg was ended, or failed, with the package in the middle.
func (p Package) Unfinished() bool {
	switch p.State {
	case NotInstalled, ConfigFiles, Installed:
		return p.Reinstall
	}
	return true
}

// There reports whether the package is installed, as a whole or in part.
func (p Package) There() bool { return p.State != NotInstalled && p.State != ConfigFiles }

// IsDebian reports whether the host's packages are dpkg's and apt's.
func (h Host) IsDebian() bool { return h.Architecture != "" }

// Release is what messages call the host's system.
func (h Host) Release() string {
	name := h.Pretty
	if name == "" {
		name = strings.TrimSpace(h.ID + " " + h.Version)
	}
	if name == "" {
		name = "an unknown system"
	}
	return strings.TrimSpace(name + " " + h.Architecture)
}

// Find returns a package for the host's architecture. One that dpkg knows nothing of is [NotInstalled].
func (h Host) Find(name string) Package {
	for _, p := range h.Packages {
		if p.Name == name && (p.Architecture == h.Architecture || p.Architecture == "all") {
			return p
		}
	}
	return Package{Name: name, State: NotInstalled}
}

// Unfinished are the packages that dpkg was ended with in the middle.
func (h Host) Unfinished() []Package {
	var list []Package
	for _, p := range h.Packages {
		if p.Unfinished() {
			list = append(list, p)
		}
	}
	return list
}

// Interrupted says what of dpkg's work is to be finished before anything else can be done, or "".
func (h Host) Interrupted() string {
	var names []string
	for _, p := range h.Unfinished() {
		names = append(names, p.Name)
	}
	switch {
	case len(names) > 0:
		return "dpkg was interrupted, or failed, with " + list(names)
	case h.Journal:
		return "dpkg was interrupted while it changed its database"
	}
	return ""
}

// Limits of what a host may say.
const (
	maxPackages = 20000
	maxField    = 300
)

var codename = lazyregexp.New(`^[a-z0-9._-]{1,60}$`)

// IsArchitecture reports whether a text can be the name of an architecture.
func IsArchitecture(s string) bool { return debian.CheckArchitecture(s) == nil }

// IsName reports whether a text can be the name of a package that is asked for, or that a bundle has. What a host has
// besides may have other names.
func IsName(s string) bool { return debian.CheckName(s) == nil && s == strings.ToLower(s) }

func isInstalledName(s string) bool { return debian.CheckInstalledName(s) == nil }

func isVersion(s string) bool { return debian.CheckVersion(s) == nil }

// ParseHost reads what a host says, one thing a line: "release KEY=VALUE" of os-release, "architecture NAME",
// "journal", and "package ABBREVIATION<tab>NAME<tab>ARCHITECTURE<tab>VERSION" as dpkg-query has them.
func ParseHost(text string) (Host, error) {
	var h Host
	for line := range strings.Lines(text) {
		what, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		switch what {
		case "":
		case "release":
			h.takeRelease(rest)
		case "architecture":
			if !IsArchitecture(rest) {
				return Host{}, fmt.Errorf("dpkg says that the architecture is %q", printable.Short(rest, 40))
			}
			h.Architecture = rest
		case "journal":
			h.Journal = true
		case "package":
			p, err := parsePackage(rest)
			if err != nil {
				return Host{}, err
			}
			if h.Packages = append(h.Packages, p); len(h.Packages) > maxPackages {
				return Host{}, fmt.Errorf("dpkg lists more than %d packages", maxPackages)
			}
		default:
			return Host{}, fmt.Errorf("the host says %q where it tells of its packages", printable.Short(line, 80))
		}
	}
	return h, nil
}

// takeRelease takes a line of os-release(5). What is not understood counts as not said.
func (h *Host) takeRelease(line string) {
	key, value, ok := strings.Cut(line, "=")
	if !ok {
		return
	}
	value = strings.TrimSpace(value)
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	to := map[string]*string{"ID": &h.ID, "VERSION_CODENAME": &h.Codename, "VERSION_ID": &h.Version}[key]
	switch {
	case key == "PRETTY_NAME":
		h.Pretty = printable.Short(value, 80)
	case to != nil && codename.MatchString(value):
		*to = value
	}
}

// parsePackage reads a line of dpkg-query. The abbreviation is what is wanted, the state, and an error flag or space.
func parsePackage(line string) (Package, error) {
	wrong := func() error { return fmt.Errorf("dpkg-query printed %q", printable.Short(line, 100)) }
	fields := strings.Split(line, "\t")
	if len(fields) != 4 || len(fields[0]) < 2 || len(fields[0]) > 3 || len(line) > maxField {
		return Package{}, wrong()
	}
	p := Package{Name: fields[1], Architecture: fields[2], Version: fields[3], Hold: fields[0][0] == 'h',
		State: State(fields[0][1]), Reinstall: len(fields[0]) == 3 && fields[0][2] == 'R'}
	switch {
	case !strings.ContainsRune("uihrp", rune(fields[0][0])), !strings.ContainsRune("ncHUFWti", rune(fields[0][1])):
		return Package{}, wrong()
	case p.State == NotInstalled && p.Version == "":
		if p.Architecture != "" && !IsArchitecture(p.Architecture) || !isInstalledName(p.Name) {
			return Package{}, wrong()
		}
		return p, nil
	case !isInstalledName(p.Name), !IsArchitecture(p.Architecture), p.Version != "" && !isVersion(p.Version):
		return Package{}, wrong()
	}
	return p, nil
}

// Carried is a package of a bundle.
type Carried struct {
	Name, Version, Architecture string
	// Control is the paragraph of the package's control file ([ReadControl]).
	Control string
	// Filename is the path in the repository, Size in bytes and SHA256 in hex are those of the file.
	Filename string
	Size     int64
	SHA256   string
}

// errPackage says what is wrong with a package of a bundle.
var errPackage = errors.New("it is not what a package of Debian's looks like")

// Check reports what is wrong with a package before anything is made of it.
func (c Carried) Check() error {
	switch {
	case !IsName(c.Name):
		return fmt.Errorf("%w: its name is %q", errPackage, printable.Short(c.Name, 60))
	case !isVersion(c.Version):
		return fmt.Errorf("%w: the version of %s is %q", errPackage, c.Name, printable.Short(c.Version, 60))
	case !IsArchitecture(c.Architecture):
		return fmt.Errorf("%w: the architecture of %s is %q", errPackage, c.Name, printable.Short(c.Architecture, 60))
	}
	return nil
}

// FindCarried is the newest package of a name for an architecture.
func FindCarried(packages []Carried, name, arch string) (Carried, bool) {
	var found Carried
	for _, c := range packages {
		if c.Name == name && (c.Architecture == arch || c.Architecture == "all") &&
			(found.Name == "" || debian.Compare(c.Version, found.Version) > 0) {
			found = c
		}
	}
	return found, found.Name != ""
}

// list are names for a message, which is not to become long.
func list(names []string) string {
	const most = 12
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// List are names for a message, sorted.
func List(names []string) string { return list(slices.Sorted(slices.Values(names))) }
