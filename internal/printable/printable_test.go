package printable

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestTextAndLine(t *testing.T) {
	for _, test := range []struct{ in, text, line string }{
		{"", "", ""},
		{"größe 10 µs 日本", "größe 10 µs 日本", "größe 10 µs 日本"},
		{"a\tb\r\nc\n", "a b \nc\n", "a b  c "},
		{"\x1b[2Jfatal", "�[2Jfatal", "�[2Jfatal"},
		{"c1 \u009b31m", "c1 �31m", "c1 �31m"},
		{"half \xe2\x82 and \xff", "half �� and �", "half �� and �"},
		{"reversed \u202e, joined \u200d, no break\u00a0", "reversed �, joined �, no break�", "reversed �, joined �, no break�"},
		{"lines\u2028and\u2029paragraphs\v\f\x00", "lines�and�paragraphs���", "lines�and�paragraphs���"},
	} {
		if got := Text(test.in); got != test.text {
			t.Errorf("Text(%q) = %q, want %q", test.in, got, test.text)
		}
		if got := Line(test.in); got != test.line {
			t.Errorf("Line(%q) = %q, want %q", test.in, got, test.line)
		}
	}
}

func TestCounted(t *testing.T) {
	for want, got := range map[string]string{
		"0 hosts": Counted(0, "host"), "1 host": Counted(1, "host"), "2 packets": Counted(uint64(2), "packet"),
	} {
		if got != want {
			t.Errorf("got %q, expected %q", got, want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, test := range []struct {
		in   string
		most int
		want string
	}{
		{"", 3, ""},
		{"as long as it may be", 20, "as long as it may be"},
		{"longer than it may be", 20, "longer than it ma…"},
		{"größe", 6, "gr…"},
		{"größe", 7, "größe"},
		{"größe größe", 7, "grö…"},
		{"日本", 5, "…"},
		{"日本", 3, "…"},
	} {
		if got := Clip(test.in, test.most); got != test.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", test.in, test.most, got, test.want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\tb\r\n\x1b[2J\u202e\xff", 5)
	f.Add("日本語", 4)
	f.Fuzz(func(t *testing.T, s string, most int) {
		line := Line(s)
		for _, r := range line {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %U", line, r)
			}
		}
		if text := Text(s); strings.Count(text, "\n") != strings.Count(s, "\n") || Text(text) != text {
			t.Errorf("%q of %q", text, s)
		}
		if most < len(ellipsis) || most > 1<<20 {
			return
		}
		if clipped := Short(s, most); len(clipped) > most || !utf8.ValidString(clipped) {
			t.Errorf("%q, to %d bytes: %q", line, most, clipped)
		}
	})
}

func TestLastLines(t *testing.T) {
	got := LastLines([]byte("one\n\n\x1b[31mtwo\x07\r\n  three  \nfo\xffur"), 3)
	want := []string{"\ufffd[31mtwo\ufffd", "three", "fo�ur"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := LastLines([]byte(strings.Repeat("x", 1<<20)), 20); len(got) != 1 || len(got[0]) != 400 {
		t.Errorf("a long line is not cut: %d lines", len(got))
	}
}
