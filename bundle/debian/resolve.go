package debian

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Wish says what hosts are to get. Names are those of packages; Base are the packages that they have already.
// Removes are packages that hosts may lose where these stand in the way of what is asked for: those of the base, and
// others that hosts have besides.
type Wish struct {
	Names   []string
	Base    []*Package
	Removes []string
}

// Resolve finds what has to be brought to hosts so that they can install what is asked for: the newest version of each
// name, unless the base has a newer one, and of what these depend on all that the base lacks or has too old. What is
// only recommended is left out. The result is in the order of the names of packages; of the same index and wish it is
// the same.
//
// Of several packages that would do, the one that is there is taken, then the first that a dependency names, then
// those that provide it, by priority and name. A choice is not taken back: who wants another one asks for it by name.
// Errors wrap [ErrUnresolved] and say for what which package is needed and why it cannot be had.
func (x *Index) Resolve(w Wish) ([]*Package, error) {
	s := &solver{
		index: x, removes: w.Removes, has: make(map[string]*Package), provided: make(map[string][]*Package),
		chosen: make(map[string]bool), root: make(map[string]string),
	}
	for _, p := range w.Base {
		s.put(p)
	}
	for _, name := range w.Removes {
		if s.has[name] == nil && x.newest[name] == nil {
			return nil, fmt.Errorf("%w: nobody knows %s, which hosts may lose: neither base nor archives have it",
				ErrUnresolved, name)
		}
	}
	for _, name := range w.Names {
		if err := s.ask(name); err != nil {
			return nil, err
		}
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	var all []*Package
	for _, name := range slices.Sorted(maps.Keys(s.chosen)) {
		all = append(all, s.has[name])
	}
	return all, nil
}

// Base is what a system has that was made of the packages of these priorities, with all that they depend on, and
// nothing else. The system was made some time ago: it has each of them in the archive's version or in any older one, so
// that what needs a version of one takes the archive's along. In themselves these systems are whole.
func (x *Index) Base(priorities ...string) ([]*Package, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(x.newest)) {
		if p := x.newest[name]; p.essential || slices.Contains(priorities, p.Priority) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: no package is %s", ErrArchive, strings.Join(priorities, " or "))
	}
	all, err := x.Resolve(Wish{Names: names})
	if err != nil {
		return nil, fmt.Errorf("the packages that are %s: %w", strings.Join(priorities, " or "), err)
	}
	for i, p := range all {
		older := *p
		older.assumed = true
		all[i] = &older
	}
	return all, nil
}

// solver makes a system of a base. What it chose stays.
type solver struct {
	index    *Index
	removes  []string
	has      map[string]*Package   // the system as it becomes, by name
	provided map[string][]*Package // those of it that provide a name
	chosen   map[string]bool       // by name
	root     map[string]string     // the name that was asked for, of which a choice is a consequence
	queue    []*Package            // chosen, and what they depend on was not looked at
}

func (s *solver) put(p *Package) {
	s.drop(p.Name)
	s.has[p.Name] = p
	for _, r := range p.provides {
		s.provided[r.name] = append(s.provided[r.name], p)
	}
}

func (s *solver) drop(name string) {
	old := s.has[name]
	if old == nil {
		return
	}
	delete(s.has, name)
	for _, r := range old.provides {
		s.provided[r.name] = slices.DeleteFunc(s.provided[r.name], func(p *Package) bool { return p == old })
	}
}

// label says what a package is here for.
func (s *solver) label(p *Package) string {
	switch root, ok := s.root[p.Name]; {
	case !ok:
		return p.String() + " (of the base)"
	case root == p.Name:
		return p.String() + " (asked for)"
	default:
		return p.String() + " (for " + root + ")"
	}
}

// ask chooses a package that is asked for by name.
func (s *solver) ask(name string) error {
	p := s.index.newest[name]
	if p == nil {
		err := fmt.Errorf("%w: no archive has a package %s", ErrUnresolved, name)
		if providers := s.index.providers[name]; len(providers) > 0 {
			return fault.WithHint(err, "these provide it: "+strings.Join(slices.Sorted(slices.Values(providers)), ", ")+
				"; name the one that you want")
		}
		return fault.WithHint(err, "check the name and the archives' suites and components")
	}
	if there := s.has[name]; there != nil && Compare(there.Version, p.Version) > 0 {
		return nil
	}
	if err := s.choose(p, name); err != nil {
		return fmt.Errorf("%w: %s (asked for): %w", ErrUnresolved, p, err)
	}
	return nil
}

// choose makes a package a part of the system. The error says what is in its way.
func (s *solver) choose(p *Package, root string) error {
	moves, err := s.clear(p)
	if err != nil {
		return err
	}
	return s.take(p, moves, root)
}

// take makes a package a part of the system, for which these of the base have to move, as [solver.clear] has found.
func (s *solver) take(p *Package, moves []*Package, root string) error {
	for _, q := range moves {
		if slices.Contains(s.removes, q.Name) {
			s.drop(q.Name)
		}
	}
	s.put(p)
	s.chosen[p.Name], s.root[p.Name] = true, root
	s.queue = append(s.queue, p)
	for _, q := range moves {
		if s.has[q.Name] != q {
			continue // it was removed, or moved by another one
		}
		if err := s.choose(s.newer(q), root); err != nil {
			return fmt.Errorf("%s of the base has to be newer beside it: %w", q, err)
		}
	}
	return nil
}

// clear finds what has to move so that a package can come: what may be removed, and what gets out of its way in a newer
// version. The error says what does not.
func (s *solver) clear(p *Package) (moves []*Package, err error) {
	if old := s.has[p.Name]; old != nil && old.Held && old.Version != p.Version {
		return nil, fmt.Errorf("%s is on hold in the base, and %s would take its place", old, p.Version)
	}
	for _, name := range slices.Sorted(maps.Keys(s.has)) {
		q := s.has[name]
		reason := clash(p, q)
		if reason == "" {
			continue
		}
		isBase := !s.chosen[name]
		if u := s.newer(q); isBase && (slices.Contains(s.removes, name) || u != nil && clash(p, u) == "") {
			moves = append(moves, q)
			continue
		}
		err := fmt.Errorf("%s, and %s is there", reason, s.label(q))
		if isBase {
			return nil, fault.WithHint(err, "if hosts may lose "+name+" for it, name that under removes")
		}
		return nil, err
	}
	return moves, nil
}

// newer is a newer version of a package of the base; nil where there is none that it may get. Of one that is assumed,
// it is the archive's.
func (s *solver) newer(q *Package) *Package {
	p := s.index.newest[q.Name]
	if p == nil || q.Held || s.chosen[q.Name] {
		return nil
	}
	if c := Compare(p.Version, q.Version); c > 0 || c == 0 && q.assumed {
		return p
	}
	return nil
}

// clash says why two packages cannot be in one system; "" when they can.
func clash(p, q *Package) string {
	if p.Name == q.Name {
		return ""
	}
	for _, pair := range [][2]*Package{{p, q}, {q, p}} {
		for _, r := range pair[0].conflicts {
			if r.mayBeMetBy(pair[1]) {
				return pair[0].String() + " conflicts with " + r.String()
			}
		}
		for _, r := range pair[0].breaks {
			if r.mayBeMetBy(pair[1]) {
				return pair[0].String() + " breaks " + r.String()
			}
		}
	}
	return ""
}

// settle chooses what is needed until everything that the system has is complete.
func (s *solver) settle() error {
	for {
		for len(s.queue) > 0 {
			p := s.queue[0]
			s.queue = s.queue[1:]
			if s.has[p.Name] != p {
				continue
			}
			for _, g := range p.depends {
				if s.isMet(p, g) {
					continue
				}
				if err := s.meet(p, g); err != nil {
					return err
				}
			}
		}
		p, g := s.broken()
		if p == nil {
			return nil
		}
		// What has moved broke something of the base, which mostly fits again in a newer version.
		if u := s.newer(p); u != nil {
			if err := s.choose(u, cmp.Or(s.root[p.Name], p.Name)); err != nil {
				return fmt.Errorf("%w: %s lacks %s now, and cannot get newer: %w", ErrUnresolved, s.label(p), g, err)
			}
			continue
		}
		if err := s.meet(p, g); err != nil {
			return err
		}
	}
}

// broken finds a package that lacks something.
func (s *solver) broken() (*Package, group) {
	for _, name := range slices.Sorted(maps.Keys(s.has)) {
		for _, g := range s.has[name].depends {
			if !s.isMet(s.has[name], g) {
				return s.has[name], g
			}
		}
	}
	return nil, nil
}

// isMet reports whether the system has what a package depends on.
func (s *solver) isMet(p *Package, g group) bool {
	return slices.ContainsFunc(g, func(r relation) bool {
		met := func(q *Package) bool { return meets(p, r, q) }
		if q := s.has[r.name]; q != nil && met(q) {
			return true
		}
		return slices.ContainsFunc(s.provided[r.name], met)
	})
}

// meets reports whether q is what p depends on by r.
func meets(p *Package, r relation, q *Package) bool {
	switch {
	case !p.assumed:
		return r.metBy(q)
	case q.assumed: // both are of systems that are whole
		return r.newestMetBy(q)
	}
	// An older p asks for the same or less, but for where it asks for just the version that q had beside it.
	return r.operator != "=" && r.metBy(q)
}

// meet chooses the first package that meets what another one depends on.
func (s *solver) meet(p *Package, g group) error {
	var reasons []string
	var first error
	for _, r := range g {
		candidates := s.candidates(r)
		for _, c := range candidates {
			moves, err := s.clear(c)
			if err == nil {
				err = s.take(c, moves, cmp.Or(s.root[p.Name], p.Name))
				if err == nil {
					return nil
				}
				// It is in the system, half: nothing after it can be right.
				return fmt.Errorf("%w: %s depends on %s: %s: %w", ErrUnresolved, s.label(p), g, c, err)
			}
			first = cmp.Or(first, err)
			reasons = append(reasons, c.String()+": "+err.Error())
		}
		if len(candidates) == 0 {
			reasons = append(reasons, s.absent(r))
		}
	}
	err := fmt.Errorf("%w: %s depends on %s: %s", ErrUnresolved, s.label(p), g, strings.Join(reasons, "; "))
	if first != nil {
		for _, hint := range fault.Hints(first) {
			err = fault.WithHint(err, hint)
		}
		return err
	}
	return fault.WithHint(err, "name the archive's suite or component that has it: security and updates are suites of "+
		"their own")
}

// candidates are packages of the archives that meet a relation, the best first.
func (s *solver) candidates(r relation) []*Package {
	var all []*Package
	if p := s.index.newest[r.name]; p != nil && r.metBy(p) {
		all = append(all, p)
	}
	var providers []*Package
	for _, name := range s.index.providers[r.name] {
		if p := s.index.newest[name]; name != r.name && r.metBy(p) {
			providers = append(providers, p)
		}
	}
	slices.SortFunc(providers, func(a, b *Package) int {
		return cmp.Or(cmp.Compare(rank(a.Priority), rank(b.Priority)), cmp.Compare(a.Name, b.Name))
	})
	return append(all, providers...)
}

// rank is how far up a priority is; what is none comes last.
func rank(priority string) int {
	order := []string{"required", "important", "standard", "optional"}
	if i := slices.Index(order, priority); i >= 0 {
		return i
	}
	return len(order)
}

// absent says why nothing in the archives meets a relation.
func (s *solver) absent(r relation) string {
	if p := s.index.newest[r.name]; p != nil {
		return "the archives have " + p.String()
	}
	return "no archive has " + r.name
}
