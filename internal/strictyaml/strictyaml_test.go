package strictyaml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// names are the codes in what tests compare.
var names = map[Code]string{
	TooLarge: "too large", BadCharacter: "character", Empty: "empty", SecondDocument: "second document",
	BadSyntax: "syntax", Alias: "alias", Anchor: "anchor", Tag: "tag", Block: "block", Nothing: "nothing",
	NotMapping: "no mapping", NotList: "no list", TooMany: "too many", UnknownKey: "unknown key",
	Repeated: "repeated", MissingKey: "missing",
}

// describe is a fault in one line: place, code, and what it carries.
func describe(f Fault) string {
	out := fmt.Sprintf("%d:%d %s: %s", f.Node.YAML.Line, f.Node.YAML.Column, f.Node.Path, names[f.Code])
	for _, part := range []string{f.Want, strings.Join(f.Keys, ","), f.Text} {
		if part != "" {
			out += " " + part
		}
	}
	if f.First != 0 {
		out += fmt.Sprintf(" first on %d", f.First)
	}
	if f.Most != 0 {
		out += fmt.Sprintf(" %d of %d", f.Count, f.Most)
	}
	if f.Syntax != nil {
		out += fmt.Sprintf(" %+v", *f.Syntax)
	}
	if f.InFlow {
		out += " in flow"
	}
	return out
}

// gatherer is a reader and what it reports.
type gatherer struct {
	Reader
	faults []string
}

func newGatherer() *gatherer {
	g := &gatherer{Reader: Reader{MaxSize: 1 << 10, MaxItems: 4, Printable: true}}
	g.Report = func(f Fault) { g.faults = append(g.faults, describe(f)) }
	return g
}

// root is a document that is known to be one.
func (g *gatherer) root(t *testing.T, text string) Node {
	t.Helper()
	root, ok := g.Document([]byte(text))
	if !ok {
		t.Fatalf("%q is no document: %v", text, g.faults)
	}
	return root
}

func TestFields(t *testing.T) {
	keys := []Key{{"name", true}, {"size", false}, {"tags", false}}
	const all = "name,size,tags"
	for _, test := range []struct {
		text  string
		read  string // the values that were handed over, in their order
		fault []string
	}{
		{"name: a\nsize: 5", "name=a size=5 ", nil},
		{"size: 5\nname: a", "size=5 name=a ", nil},
		{"{}", "", []string{"1:1 : missing " + all + " name"}},
		{"named: a\nname: b", "name=b ", []string{"1:1 : unknown key " + all}},
		{"name: a\nsize: 1\nname: b", "name=a size=1 ", []string{"3:1 : repeated " + all + " first on 1"}},
		{"name: a\nname: b\nname: c", "name=a ", []string{
			"2:1 : repeated " + all + " first on 1", "3:1 : repeated " + all + " first on 1"}},
		{"{name: a, b}", "name=a ", []string{"1:11 : unknown key " + all + " in flow"}},
		{"{name: a, b: null}", "name=a ", []string{"1:11 : unknown key " + all + " in flow"}},
		{"name: a\nb:", "name=a ", []string{"2:1 : unknown key " + all}},
		{"name: a\n5: b", "name=a ", []string{"2:1 : unknown key " + all}},
		{"name: a\n[x]: b", "name=a ", []string{"2:1 : unknown key " + all}},
		{"name: a\n<<: {size: 5}", "name=a ", []string{"2:1 : unknown key " + all}},
		{"name: a\n!!int size: 5", "name=a ", []string{"2:1 : unknown key " + all}},
		{"name: &a b\nsize: *a", "name=b size=a ", nil}, // whoever reads the values sees what they are
		{"- a", "", []string{"1:1 : no mapping a mapping " + all}},
		{"text", "", []string{"1:1 : no mapping a mapping " + all}},
		{"~", "", []string{"1:1 : nothing a mapping " + all}},
		{"&a {name: b}", "", []string{"1:1 : anchor a mapping " + all}},
		{"!x {name: b}", "", []string{"1:1 : tag a mapping " + all}},
	} {
		g := newGatherer()
		var read strings.Builder
		for i, value := range g.Fields(g.root(t, test.text), keys) {
			if value.Path != keys[i].Name {
				t.Errorf("%q: the path of %s is %q", test.text, keys[i].Name, value.Path)
			}
			fmt.Fprintf(&read, "%s=%s ", keys[i].Name, value.YAML.Value)
		}
		if diff := cmp.Diff(test.fault, g.faults); diff != "" || read.String() != test.read {
			t.Errorf("%q: read %q (-want +got):\n%s", test.text, read.String(), diff)
		}
	}
}

func TestEntries(t *testing.T) {
	for _, test := range []struct {
		text, read string
		fault      []string
	}{
		{"a: 1\nb.c: 2", "a=1 [\"b.c\"]=2 ", nil},
		{"{}", "", nil},
		{"a: 1\na: 2", "a=1 ", []string{"2:1 : repeated first on 1"}},
		{"5: 1\n\"5\": 2", "5=2 ", []string{"refused 5"}},
		{"{a: 1, b}", "a=1 b= ", []string{"b in flow"}},
		{"{a: 1, b: 2, c: 3, d: 4}", "a=1 b=2 c=3 d=4 ", nil},
		{"{a: 1, b: 2, c: 3, d: 4, e: 5}", "", []string{"1:1 : too many 5 of 4"}},
		{"x", "", []string{"1:1 : no mapping a mapping of words"}},
		{"", "", []string{"1:0 : empty"}},
		{"null", "", []string{"1:1 : nothing a mapping of words"}},
	} {
		g := newGatherer()
		root, ok := g.Document([]byte(test.text))
		var read strings.Builder
		if ok {
			for e := range g.Entries(root, "a mapping of words", func(e Entry) bool {
				if e.InFlow {
					g.faults = append(g.faults, e.Key.YAML.Value+" in flow")
				}
				if !e.Key.IsText() {
					g.faults = append(g.faults, "refused "+e.Key.YAML.Value)
				}
				return e.Key.IsText()
			}) {
				fmt.Fprintf(&read, "%s=%s ", e.Value.Path, e.Value.YAML.Value)
			}
		}
		if diff := cmp.Diff(test.fault, g.faults); diff != "" || read.String() != test.read {
			t.Errorf("%q: read %q (-want +got):\n%s", test.text, read.String(), diff)
		}
	}
}

func TestItems(t *testing.T) {
	for _, test := range []struct {
		text, read string
		fault      []string
	}{
		{"[a, b]", "[0]=a [1]=b ", nil},
		{"[]", "", nil},
		{"[a, b, c, d, e]", "", []string{"1:1 : too many 5 of 4"}},
		{"a: b", "", []string{"1:1 : no list a list"}},
		{"5", "", []string{"1:1 : no list a list"}},
		{"!!null x", "", []string{"1:1 : tag a list"}},
		{"&a [b]", "", []string{"1:1 : anchor a list"}},
	} {
		g := newGatherer()
		var read strings.Builder
		for i, item := range g.Items(g.root(t, test.text)) {
			fmt.Fprintf(&read, "[%d]=%s ", i, item.YAML.Value)
			if item.Path != fmt.Sprintf("[%d]", i) {
				t.Errorf("%q: the path of %d is %q", test.text, i, item.Path)
			}
		}
		if diff := cmp.Diff(test.fault, g.faults); diff != "" || read.String() != test.read {
			t.Errorf("%q: read %q (-want +got):\n%s", test.text, read.String(), diff)
		}
	}
}

// TestStops holds iterators to what range needs: nothing comes, and nothing is reported, after
// the loop has ended.
func TestStops(t *testing.T) {
	g := newGatherer()
	for range g.Fields(g.root(t, "{a: 1, zzz: 2}"), []Key{{"a", true}, {"b", true}}) {
		break
	}
	for range g.Entries(g.root(t, "{a: 1, a: 2}"), "a mapping", func(Entry) bool { return true }) {
		break
	}
	for range g.Items(g.root(t, "[a, b]")) {
		break
	}
	if len(g.faults) > 0 {
		t.Errorf("reported %v", g.faults)
	}
}

func TestPlain(t *testing.T) {
	g := newGatherer()
	g.Plain(g.root(t, "a: &x 1\nb: *x\nc: !!str 2\nd: |\n  text\ne: [\"plain\", &y {f: !z g}]\nh: >-\n  i\n"))
	want := []string{
		"1:4 : anchor", "2:4 : alias", "3:4 : tag", "4:4 : block", "6:14 : anchor", "6:21 : tag", "7:4 : block",
	}
	if diff := cmp.Diff(want, g.faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestKind(t *testing.T) {
	for text, want := range map[string]struct {
		kind                   Kind
		scalar, isText, isNull bool
		length                 int
	}{
		"{a: 1, b: 2}": {kind: Mapping, length: 2},
		"[a]":          {kind: List, length: 1},
		"a":            {kind: Text, scalar: true, isText: true},
		`"5"`:          {kind: Text, scalar: true, isText: true},
		"5":            {kind: Integer, scalar: true},
		"0x5":          {kind: Integer, scalar: true},
		"1.5":          {kind: Float, scalar: true},
		".inf":         {kind: Float, scalar: true},
		"true":         {kind: Bool, scalar: true},
		"yes":          {kind: Text, scalar: true, isText: true},
		"2026-01-02":   {kind: Date, scalar: true},
		"~":            {kind: Null, scalar: true, isNull: true},
		"&a ~":         {kind: Null, scalar: true},
		"!!null x":     {kind: Null, scalar: true},
		"<<":           {kind: MergeKey, scalar: true},
		"!x a":         {kind: Text, scalar: true},
	} {
		g := newGatherer()
		n := g.root(t, text)
		if n.Kind() != want.kind || n.IsScalar() != want.scalar || n.IsText() != want.isText ||
			n.IsNull() != want.isNull ||
			n.Len() != want.length {
			t.Errorf("%q: kind %d, scalar %t, text %t, null %t, length %d",
				text, n.Kind(), n.IsScalar(), n.IsText(), n.IsNull(), n.Len())
		}
	}
	alias := newGatherer().root(t, "[&a [b], *a]").YAML.Content[1]
	if n := (Node{YAML: alias}); n.Kind() != AliasNode || n.IsScalar() || n.IsNull() || n.Len() != 0 {
		t.Errorf("an alias is of kind %d, length %d", n.Kind(), n.Len())
	}
}

// build makes Go values of a document by walking it, as a reader of any document would.
func (g *gatherer) build(n Node) any {
	switch {
	case n.Kind() == Mapping:
		built := map[string]any{}
		for e := range g.Entries(n, "a mapping", func(e Entry) bool {
			if !e.Key.IsText() || !g.Usable(e.Key, "a key") {
				g.Report(Fault{Code: UnknownKey, Node: e.Key})
				return false
			}
			return true
		}) {
			built[e.Key.YAML.Value] = g.build(e.Value)
		}
		return built
	case n.Kind() == List:
		built := []any{}
		for _, item := range g.Items(n) {
			built = append(built, g.build(item))
		}
		return built
	case n.IsNull():
		return nil
	case !g.Usable(n, "a value"):
		return nil
	}
	var v any
	if err := n.YAML.Decode(&v); err != nil {
		g.Report(Fault{Code: NotMapping, Node: n})
	}
	return v
}

// FuzzReader holds the reader to its contract: a document without a fault is what any other
// reader of YAML takes it for, nothing is passed over, and faults have places in the file.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"", "a: 1\nb: [x, {c: d}]\n", "a: &x 1\nb: *x", "a: 1\na: 2", "{a: 1, b}", "a: 1\n---\nb: 2", "<<: {a: b}",
		"a:\n\t- b", "[" + strings.Repeat("x,", 9) +
			"]", "? [a]\n: b", "a: !!binary eA==", "\"a\\nb\": 2026-01-02", "a: |\n  b\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var places []Node
		faults := 0
		g := &gatherer{Reader: Reader{MaxSize: 1 << 12, MaxItems: 64, Printable: true}}
		g.Report = func(f Fault) { faults, places = faults+1, append(places, f.Node) }
		root, ok := g.Document(data)
		if ok != (faults == 0) || !ok && faults != 1 {
			t.Fatalf("%d faults, and the document is one: %t", faults, ok)
		}
		if ok {
			g.Plain(root)
			built := g.build(root)
			var want any
			if err := yaml.Unmarshal(data, &want); faults == 0 && err != nil {
				t.Errorf("no fault, but %v", err)
			}
			if got, want := fmt.Sprint(built), fmt.Sprint(want); faults == 0 && got != want {
				t.Errorf("read as %s, want %s", got, want)
			}
		}
		lines := strings.Count(string(data), "\n") + 2
		for _, n := range places {
			if n.YAML.Line < 1 || n.YAML.Line > lines {
				t.Errorf("line %d of %d", n.YAML.Line, lines)
			}
		}
	})
}
