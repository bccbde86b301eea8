package apt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Outlook is a host, what it is to have, and what apt says that it would do for that.
type Outlook struct {
	Host Host
	// Wanted are the names of packages that are to be installed.
	Wanted []string
	// Own are the packages that boxlift has installed on the host, by name.
	Own []string
	// Releases are those that the bundle has packages for, for messages.
	Releases []string
	// Carried are the bundle's packages for the host's release, nil for none.
	Carried []Carried
	// Removable are the packages that the host may lose for these, by name.
	Removable []string
	// Trial is what apt would do, and Refusal what it says where it would not; both are empty where it was not asked.
	Trial   Transaction
	Refusal []string
}

// Fault is something that is in the way of installing, or, as a warning, that somebody should know.
type Fault struct {
	Warning             bool
	Found, Needed, Hint string
}

// Lacking are the wanted packages that are not installed, and those of boxlift's own of which the bundle has a newer
// version, also where they came because others need them; of these, what somebody holds by now is the host's. What the
// host had before is left as it is, in any version.
func (o Outlook) Lacking() []string {
	var names []string
	for _, name := range o.Wanted {
		if p := o.Host.Find(name); !p.There() || p.Unfinished() || slices.Contains(o.Own, name) && o.isOlder(p) {
			names = append(names, name)
		}
	}
	for _, name := range o.Own {
		if p := o.Host.Find(name); p.There() && !p.Hold && o.isOlder(p) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// isOlder reports whether the bundle has a newer version of a package of the host's.
func (o Outlook) isOlder(p Package) bool {
	c, ok := FindCarried(o.Carried, p.Name, o.Host.Architecture)
	return ok && debian.Compare(p.Version, c.Version) < 0
}

// Reason says why packages have to be installed, or "".
func (o Outlook) Reason() string {
	var absent, half, older []string
	for _, name := range o.Lacking() {
		switch p := o.Host.Find(name); {
		case !p.There():
			absent = append(absent, name)
		case p.Unfinished():
			half = append(half, name)
		default:
			c, _ := FindCarried(o.Carried, name, o.Host.Architecture)
			older = append(older, fmt.Sprintf("%s is %s and the bundle has %s", name, p.Version, c.Version))
		}
	}
	var texts []string
	if len(absent) > 0 {
		texts = append(texts, "not installed: "+list(absent))
	}
	if len(half) > 0 {
		texts = append(texts, "installed in part: "+list(half))
	}
	return printable.Short(strings.Join(append(texts, older...), "; "), 600)
}

// Absent are the wanted packages that are lacking and that the bundle does not have for the host.
func (o Outlook) Absent() []string {
	var names []string
	for _, name := range o.Lacking() {
		if _, ok := FindCarried(o.Carried, name, o.Host.Architecture); !ok {
			names = append(names, name)
		}
	}
	return names
}

// heldIn are the packages that the host holds as they are and that apt names where it says why it does not install.
func (o Outlook) heldIn(refusal []string) []string {
	named := strings.FieldsFunc(strings.Join(refusal, " "), func(r rune) bool { return strings.ContainsRune(" :(),", r) })
	var held []string
	for _, p := range o.Host.Packages {
		if p.Hold && slices.Contains(named, p.Name) && !slices.Contains(held, p.Name) {
			held = append(held, p.Name)
		}
	}
	return held
}

// Judge says what is in the way of installing what is lacking, before anything is changed.
func Judge(o Outlook) []Fault {
	lacking := o.Lacking()
	if len(lacking) == 0 {
		return nil
	}
	var faults []Fault
	stop := func(found, needed, hint string) {
		faults = append(faults, Fault{Found: found, Needed: needed, Hint: hint})
	}
	warn := func(found, needed, hint string) {
		faults = append(faults, Fault{Warning: true, Found: found, Needed: needed, Hint: hint})
	}
	if !o.Host.IsDebian() {
		stop("the host is "+o.Host.Release()+", and has no apt and dpkg", "a system of Debian's family to install "+
			list(lacking), "install these packages by the host's own means, and take them out of install.yaml")
		return faults
	}
	if absent := o.Absent(); len(absent) > 0 {
		has := "the bundle has packages for " + strings.Join(o.Releases, "; ")
		if len(o.Releases) == 0 {
			has = "the bundle has no packages"
		}
		stop(fmt.Sprintf("the bundle does not have %s for %s", list(absent), o.Host.Release()), "each package that "+
			"is asked for, or that it is installed already", has+"; build one whose lock has these for this release "+
			"and architecture, or install them on the host by other means")
		return faults
	}
	if text := o.Host.Interrupted(); text != "" {
		warn(text, "packages that are whole", "boxlift finishes that first, as `dpkg --configure -a` does")
	}
	held := o.heldIn(o.Refusal)
	if o.Refusal != nil && held == nil {
		tell := stop
		if o.Host.Interrupted() != "" { // once that is finished, apt may well do it
			tell = warn
		}
		tell("apt does not install "+list(lacking)+": "+strings.Join(o.Refusal, "; "),
			"all that these packages depend on, on the host or in the bundle",
			"if something is missing, lock the bundle's packages for a host like this one; if something of the "+
				"host's own is in the way, `apt-get install --simulate` on it tells more")
	}
	var going, inTheWay []string
	for _, name := range o.Trial.Remove {
		if slices.Contains(o.Removable, name) {
			going = append(going, name)
		} else {
			inTheWay = append(inTheWay, name)
		}
	}
	if len(inTheWay) > 0 {
		stop(fmt.Sprintf("%s cannot be there together with %s", list(lacking), list(inTheWay)),
			"packages that do not conflict with what is installed", "boxlift removes nothing that it has not "+
				"installed, unless the lock says so under removes: if it is not needed, run `apt-get remove "+
				strings.Join(inTheWay, " ")+"` on the host, else take the other out of install.yaml")
	}
	if len(going) > 0 {
		warn(list(going)+" is removed for "+list(lacking)+", as the bundle's lock allows, and is not put back later",
			"packages that do not conflict with what is installed", "nothing has to be done")
	}
	var replaced []string
	for _, c := range o.Trial.Install {
		if o.Host.Find(c.Name).Hold {
			held = append(held, c.Name)
		}
	}
	for _, c := range o.Trial.Replaced() {
		if p := o.Host.Find(c.Name); !p.Hold && !p.Unfinished() && !slices.Contains(o.Own, c.Name) {
			replaced = append(replaced, fmt.Sprintf("%s %s by %s", c.Name, c.Old, c.New))
		}
	}
	if len(held) > 0 {
		why := "and it would have to change"
		if o.Refusal != nil {
			why = "and apt says: " + strings.Join(o.Refusal, "; ")
		}
		stop("the host holds "+list(held)+" as it is (apt-mark hold), "+why, "packages that may be installed",
			"if it may change, run `apt-mark unhold "+strings.Join(held, " ")+"` on the host")
	}
	if len(replaced) > 0 {
		warn("packages that the host had before are replaced by newer versions, which is not taken back: "+
			list(replaced), "packages of the host's as they are",
			"nothing has to be done; to avoid it, bring the host up to date by its own means first")
	}
	return faults
}
