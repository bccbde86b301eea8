// Package httpanswer reads what registries and file servers answer, which is hostile: it may
// be of any length, and meant for a terminal.
package httpanswer

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// RetryAfter reads a Retry-After header, which is a number of seconds or a date (RFC 9110,
// 10.2.3). It returns 0 for what is neither, and for what is over.
func RetryAfter(header string, now time.Time) time.Duration {
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(now))
	}
	seconds, err := strconv.ParseInt(header, 10, 32)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Text makes a part of an answer fit for a message: one line of at most so many bytes, and
// an ellipsis where there was more.
func Text(content string, most int) string {
	return printable.Clip(strings.Join(strings.Fields(printable.Line(content)), " "), most)
}
