package redact

import (
	"encoding/base64"
	"strings"
)

// span is a part of a line, in bytes.
type span struct{ from, to int }

// form is a secret that is known by how it looks, wherever it stands.
type form struct {
	// anchor is what it begins with, or has in it, in lower case where fold is.
	anchor string
	fold   bool
	// find returns what to mask of a line that has the anchor at a place; nothing where it is none.
	find func(line string, at int) span
}

var forms = []form{
	// k3s: K10, a sha256, "::", a user and a password (k3s docs, token).
	{anchor: "K10", find: func(line string, at int) span {
		if run(line[at+3:], isHex) < 10 {
			return span{}
		}
		return span{at, at + run(line[at:], isBare)}
	}},
	{anchor: "eyJ", find: func(line string, at int) span { // {" in base64
		const least = 16
		if n := run(line[at:], func(c byte) bool { return isBase64(c) || c == '.' || c == '=' }); n >= least {
			return span{at, at + n}
		}
		return span{}
	}},
	{anchor: "bearer", fold: true, find: func(line string, at int) span {
		return credential(line, at+len("bearer"), 8, nil)
	}},
	{anchor: "basic", fold: true, find: func(line string, at int) span {
		return credential(line, at+len("basic"), 4, func(text string) bool {
			// What follows it without a blank makes it no less of a secret.
			n := run(text, func(c byte) bool { return isAlphanumeric(c) || c == '+' || c == '/' })
			plain, err := base64.RawStdEncoding.DecodeString(text[:n-n%4])
			return err == nil && strings.Contains(string(plain), ":")
		})
	}},
	{anchor: "age-secret-key-", fold: true, find: func(line string, at int) span {
		return span{at, at + run(line[at:], func(c byte) bool { return isAlphanumeric(c) || c == '-' })}
	}},
	{anchor: "age-plugin-", fold: true, find: func(line string, at int) span {
		return span{at, at + run(line[at:], func(c byte) bool { return isAlphanumeric(c) || c == '-' })}
	}},
	{anchor: "://", find: userOfURL},
	// Go's MySQL driver: user:password@tcp(host)/database.
	{anchor: "@tcp(", find: userBefore}, {anchor: "@unix(", find: userBefore},
	// crypt(3), bcrypt, Argon2, Apache's MD5.
	hash("$1$"), hash("$2a$"), hash("$2b$"), hash("$2y$"), hash("$5$"), hash("$6$"), hash("$y$"), hash("$argon2"),
	hash("$apr1$"),
	prefixed("ghp_", 20), prefixed("gho_", 20), prefixed("ghu_", 20), prefixed("ghs_", 20), prefixed("ghr_", 20),
	prefixed("github_pat_", 20), prefixed("glpat-", 16), prefixed("xoxb-", 16), prefixed("xoxp-", 16),
	prefixed("AKIA", 16), prefixed("ASIA", 16), prefixed("hvs.", 20),
	{anchor: ".", find: bootstrapToken},
}

// byForm are the parts of a line that look like secrets. folded is the line in lower case, as far as ASCII goes.
func byForm(line, folded string) []span {
	var found []span
	for _, f := range forms {
		text := line
		if f.fold {
			text = folded
		}
		for at := 0; ; at++ {
			next := strings.Index(text[at:], f.anchor)
			if next < 0 {
				break
			}
			at += next
			if s := f.find(line, at); s.to > s.from {
				found = append(found, s)
			}
		}
	}
	return append(found, longBase64(line)...)
}

// credential is what follows the name of a scheme of the header Authorization.
func credential(line string, at, least int, fits func(string) bool) span {
	blank := run(line[at:], func(c byte) bool { return strings.IndexByte(" \t:=\"\\", c) >= 0 })
	if blank == 0 {
		return span{}
	}
	at += blank
	n := run(line[at:], func(c byte) bool { return isBase64(c) || strings.IndexByte("._~=", c) >= 0 })
	if n < least || fits != nil && !fits(line[at:at+n]) {
		return span{}
	}
	return span{at, at + n}
}

// userOfURL is what stands before the last @ of a URL's authority. A password may have a slash in it, although it must
// not: what follows a colon counts until the @, unless it is a port.
func userOfURL(line string, at int) span {
	at += len("://")
	rest := line[at : at+run(line[at:], func(c byte) bool { return !isSpace(c) && strings.IndexByte("\"'<>`", c) < 0 })]
	authority, _, _ := strings.Cut(rest, "/")
	if end := strings.LastIndexByte(authority, '@'); end > 0 {
		return span{at, at + end}
	}
	_, after, hasColon := strings.Cut(authority, ":")
	end := strings.LastIndexByte(rest, '@')
	if !hasColon || end < 0 || after != "" && len(after) <= 5 && run(after, isDigit) == len(after) {
		return span{}
	}
	return span{at, at + end}
}

// userBefore is what stands before an @, if it has a colon in it.
func userBefore(line string, at int) span {
	from := at
	for from > 0 && !isSpace(line[from-1]) && strings.IndexByte("\"'`", line[from-1]) < 0 {
		from--
	}
	if !strings.Contains(line[from:at], ":") {
		return span{}
	}
	return span{from, at}
}

func hash(beginning string) form {
	return form{anchor: beginning, find: func(line string, at int) span {
		n := run(line[at:], func(c byte) bool { return isBase64(c) || strings.IndexByte("$.=,", c) >= 0 })
		if n < len(beginning)+8 {
			return span{}
		}
		return span{at, at + n}
	}}
}

func prefixed(beginning string, least int) form {
	return form{anchor: beginning, find: func(line string, at int) span {
		n := run(line[at+len(beginning):], isBase64)
		if n < least {
			return span{}
		}
		return span{at, at + len(beginning) + n}
	}}
}

// bootstrapToken is six characters, a dot and sixteen, as kubeadm and k3s have them, at least one of these a digit.
func bootstrapToken(line string, at int) span {
	const before, after = 6, 16
	isPart := func(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' }
	rest := line[at+1:]
	if at < before || run(rest, isPart) != after ||
		len(rest) > after && (isAlphanumeric(rest[after]) || rest[after] == '.') ||
		!strings.ContainsAny(rest[:after], "0123456789") {
		return span{}
	}
	from := at - before
	if run(line[from:], isPart) != before || from > 0 && (isAlphanumeric(line[from-1]) || line[from-1] == '.') {
		return span{}
	}
	return span{from, at + 1 + after}
}

// Of so many bytes of base64 in a row, so many are capitals, small letters and digits at least, if they are random:
// words, paths, names and digests have fewer.
const (
	base64Window  = 40
	base64Letters = 6
	base64Digits  = 2
)

// longBase64 are runs of base64 that have a part which is as long and mixed as random bytes are.
func longBase64(line string) []span {
	var found []span
	for at := 0; at < len(line); at++ {
		n := run(line[at:], isBase64)
		if n >= base64Window && isMixed(line[at:at+n]) {
			found = append(found, span{at, at + n})
		}
		at += n
	}
	return found
}

func isMixed(text string) bool {
	upper, lower, digits := 0, 0, 0
	count := func(c byte, n int) {
		switch {
		case isDigit(c):
			digits += n
		case 'A' <= c && c <= 'Z':
			upper += n
		case 'a' <= c && c <= 'z':
			lower += n
		}
	}
	for i := range len(text) {
		count(text[i], 1)
		if i >= base64Window {
			count(text[i-base64Window], -1)
		}
		if i+1 >= base64Window && upper >= base64Letters && lower >= base64Letters && digits >= base64Digits {
			return true
		}
	}
	return false
}

// run is how many bytes at the beginning of a text are of a kind.
func run(text string, is func(byte) bool) int {
	for i := range len(text) {
		if !is(text[i]) {
			return i
		}
	}
	return len(text)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isAlphanumeric(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isHex(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }

func isBase64(c byte) bool { return base64Bytes[c] }

// base64Bytes are the bytes of both alphabets of base64: every byte of a log is looked up here.
var base64Bytes = func() (is [256]bool) {
	for c := range is {
		is[c] = isAlphanumeric(byte(c)) || strings.IndexByte("+/-_", byte(c)) >= 0
	}
	return is
}()

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// isBare reports whether a byte does not end a word that has no quotes.
func isBare(c byte) bool { return !isSpace(c) && c != '"' && c != '\'' && c != '`' }
