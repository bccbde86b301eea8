// Package rewrite gives repositories other names on a registry that holds the images of
// several: docker.io/library/ubuntu may be plant/hub/library/ubuntu on Harbor.
//
// Contract: rules mean the same here, where images are pushed, as in the registries.yaml
// of k3s, by which nodes pull them. There they are a mapping from regular expressions
// (Go's) to replacements, looked at in no order: the first that changes the repository is
// taken. So it is an error here when two rules change the same repository, and the order
// of rules never counts. Rules for a registry's own name stand in place of those for
// [All], as a mirror of a registry does in registries.yaml. Rules come from users: they
// are bounded, and what they make of a repository is checked.
package rewrite

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// All is the registry of rules for every registry that has none of its own.
const All = "*"

// Bounds of what users write, and of what they get: registries accept no longer names.
const (
	maxRules      = 1000
	maxExpression = 1000 // bytes
	maxRepository = 255  // bytes, of what the distribution specification calls <name>
)

// Rule gives the repositories of a registry other names.
type Rule struct {
	Registry string // "docker.io", "registry.lan:5000", or All
	Match    string // regular expression for the repository without the registry, such as "^library/(.*)$"
	Replace  string // in place of every match; $1 and ${name} stand for groups, $$ for a dollar sign
}

// Rules are checked rules. The zero Rules change nothing.
type Rules struct {
	of map[string][]compiled // by registry
}

type compiled struct {
	Rule
	expression *regexp.Regexp
}

// RuleError says which rule cannot be used, and why.
type RuleError struct {
	Index int    // in what was given to Parse
	Text  string // what was found and what was expected
}

// Error returns the text, with the rule's number counted from 1.
func (e *RuleError) Error() string { return fmt.Sprintf("rewrite rule %d: %s", e.Index+1, e.Text) }

// Parse checks rules. An error is a [*RuleError] about the first that cannot be used.
func Parse(rules []Rule) (Rules, error) {
	parsed := Rules{of: map[string][]compiled{}}
	for i, rule := range rules {
		if i == maxRules {
			return Rules{}, &RuleError{i, fmt.Sprintf("found more than %d rules, expected fewer", maxRules)}
		}
		expression, err := compile(rule)
		if err != nil {
			return Rules{}, &RuleError{i, err.Error()}
		}
		same := func(other compiled) bool { return other.Match == rule.Match }
		if slices.ContainsFunc(parsed.of[rule.Registry], same) {
			return Rules{}, &RuleError{i, fmt.Sprintf(
				"found match %q for %s again, expected it once: k3s keeps one replacement for each",
				rule.Match, rule.Registry)}
		}
		parsed.of[rule.Registry] = append(parsed.of[rule.Registry], compiled{rule, expression})
	}
	return parsed, nil
}

var (
	registryName = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[1-9][0-9]{0,4})?$|` +
		`^\[[0-9a-f:.]{2,45}\](:[1-9][0-9]{0,4})?$`)
	repositoryName = lazyregexp.New(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	control        = lazyregexp.New(`[\x00-\x1f\x7f]`)
)

func compile(rule Rule) (*regexp.Regexp, error) {
	if rule.Registry != All && !registryName.MatchString(rule.Registry) {
		return nil, fmt.Errorf(
			`found registry %q, expected a registry's name in lower case such as docker.io or registry.lan:5000, or "*"`,
			rule.Registry)
	}
	for _, text := range []string{rule.Match, rule.Replace} {
		if len(text) > maxExpression || control.MatchString(text) {
			return nil, fmt.Errorf("found %.60q, expected one line of at most %d bytes", text, maxExpression)
		}
	}
	if text := rule.Match + rule.Replace; strings.ContainsAny(text, "\"\\") {
		return nil, fmt.Errorf(`found %.60q, expected a rule without " and \: k3s puts it as it is into a file where `+
			`they mean something else (write [.] for \. and [0-9] for \d)`, text)
	}
	if rule.Match == "" {
		return nil, errors.New("match is empty, expected a regular expression: '^(.*)$' is for every repository")
	}
	expression, err := regexp.Compile(rule.Match)
	if err != nil {
		return nil, fmt.Errorf("found match %q, expected a regular expression of Go: %w", rule.Match, err)
	}
	return expression, checkGroups(expression, rule.Replace)
}

// group is what regexp.Expand takes for a group's name or number, or $$.
var group = lazyregexp.New(`\$\$|\$\{(\w+)\}|\$(\w+)`)

// checkGroups refuses groups that the expression does not have: the replacement would
// have nothing in their place, as for $1x, which is the group of the name 1x.
func checkGroups(expression *regexp.Regexp, replacement string) error {
	for _, found := range group.FindAllStringSubmatch(replacement, -1) {
		name := found[1] + found[2]
		if name == "" {
			continue
		}
		known := slices.Contains(expression.SubexpNames(), name)
		for number := range expression.NumSubexp() + 1 {
			known = known || name == fmt.Sprint(number)
		}
		if !known {
			return fmt.Errorf("found %s in replace, expected a group of match: it has no group %s "+
				"(write ${1}x where letters, digits or _ follow the number)", found[0], name)
		}
	}
	return nil
}

// Repository returns the name that a repository of a registry has under these rules:
// itself when none changes it. The repository is without its registry and complete, such
// as "library/ubuntu" of "docker.io". An error names the rules when two change it, or the
// rule when what it makes of it is no name for a repository.
func (r Rules) Repository(registry, repository string) (string, error) {
	var taken *compiled
	result := repository
	for _, rule := range r.rules(registry) {
		changed := rule.expression.ReplaceAllString(repository, rule.Replace)
		switch {
		case changed == repository:
		case taken != nil:
			return "", fmt.Errorf("rewrite %s/%s: both %q and %q change it, "+
				"and k3s takes either: expected one rule for each repository",
				registry, repository, taken.Match, rule.Match)
		default:
			taken, result = &rule, changed
		}
	}
	if taken != nil && (len(result) > maxRepository || !repositoryName.MatchString(result)) {
		return "", fmt.Errorf("rewrite %s/%s: %q makes it %.300q, "+
			"expected a repository such as plant/library/ubuntu: lower case, at most %d bytes",
			registry, repository, taken.Match, result, maxRepository)
	}
	return result, nil
}

// Mapping returns what k3s' registries.yaml has under rewrite for a registry: from
// regular expressions to replacements. Nil when the registry's repositories keep their
// names. For All it returns the rules for registries without rules of their own.
func (r Rules) Mapping(registry string) map[string]string {
	rules := r.rules(registry)
	if len(rules) == 0 {
		return nil
	}
	mapping := make(map[string]string, len(rules))
	for _, rule := range rules {
		mapping[rule.Match] = rule.Replace
	}
	return mapping
}

// Registries returns the registries that have rules of their own, sorted, All not among
// them.
func (r Rules) Registries() []string {
	var names []string
	for name := range r.of {
		if name != All {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

func (r Rules) rules(registry string) []compiled {
	if own, ok := r.of[registry]; ok {
		return own
	}
	return r.of[All]
}
