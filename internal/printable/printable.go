// Package printable makes texts fit to be shown that come from hosts, registries, images and
// clusters: they may hold what moves a terminal's cursor, hides or reverses other text, or
// makes one line of a log look like two, and they may be of any length. It also has what messages
// have in common.
package printable

import (
	"fmt"
	"strings"
	"unicode"
)

const ellipsis = "…"

// Text replaces every character that does not print (unicode.IsPrint), and every byte that is
// not of UTF-8, by U+FFFD. Line feeds stay; tabs and carriage returns become spaces.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\r':
			return ' '
		case r == '\n' || unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Line is Text with spaces for line feeds too: one line.
func Line(s string) string {
	return strings.ReplaceAll(Text(s), "\n", " ")
}

// Clip cuts s so that it has at most so many bytes, no character in halves, and ends it with
// an ellipsis, which is counted, where there was more.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:max(0, most-len(ellipsis))], "") + ellipsis
}

// Short is Line, clipped.
func Short(s string, most int) string { return Clip(Line(s), most) }

// Counted is a number of things: "1 host", "2 hosts".
func Counted[N int | uint64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// LastLines returns the last n lines of a program's output that are not blank, each as [Line] has it and clipped, fit
// to be shown on a terminal.
func LastLines(output []byte, n int) []string {
	const maxLine = 400
	var lines []string
	for line := range strings.Lines(string(output[max(0, len(output)-n*maxLine):])) {
		if line = strings.TrimSpace(Line(line)); line == "" {
			continue
		}
		lines = append(lines, Clip(line, maxLine))
	}
	return lines[max(0, len(lines)-n):]
}
