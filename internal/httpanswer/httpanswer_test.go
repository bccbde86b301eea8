package httpanswer

import (
	"strings"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "-5": 0, "soon": 0, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:04:15 GMT": 9500 * time.Millisecond, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := RetryAfter(header, now); got != want {
			t.Errorf("%q: %v, expected %v", header, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for content, want := range map[string]string{
		"":                              "",
		"two\r\n\tlines \n":             "two lines",
		"\x1b[31mred\x00\x7f":           "\ufffd[31m…",
		"\xff\xfe":                      "\ufffd\ufffd",
		"grün":                          "grün",
		strings.Repeat("a", 12):         strings.Repeat("a", 7) + "…",
		strings.Repeat("a", 9) + "üüüü": strings.Repeat("a", 7) + "…",
	} {
		if got := Text(content, 10); got != want {
			t.Errorf("%q: %q, expected %q", content, got, want)
		}
	}
}
