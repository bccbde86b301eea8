package debian_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/internal/fault"
)

// written makes paragraphs of lines such as "a 1.0 important; Depends: b | c; Conflicts: d".
func written(lines string, more func(name, version string) string) []byte {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		parts := strings.Split(strings.TrimSpace(line), ";")
		head := strings.Fields(parts[0])
		if len(head) < 2 {
			continue
		}
		fmt.Fprintf(&b, "Package: %s\nVersion: %s\nArchitecture: amd64\n", head[0], head[1])
		if len(head) > 2 {
			fmt.Fprintf(&b, "Priority: %s\n", head[2])
		}
		for _, field := range parts[1:] {
			fmt.Fprintln(&b, strings.TrimSpace(field))
		}
		fmt.Fprintf(&b, "%s\n\n", more(head[0], head[1]))
	}
	return []byte(b.String())
}

func indexOf(t *testing.T, suites ...string) *debian.Index {
	t.Helper()
	x := debian.NewIndex("amd64")
	for i, lines := range suites {
		text := written(lines, func(name, version string) string {
			sum := sha256.Sum256([]byte(name + version))
			return "Filename: pool/" + name + ".deb\nSize: 1\nSHA256: " + hex.EncodeToString(sum[:])
		})
		if err := x.Add(i, debian.IndexFile{Path: "Packages"}, text); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func stateOf(t *testing.T, lines string) []*debian.Package {
	t.Helper()
	if strings.TrimSpace(lines) == "" {
		return nil
	}
	all, err := debian.ReadState("amd64", written(lines, func(name, _ string) string {
		if strings.Contains(name, "held") {
			return "Status: hold ok installed"
		}
		return "Status: install ok installed"
	}))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestResolve has what is to be brought, or the error, for archives, a base and names.
func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name, archive, base string
		names, removes      []string
		want                string // packages with their versions; "" for an error
		err, hint           string
	}{
		{name: "alone", archive: "a 1", names: []string{"a"}, want: "a 1"},
		{name: "chain", archive: "a 1; Depends: b\nb 2; Pre-Depends: c (>= 2)\nc 2\nd 1", names: []string{"a"}, want: "a 1, b 2, c 2"},
		{name: "circle", archive: "a 1; Depends: b\nb 1; Depends: a", names: []string{"a"}, want: "a 1, b 1"},
		{name: "the base has it", archive: "a 1; Depends: b (>= 1), c\nb 2\nc 1", base: "b 1\nc 1", names: []string{"a"}, want: "a 1"},
		{name: "recommended only", archive: "a 1; Recommends: b; Suggests: c\nb 1\nc 1", names: []string{"a"}, want: "a 1"},
		{name: "the base has too old a one", archive: "a 1; Depends: b (>= 2)\nb 2", base: "b 1", names: []string{"a"}, want: "a 1, b 2"},
		{name: "asked for and in the base", archive: "a 1", base: "a 1", names: []string{"a"}, want: "a 1"},
		{name: "asked for and older in the base", archive: "a 2", base: "a 1", names: []string{"a"}, want: "a 2"},
		{name: "asked for and newer in the base", archive: "a 1\nb 1; Depends: a", base: "a 2", names: []string{"a", "b"}, want: "b 1"},
		{name: "the first alternative", archive: "a 1; Depends: b | c\nb 1\nc 1", names: []string{"a"}, want: "a 1, b 1"},
		{name: "the alternative that there is", archive: "a 1; Depends: b | c\nc 1", names: []string{"a"}, want: "a 1, c 1"},
		{name: "the alternative in its version", archive: "a 1; Depends: b (>= 2) | c\nb 1\nc 1", names: []string{"a"}, want: "a 1, c 1"},
		{name: "the alternative that is there", archive: "a 1; Depends: b | c\nb 1\nc 1", base: "c 1", names: []string{"a"}, want: "a 1"},
		{name: "the alternative that is asked for", archive: "a 1; Depends: b | c\nb 1\nc 1", names: []string{"a", "c"}, want: "a 1, c 1"},
		{name: "the alternative without conflict", archive: "a 1; Depends: b | c\nb 1; Conflicts: d\nc 1\nd 1", names: []string{"d", "a"}, want: "a 1, c 1, d 1"},
		{name: "provided", archive: "a 1; Depends: v\nq 1 optional; Provides: v\np 1 optional; Provides: v\nz 1 standard; Provides: v", names: []string{"a"}, want: "a 1, z 1"},
		{name: "provided, by name", archive: "a 1; Depends: v\nq 1; Provides: v\np 1; Provides: v", names: []string{"a"}, want: "a 1, p 1"},
		{name: "provided in the base", archive: "a 1; Depends: v\np 1; Provides: v", base: "mine 1; Provides: v", names: []string{"a"}, want: "a 1"},
		{name: "provided in a version", archive: "a 1; Depends: v (>= 2)\np 1; Provides: v\nq 1; Provides: v (= 2)", names: []string{"a"}, want: "a 1, q 1"},
		{name: "any architecture", archive: "a 1; Depends: perl:any\nperl 5", names: []string{"a"}, want: "a 1, perl 5"},
		{name: "the base moves along", archive: "a 1; Depends: lib (>= 2)\nlib 2\ntool 2; Depends: lib (= 2)", base: "lib 1\ntool 1; Depends: lib (= 1)", names: []string{"a"}, want: "a 1, lib 2, tool 2"},
		{name: "the base moves out of the way", archive: "a 1; Breaks: tool (<< 2)\ntool 2", base: "tool 1", names: []string{"a"}, want: "a 1, tool 2"},
		{name: "the base loses what it may", archive: "chrony 4; Conflicts: time-daemon; Provides: time-daemon", base: "timesyncd 1; Provides: time-daemon; Conflicts: time-daemon", names: []string{"chrony"}, removes: []string{"timesyncd"}, want: "chrony 4"},
		{name: "conflict with its own kind", archive: "a 1; Conflicts: v; Provides: v", names: []string{"a"}, want: "a 1"},

		{name: "unknown", archive: "a 1", names: []string{"b"}, err: "no archive has a package b", hint: "check the name and the archives' suites"},
		{name: "virtual", archive: "q 1; Provides: v\np 1; Provides: v", names: []string{"v"}, err: "no archive has a package v", hint: "these provide it: p, q; name the one"},
		{name: "missing", archive: "a 1; Depends: b\nb 1; Depends: c | d", names: []string{"a"}, err: "b 1 (for a) depends on c | d: no archive has c; no archive has d", hint: "security and updates are suites of their own"},
		{name: "missing in this version", archive: "a 1; Depends: b (>= 2)\nb 1", names: []string{"a"}, err: "a 1 (asked for) depends on b (>= 2): the archives have b 1"},
		{name: "missing for another architecture", archive: "a 1; Depends: b:i386\nb 1", names: []string{"a"}, err: "a 1 (asked for) depends on b:i386"},
		{name: "held", archive: "a 1; Depends: held (>= 2)\nheld 2", base: "held 1", names: []string{"a"}, err: "a 1 (asked for) depends on held (>= 2): held 2: held 1 is on hold in the base, and 2 would take its place"},
		{name: "held, asked for", archive: "held 2", base: "held 1", names: []string{"held"}, err: "held 2 (asked for): held 1 is on hold in the base"},
		{name: "held, in the way", archive: "a 1; Breaks: held (<< 2)\nheld 2", base: "held 1", names: []string{"a"}, err: "a 1 (asked for): a 1 breaks held (<< 2), and held 1 (of the base) is there"},
		{name: "conflict of two", archive: "a 1; Conflicts: b\nb 1", names: []string{"a", "b"}, err: "b 1 (asked for): a 1 conflicts with b, and a 1 (asked for) is there"},
		{name: "conflict with the base", archive: "chrony 4; Conflicts: time-daemon", base: "timesyncd 1; Provides: time-daemon", names: []string{"chrony"}, err: "chrony 4 (asked for): chrony 4 conflicts with time-daemon, and timesyncd 1 (of the base) is there", hint: "if hosts may lose timesyncd for it, name that under removes"},
		{name: "conflict further down", archive: "a 1; Depends: b\nb 1; Conflicts: x\n", base: "x 1", names: []string{"a"}, err: "a 1 (asked for) depends on b: b 1: b 1 conflicts with x, and x 1 (of the base) is there", hint: "name that under removes"},
		{name: "the base needs what goes", archive: "a 1; Conflicts: b", base: "b 1\nc 1; Depends: b", names: []string{"a"}, removes: []string{"b"}, err: "c 1 (of the base) depends on b: no archive has b"},
		{name: "the base cannot move along", archive: "a 1; Depends: lib (>= 2)\nlib 2", base: "lib 1\ntool 1; Depends: lib (= 1)", names: []string{"a"}, err: "tool 1 (of the base) depends on lib (= 1): the archives have lib 2"},
		{name: "removes what is not there", archive: "a 1", base: "b 1", names: []string{"a"}, removes: []string{"c"}, err: "nobody knows c, which hosts may lose"},
		{name: "removes what hosts may have besides", archive: "a 1\nc 1", base: "b 1", names: []string{"a"}, removes: []string{"c"}, want: "a 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := indexOf(t, c.archive).Resolve(
				debian.Wish{Names: c.names, Base: stateOf(t, c.base), Removes: c.removes})
			if c.want == "" {
				if !errors.Is(err, debian.ErrUnresolved) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, expected %s", err, c.err)
				}
				if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
					t.Errorf("the hints are %q, expected %q", hints, c.hint)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range found {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNewest takes the highest version of several archives, of the first that has it.
func TestNewest(t *testing.T) {
	found, err := indexOf(t, "a 1\nb 2\nc 1", "a 2\nb 1\nc 1").Resolve(debian.Wish{Names: []string{"a", "b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range found {
		got = append(got, fmt.Sprint(p, " of ", p.Archive))
	}
	if diff := cmp.Diff([]string{"a 2 of 1", "b 2 of 0", "c 1 of 0"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAssumed has a base by priority, of which nobody knows which versions hosts have: what needs one gets the
// archive's.
func TestAssumed(t *testing.T) {
	for _, c := range []struct {
		name, archive  string
		names, removes []string
		want           string // "" for an error
		err            string
	}{
		{name: "any version", archive: "a 1; Depends: b, v\nb 3 important; Provides: v", names: []string{"a"}, want: "a 1"},
		{name: "at least", archive: "a 1; Depends: b (>= 2)\nb 3 important", names: []string{"a"}, want: "a 1, b 3"},
		{name: "more than", archive: "a 1; Pre-Depends: b (>> 2)\nb 3 important", names: []string{"a"}, want: "a 1, b 3"},
		{name: "just one", archive: "a 1; Depends: b (= 3)\nb 3 important", names: []string{"a"}, want: "a 1, b 3"},
		{name: "less than", archive: "a 1; Depends: b (<< 4)\nb 3 important", names: []string{"a"}, want: "a 1"},
		{name: "at most", archive: "a 1; Depends: b (<= 3)\nb 3 important", names: []string{"a"}, want: "a 1"},
		{name: "less than there is", archive: "a 1; Depends: b (<< 3)\nb 3 important", names: []string{"a"}, err: "a 1 (asked for) depends on b (<< 3): the archives have b 3"},
		{name: "provided in a version", archive: "a 1; Depends: v (>= 2)\nb 3 important; Provides: v (= 2)", names: []string{"a"}, want: "a 1, b 3"},
		{name: "the alternative in any version", archive: "a 1; Depends: b (>= 2) | c\nb 3 important\nc 1 important", names: []string{"a"}, want: "a 1"},
		{name: "what it takes", archive: "a 1; Depends: b (>= 2)\nb 3 important; Depends: c (>= 3), d\nc 3 optional\nd 3 optional", names: []string{"a"}, want: "a 1, b 3, c 3"},
		{name: "what is asked for", archive: "b 3 important", names: []string{"b"}, want: "b 3"},
		{name: "in itself it is whole", archive: "a 1; Depends: b\nb 3 important; Depends: c (= 3), d (>= 2)\nc 3 important\nd 3 optional", names: []string{"a"}, want: "a 1"},
		{name: "what is made of one source", archive: "a 1; Depends: lib (>= 2)\nlib 3 optional\ntool 3 important; Depends: lib (= 3)\nother 3 important; Depends: lib (>= 1)", names: []string{"a"}, want: "a 1, lib 3, tool 3"},
		{name: "an older one is in the way", archive: "a 1; Breaks: b (<< 2)\nb 3 important", names: []string{"a"}, want: "a 1, b 3"},
		{name: "one version is in the way", archive: "a 1; Conflicts: b (= 2)\nb 3 important", names: []string{"a"}, want: "a 1, b 3"},
		{name: "a newer one is in the way", archive: "a 1; Breaks: b (>= 4)\nb 3 important", names: []string{"a"}, want: "a 1"},
		{name: "one that is newer than the archive's", archive: "a 1; Breaks: b (= 4)\nb 3 important", names: []string{"a"}, want: "a 1"},
		{name: "any is in the way", archive: "a 1; Conflicts: b\nb 3 important", names: []string{"a"}, err: "a 1 conflicts with b, and b 3 (of the base) is there"},
		{name: "it may go", archive: "a 1; Conflicts: b\nb 3 important", names: []string{"a"}, removes: []string{"b"}, want: "a 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := indexOf(t, c.archive+"\nbase 1 required")
			base, err := x.Base("required", "important")
			if err != nil {
				t.Fatal(err)
			}
			found, err := x.Resolve(debian.Wish{Names: c.names, Base: base, Removes: c.removes})
			if c.want == "" {
				if !errors.Is(err, debian.ErrUnresolved) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, expected %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range found {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBase(t *testing.T) {
	x := indexOf(t, "init 1 required; Depends: lib\nlib 1 optional\ncron 1 important\nextra 1 optional\n"+
		"base 1 optional; Essential: yes")
	for priorities, want := range map[string]string{
		"required": "base 1, init 1, lib 1", "required important": "base 1, cron 1, init 1, lib 1",
	} {
		found, err := x.Base(strings.Fields(priorities)...)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range found {
			got = append(got, p.String())
		}
		if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if _, err := indexOf(t, "a 1 optional").Base("required"); !errors.Is(err, debian.ErrArchive) {
		t.Errorf("%v, expected an error", err)
	}
	if _, err := indexOf(t, "a 1 required; Depends: b").Base("required"); !errors.Is(err, debian.ErrUnresolved) {
		t.Errorf("%v, expected an error", err)
	}
}
