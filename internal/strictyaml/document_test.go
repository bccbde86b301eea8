package strictyaml

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocument(t *testing.T) {
	for _, test := range []struct{ name, text, fault string }{
		{"a document", "a: 1\r\n", ""},
		{"nothing", "", "1:0 : empty"},
		{"only a comment", "# a\n", "1:0 : empty"},
		{"as large as allowed", "a: " + strings.Repeat("b", 1021), ""},
		{"too large", "a: " + strings.Repeat("b", 1022), "1:0 : too large 0 of 1024"},
		{"a second one", "a: 1\n---\nb: 2\n", "2:1 : second document"},
		{"a second one that is broken", "a: 1\n---\n}",
			"3:0 : syntax {Reason:did not find expected node content Anchor:false Begins:false Tab:false}"},
		{"an end without another", "a: 1\n...\n", ""},
		{"an unclosed list", "a:\n  [b,\n  c",
			"2:0 : syntax {Reason:did not find expected ',' or ']' Anchor:false Begins:true Tab:false}"},
		{"an odd indentation", "a:\n  b: 1\n c: 2",
			"3:0 : syntax {Reason:did not find expected key Anchor:false Begins:true Tab:false}"},
		{"a colon too many", "a: b: c",
			"1:0 : syntax {Reason:mapping values are not allowed in this context Anchor:false Begins:false Tab:false}"},
		{"a tab", "a:\n\tb: 1",
			"2:0 : syntax {Reason:found character that cannot start any token Anchor:false Begins:false Tab:true}"},
		{"an alias of nothing", "a: 1\nb: *c\n",
			"2:0 : syntax {Reason:unknown anchor 'c' referenced Anchor:true Begins:false Tab:false}"},
		{"an undefined tag", "a: 1\nb: !x!y z\n",
			"2:0 : syntax {Reason:found undefined tag handle Anchor:false Begins:false Tab:false}"},
		{"an escape", "a: \x1b[1m", "1:4 : character character U+001B"},
		{"a carriage return alone", "a: 1\rb: 2", "1:5 : character character U+000D"},
		{"another line end", "a: 1\nb: \u2028", "2:4 : character character U+2028"},
		{"a byte order mark", "\ufeffa: 1", "1:1 : character character U+FEFF"},
		{"what is no UTF-8", "a: ü\xff", "1:5 : character byte 0xFF"},
		{"a replacement character", "a: \ufffd", ""},
	} {
		g := newGatherer()
		root, ok := g.Document([]byte(test.text))
		if diff := cmp.Diff(test.fault, strings.Join(g.faults, "\n")); diff != "" || ok != (test.fault == "") ||
			ok != (root.YAML != nil) {
			t.Errorf("%s: ok is %t (-want +got):\n%s", test.name, ok, diff)
		}
	}
}

// A document whose characters are anybody's business is read as YAML reads it.
func TestDocumentOfAnyCharacters(t *testing.T) {
	g := newGatherer()
	g.Printable = false
	if n := g.root(t, "a: 1\rb: 2"); n.Len() != 2 {
		t.Errorf("got %d keys", n.Len())
	}
}

// What the YAML library does not say in its usual form still has a line.
func TestSyntaxFaultOfAnotherForm(t *testing.T) {
	f := syntaxFault([]byte("a"), errors.New("out of order"))
	want := "1:0 : syntax {Reason:out of order Anchor:false Begins:false Tab:false}"
	if got := describe(*f); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if indentedByTab([]byte("\ta"), 2) {
		t.Error("a line that is not there is indented by a tab")
	}
}

func TestJoin(t *testing.T) {
	long := strings.Repeat("k", maxShown)
	for _, test := range []struct{ path, key, want string }{
		{"", "a", "a"},
		{"a", "b-c_9", "a.b-c_9"},
		{"a", "b.c", `a["b.c"]`},
		{"", "b c", `["b c"]`},
		{"a", "", `a[""]`},
		{"a", "\x1b[1m\n", `a["\x1b[1m\n"]`},
		{"a", long, "a." + long},
		{"a", long + "k", `a["` + long + `..."]`},
	} {
		if got := Join(test.path, test.key); got != test.want {
			t.Errorf("%q below %q is %s, want %s", test.key, test.path, got, test.want)
		}
	}
}

func TestCut(t *testing.T) {
	for text, want := range map[string]string{"": "", "äöü": "äöü", "äöüß": "äöü..."} {
		if got := Cut(text, 3); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestInt(t *testing.T) {
	for _, test := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"1", 1, true}, {"90", 90, true}, {"100", 100, true},
		{"0", 0, false}, {"101", 0, false}, {"-5", 0, false}, {"+5", 0, false}, {"05", 0, false}, {"0x5", 0,
			false}, {"1_0",
			0, false},
		{"1.0", 0, false}, {" 1", 0, false}, {"", 0, false}, {"99999999999999999999", 0, false},
	} {
		if got, ok := Int(test.text, 1, 100); got != test.want || ok != test.ok {
			t.Errorf("%q: got %d, %t", test.text, got, ok)
		}
	}
}
