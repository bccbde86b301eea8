package rewrite_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/registry/rewrite"
)

func TestRepository(t *testing.T) {
	for _, test := range []struct {
		name                       string
		rules                      []rewrite.Rule
		registry, repository, want string
		fails                      string
	}{
		{name: "no rules", registry: "docker.io", repository: "library/ubuntu", want: "library/ubuntu"},
		{name: "every repository of every registry", rules: []rewrite.Rule{{"*", "^(.*)$", "plant/$1"}},
			registry: "quay.io", repository: "cilium/cilium", want: "plant/cilium/cilium"},
		{name: "a registry's own in place of those for all",
			rules:    []rewrite.Rule{{"*", "^(.*)$", "plant/$1"}, {"docker.io", "^(.*)$", "hub/$1"}},
			registry: "docker.io", repository: "library/ubuntu", want: "hub/library/ubuntu"},
		{name: "its own do not match, and those for all do not count",
			rules:    []rewrite.Rule{{"*", "^(.*)$", "plant/$1"}, {"docker.io", "^rancher/", "r/"}},
			registry: "docker.io", repository: "library/ubuntu", want: "library/ubuntu"},
		{name: "another registry's", rules: []rewrite.Rule{{"quay.io", "^(.*)$", "plant/$1"}},
			registry: "docker.io", repository: "library/ubuntu", want: "library/ubuntu"},
		{name: "with a port", rules: []rewrite.Rule{{"r.lan:5000", "a", "b"}}, registry: "r.lan:5000", repository: "a/a",
			want: "b/b"},
		{name: "every match", rules: []rewrite.Rule{{"*", "/", "-"}}, registry: "docker.io", repository: "a/b/c",
			want: "a-b-c"},
		{name: "named group", rules: []rewrite.Rule{{"*", "^library/(?P<image>.+)$", "x/${image}/${image}"}},
			registry: "docker.io", repository: "library/ubuntu", want: "x/ubuntu/ubuntu"},
		{name: "a rule that changes nothing is no match",
			rules:    []rewrite.Rule{{"*", "^library/", "library/"}, {"*", "ubuntu$", "debian"}},
			registry: "docker.io", repository: "library/ubuntu", want: "library/debian"},
		{name: "two rules", rules: []rewrite.Rule{{"*", "^library/", "l/"}, {"*", "ubuntu$", "debian"}},
			registry: "docker.io", repository: "library/ubuntu",
			fails: `rewrite docker.io/library/ubuntu: both "^library/" and "ubuntu$" change it`},
		{name: "nothing is left", rules: []rewrite.Rule{{"*", ".*", ""}}, registry: "docker.io", repository: "library/ubuntu",
			fails: `".*" makes it ""`},
		{name: "no repository", rules: []rewrite.Rule{{"*", "^", "Plant/"}}, registry: "docker.io",
			repository: "library/ubuntu", fails: `"^" makes it "Plant/library/ubuntu"`},
		{name: "a way out", rules: []rewrite.Rule{{"*", "^", "../"}}, registry: "docker.io", repository: "a",
			fails: `"^" makes it "../a"`},
		{name: "too long", rules: []rewrite.Rule{{"*", ".", strings.Repeat("a", 200)}}, registry: "docker.io",
			repository: "aaa", fails: "at most 255 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			rules, err := rewrite.Parse(test.rules)
			if err != nil {
				t.Fatal(err)
			}
			got, err := rules.Repository(test.registry, test.repository)
			switch {
			case test.fails == "" && err != nil:
				t.Fatal(err)
			case test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)):
				t.Fatalf("error %v, expected one with %s", err, test.fails)
			case got != test.want:
				t.Errorf("got %q, expected %q", got, test.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		rule rewrite.Rule
		want string // of the error; "" for none
	}{
		{"address", rewrite.Rule{"[fd00::1]:5000", "a", "b"}, ""},
		{"dollar", rewrite.Rule{"*", "a", "$$1"}, ""},
		{"whole match", rewrite.Rule{"*", "a", "$0"}, ""},
		{"a dollar that is no group", rewrite.Rule{"*", "a", "b$/"}, ""},
		{"no registry", rewrite.Rule{"", "a", "b"}, `found registry ""`},
		{"scheme", rewrite.Rule{"https://docker.io", "a", "b"}, "found registry"},
		{"upper case", rewrite.Rule{"Docker.io", "a", "b"}, "in lower case"},
		{"with a repository", rewrite.Rule{"docker.io/library", "a", "b"}, "found registry"},
		{"no match", rewrite.Rule{"*", "", "b"}, "match is empty"},
		{"no expression", rewrite.Rule{"*", "(", "b"}, "expected a regular expression of Go"},
		{"no such group", rewrite.Rule{"*", "(a)", "$2"}, "it has no group 2"},
		{"no such group in braces", rewrite.Rule{"*", "(a)", "${b}"}, "it has no group b"},
		{"text after a group's number", rewrite.Rule{"*", "(a)", "$1x"}, "write ${1}x"},
		{"too long", rewrite.Rule{"*", "a", strings.Repeat("b", 1001)}, "at most 1000 bytes"},
		{"backslash", rewrite.Rule{"*", `a\.b`, "c"}, "write [.] for"},
		{"quote", rewrite.Rule{"*", "a", `"`}, "without \" and"},
		{"two lines", rewrite.Rule{"*", "a\nb", "c"}, "expected one line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := rewrite.Parse([]rewrite.Rule{{"*", "first", "rule"}, test.rule})
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var faulty *rewrite.RuleError
			if !errors.As(err, &faulty) || faulty.Index != 1 || !strings.Contains(err.Error(), test.want) ||
				!strings.HasPrefix(err.Error(), "rewrite rule 2: ") {
				t.Errorf("error %v, expected one about rule 2 with %s", err, test.want)
			}
		})
	}
	if _, err := rewrite.Parse([]rewrite.Rule{{"*", "a", "b"}, {"docker.io", "a", "b"}, {"*", "a", "c"}}); err == nil ||
		!strings.HasPrefix(err.Error(), "rewrite rule 3: ") {
		t.Errorf("a match that is there twice: error %v", err)
	}
	if _, err := rewrite.Parse(make([]rewrite.Rule, 0)); err != nil {
		t.Error(err)
	}
}

func TestMapping(t *testing.T) {
	rules, err := rewrite.Parse([]rewrite.Rule{{"*", "a", "b"}, {"quay.io", "c", "d"}, {"docker.io", "e", "f"},
		{"docker.io", "g", "h"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]string{}
	for _, name := range append(rules.Registries(), "*", "other.lan") {
		got[name] = rules.Mapping(name)
	}
	want := map[string]map[string]string{
		"docker.io": {"e": "f", "g": "h"}, "quay.io": {"c": "d"}, "*": {"a": "b"}, "other.lan": {"a": "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mappings (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"docker.io", "quay.io"}, rules.Registries()); diff != "" {
		t.Errorf("registries (-want +got):\n%s", diff)
	}
	if mapping := (rewrite.Rules{}).Mapping("docker.io"); mapping != nil {
		t.Errorf("without rules there is %v", mapping)
	}
}
