package outsideyaml

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// file is what the tests decode into: a file with known keys and others.
type file struct {
	Server string         `yaml:"server"`
	Labels []string       `yaml:"node-label"`
	Rest   map[string]any `yaml:",inline"`
}

// What is accepted means what it means to the library.
func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":           "",
		"a comment":         "# nothing\n",
		"null":              "---\n",
		"settings":          "server: https://a:6443\nnode-label: [a=b, c=d]\nv: 2\n",
		"an alias":          "node-label: &a [x, y]\nother: *a\n",
		"a key by an alias": "a: &a b\n*a : c\n",
		"a merge key":       "base: &b {server: a, v: 1}\n<<: *b\nv: 2\n",
		"several merged":    "b: &b {v: 1}\nc: &c {v: 2, w: 3}\n<<: [*b, *c]\n",
		"another document":  "server: a\n---\nserver: b\n",
		"keys once each":    "a: {x: 1, y: 2}\nb: {x: 1, y: 2}\n",
		"many keys":         distinct(MaxKeys),
		"deep":              strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth),
		"deep, keys":        "a: " + strings.Repeat("{x: ", MaxDepth-1) + strings.Repeat("}", MaxDepth-1),
	} {
		t.Run(name, func(t *testing.T) {
			var got, want any
			if err := yaml.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(err)
			}
			if err := Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(want, got) { // package cmp takes a time that doubles with every level
				t.Errorf("got %v, the library %v", got, want)
			}
			gotFile, wantFile := file{Server: "before"}, file{Server: "before"}
			wantErr := yaml.Unmarshal([]byte(text), &wantFile)
			if err := Unmarshal([]byte(text), &gotFile); fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Errorf("into a struct: got %v, the library says %v", err, wantErr)
			}
			if !reflect.DeepEqual(wantFile, gotFile) {
				t.Errorf("into a struct: got %+v, the library %+v", gotFile, wantFile)
			}
		})
	}
}

func distinct(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "key%d: v\n", i)
	}
	return text.String()
}

// hostile are documents that cost much where they are not refused, and what is said of them.
func hostile() map[string]struct{ text, want string } {
	long := "a: &a " + strings.Repeat("x", HostSize/2) + "\n"
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 8 {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 10))
	}
	var chain strings.Builder
	chain.WriteString("- &a0 [x]\n")
	for i := range MaxDepth {
		fmt.Fprintf(&chain, "- &a%d [*a%d]\n", i+1, i)
	}
	return map[string]struct{ text, want string }{
		"one key again and again": {strings.Repeat("secret: b\n", 1000), "line 2: a key is there already, on line 1"},
		"a key twice, far below": {"a:\n- b:\n    secret: 1\n    c: 2\n    secret: 3\n",
			"line 5: a key is there already, on line 3"},
		"a merge key twice": {"a: &a {b: c}\n<<: *a\n<<: *a\n", "line 3: a key is there already, on line 2"},
		"very many keys":    {distinct(MaxKeys + 1), "line 1: a mapping has more than 1000 keys"},
		"a list as a key": {long + "? [" + strings.Repeat("*a,", 1000) + "]\n: b\n",
			"line 2: a key is no single value"},
		"a list as a key, by an alias": {"a: &a [secret]\n*a : b\n",
			"line 2: a key is no single value"},
		"too large":              {strings.Repeat("#\n", HostSize/2+1), "it has 262146 bytes, more than 262144"},
		"very many values":       {"[" + strings.Repeat("a,", HostNodes) + "]", "it may have more than 50000 values"},
		"very many empty values": {strings.Repeat("-\n", HostNodes+1), "it may have more than 50000 values"},
		"aliases of aliases":     {laughs.String(), "it may have more than 50000 values"},
		"a long text again and again": {long + "b: [" + strings.Repeat("*a,", 1000) + "]\n",
			"line 2: aliases make more than 262144 bytes of it"},
		"very deep": {strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1),
			"line 1: more than 200 levels lie in each other"},
		"deep by aliases":    {chain.String(), "line 201: more than 200 levels lie in each other"},
		"an alias in itself": {"a: &a\n- secret\n- *a\n", "line 3: an alias is within what it stands for"},
	}
}

// What is refused costs no more than its size, and is not repeated in the error.
func TestRefused(t *testing.T) {
	for name, test := range hostile() {
		t.Run(name, func(t *testing.T) {
			const most = 64 << 20
			for _, v := range []any{new(any), new(map[string]any), new(file)} {
				var err error
				if cost := allocated(func() { err = Unmarshal([]byte(test.text), v) }); cost > most {
					t.Errorf("%T: %d MiB for %d kB", v, cost>>20, len(test.text)>>10)
				}
				if refusal := (*Refusal)(nil); !errors.As(err, &refusal) || err.Error() != test.want {
					t.Errorf("%T: got %v, want the refusal %s", v, err, test.want)
				}
			}
		})
	}
}

// What is accepted at all bounds costs no more than they say.
func TestBounds(t *testing.T) {
	const most = HostNodes - 3 // beside the list of all and the document
	full := "{" + strings.ReplaceAll(distinct(MaxKeys), "\n", ",") + "}"
	for name, text := range map[string]string{
		"lists":      strings.Repeat("-\n", most),
		"pairs":      "[" + strings.Repeat("a: b,", most/3) + "]",
		"a flow":     "[" + strings.Repeat("a,", most) + "]",
		"full keys":  "[" + strings.Repeat(full+",", most/MaxKeys/3) + "]",
		"the same":   "- &a " + full + "\n" + strings.Repeat("- *a\n", most/MaxKeys/2-2),
		"comments":   strings.Repeat("a #\n #\n", HostSize/7),
		"binary":     "a: &a !!binary " + strings.Repeat("AAAA", HostSize/16) + "\nb: [*a, *a]\n",
		"indented":   strings.Repeat("- ", MaxDepth-1) + "[" + strings.Repeat("a,", most-2*MaxDepth) + "]",
		"wrong kind": "server: a\nnode-label: [" + strings.Repeat("{},", most/2) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []any{new(any), new(file)} {
				cost := allocated(func() {
					if err := Unmarshal([]byte(text), v); errors.As(err, new(*Refusal)) {
						t.Error(err)
					}
				})
				if cost > HostNodes<<10 {
					t.Errorf("%T: %d MiB for %d kB, want %d", v, cost>>20, len(text)>>10, HostNodes>>10)
				}
			}
		})
	}
}

// allocated is how many bytes do takes, those that are given back among them.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A reader may ask for more than that a document costs little.
func TestStrict(t *testing.T) {
	for text, want := range map[string]string{
		"server: a\n":                            "",
		"server: a\n---\n":                       "it has more than one document",
		"server: a\n---\n{":                      "it has more than one document",
		"server: a\n--- &a\n" + "- *b\n":         "it has more than one document",
		"server: a\nother: b\n":                  "field other not found",
		strings.Repeat("server: a\n", 2):         "line 2: a key is there already, on line 1",
		"server: a\n---\n" + distinct(MaxKeys+1): "it has more than one document",
	} {
		var v struct{ Server string }
		err := Reader{KnownFields: true, OneDocument: true}.Unmarshal([]byte(text), &v)
		if want == "" && (err != nil || v.Server != "a") ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40q: got %v and %+v, want %q", text, err, v, want)
		}
	}
}

// For a library that looks keys up, only what that is no answer to is refused.
func TestAnyKeys(t *testing.T) {
	for text, want := range map[string]bool{
		"a: 1\na: 2\n": true, distinct(MaxKeys + 1): true, "a: 1\n---\n[a]: 1\n": false, "a: &a [*a]\n": false, "{": false,
	} {
		if err := (Reader{AnyKeys: true}).Check([]byte(text)); (err == nil) != want {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// Documents are told apart, what is wrong ends them, and they share one bound.
func TestDocuments(t *testing.T) {
	for _, test := range []struct {
		text, want string
		most       int
	}{
		{text: "a: 1\n---\n---\n- b\n", want: "map[a:1] <nil> [b]"},
		{text: "", want: ""},
		{text: "a: 1\n---\na: 1\na: 2\n---\nb\n", want: "map[a:1] line 4: a key is there already, on line 3"},
		{text: "a: 1\n---\n}\n", want: "map[a:1] yaml: line 2: did not find expected node content"},
		{text: "a\n" + strings.Repeat("--- a\n", 3), most: 10, want: "a a a a"},
		{text: "&a a\n--- [*a]\n", want: "a line 2: an alias stands for something in another document"},
		{
			text: strings.Repeat("---\n- &a [x, x, x, x]\n- *a\n", 4), most: 40,
			want: strings.Repeat("[[x x x x] [x x x x]] ", 3) + "it may have more than 40 values",
		},
	} {
		var got []string
		for document, err := range (Reader{MaxNodes: test.most}).Documents([]byte(test.text)) {
			var v any
			if err == nil {
				err = document.Decode(&v)
			}
			if err != nil {
				got = append(got, err.Error())
				continue
			}
			got = append(got, fmt.Sprint(v))
		}
		if got := strings.Join(got, " "); got != test.want {
			t.Errorf("%q: got %s, want %s", test.text, got, test.want)
		}
	}
}

// FuzzUnmarshal holds the reader to its contract: what is accepted costs little and is what the library takes it for;
// what the library takes is refused for a reason that is there.
func FuzzUnmarshal(f *testing.F) {
	for _, test := range hostile() {
		if len(test.text) < 4<<10 {
			f.Add([]byte(test.text))
		}
	}
	for _, text := range []string{
		"server: a\nnode-label:\n- b\n", "a: &a [x]\nb: *a\n", "<<: {a: b}\n", "? a\n: b\n", "!!binary YQ==: 1\n",
		"a: 1\n---\nb: 2\n", "\xff\xfea\x00:\x00 \x00b\x00", "a\u0085--- b\u2028...\u2029c", "{a, b: , ? c, [d: e]: f}",
		"- - - -\n- ? a\n", "a: |\n  - b: [c]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const maxSize, maxNodes = 4 << 10, 256
		r := Reader{MaxSize: maxSize, MaxNodes: maxNodes}
		var parsed int
		for document, err := range (Reader{MaxSize: maxSize, MaxNodes: 3*maxNodes + 2}).Documents(data) {
			if err != nil {
				break
			}
			parsed = max(parsed, count(document))
		}
		if c := (check{maxSize: maxSize, maxNodes: maxNodes}); c.text(data) == nil && parsed > 3*maxNodes+2 {
			t.Errorf("%d nodes of a text that was to have %d", parsed, maxNodes)
		}
		for _, v := range []func() any{func() any { return new(any) }, func() any { return new(file) }} {
			got, want := v(), v()
			var err error
			if cost := allocated(func() { err = r.Unmarshal(data, got) }); cost > 8<<20 {
				t.Errorf("%d kB for %d bytes", cost>>10, len(data))
			}
			var refusal *Refusal
			if errors.As(err, &refusal) {
				if refusal.First > 0 && yaml.Unmarshal(data, v()) == nil {
					t.Errorf("%v, and the library takes it", err)
				}
				if strings.Contains(refusal.Reason, strconv.Quote(refusal.Key)) && refusal.Key != "" {
					t.Errorf("%v", err)
				}
				continue
			}
			if wantErr := yaml.Unmarshal(data, want); fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Errorf("got %v, the library says %v", err, wantErr)
			}
			if got, want := fmt.Sprintf("%+v", deref(got)), fmt.Sprintf("%+v", deref(want)); got != want { // NaN is not itself
				t.Errorf("got %s, the library %s", got, want)
			}
		}
	})
}

func count(n *yaml.Node) int {
	all := 1
	for _, inner := range n.Content {
		all += count(inner)
	}
	return all
}

func deref(v any) any {
	switch v := v.(type) {
	case *any:
		return *v
	case *file:
		return *v
	}
	return v
}
