// Package lazyregexp compiles regular expressions when they are first used.
//
// A program that has many commands has many expressions, and each run needs few of them.
// Compiled as package variables usually are, all of them are paid for at every start, and
// stay in memory as long as the program runs; one that counts to hundreds takes tens of
// kilobytes.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp stands for a regular expression. Its methods are those of [regexp.Regexp], and
// may be called from several goroutines at once.
type Regexp struct {
	expr     string
	compiled func() *regexp.Regexp
}

// New returns the regular expression that expr describes. If it describes none, the first
// use panics.
func New(expr string) *Regexp {
	return &Regexp{expr, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// String returns what New was given.
func (r *Regexp) String() string { return r.expr }

// Match is as of [regexp.Regexp].
func (r *Regexp) Match(b []byte) bool { return r.compiled().Match(b) }

// MatchString is as of [regexp.Regexp].
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// FindAllString is as of [regexp.Regexp].
func (r *Regexp) FindAllString(s string, n int) []string { return r.compiled().FindAllString(s, n) }

// FindAllStringSubmatch is as of [regexp.Regexp].
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(s, n)
}

// FindAllSubmatch is as of [regexp.Regexp].
func (r *Regexp) FindAllSubmatch(b []byte, n int) [][][]byte {
	return r.compiled().FindAllSubmatch(b, n)
}

// FindStringSubmatch is as of [regexp.Regexp].
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// FindSubmatch is as of [regexp.Regexp].
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.compiled().FindSubmatch(b) }

// FindSubmatchIndex is as of [regexp.Regexp].
func (r *Regexp) FindSubmatchIndex(b []byte) []int { return r.compiled().FindSubmatchIndex(b) }

// ReplaceAllString is as of [regexp.Regexp].
func (r *Regexp) ReplaceAllString(s, replacement string) string {
	return r.compiled().ReplaceAllString(s, replacement)
}

// ReplaceAllStringFunc is as of [regexp.Regexp].
func (r *Regexp) ReplaceAllStringFunc(s string, replacement func(string) string) string {
	return r.compiled().ReplaceAllStringFunc(s, replacement)
}
