package httpanswer

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func FuzzRetryAfter(f *testing.F) {
	for _, header := range []string{
		"", "5", "-5", "+5", "99999999999999999999", "Fri, 02 Jan 2026 03:04:15 GMT", "soon",
	} {
		f.Add(header)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, header string) {
		if got := RetryAfter(header, now); got < 0 {
			t.Errorf("%q: %v, expected none below zero", header, got)
		}
	})
}

func FuzzText(f *testing.F) {
	for _, content := range []string{
		"", "two\r\nlines", "\x1b[31mred", "\xff\xfe", "grün", "\u202egnp.exe", "a\u2028b",
	} {
		f.Add(content, 10)
	}
	f.Fuzz(func(t *testing.T, content string, most int) {
		most = 3 + max(0, most)%1000
		got := Text(content, most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Errorf("%q of at most %d bytes: %q", content, most, got)
		}
		if strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("%q: %q has control characters", content, got)
		}
	})
}
