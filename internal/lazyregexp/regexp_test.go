package lazyregexp

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each method does what that of package regexp does.
func TestMethods(t *testing.T) {
	const text, s = `([a-z])([0-9]+)?`, "a1 b c23"
	upper := strings.ToUpper
	got, want := New(text), regexp.MustCompile(text)
	for name, both := range map[string][2]any{
		"String":                  {got.String(), want.String()},
		"MatchString":             {got.MatchString(s), want.MatchString(s)},
		"Match":                   {got.Match([]byte("1")), want.Match([]byte("1"))},
		"FindStringSubmatch":      {got.FindStringSubmatch(s), want.FindStringSubmatch(s)},
		"FindStringSubmatchIndex": {got.FindStringSubmatchIndex(s), want.FindStringSubmatchIndex(s)},
		"FindAllStringIndex":      {got.FindAllStringIndex(s, -1), want.FindAllStringIndex(s, -1)},
		"ReplaceAll":              {got.ReplaceAll([]byte(s), []byte("$2")), want.ReplaceAll([]byte(s), []byte("$2"))},
		"FindSubmatch":            {got.FindSubmatch([]byte(s)), want.FindSubmatch([]byte(s))},
		"FindSubmatchIndex":       {got.FindSubmatchIndex([]byte(s)), want.FindSubmatchIndex([]byte(s))},
		"FindAllString":           {got.FindAllString(s, 2), want.FindAllString(s, 2)},
		"FindAllStringSubmatch":   {got.FindAllStringSubmatch(s, -1), want.FindAllStringSubmatch(s, -1)},
		"FindAllSubmatch":         {got.FindAllSubmatch([]byte(s), -1), want.FindAllSubmatch([]byte(s), -1)},
		"ReplaceAllString":        {got.ReplaceAllString(s, "$2"), want.ReplaceAllString(s, "$2")},
		"ReplaceAllStringFunc":    {got.ReplaceAllStringFunc(s, upper), want.ReplaceAllStringFunc(s, upper)},
	} {
		if diff := cmp.Diff(both[1], both[0]); diff != "" {
			t.Errorf("%s (-regexp's +got):\n%s", name, diff)
		}
	}
}

// The tests of a package find what is wrong in its variables, though they may not use them.
func TestWrongExpressionPanicsInTests(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was taken")
		}
	}()
	New(`(`)
}
