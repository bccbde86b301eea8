package rewrite_test

import (
	"regexp"
	"testing"

	"github.com/liteboxd/boxlift/registry/rewrite"
)

var repository = regexp.MustCompile(`^[a-z0-9]+([._/-]+[a-z0-9]+)*$`)

// FuzzRepository holds what rules make of a repository against what k3s makes of it by the
// mapping that it is given, in whatever order it comes.
func FuzzRepository(f *testing.F) {
	f.Add("docker.io", "^(.*)$", "plant/$1", "^library/", "l/", "library/ubuntu")
	f.Add("*", "a", "b", "b", "a", "a/b")
	f.Add("*", "(?i)x", "${0}y", "", "", "xX")
	f.Fuzz(func(t *testing.T, registry, match, replace, match2, replace2, name string) {
		rules, err := rewrite.Parse([]rewrite.Rule{{registry, match, replace}, {rewrite.All, match2, replace2}})
		if err != nil {
			return
		}
		got, err := rules.Repository(registry, name)
		if err != nil {
			return
		}
		if got != name && (!repository.MatchString(got) || len(got) > 255) {
			t.Errorf("made %q of %q", got, name)
		}
		for expression, replacement := range rules.Mapping(registry) {
			if changed := regexp.MustCompile(expression).ReplaceAllString(name, replacement); changed != name && changed != got {
				t.Errorf("k3s may make %q of %q, and this makes %q", changed, name, got)
			}
		}
	})
}
