package debian

import (
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// namePattern is what names of packages look like (Policy 5.6.7); old ones have a single character or capitals.
// installedPattern has what dpkg takes beside that (pkg_name_is_illegal in its lib/dpkg/parsehelp.c): an underscore,
// which some vendors' packages have.
var (
	namePattern      = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+.-]{0,127}$`)
	installedPattern = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._-]{0,127}$`)
)

// CheckName refuses what is no name of a package of an archive.
func CheckName(s string) error {
	if !namePattern.MatchString(s) {
		return fmt.Errorf("%q is not the name of a package", s)
	}
	return nil
}

// CheckInstalledName refuses what cannot be the name of a package that a system has.
func CheckInstalledName(s string) error {
	if !installedPattern.MatchString(s) {
		return fmt.Errorf("%q is not the name of a package", s)
	}
	return nil
}

// relation is a name with the versions that will do (Policy 7.1).
type relation struct {
	name string
	// architecture that the name was qualified with: "" for none, "any", or one of the archive's.
	architecture string
	// operator is one of << <= = >= >>, or "" for any version.
	operator string
	version  string
}

func (r relation) String() string {
	text := r.name
	if r.architecture != "" {
		text += ":" + r.architecture
	}
	if r.operator != "" {
		text += " (" + r.operator + " " + r.version + ")"
	}
	return text
}

// group are relations of which one is enough.
type group []relation

func (g group) String() string {
	names := make([]string, 0, len(g))
	for _, r := range g {
		names = append(names, r.String())
	}
	return strings.Join(names, " | ")
}

// maxRelations bounds what one field may list.
const maxRelations = 1 << 14

var relationPattern = lazyregexp.New(
	`^([^\s:()\[\]<>|,]+)(?::([a-z0-9-]+))?\s*(?:\(\s*(<<|<=|=|>=|>>|<|>)\s*([^\s()]+)\s*\))?$`)

// parseGroups reads a field such as Depends.
func parseGroups(field string) ([]group, error) {
	var all []group
	n := 0
	for part := range strings.SplitSeq(field, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue // policy has none at the end, some packages do
		}
		var g group
		for one := range strings.SplitSeq(part, "|") {
			r, err := parseRelation(strings.TrimSpace(one))
			if err != nil {
				return nil, err
			}
			if n++; n > maxRelations {
				return nil, fmt.Errorf("it names more than %d packages", maxRelations)
			}
			g = append(g, r)
		}
		all = append(all, g)
	}
	return all, nil
}

// parseRelations reads a field without alternatives, such as Conflicts.
func parseRelations(field string) ([]relation, error) {
	groups, err := parseGroups(field)
	if err != nil {
		return nil, err
	}
	all := make([]relation, 0, len(groups))
	for _, g := range groups {
		if len(g) != 1 {
			return nil, fmt.Errorf("%q: there are no alternatives in this field", g)
		}
		all = append(all, g[0])
	}
	return all, nil
}

func parseRelation(s string) (relation, error) {
	m := relationPattern.FindStringSubmatch(s)
	if m == nil {
		return relation{}, fmt.Errorf("%q is not NAME or NAME (OPERATOR VERSION)", s)
	}
	r := relation{name: m[1], architecture: m[2], operator: m[3], version: m[4]}
	if err := CheckInstalledName(r.name); err != nil { // a system's packages name each other
		return relation{}, err
	}
	switch r.operator { // dpkg still takes the old forms for these
	case "<":
		r.operator = "<="
	case ">":
		r.operator = ">="
	}
	if r.operator == "" {
		return r, nil
	}
	return r, CheckVersion(r.version)
}

// accepts reports whether a version will do.
func (r relation) accepts(version string) bool {
	if r.operator == "" {
		return true
	}
	c := Compare(version, r.version)
	switch r.operator {
	case "<<":
		return c < 0
	case "<=":
		return c <= 0
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	}
	return c > 0
}

// metBy reports whether a package is what is meant, by its own name or by one that it provides. A version is asked of
// what is provided with a version only (Policy 7.5). Of one that is assumed, each version that hosts may have is meant.
func (r relation) metBy(p *Package) bool {
	accepts := r.accepts
	if p.assumed {
		accepts = r.acceptsOlder
	}
	return r.names(p, accepts)
}

// mayBeMetBy reports whether a package can be what is meant: of one that is assumed, any version that hosts may have.
func (r relation) mayBeMetBy(p *Package) bool {
	accepts := r.accepts
	if p.assumed {
		accepts = r.acceptsAnyOlder
	}
	return r.names(p, accepts)
}

// newestMetBy reports whether an archive's newest version of a package is what is meant, also where hosts are assumed
// to have an older one.
func (r relation) newestMetBy(p *Package) bool { return r.names(p, r.accepts) }

// acceptsOlder reports whether a version and each older one will do.
func (r relation) acceptsOlder(version string) bool {
	return r.operator == "" || (r.operator == "<<" || r.operator == "<=") && r.accepts(version)
}

// acceptsAnyOlder reports whether a version will do, or one that is older.
func (r relation) acceptsAnyOlder(version string) bool {
	switch r.operator {
	case "<<", "<=":
		return true
	case "=":
		return Compare(r.version, version) <= 0
	}
	return r.accepts(version)
}

func (r relation) names(p *Package, accepts func(version string) bool) bool {
	if r.architecture != "" && r.architecture != "any" && r.architecture != "native" &&
		r.architecture != p.Architecture {
		return false
	}
	if p.Name == r.name && accepts(p.Version) {
		return true
	}
	for _, provided := range p.provides {
		if provided.name == r.name && (r.operator == "" || provided.version != "" && accepts(provided.version)) {
			return true
		}
	}
	return false
}
