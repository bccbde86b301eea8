package schema

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

var update = flag.Bool("update", false, "write the golden files")

// testEnv is the environment of all tests.
func testEnv(name string) (string, bool) {
	value, ok := map[string]string{
		"PORT": "2022", "YES": "true", "WORD": "word", "EMPTY": "", "LONG": strings.Repeat("x", MaxValue+1),
		"BIG": strings.Repeat("x", MaxValue), "HOSTILE": "${WORD} $$ \"x\": [*a]#", "LINES": "a\nb",
	}[name]
	return value, ok
}

// found is what was read, and what was reported, one on a line.
func found(text string, read func(Node) any) (value any, report string) {
	d := Read("f", []byte(text), testEnv, func(root Node) { value = read(root) })
	var lines []string
	problems, more := d.Problems()
	for _, p := range problems {
		lines = append(lines, p.String())
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("%d more", more))
	}
	for _, w := range d.Warnings() {
		lines = append(lines, "warning: "+w.String())
	}
	return value, strings.Join(lines, "\n")
}

// TestValues reads one value in each way.
func TestValues(t *testing.T) {
	readers := map[string]func(Node) any{
		"text": func(n Node) any {
			return Text(n, func(s string) (string, error) {
				if s == "bad" {
					return "", errors.New("expected another")
				}
				return s, nil
			})
		},
		"word":    func(n Node) any { return OneOf(n, "one", "two", "three") },
		"secret":  func(n Node) any { return n.Secret().Reveal() },
		"number":  func(n Node) any { return n.Number(1, 100) },
		"port":    func(n Node) any { return n.Number(1, 65535) },
		"boolean": func(n Node) any { return n.Boolean() },
		"line":    func(n Node) any { s, ok := n.LineOrEmpty(); return fmt.Sprint(s, " ", ok) },
		"plain":   func(n Node) any { v, ok := n.Plain(OneLine, "a value"); return fmt.Sprintf("%#v %t", v, ok) },
		"any":     func(n Node) any { v, ok := n.Plain(AnyText, "a value"); return fmt.Sprintf("%#v %t", v, ok) },
		"list":    func(n Node) any { v, ok := n.PlainOrList(2); return fmt.Sprintf("%#v %t", v, ok) },
		"decimal": func(n Node) any { f, ok := n.Decimal(); return fmt.Sprint(f, " ", ok) },
	}
	const quotes = ": put it in quotes"
	for _, test := range []struct {
		how, text string
		want      any
		report    string
	}{
		{"text", "a b", "a b", ""},
		{"text", `"${WORD} $$ $x"`, "word $ $x", ""},
		{"text", `"${HOSTILE}"`, "${WORD} $$ \"x\": [*a]#", ""},
		{"text", "bad", "", `f:1: found "bad", expected another`},
		{"text", "5", "", "f:1: found a number, expected text" + quotes},
		{"text", "2026-01-02", "", "f:1: found a date, expected text" + quotes},
		{"text", "[a]", "", "f:1: found a list, expected text"},
		{"text", "*", "", "f:1: not valid YAML: did not find expected alphabetic or numeric character"},
		{"text", "&a b", "", "f:1: found an anchor (&), expected text: put text that begins with & in quotes"},
		{"text", "!!str b", "", "f:1: found a tag (!), expected text: put text that begins with ! in quotes"},
		{"text", "~", "", "f:1: found nothing, expected text: leave the key out if it is not wanted"},
		{"text", `""`, "", "f:1: found an empty text, expected a value: leave the key out if it is not wanted"},
		{"text", `"a\nb"`, "", "f:1: found a line break or a NUL, expected one line of text"},
		{"text", `"${LINES}"`, "", "f:1: found a line break or a NUL, expected one line of text"},
		{"text", `"${EMPTY}"`, "", "f:1: found ${EMPTY}, which is empty"},
		{"text", `"${NONE}"`, "", "f:1: environment variable NONE is not set"},
		{"text", `"${CANARY x}"`, "",
			"f:1: found ${ without the name of a variable and }, expected ${NAME}: write $${ for a literal ${"},
		{"text", `"${LONG}"`, "",
			"f:1: environment variable LONG is too long, expected at most 16 KiB in one value and 1024 KiB in all"},
		{"word", "two", "two", ""},
		{"word", "four", "", `f:1: found "four", expected one, two or three`},
		{"word", `"https://user:CANARY@host/a?token=CANARY"`, "",
			`f:1: found "https:...@host/a?...", expected one, two or three`},
		{"word", `"${WORD}"`, "", `f:1: found "${WORD}" (after putting in the variable), expected one, two or three`},
		{"secret", "hunter2", "hunter2", ""},
		{"secret", `"***"`, "***", "warning: f:1: holds only asterisks: is this still the placeholder of an example?"},
		{"secret", "5", "", "f:1: found a number, expected text" + quotes},
		{"number", "100", 100, ""},
		{"number", "101", 0, `f:1: found "101", expected a whole number from 1 to 100`},
		{"number", "0x10", 0, `f:1: found "0x10", expected a whole number from 1 to 100`},
		{"number", "1.5", 0, "f:1: found a number, expected a whole number from 1 to 100"},
		{"number", `"5"`, 0, "f:1: found text, expected a whole number from 1 to 100"},
		{"port", `"${PORT}"`, 2022, ""},
		{"port", `"${WORD}"`, 0,
			`f:1: found "${WORD}" (after putting in the variable), expected a whole number from 1 to 65535`},
		{"boolean", "true", true, ""},
		{"boolean", "False", false, ""},
		{"boolean", `"${YES}"`, true, ""},
		{"boolean", "yes", false, "f:1: found text, expected true or false"},
		{"boolean", `"${WORD}"`, false, `f:1: found "${WORD}" (after putting in the variable), expected true or false`},
		{"line", `""`, " true", ""},
		{"line", "a", "a true", ""},
		{"line", "5", " false", "f:1: found a number, expected text" + quotes},
		{"line", "{}", " false", "f:1: found a mapping, expected text"},
		{"plain", "a", `"a" true`, ""},
		{"plain", "TRUE", "true true", ""},
		{"plain", "-5", "-5 true", ""},
		{"plain", "010", "<nil> false", `f:1: found a number "010", expected a value` + quotes},
		{"plain", "1.5", "<nil> false", `f:1: found a number "1.5", expected a value` + quotes},
		{"plain", "[]", "<nil> false", "f:1: found a list, expected a value"},
		{"any", `"a\nb"`, `"a\nb" true`, ""},
		{"any", `"a\0b"`, `"a\x00b" false`, "f:1: found a NUL, expected text"},
		{"list", "[a, 5]", `[]string{"a", "5"} true`, ""},
		{"list", "a", `"a" true`, ""},
		{"list", "[a, b, c]", "<nil> false", "f:1: found 3 items, expected at most 2"},
		{"list", "[a, [b]]", `[]string{"a", "<nil>"} false`,
			"f:1: [1]: found a list, expected text, true or false, or a whole number"},
		{"decimal", "1.5", "1.5 true", ""},
		{"decimal", "1.10", "0 false", ""},
		{"decimal", ".inf", "0 false", ""},
		{"decimal", "5", "0 false", ""},
		{"decimal", "&a 1.5", "0 false", ""},
	} {
		value, report := found(test.text, readers[test.how])
		if diff := cmp.Diff(test.report, report); diff != "" || report != "" && strings.Contains(report, "CANARY") {
			t.Errorf("%s of %s: reported (-want +got):\n%s", test.how, test.text, diff)
		}
		if value != test.want && !(value == nil && test.want == "") {
			t.Errorf("%s of %s: got %#v, want %#v", test.how, test.text, value, test.want)
		}
	}
}

func TestMappings(t *testing.T) {
	inner := func(n Node) { n.Mapping(Optional("host", "", func(n Node) { n.Secret() })) }
	read := func(n Node) any {
		var seen []string
		note := func(n Node) { seen = append(seen, n.Path()) }
		present := n.Mapping(
			Required("name", "", note),
			Optional("list", "", func(n Node) { n.List(func(_ int, item Node) { note(item) }) }),
			Optional("any", "", func(n Node) {
				n.Entries("a word", lazyregexp.New(`^[a-z.]+$`), func(_ string, _, value Node) { note(value) })
			}),
			Optional("either", "", func(n Node) { n.Either(note, inner) }),
			Optional("maybe", "", func(n Node) { n.MappingOrNothing(Optional("host", "", note)) }),
		)
		return fmt.Sprint(len(present), seen)
	}
	const keys = "name, list, any, either, maybe"
	for _, test := range []struct{ text, want, report string }{
		{"name: a\nlist: [b, c]\nany: {d.e: f}", `3 [name list[0] list[1] any["d.e"]]`, ""},
		{"name: a\nmaybe:\neither: b", "3 [name either]", ""},
		{"name: a\nmaybe: {host: b}\neither: {hsot: c}", "3 [name maybe.host]",
			"f:3: either.hsot: unknown key, did you mean host?"},
		{"list: []", "1 []", "f:1: name is missing"},
		{"a", "0 []", "f:1: found text, expected a mapping with " + keys},
		{"name: a\nname: b", "1 [name]", "f:2: name: found again, expected once: it is on line 1 already"},
		{"name: a\nzzz: b", "1 [name]", "f:2: zzz: unknown key, expected one of " + keys},
		{"name: a\n5: b", "1 [name]", "f:2: found a key that is a number, expected one of " + keys},
		{"name: a\n<<: {}", "1 [name]", "f:2: found a key that is a merge key (<<), expected one of " + keys},
		{"{name: a, CANARY}", "1 [name]",
			"f:1: found something that is not a key, expected one of " + keys +
				": put text with special characters in quotes"},
		{"name: a\nlist: b", "2 [name]", "f:2: list: found text, expected a list"},
		{"name: a\nlist: [" + strings.Repeat("b,", MaxItems+1) + "]", "2 [name]",
			"f:2: list: found 1001 items, expected at most 1000"},
		{"name: a\nany: b", "2 [name]", "f:2: any: found text, expected a mapping from a word"},
		{"name: a\nany:", "2 [name]",
			"f:2: any: found nothing, expected a mapping: leave the key out if it is not wanted"},
		{"name: a\nany: {b: c, b: d}", "2 [name any.b]",
			`f:2: any: found the key "b" again, expected it once: it is on line 2 already`},
		{"name: a\nany: {B: c}", "2 [name]", `f:2: any: found the key "B", expected a word`},
		{"name: a\nany: {true: c}", "2 [name]",
			"f:2: any: found a key that is true or false, expected a word: put it in quotes"},
		{"name: a\nany: {&x b: c}", "2 [name]",
			"f:2: any: found an anchor (&), expected a key: put text that begins with & in quotes"},
		{"name: a\nany: {b: c, CANARY!}", "2 [name any.b]",
			"f:2: any: found something that is not a key, expected a word: put text with special characters in quotes"},
		{"name: a\nany: {" + strings.Repeat("b: c,", MaxItems+1) + "}", "2 [name]",
			"f:2: any: found 1001 keys, expected at most 1000"},
		{"name: a\neither: [b]", "2 [name]", "f:2: either: found a list, expected text or a mapping"},
		{"", "", "f: found an empty file, expected an install.yaml"},
		{"a: b\n---\nc: d", "", "f:2: found a second document, expected only one"},
		{"a:\n\t- b", "", "f:2: found a tab, expected spaces: YAML is indented with spaces only"},
		{"a: *CANARY", "", "f:1: found an alias (*), expected a value: put text that begins with * in quotes"},
		{"a:\n  [b,\n  c", "", "f:2: the block that begins here is not valid YAML: did not find expected ',' or ']' " +
			"(text with special characters or ${NAME} needs quotes here)"},
		{"{" + strings.Repeat("{}: b,", maxProblems) + "}", "0 []", "999 more"},
		{strings.Repeat("#", MaxSize+1), "", "f: found more than 256 KiB, expected an install.yaml"},
	} {
		value, report := found(test.text, read)
		if strings.HasSuffix(test.report, " more") { // too many to be listed here
			report = report[strings.LastIndex(report, "\n")+1:]
			test.report = "1 more"
		}
		if diff := cmp.Diff(test.report, report); diff != "" {
			t.Errorf("%.60q: reported (-want +got):\n%s", test.text, diff)
		}
		if value != test.want && !(value == nil && test.want == "") {
			t.Errorf("%.60q: got %v, want %v", test.text, value, test.want)
		}
	}
}

// TestExpandedIsBounded brings in more than all values together may have.
func TestExpandedIsBounded(t *testing.T) {
	text := "[" + strings.Repeat(`"${BIG}",`, 70) + "]"
	read := 0
	_, report := found(text, func(n Node) any {
		n.List(func(_ int, item Node) {
			if item.Secret().Reveal() != "" {
				read++
			}
		})
		return nil
	})
	if read != 64 || !strings.Contains(report, "f:1: [64]: environment variable BIG is too long") {
		t.Errorf("read %d values of 16 KiB\n%.200s", read, report)
	}
}

func TestPlainSecret(t *testing.T) {
	for text, want := range map[string]string{`["${WORD}", a, b]`: "[1]", `["${WORD}"]`: "", `["$${WORD}"]`: "[0]"} {
		d := Read("f", []byte(text), testEnv, func(root Node) { root.List(func(_ int, item Node) { item.Secret() }) })
		at, found := d.PlainSecret()
		if found != (want != "") || found && at.Path() != want {
			t.Errorf("%s: found %t", text, found)
		}
	}
}

func TestSound(t *testing.T) {
	for text, want := range map[string]bool{"a": true, "5": false} {
		d := Read("f", []byte(text), os.LookupEnv, func(root Node) {
			if got := root.Sound(func() { root.Secret() }); got != want {
				t.Errorf("%s is sound: %t", text, got)
			}
		})
		if problems, _ := d.Problems(); len(problems) == 0 != want {
			t.Errorf("%s: problems are %v", text, problems)
		}
	}
	if !(Node{}).IsZero() {
		t.Error("the zero node is somewhere")
	}
}

// TestDescribe has every kind of value once.
func TestDescribe(t *testing.T) {
	var read func(Node)
	read = func(n Node) {
		n.Needs(true, "a", "b")
		n.Mapping(
			Required("a", "A text.", func(n Node) { Text(n, func(s string) (string, error) { return s, nil }) }),
			Optional("b", "Words.", func(n Node) { n.List(func(_ int, n Node) { OneOf(n, "x", "y") }) }),
			Optional("c", "Itself.", func(n Node) { n.Defined("root", read) }),
			Optional("d", "Numbers.", func(n Node) {
				n.Entries("a key", lazyregexp.New("^k$"), func(_ string, at, n Node) {
					n.Number(1, 2)
					at.Fail("never reported")
				})
			}),
			Optional("e", "Either.", func(n Node) {
				n.Either(func(n Node) { n.Secret() }, func(n Node) { n.Needs(false, "f"); n.MappingOrNothing() })
			}),
			Optional("g", "Plain.", func(n Node) { n.PlainOrList(3) }),
			Optional("h", "Truth.", func(n Node) { n.Boolean(); n.Warn("never reported") }),
			Optional("i", "May be empty.", func(n Node) { n.LineOrEmpty() }),
			Optional("j", "Anything.", func(n Node) { n.DescribeAs("object") }),
		)
		if !n.Describes() {
			t.Error("the schema is made from a node that has a value")
		}
	}
	var got any
	if err := json.Unmarshal(Describe("a test", read), &got); err != nil {
		t.Fatal(err)
	}
	golden, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/schema.golden"
	if *update {
		if err := os.WriteFile(path, append(golden, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(golden)+"\n"); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}
