// Package page writes a document as one HTML file, in one of two languages.
//
// Contract: who has something to report makes a [Document] of plain values, and knows nothing of HTML; [Write] knows
// nothing of what it is about. The file refers to nothing outside of itself: no script, no picture, no font, no
// address, and a Content-Security-Policy (https://www.w3.org/TR/CSP3/) in it that allows its own styles alone. It can
// be read on a telephone (375 pixels), on a screen, on paper, and by a screen reader: what a picture shows is in a
// table as well. The same document gives the same bytes.
//
// Whatever a text holds, it stays a text: texts of others go through [Plain] or [Said], which make them fit to be
// shown, and html/template escapes all of them where they stand.
package page

import (
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Language is one that a document can be written in, by its subtag in the IANA registry (RFC 5646).
type Language string

// The languages.
const (
	English Language = "en"
	Chinese Language = "zh" // simplified
)

// ParseLanguage reads a language.
func ParseLanguage(text string) (Language, error) {
	switch l := Language(text); l {
	case English, Chinese:
		return l, nil
	}
	return "", fault.Usage.Errorf("language %q: expected %s or %s", text, English, Chinese)
}

// Mark says what a text means, beside its words.
type Mark string

// The marks.
const (
	Unmarked Mark = ""
	Good     Mark = "good"
	Warned   Mark = "warn"
	Bad      Mark = "bad"
	// Faint is what is there for completeness.
	Faint Mark = "faint"
	// Code is what people copy or compare: a digest, a command.
	Code Mark = "code"
)

// Text is a text in both languages. The zero value is empty.
type Text struct {
	english, chinese string
	mark             Mark
	// foreign is English in every document: words of programs, which are not translated.
	foreign bool
}

// Both is a text of boxlift's own.
func Both(english, chinese string) Text { return Text{english: english, chinese: chinese} }

// maxText is how much of a text of others is shown, in bytes.
const maxText = 2 << 10

// Plain is a text that is the same in both: a name, a version, a size.
func Plain(text string) Text {
	text = printable.Short(text, maxText)
	return Text{english: text, chinese: text}
}

// Said is what a program has said, in its own words, which are English.
func Said(text string) Text {
	t := Plain(text)
	t.foreign = t.english != ""
	return t
}

// Number is a count.
func Number(n int) Text { return Plain(fmt.Sprint(n)) }

// Moment is a time, to the second and in UTC; empty for the zero time.
func Moment(t time.Time) Text {
	if t.IsZero() {
		return Text{}
	}
	return Plain(t.UTC().Format("2006-01-02 15:04:05 UTC"))
}

// Marked is the text with a mark.
func (t Text) Marked(m Mark) Text {
	t.mark = m
	return t
}

// With is the text with values in the places of its verbs, as fmt has them. Texts are put in by their languages, and
// strings are made fit to be shown.
func (t Text) With(values ...any) Text {
	english, chinese := make([]any, len(values)), make([]any, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case Text:
			english[i], chinese[i] = v.english, v.chinese
		case string:
			v = printable.Short(v, maxText)
			english[i], chinese[i] = v, v
		default:
			english[i], chinese[i] = v, v
		}
	}
	t.english, t.chinese = fmt.Sprintf(t.english, english...), fmt.Sprintf(t.chinese, chinese...)
	return t
}

// In is the text in a language.
func (t Text) In(l Language) string {
	if l == Chinese {
		return t.chinese
	}
	return t.english
}

// IsEmpty reports whether there is nothing to show in one of the languages.
func (t Text) IsEmpty() bool { return t.english == "" || t.chinese == "" }

// Document is what a file shows.
type Document struct {
	// Kind says what it is a report of, Title which one.
	Kind, Title Text
	// Made says what has made it, and when, if that is of the report.
	Made     Text
	Facts    []Fact
	Notices  []Notice
	Sections []Section
}

// Fact is a name with its value.
type Fact struct{ Name, Value Text }

// Notice is a sentence that stands out.
type Notice struct {
	Mark Mark
	Text Text
}

// Section is a part of a document under a heading. Its parts are shown in the order of its fields.
type Section struct {
	// ID is its name in addresses within the file: lower-case letters and hyphens, no two the same.
	ID       string
	Title    Text
	About    Text
	Notices  []Notice
	Facts    []Fact
	Map      *Map
	Timeline []Run
	Tables   []Table
}

// Map shows sizes as areas. A table beside it has to have the figures.
type Map struct {
	// About is what is read out in its place.
	About  Text
	Groups []Group
}

// Group is what belongs together.
type Group struct {
	Name  Text
	Tiles []Tile
}

// Tile is one area.
type Tile struct {
	Name Text
	// Size is in bytes, more than 0.
	Size int64
	// Note is shown below the name.
	Note Text
}

// Run is one thing that was done at some time.
type Run struct {
	Started time.Time
	// Took is 0 for one whose end is not known.
	Took time.Duration
	Mark Mark
	// Title says what was done, State what came of it.
	Title, State Text
	Lines        []Text
}

// Table is rows of cells. The first cell of a row names it.
type Table struct {
	Title   Text
	Columns []Column
	Rows    [][]Text
	// Narrow has the cells of a row beside each other on a narrow screen, for long tables of short cells.
	Narrow bool
}

// Column is one of a table.
type Column struct {
	Title   Text
	Numeric bool
}
