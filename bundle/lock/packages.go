package lock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// OSPackages are packages of an operating system for hosts of one release and platform: what is asked for, where it
// comes from, and, as the pins, which packages that makes above what the hosts have.
type OSPackages struct {
	Family   string // ID in the hosts' os-release: debian or ubuntu
	Suite    string // VERSION_CODENAME in the hosts' os-release, for example bookworm
	Platform Platform
	Archives []PackageArchive // at least one
	Keyring  string           // file: address of the OpenPGP keys of which one has to have signed each archive
	// Base says what hosts have: "required" or "important" for the packages of this priority and above, or the file:
	// address of a system's /var/lib/dpkg/status.
	Base    string
	Names   []string // of packages that hosts are to get; at least one
	Removes []string // packages of the base that may go for them
	// Contents are the packages to carry, in the order of their names; nil when they are not pinned.
	Contents []OSPackage
	Line     int
}

// PackageArchive is one suite of an archive of packages.
type PackageArchive struct {
	URL        string // https, or file:, of the folder that has dists
	Suite      string // for example bookworm-security
	Components []string
}

// OSPackage is one package of an operating system.
type OSPackage struct {
	Name         string
	Version      string
	Architecture string // the distribution's name for it, or "all"
	URL          string
	SHA256       string // 64 lower-case hexadecimal digits
	Size         int64  // bytes
}

// FileName is what a file with the package is called, as in the distribution's archive: without the epoch of the
// version.
func (p OSPackage) FileName() string {
	version := p.Version
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	return p.Name + "_" + version + "_" + p.Architecture + ".deb"
}

// The bases that go by the priority of packages.
const (
	BaseRequired  = "required"
	BaseImportant = "important"
)

// Release names the release that the hosts have, for example debian/bookworm.
func (s OSPackages) Release() string { return s.Family + "/" + s.Suite }

// Asked is the entry without what it was pinned to, and where it stands.
func (s OSPackages) Asked() OSPackages {
	s.Contents, s.Line = nil, 0
	return s
}

// label names the entry in messages.
func (s OSPackages) label() string { return s.Release() + " " + string(s.Platform) }

// Architecture is what Debian calls the platform's processor, for example ppc64el.
func (s OSPackages) Architecture() string { return DebianArchitecture(s.Platform) }

// DebianArchitecture is what Debian calls a platform's processor; "" where it has no name for it.
func DebianArchitecture(p Platform) string {
	switch p.short() {
	case "linux/amd64", "linux/arm64", "linux/riscv64", "linux/s390x", "linux/loong64":
		return p.Architecture()
	case "linux/386":
		return "i386"
	case "linux/arm":
		return "armhf"
	case "linux/arm/v5", "linux/arm/v6":
		return "armel"
	case "linux/ppc64le":
		return "ppc64el"
	case "linux/mips64le":
		return "mips64el"
	}
	return ""
}

var (
	suitePattern          = lazyregexp.New(`^[a-z][a-z0-9.-]{0,62}$`)
	archiveSuitePattern   = lazyregexp.New(`^[a-z][a-z0-9.-]{0,62}(/[a-z][a-z0-9.-]{0,62})?$`)
	archivePartPattern    = lazyregexp.New(`^[a-z][a-z0-9.-]{0,62}$`)
	packageNamePattern    = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{1,127}$`)
	packageVersionPattern = lazyregexp.New(`^([0-9]{1,9}:)?[A-Za-z0-9][A-Za-z0-9.+~-]{0,127}$`)
)

func checkFamily(s string) string {
	if s == "debian" || s == "ubuntu" {
		return ""
	}
	return "is not a family of systems that packages are known of: expected debian or ubuntu"
}

func checkSuite(s string) string {
	return matches(suitePattern, "is not the name of a release: expected what VERSION_CODENAME says in the hosts' "+
		"os-release, for example bookworm")(s)
}

func checkArchiveSuite(s string) string {
	return matches(archiveSuitePattern, "is not the name of a suite: expected one that the archive has under dists, for "+
		"example bookworm-security")(s)
}

func checkArchiveComponent(s string) string {
	return matches(archivePartPattern, "is not the name of a component of an archive: expected for example main")(s)
}

func checkPackageName(s string) string {
	return matches(packageNamePattern, "is not the name of a package: expected lower-case letters, digits and any of "+
		"+ - . behind the first")(s)
}

func checkPackageVersion(s string) string {
	return matches(packageVersionPattern, "is not the version of a package: expected for example 1:2.6.12-1+deb12u2")(s)
}

func checkFileAddress(s string) string {
	path, ok := strings.CutPrefix(s, "file:")
	if !ok {
		return "is not the address of a file: expected file:PATH"
	}
	return checkPath(path)
}

func checkBase(s string) string {
	if s == BaseRequired || s == BaseImportant || checkFileAddress(s) == "" {
		return ""
	}
	return "is not what hosts have: expected required, important, or file:PATH of a system's /var/lib/dpkg/status"
}

// osPackages reads an entry. seen has the lines of those of the component by release and platform.
func (r *reader) osPackages(v value, seen map[string][]OSPackages) OSPackages {
	s := OSPackages{Line: v.YAML.Line}
	names := func(dst *[]string, good check) func(value) {
		once := make(map[string]int)
		return func(v value) {
			r.some(v, func(v value) {
				var one string
				text(r, &one, good)(v)
				r.once(v, once, one)
				*dst = append(*dst, one)
			})
		}
	}
	got := r.mapping(v,
		field{"family", required, text(r, &s.Family, checkFamily)},
		field{"suite", required, text(r, &s.Suite, checkSuite)},
		field{"platform", required, text(r, &s.Platform, checkPlatform)},
		field{"archives", required, func(v value) {
			r.some(v, func(v value) {
				var a PackageArchive
				r.mapping(v,
					field{"url", required, text(r, &a.URL, checkURL)},
					field{"suite", required, text(r, &a.Suite, checkArchiveSuite)},
					field{"components", required, names(&a.Components, checkArchiveComponent)},
				)
				s.Archives = append(s.Archives, a)
			})
		}},
		field{"keyring", required, text(r, &s.Keyring, checkFileAddress)},
		field{"base", required, text(r, &s.Base, checkBase)},
		field{"names", required, names(&s.Names, checkPackageName)},
		field{"removes", optional, names(&s.Removes, checkPackageName)},
		field{"contents", optional, func(v value) { s.Contents = r.packageContents(v, s.Platform) }},
	)
	if s.Platform != "" && s.Architecture() == "" {
		r.failf(got["platform"], "%s is a platform that these families have no packages for", s.Platform)
	}
	for _, other := range seen[s.Release()] {
		if other.Platform.Match(s.Platform) && s.Platform != "" {
			r.failf(v, "%s is listed already on line %d: expected each release once for each platform", s.label(),
				other.Line)
			return s
		}
	}
	seen[s.Release()] = append(seen[s.Release()], s)
	return s
}

func (r *reader) packageContents(v value, platform Platform) []OSPackage {
	var all []OSPackage
	seen := make(map[string]int)
	r.some(v, func(v value) {
		var p OSPackage
		got := r.mapping(v,
			field{"name", required, text(r, &p.Name, checkPackageName)},
			field{"version", required, text(r, &p.Version, checkPackageVersion)},
			field{"architecture", required, text(r, &p.Architecture, checkArchiveComponent)},
			field{"url", required, text(r, &p.URL, checkURL)},
			field{"sha256", required, text(r, &p.SHA256, checkSHA256)},
			field{"size", required, r.size(&p.Size)},
		)
		if own := DebianArchitecture(platform); p.Architecture != "" && own != "" && p.Architecture != "all" &&
			p.Architecture != own {
			r.failf(got["architecture"], "%s is not for %s: expected %s or all", p.Architecture, platform, own)
		}
		r.once(v, seen, p.Name)
		all = append(all, p)
	})
	return all
}

// renderPackages writes contents with one line for each package.
func renderPackages(all []OSPackage) func(flow bool, indent int) string {
	return func(flow bool, indent int) string {
		items := make([]string, 0, len(all))
		for _, p := range all {
			items = append(items, braces("name", p.Name, "version", p.Version, "architecture", p.Architecture, "url", p.URL,
				"sha256", p.SHA256, "size", sizeText(p.Size)))
		}
		if flow {
			return " [" + newline(indent) + strings.Join(items, ","+newline(indent)) + "]"
		}
		item := newline(indent) + "- "
		return item + strings.Join(items, item)
	}
}

// render writes an entry on lines of its own where it may: what it contains is long.
func (s OSPackages) render(flow bool, indent int) string {
	var archives []string
	for _, a := range s.Archives {
		archives = append(archives, fmt.Sprintf("{url: %s, suite: %s, components: %s}", quoted(a.URL), quoted(a.Suite),
			renderNames(a.Components)))
	}
	pairs := []pair{
		plain("family", s.Family), plain("suite", quoted(s.Suite)), plain("platform", string(s.Platform)),
		plain("archives", "["+strings.Join(archives, ", ")+"]"), plain("keyring", quoted(s.Keyring)),
		plain("base", quoted(s.Base)), plain("names", renderNames(s.Names)),
	}
	if s.Removes != nil {
		pairs = append(pairs, plain("removes", renderNames(s.Removes)))
	}
	if s.Contents != nil {
		pairs = append(pairs, pair{"contents", renderPackages(s.Contents)})
	}
	texts := make([]string, 0, len(pairs))
	for _, p := range pairs {
		texts = append(texts, p.key+":"+p.render(flow, indent+2))
	}
	if flow {
		return "{" + strings.Join(texts, ", ") + "}"
	}
	return strings.Join(texts, newline(indent))
}

func renderNames(names []string) string {
	all := make([]string, 0, len(names))
	for _, n := range names {
		all = append(all, quoted(n))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// SetPackages pins a component's OS packages number index, counted from 0, to what they are to bring to hosts.
func (d *Document) SetPackages(component string, index int, contents []OSPackage) error {
	if len(contents) == 0 {
		return fmt.Errorf("pin components.%s.packages[%d] in %s: no contents given", component, index, d.name)
	}
	return d.set([]target{{component, "packages", index}}, func(c *Component, i int) {
		c.Packages[i].Contents = contents
	}, pair{"contents", renderPackages(contents)})
}

func (s OSPackages) same(other OSPackages) bool {
	return s.Release() == other.Release() && s.Platform == other.Platform
}

// asked describes what is asked for, for people.
func (s *OSPackages) asked() string {
	if s == nil {
		return ""
	}
	text := strings.Join(s.Names, " ")
	if len(s.Contents) == 0 {
		text += " not pinned"
	}
	return text
}

// packages compares what two entries of one release and platform bring; nil for none.
func (d *differ) packages(old, next *OSPackages) {
	var was, is OSPackages
	if old != nil {
		was = *old
	}
	if next != nil {
		is = *next
	}
	name := is.label()
	if next == nil {
		name = was.label()
	}
	d.add("packages "+name, old.asked(), next.asked())
	if old != nil && next != nil {
		d.add("packages "+name+" archives", was.sources(), is.sources())
		d.add("packages "+name+" removes", strings.Join(was.Removes, " "), strings.Join(is.Removes, " "))
	}
	for _, p := range pairUp(was.Contents, is.Contents, OSPackage.same, OSPackage.same) {
		d.add("packages "+name+" "+p.either().Name, p.old.pin(), p.next.pin())
	}
}

// sources describes where packages come from and what for.
func (s OSPackages) sources() string {
	var all []string
	for _, a := range s.Archives {
		all = append(all, a.URL+" "+a.Suite+" "+strings.Join(a.Components, " "))
	}
	return strings.Join(append(all, "keyring "+s.Keyring, "base "+s.Base), ", ")
}

func (p OSPackage) same(other OSPackage) bool { return p.Name == other.Name }

func (p *OSPackage) pin() string {
	if p == nil {
		return ""
	}
	return p.Version + " " + short("sha256:"+p.SHA256)
}

// DiffPackages lists what differs between what one entry of a component had and has, as [Diff] does.
func DiffPackages(component string, old, next OSPackages) []Change {
	d := differ{name: component}
	d.packages(&old, &next)
	return d.changes
}

// withoutLine returns a copy of what is compared after an edit.
func (s OSPackages) withoutLine() OSPackages {
	s.Archives, s.Contents, s.Line = slices.Clone(s.Archives), slices.Clone(s.Contents), 0
	return s
}
