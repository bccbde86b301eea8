package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json, as described by go doc test2json and, for builds, by go
// help buildjson.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	Elapsed     float64 // seconds
	ImportPath  string  // of a build-output
	FailedBuild string  // the ImportPath whose build made this package fail
}

// test is one test, or with the empty name what belongs to no test of its package.
type test struct {
	name   string
	output strings.Builder
	ran    bool   // it is a test, not just the beginning of a name with a slash
	action string // how it ended: pass, fail, skip, or "" when it did not
	parent bool   // it has subtests, which are counted in its place
	blamed bool   // a subtest failed, which is counted in its place
}

type summary struct {
	w        io.Writer
	packages map[string]map[string]*test // those under way
	builds   map[string]*strings.Builder // what the compiler said
	leftOut  []string
	whole    []string // what long failures printed

	ended, passed, failed, skipped int
}

// summarize writes the summary of the events in r to w while they come in. It reports
// whether all is well. The error is one of reading or writing.
func summarize(r io.Reader, w io.Writer, require bool) (ok bool, err error) {
	buffered := bufio.NewWriter(w)
	s := &summary{w: buffered, packages: map[string]map[string]*test{}, builds: map[string]*strings.Builder{}}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
			if err := buffered.Flush(); err != nil {
				return false, err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read go test's output: %w", err)
		}
	}
	ok = s.finish(require)
	return ok, buffered.Flush()
}

func (s *summary) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.w, "%s", line) // go itself, for example about go.mod
		return
	}
	if e.Action == "build-output" {
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = &strings.Builder{}
		}
		s.builds[e.ImportPath].WriteString(e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	t := s.test(e.Package, e.Test)
	switch e.Action {
	case "run":
		t.ran = true
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		t.action = e.Action
		if e.Test == "" {
			s.endPackage(e)
		} else if i := strings.LastIndexByte(e.Test, '/'); i > 0 && e.Action == "fail" {
			s.test(e.Package, e.Test[:i]).blamed = true
		}
	}
}

func (s *summary) test(pkg, name string) *test {
	tests := s.packages[pkg]
	if tests == nil {
		tests = map[string]*test{}
		s.packages[pkg] = tests
	}
	t := tests[name]
	if t == nil {
		t = &test{name: name}
		tests[name] = t
		if i := strings.LastIndexByte(name, '/'); i > 0 {
			s.test(pkg, name[:i]).parent = true
		}
	}
	return t
}

// endPackage counts the tests of a package and says how they went.
func (s *summary) endPackage(e event) {
	tests := s.packages[e.Package]
	delete(s.packages, e.Package)
	s.ended++
	own := tests[""]
	delete(tests, "")

	failed := s.failed
	if out := s.builds[e.FailedBuild]; out != nil {
		s.print("does not build", out.String())
		s.failed++
	}
	for _, t := range slices.SortedFunc(maps.Values(tests), func(a, b *test) int { return cmp.Compare(a.name, b.name) }) {
		s.endTest(e.Package, t, e.Action)
	}
	if e.Action == "fail" && s.failed == failed { // outside of any test: TestMain, a race, an exit
		s.print("the package itself", own.output.String())
		s.failed++
	}
	switch {
	case e.Action == "fail":
		fmt.Fprintf(s.w, "FAIL  %s  %.1fs\n", e.Package, e.Elapsed)
	case e.Action == "pass" && len(tests) > 0:
		fmt.Fprintf(s.w, "ok    %s  %.1fs\n", e.Package, e.Elapsed)
	}
}

// endTest counts one test of a package that ended with pkgAction.
func (s *summary) endTest(pkg string, t *test, pkgAction string) {
	switch {
	case t.action == "skip":
		s.skipped++
		s.leftOut = append(s.leftOut, fmt.Sprintf("%s %s: %s", pkg, t.name, reason(t.output.String())))
	case t.action == "fail":
		s.print(t.name, t.output.String())
		if !t.blamed {
			s.failed++
		}
	case t.ran && t.action == "" && pkgAction == "fail": // a panic or the time limit came first
		s.print(t.name+" did not finish", t.output.String())
		s.failed++
	case !t.parent:
		s.passed++
	}
}

// print says what failed: all that was printed if that is short, and else the gist of it, with
// the whole to come at the end.
func (s *summary) print(title, output string) {
	var own strings.Builder
	for line := range strings.Lines(output) {
		if !isFrame(line) {
			own.WriteString("    " + line)
		}
	}
	text := own.String()
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	fmt.Fprintf(s.w, "--- FAIL: %s\n", title)
	if strings.Count(text, "\n") <= maxShown {
		fmt.Fprint(s.w, text)
		return
	}
	fmt.Fprint(s.w, gist(text))
	s.whole = append(s.whole, fmt.Sprintf("--- %s, in full:\n%s", title, text))
}

const (
	// maxShown is how many lines of a test are shown at once.
	maxShown = 60
	// Of a message of more lines than both together, the first and the last are the gist.
	gistHead, gistTail = 3, 6
	// maxMessages is how many messages are in a gist: the last ones, which tell most of the end.
	maxMessages = 12
)

// message is the beginning of what a test logged, or failed with.
var message = regexp.MustCompile(`^ +[\w.-]+\.go:\d+: `)

// gist leaves out the middle of long messages, and those that came long before the end.
func gist(text string) string {
	var messages [][]string
	for line := range strings.Lines(text) {
		if len(messages) == 0 || message.MatchString(line) {
			messages = append(messages, nil)
		}
		last := &messages[len(messages)-1]
		*last = append(*last, line)
	}
	var out strings.Builder
	if n := len(messages) - maxMessages; n > 0 {
		fmt.Fprintf(&out, "    (%d messages before)\n", n)
		messages = messages[n:]
	}
	for _, m := range messages {
		if n := len(m) - gistHead - gistTail; n > 1 {
			m = slices.Concat(m[:gistHead], []string{fmt.Sprintf("    (%d lines)\n", n)}, m[len(m)-gistTail:])
		}
		out.WriteString(strings.Join(m, ""))
	}
	return out.String()
}

// reason is what a test gave to t.Skip, on one line.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		if !isFrame(line) {
			said = append(said, strings.Fields(line)...)
		}
	}
	return cmp.Or(strings.Join(said, " "), "no reason given")
}

// isFrame tells the lines that go test puts around a test from those of the test.
func isFrame(line string) bool {
	line = strings.TrimLeft(line, " ")
	for _, prefix := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "--- PASS: ", "--- FAIL: ", "--- SKIP: "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

func (s *summary) finish(require bool) (ok bool) {
	for _, pkg := range slices.Sorted(maps.Keys(s.packages)) { // go test was killed
		fmt.Fprintf(s.w, "FAIL  %s  did not finish\n", pkg)
		s.failed++
	}
	if s.ended == 0 {
		fmt.Fprintln(s.w, "FAIL  no package was tested")
		s.failed++
	}
	for _, text := range s.whole {
		fmt.Fprintf(s.w, "\n%s", text)
	}
	if len(s.leftOut) > 0 {
		fmt.Fprintln(s.w, "\nleft out:")
		for _, line := range s.leftOut {
			fmt.Fprintln(s.w, " ", line)
		}
		if require {
			fmt.Fprintln(s.w, "FAIL  nothing may be left out here")
		}
	}
	fmt.Fprintf(s.w, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return s.failed == 0 && (s.skipped == 0 || !require)
}
