package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/liteboxd/boxlift/internal/progress"
)

//go:embed page.html
var body string

//go:embed page.css
var style string

// words are the texts that every document has.
var words = struct {
	Contents, Took, Empty Text
}{
	Contents: Both("Contents", "目录"),
	Took:     Both("took %s", "用时 %s"),
	Empty:    Both("No entries.", "没有条目。"),
}

// view is what the template is given.
type view struct {
	*Document
	Lang  Language
	Style template.CSS
}

// tileView is a tile with its place.
type tileView struct {
	Tile
	Place template.CSS
}

// groupView is a group with its place.
type groupView struct {
	Name  Text
	Size  int64
	Color int
	Place template.CSS
	Tiles []tileView
}

// colors is how many colors there are for groups.
const colors = 6

// Write writes a document in a language.
func Write(w io.Writer, d *Document, l Language) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"text":    func(t Text) string { return t.In(l) },
		"has":     func(t Text) bool { return t.In(l) != "" },
		"mark":    func(t Text) Mark { return t.mark },
		"foreign": func(t Text) bool { return t.foreign && l != English },
		"size":    progress.Bytes,
		"moment":  Moment,
		"stamp":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"took":    func(r Run) Text { return words.Took.With(progress.Duration(r.Took)) },
		"bar":     bars(d),
		"groups":  placeGroups,
		"words":   func() any { return words },
		"next":    func(i int) int { return i + 1 },
	}).Parse(body)
	if err != nil {
		return fmt.Errorf("read the form of the page: %w", err)
	}
	if err := t.Execute(w, view{Document: d, Lang: l, Style: template.CSS(style)}); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// bars says how long runs took, in percent of the longest.
func bars(d *Document) func(Run) string {
	var longest time.Duration
	for _, s := range d.Sections {
		for _, r := range s.Timeline {
			longest = max(longest, r.Took)
		}
	}
	return func(r Run) string {
		if longest == 0 {
			return "0"
		}
		return decimal(max(float64(r.Took)/float64(longest)*100, 1))
	}
}

// decimal writes a number as short as a page needs it.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) }

// style is the place of a rectangle as a declaration of CSS. It is made of numbers alone.
func (r rectangle) style() template.CSS {
	return template.CSS(fmt.Sprintf("left:%s%%;top:%s%%;width:%s%%;height:%s%%", decimal(r.X), decimal(r.Y),
		decimal(r.Width), decimal(r.Height)))
}

// placeGroups gives groups and tiles, which come in descending order of their sizes, their places.
func placeGroups(m *Map) []groupView {
	sizes := make([]int64, len(m.Groups))
	for i, g := range m.Groups {
		for _, tile := range g.Tiles {
			sizes[i] += tile.Size
		}
	}
	views := make([]groupView, 0, len(m.Groups))
	for i, place := range squarify(sizes, aspect) {
		g := m.Groups[i]
		v := groupView{Name: g.Name, Size: sizes[i], Color: i % colors, Place: place.style()}
		inner := make([]int64, len(g.Tiles))
		for at, tile := range g.Tiles {
			inner[at] = tile.Size
		}
		for at, place := range squarify(inner, aspect*place.Width/place.Height) {
			v.Tiles = append(v.Tiles, tileView{g.Tiles[at], place.style()})
		}
		views = append(views, v)
	}
	return views
}
