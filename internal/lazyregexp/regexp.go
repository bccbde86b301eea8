// Package lazyregexp has regular expressions that packages keep in variables. They are compiled when they are first
// used: a command needs few of those that the program has, and would wait for all of them at each start.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// Regexp is a regular expression in the syntax of package regexp. It may be used by several goroutines.
type Regexp struct {
	text     string
	compiled func() *regexp.Regexp
}

// New makes a regular expression. One that is wrong panics when it is first used, and in the program of a package's
// tests at once: none of them goes past the tests of its package.
func New(text string) *Regexp {
	r := &Regexp{text, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
	if strings.HasSuffix(os.Args[0], ".test") {
		r.compiled()
	}
	return r
}

// The methods are those of [regexp.Regexp].

// String is the text that it was made of.
func (r *Regexp) String() string { return r.text }

// MatchString reports whether there is a match in s.
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// Match reports whether there is a match in b.
func (r *Regexp) Match(b []byte) bool { return r.compiled().Match(b) }

// FindStringSubmatch is the first match in s and its groups, or nil.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// FindStringSubmatchIndex is where the first match in s and its groups begin and end, or nil.
func (r *Regexp) FindStringSubmatchIndex(s string) []int {
	return r.compiled().FindStringSubmatchIndex(s)
}

// FindSubmatch is the first match in b and its groups, or nil.
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.compiled().FindSubmatch(b) }

// FindSubmatchIndex is where the first match in b and its groups begin and end, or nil.
func (r *Regexp) FindSubmatchIndex(b []byte) []int { return r.compiled().FindSubmatchIndex(b) }

// FindAllString is the first n matches in s; all of them if n is negative.
func (r *Regexp) FindAllString(s string, n int) []string { return r.compiled().FindAllString(s, n) }

// FindAllStringIndex is where the first n matches in s begin and end; all of them if n is negative.
func (r *Regexp) FindAllStringIndex(s string, n int) [][]int {
	return r.compiled().FindAllStringIndex(s, n)
}

// FindAllStringSubmatch is the first n matches in s and their groups; all of them if n is negative.
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(s, n)
}

// FindAllSubmatch is the first n matches in b and their groups; all of them if n is negative.
func (r *Regexp) FindAllSubmatch(b []byte, n int) [][][]byte {
	return r.compiled().FindAllSubmatch(b, n)
}

// ReplaceAll has replacement in the place of each match in b.
func (r *Regexp) ReplaceAll(b, replacement []byte) []byte {
	return r.compiled().ReplaceAll(b, replacement)
}

// ReplaceAllString has replacement in the place of each match in s.
func (r *Regexp) ReplaceAllString(s, replacement string) string {
	return r.compiled().ReplaceAllString(s, replacement)
}

// ReplaceAllStringFunc has what replacement makes of each match in s in its place.
func (r *Regexp) ReplaceAllStringFunc(s string, replacement func(string) string) string {
	return r.compiled().ReplaceAllStringFunc(s, replacement)
}
