package debian

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readStanzas(text string) (all []map[string]string, lines []int, err error) {
	for s, err := range stanzas(strings.NewReader(text), func(f string) bool { return f != "left-out" }) {
		if err != nil {
			return all, lines, err
		}
		all, lines = append(all, s.fields), append(lines, s.line)
	}
	return all, lines, nil
}

func TestStanzas(t *testing.T) {
	all, lines, err := readStanzas("\n\nPackage: a\n# a comment\nDEPENDS:  b,\n  c\n\td\nLeft-Out: x\n y\nEmpty:\r\n\n \n" +
		"\nPackage: b\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{{"package": "a", "depends": "b,\nc\nd", "empty": ""}, {"package": "b"}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{3, 14}, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		" a\n":                             "line 1: it goes on with a field that has not begun",
		"a: b\n\n c\n":                     "line 3: it goes on with a field that has not begun",
		"a: b\nc\n":                        "line 2: expected FIELD: VALUE",
		"a b: c\n":                         "line 1: expected FIELD: VALUE",
		": c\n":                            "line 1: expected FIELD: VALUE",
		"-a: c\n":                          "line 1: expected FIELD: VALUE",
		"a: b\nA: c\n":                     "line 2: the field A is there twice",
		"left-out: b\nLeft-Out: c\n":       "line 2: the field Left-Out is there twice",
		"a: " + strings.Repeat("x", 5<<20): "line 1: it has more than 4194304 bytes",
		"a: b\n" + strings.Repeat(" "+strings.Repeat("x", 1<<20)+"\n", 9): "line 9: the paragraph has more than 8388608 bytes",
	} {
		if _, _, err := readStanzas(text); err == nil || err.Error() != want {
			t.Errorf("%.20q: %v, expected %s", text, err, want)
		}
	}
}

// A field of many lines costs memory as it is long, not as its square.
func TestLongField(t *testing.T) {
	const lines = 20000
	text := "sha256:\n" + strings.Repeat(" abcdefgh\n", lines)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	all, _, err := readStanzas(text)
	runtime.ReadMemStats(&after)
	if err != nil || len(all) != 1 || all[0]["sha256"] != strings.Repeat("\nabcdefgh", lines) {
		t.Fatalf("%d paragraphs, %v", len(all), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 50*uint64(len(text)) {
		t.Errorf("%d bytes are read with %d bytes of memory", len(text), took)
	}
}

func TestRelations(t *testing.T) {
	groups, err := parseGroups("a (>= 1.0), b:any | c (<< 2:1-1)|d ( = 3 ), libx1-2.0++:amd64 (> 1),")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups {
		got = append(got, g.String())
	}
	want := []string{"a (>= 1.0)", "b:any | c (<< 2:1-1) | d (= 3)", "libx1-2.0++:amd64 (>= 1)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"a b", "a (1.0)", "a (>= )", "a (>= 1.0", "a >= 1", "a | | b", "_", "a (=> 1)", "a (>= 1 2)",
		"a [amd64]", "a <!nocheck>", "a:", "${misc:Depends}"} {
		if _, err := parseGroups(bad); err == nil {
			t.Errorf("%q was taken for dependencies", bad)
		}
	}
	if _, err := parseRelations("a | b"); err == nil {
		t.Error("alternatives were taken for conflicts")
	}
	if _, err := parseGroups(strings.Repeat("a,", maxRelations+1)); err == nil {
		t.Error("too many were taken")
	}
	p := &Package{Name: "a", Version: "1.5", Architecture: "amd64", provides: []relation{{name: "v"},
		{name: "w", operator: "=", version: "2"}}}
	for text, want := range map[string]bool{
		"a": true, "a (>= 1.5)": true, "a (>> 1.5)": false, "a (<= 1.5)": true, "a (<< 1.5)": false, "a (= 1.5)": true,
		"a (= 1.6)": false, "a:any": true, "a:native": true, "a:amd64": true, "a:arm64": false, "b": false,
		"v": true, "v (>= 1)": false, "w (>= 1)": true, "w (>= 3)": false, "w": true,
	} {
		r, err := parseRelation(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.metBy(p); got != want {
			t.Errorf("%s: %v, expected %v", text, got, want)
		}
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add("a (>= 1.0), b:any | c")
	f.Fuzz(func(t *testing.T, field string) {
		groups, err := parseGroups(field)
		if err != nil {
			return
		}
		var all []string
		for _, g := range groups {
			all = append(all, g.String())
		}
		again, err := parseGroups(strings.Join(all, ", "))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(groups, again, cmp.AllowUnexported(relation{})); diff != "" {
			t.Errorf("%q reads otherwise again:\n%s", field, diff)
		}
	})
}
