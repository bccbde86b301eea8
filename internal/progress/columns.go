package progress

import "unicode"

// cut shortens s to at most columns by taking out its middle: both what is done and
// to which host or tag stand at the ends.
func cut(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	if columns <= 0 {
		return ""
	}
	const gap = "..."
	keep := columns - len(gap)
	if keep < 2 {
		return takeColumns(s, columns)
	}
	runes := []rune(s)
	head := takeColumns(s, (keep+1)/2)
	tail, used := len(runes), 0
	for tail > 0 && used+runeWidth(runes[tail-1]) <= keep/2 {
		tail--
		used += runeWidth(runes[tail])
	}
	return head + gap + string(runes[tail:])
}

// clip shortens s to at most columns by taking away its end: what matters most stands at the beginning.
func clip(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	const gap = "..."
	if columns <= 2*len(gap) {
		return takeColumns(s, columns)
	}
	return takeColumns(s, columns-len(gap)) + gap
}

// takeColumns returns the longest beginning of s that fits.
func takeColumns(s string, columns int) string {
	used := 0
	for i, r := range s {
		if used += runeWidth(r); used > columns {
			return s[:i]
		}
	}
	return s
}

// width is the number of terminal columns that s takes.
func width(s string) int {
	sum := 0
	for _, r := range s {
		sum += runeWidth(r)
	}
	return sum
}

// runeWidth knows the scripts that take two columns, as file names and host
// descriptions may be in Chinese, and marks that take none.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo),
		r >= 0x3000 && r <= 0x303e, r >= 0xff01 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r == 0x1f004, r == 0x1f0cf, r >= 0x1f18e && r <= 0x1f19a,
		r >= 0x1f1e6 && r <= 0x1faff, unicode.Is(wideSymbols, r):
		return 2
	}
	return 1
}

// wideSymbols are those of the older blocks that take two columns because they are shown as emoji
// (EastAsianWidth.txt of Unicode 15, property W).
var wideSymbols = &unicode.RangeTable{R16: []unicode.Range16{
	{Lo: 0x231a, Hi: 0x231b, Stride: 1}, {Lo: 0x2329, Hi: 0x232a, Stride: 1}, {Lo: 0x23e9, Hi: 0x23ec, Stride: 1},
	{Lo: 0x23f0, Hi: 0x23f3, Stride: 3}, {Lo: 0x25fd, Hi: 0x25fe, Stride: 1}, {Lo: 0x2614, Hi: 0x2615, Stride: 1},
	{Lo: 0x2648, Hi: 0x2653, Stride: 1}, {Lo: 0x267f, Hi: 0x267f, Stride: 1}, {Lo: 0x2693, Hi: 0x2693, Stride: 1},
	{Lo: 0x26a1, Hi: 0x26a1, Stride: 1}, {Lo: 0x26aa, Hi: 0x26ab, Stride: 1}, {Lo: 0x26bd, Hi: 0x26be, Stride: 1},
	{Lo: 0x26c4, Hi: 0x26c5, Stride: 1}, {Lo: 0x26ce, Hi: 0x26ce, Stride: 1}, {Lo: 0x26d4, Hi: 0x26d4, Stride: 1},
	{Lo: 0x26ea, Hi: 0x26ea, Stride: 1}, {Lo: 0x26f2, Hi: 0x26f3, Stride: 1}, {Lo: 0x26f5, Hi: 0x26f5, Stride: 1},
	{Lo: 0x26fa, Hi: 0x26fa, Stride: 1}, {Lo: 0x26fd, Hi: 0x26fd, Stride: 1}, {Lo: 0x2705, Hi: 0x2705, Stride: 1},
	{Lo: 0x270a, Hi: 0x270b, Stride: 1}, {Lo: 0x2728, Hi: 0x2728, Stride: 1}, {Lo: 0x274c, Hi: 0x274c, Stride: 1},
	{Lo: 0x274e, Hi: 0x274e, Stride: 1}, {Lo: 0x2753, Hi: 0x2755, Stride: 1}, {Lo: 0x2757, Hi: 0x2757, Stride: 1},
	{Lo: 0x2795, Hi: 0x2797, Stride: 1}, {Lo: 0x27b0, Hi: 0x27b0, Stride: 1}, {Lo: 0x27bf, Hi: 0x27bf, Stride: 1},
	{Lo: 0x2b1b, Hi: 0x2b1c, Stride: 1}, {Lo: 0x2b50, Hi: 0x2b50, Stride: 1}, {Lo: 0x2b55, Hi: 0x2b55, Stride: 1},
	{Lo: 0xa490, Hi: 0xa4c6, Stride: 1}, {Lo: 0xa960, Hi: 0xa97c, Stride: 1}, {Lo: 0xfe10, Hi: 0xfe19, Stride: 1},
	{Lo: 0xfe30, Hi: 0xfe6b, Stride: 1},
}}
