package page

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"
)

var update = flag.Bool("update", false, "write the golden files")

// hostile are names that would do something if they were not texts.
var hostile = []string{
	`</style><script>alert(1)</script>`, `<img src=http://a.example/x onerror=alert(1)>`, `"><svg onload=alert(1)>`,
	"{{.}}", "\u202ereversed\x1b[31m", `' onmouseover='alert(1)`, "</title>", "javascript:alert(1)", "*/}", `\"}body{}`,
}

// everything has one of everything.
func everything() *Document {
	start := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	d := &Document{Kind: Both("Report", "报告"), Title: Plain("plant-7"), Made: Both("Made by %s.", "由 %s 生成。").With("boxlift"),
		Facts:   []Fact{{Both("Digest", "摘要"), Plain("sha256:0123").Marked(Code)}, {Both("None", "无"), Text{}}},
		Notices: []Notice{{Warned, Both("Not read: %s", "未能读取：%s").With(Said("no route to host"))}},
		Sections: []Section{
			{ID: "sizes", Title: Both("Sizes", "大小"), About: Both("By layer.", "按层。"),
				Map: &Map{About: Both("Map", "图"), Groups: []Group{
					{Name: Plain("k3s"), Tiles: []Tile{{Name: Plain("pause"), Size: 7 << 20, Note: Plain("linux/amd64")}, {Name: Plain("k3s"), Size: 1}}},
					{Name: Plain("cilium"), Tiles: []Tile{{Name: Plain("agent"), Size: 3 << 20}}},
				}},
				Tables: []Table{{Title: Both("Layers", "层"), Columns: []Column{{Title: Both("Layer", "层")}, {Title: Both("Size", "大小"), Numeric: true}},
					Rows: [][]Text{{Plain("pause"), Plain("7 MiB")}, {Said("what a program says"), {}}}}},
			},
			{ID: "runs", Title: Both("Runs", "操作"), Timeline: []Run{
				{Started: start, Took: time.Minute, Mark: Bad, Title: Plain("install"), State: Both("failed", "失败").Marked(Bad), Lines: []Text{Plain("by a@b")}},
				{Started: start.Add(time.Hour), Title: Plain("resume"), State: Both("running", "进行中")},
			}},
			{ID: "none", Title: Both("None", "无"), Notices: []Notice{{Good, Both("Well.", "正常。")}}, Tables: []Table{{Columns: []Column{{Title: Both("Host", "主机")}}, Narrow: true}}},
		},
	}
	return d
}

// withNames puts names wherever a text of others can be.
func withNames(names []string) *Document {
	d := everything()
	for _, n := range names {
		text := Plain(n)
		d.Title, d.Facts = text, append(d.Facts, Fact{text, text})
		d.Notices = append(d.Notices, Notice{Bad, Both("%s", "%s").With(n)})
		s := Section{ID: "names", Title: text, About: text, Timeline: []Run{{Title: text, State: text, Lines: []Text{Said(n)}}},
			Map:    &Map{About: text, Groups: []Group{{Name: text, Tiles: []Tile{{Name: text, Size: 1, Note: text}}}}},
			Tables: []Table{{Title: text, Columns: []Column{{Title: text}, {Title: text}}, Rows: [][]Text{{text, Said(n).Marked(Code)}}}}}
		d.Sections = append(d.Sections, s)
	}
	return d
}

func mustWrite(t testing.TB, d *Document, l Language) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, d, l); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for _, l := range []Language{English, Chinese} {
		got := string(mustWrite(t, everything(), l))
		name := filepath.Join("testdata", "everything."+string(l)+".html")
		if *update {
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs; -update writes it:\n%s", name, diff)
		}
	}
}

// elements are those that pages are made of, and attributes those that may have what texts say.
var (
	elements   = regexp.MustCompile(`^(html|head|meta|title|style|body|header|main|nav|section|h[1-3]|p|a|b|i|em|small|span|div|dl|dt|dd|ol|li|time|table|thead|tbody|tr|th|td)$`)
	attributes = regexp.MustCompile(`^(lang|charset|http-equiv|content|name|class|id|href|style|title|role|datetime|scope|aria-.*)$`)
	quoted     = regexp.MustCompile(`"(?:[^"\\\n]|\\[^\n])*"`)
	declared   = regexp.MustCompile(`^(left|top|width|height):[0-9.]+%(;|$)`)
)

// check fails the test when a page has something that refers outside, or that was made by a text.
func check(t *testing.T, content []byte) (texts []string) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	var links []string
	policy := false
	for n := range root.Descendants() {
		switch n.Type {
		case html.TextNode:
			if n.Parent.Data == "style" {
				rules := quoted.ReplaceAllString(n.Data, "")
				for _, word := range []string{"url(", "@import", "http", "image-set", "script", "{{"} {
					if strings.Contains(strings.ToLower(rules), word) {
						t.Errorf("the style has %s", word)
					}
				}
				if strings.ContainsAny(rules, `"'\\<`) || strings.Count(rules, "{") != strings.Count(rules, "}") {
					t.Errorf("a text ends within the style: %s", rules)
				}
			}
			texts = append(texts, n.Data)
		case html.CommentNode:
			t.Errorf("a comment: %q", n.Data)
		case html.ElementNode:
			if !elements.MatchString(n.Data) {
				t.Errorf("an element %s", n.Data)
			}
			for _, a := range n.Attr {
				switch {
				case !attributes.MatchString(a.Key):
					t.Errorf("an attribute %s of %s", a.Key, n.Data)
				case a.Key == "id":
					ids[a.Val] = true
				case a.Key == "href":
					links = append(links, a.Val)
				case a.Key == "style":
					for _, one := range strings.Split(a.Val, ";") {
						if !declared.MatchString(one) {
							t.Errorf("the style %q", a.Val)
						}
					}
				case a.Key == "content" && strings.HasPrefix(a.Val, "default-src 'none'; style-src 'unsafe-inline';"):
					policy = true
				}
			}
		default:
		}
	}
	for _, link := range links {
		if !strings.HasPrefix(link, "#") || !ids[link[1:]] {
			t.Errorf("a link to %q", link)
		}
	}
	if !policy {
		t.Error("no policy")
	}
	return texts
}

// TestSelfContained proves that nothing refers outside, whatever names there are, and that these are shown as texts.
func TestSelfContained(t *testing.T) {
	for _, l := range []Language{English, Chinese} {
		check(t, mustWrite(t, everything(), l))
		for _, name := range hostile {
			texts := check(t, mustWrite(t, withNames([]string{name}), l))
			shown := 0
			for _, text := range texts {
				if strings.Contains(text, Plain(name).In(l)) {
					shown++
				}
			}
			if shown < 10 {
				t.Errorf("%q is shown %d times", name, shown)
			}
		}
	}
}

func FuzzWrite(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a, b := mustWrite(t, withNames([]string{name}), Chinese), mustWrite(t, withNames([]string{name}), Chinese)
		check(t, a)
		if !bytes.Equal(a, b) {
			t.Error("the same document gives other bytes")
		}
	})
}

// TestSquarify proves that areas are as large as they are to be, within the map, and do not cover each other.
func TestSquarify(t *testing.T) {
	for name, sizes := range map[string][]int64{
		"one": {5}, "two": {1, 1}, "steep": {1 << 40, 1 << 20, 3, 1}, "zeros": {0, 0}, "with a zero": {3, 0},
		"many": {90, 80, 80, 70, 55, 40, 40, 31, 30, 22, 21, 13, 8, 8, 5, 3, 2, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var total, sum float64
			for _, s := range sizes {
				total += float64(s)
			}
			placed := squarify(sizes, aspect)
			if total == 0 {
				if len(placed) > 0 {
					t.Errorf("%v", placed)
				}
				return
			}
			if len(placed) != len(sizes) {
				t.Fatalf("%d of %d are placed", len(placed), len(sizes))
			}
			for i, r := range placed {
				sum += r.Width * r.Height
				if want := float64(sizes[i]) / total * 1e4; math.Abs(r.Width*r.Height-want) > 0.01 {
					t.Errorf("%d: %v has %f, not %f", i, r, r.Width*r.Height, want)
				}
				if r.X < -1e-6 || r.Y < -1e-6 || r.X+r.Width > 100+1e-6 || r.Y+r.Height > 100+1e-6 || math.IsNaN(r.X+r.Y) {
					t.Errorf("%d: %v is outside", i, r)
				}
				for j, o := range placed[:i] {
					if r.X+1e-6 < o.X+o.Width && o.X+1e-6 < r.X+r.Width && r.Y+1e-6 < o.Y+o.Height && o.Y+1e-6 < r.Y+r.Height {
						t.Errorf("%d %v covers %d %v", i, r, j, o)
					}
				}
			}
			if math.Abs(sum-1e4) > 0.1 {
				t.Errorf("all have %f", sum)
			}
		})
	}
}

// TestWords checks that what every document has is there in both languages.
func TestWords(t *testing.T) {
	v := reflect.ValueOf(words)
	for i := range v.NumField() {
		if v.Field(i).Interface().(Text).IsEmpty() {
			t.Errorf("%s lacks a language", v.Type().Field(i).Name)
		}
	}
}

func TestParseLanguage(t *testing.T) {
	for _, text := range []string{"en", "zh"} {
		if l, err := ParseLanguage(text); err != nil || string(l) != text {
			t.Errorf("%s: %q, %v", text, l, err)
		}
	}
	if _, err := ParseLanguage("de"); err == nil || !strings.Contains(err.Error(), `language "de": expected en or zh`) {
		t.Error(err)
	}
}
