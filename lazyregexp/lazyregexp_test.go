package lazyregexp_test

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/lazyregexp"
)

// matcher is what both kinds of expressions can.
type matcher interface {
	String() string
	Match(b []byte) bool
	MatchString(s string) bool
	FindAllString(s string, n int) []string
	FindAllStringSubmatch(s string, n int) [][]string
	FindAllSubmatch(b []byte, n int) [][][]byte
	FindStringSubmatch(s string) []string
	FindSubmatch(b []byte) [][]byte
	FindSubmatchIndex(b []byte) []int
	ReplaceAllString(s, replacement string) string
	ReplaceAllStringFunc(s string, replacement func(string) string) string
}

func TestRegexp(t *testing.T) {
	const expr = `(?i)([a-z]+)=(\d+)`
	results := func(m matcher, s string) []any {
		return []any{
			m.String(), m.Match([]byte(s)), m.MatchString(s), m.FindAllString(s, 2), m.FindAllStringSubmatch(s, -1),
			m.FindAllSubmatch([]byte(s), 2), m.FindStringSubmatch(s), m.FindSubmatch([]byte(s)), m.FindSubmatchIndex([]byte(s)),
			m.ReplaceAllString(s, "$2=$1"), m.ReplaceAllStringFunc(s, strings.ToUpper),
		}
	}
	for _, s := range []string{"", "none", "one=1", "one=1 Two=22, three=333"} {
		if diff := cmp.Diff(results(regexp.MustCompile(expr), s), results(lazyregexp.New(expr), s)); diff != "" {
			t.Errorf("%q: %s", s, diff)
		}
	}
}

// An expression costs nothing before its first use: even that it is none comes out then.
func TestNewCompilesNothing(t *testing.T) {
	r := lazyregexp.New("(")
	defer func() {
		if recover() == nil {
			t.Error("something was found with an expression that is none")
		}
	}()
	r.MatchString("")
}

func TestConcurrentUse(t *testing.T) {
	r := lazyregexp.New("^a+$")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if !r.Match(bytes.Repeat([]byte("a"), 100)) {
				t.Error("found no match")
			}
		})
	}
	group.Wait()
}
