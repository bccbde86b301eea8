package redact

import (
	"slices"
	"strings"
)

// keyed masks values by the names of their keys. What it knows goes from line to line.
type keyed struct {
	// isNamed tells that the last name of an entry was that of a secret, whose value is to come.
	isNamed bool
	// quotes are what ends quoted values that began on lines before, which last for so many more lines. There are
	// several where it is not clear whether a line is part of such a value or has one of its own.
	quotes []string
	left   int
	// inBlock tells that the value is on the lines that begin further right than column, or at it with a dash where
	// isList.
	inBlock bool
	column  int
	isList  bool
}

// maxQuoted is how many lines a quoted value may have.
const maxQuoted = 50

// begin masks what a line has of a value that began before. hidden tells that the whole line is part of it.
func (k *keyed) begin(line string) (rest int, hidden bool) {
	if len(k.quotes) > 0 {
		k.quotes = slices.DeleteFunc(k.quotes, func(quote string) bool {
			at := strings.Index(line, quote)
			rest = max(rest, at)
			return at >= 0
		})
		if k.left--; k.left <= 0 {
			k.quotes = nil
		}
		if len(k.quotes) > 0 {
			return 0, true
		}
	}
	if !k.inBlock || strings.TrimSpace(line) == "" {
		return rest, false
	}
	column := run(line, isSpace)
	if column > k.column || column == k.column && k.isList && line[column] == '-' {
		key := line[column:]
		key = key[run(key, func(c byte) bool { return isSpace(c) || c == '-' || c == '"' || c == '\'' }):]
		key, _, found := strings.Cut(key, ":")
		return rest, !found || !isHarmless(strings.TrimRight(key, `"' `))
	}
	k.inBlock = false
	return rest, false
}

// skip notes what a line that is hidden says of the next ones: it may be hidden only because something before it did
// not end.
func (k *keyed) skip(line string) {
	was := *k
	k.find(line)
	if was.inBlock { // what is further right belongs to it, too
		k.inBlock, k.column, k.isList = true, was.column, was.isList
	}
}

// find returns what to mask of a line.
func (k *keyed) find(line string) []span {
	var found []span
	for at := 0; at < len(line); at++ {
		c := line[at]
		if c != ':' && c != '=' && c != '-' && c < 0x80 {
			continue
		}
		wide := strings.HasPrefix(line[at:], "：") // as Chinese texts have a colon
		isFlag := c == '-' && (at == 0 || !isKey(line[at-1]) || strings.HasPrefix(line[at:], "--"))
		switch {
		case wide, c == ':', c == '=':
			key, from := keyBefore(line, at)
			value := at + run(line[at:], func(c byte) bool { return c == ':' || c == '=' || c == '>' })
			if wide {
				value = at + len("：")
			}
			s := k.value(line, key, from, value, c == '=')
			if s.to > s.from {
				found = append(found, s)
			}
			if s.to == len(line) && s.to > s.from {
				return found // nothing is left to be masked
			}
		case isFlag:
			if s := flagValue(line, at); s.to > s.from {
				found = append(found, s)
			}
		}
	}
	return found
}

// keyBefore is the key that ends before a colon or an equals sign, and where it begins.
func keyBefore(line string, at int) (key string, from int) {
	end := at
	for end > 0 && strings.IndexByte(" \t\"'\\", line[end-1]) >= 0 {
		end--
	}
	from = end
	for from > 0 && isKey(line[from-1]) {
		from--
	}
	return line[from:end], from
}

// isKey reports whether a byte may be one of a key. Those of other scripts are.
func isKey(c byte) bool { return isAlphanumeric(c) || c == '-' || c == '_' || c == '.' || c >= 0x80 }

// value is the part of a line that is the value of a key, if that is a secret.
func (k *keyed) value(line, key string, from, at int, assigned bool) span {
	switch lower := strings.ToLower(key); {
	case lower == "name" || lower == "key":
		text := line[at:]
		text = text[run(text, func(c byte) bool { return isSpace(c) || strings.IndexByte(`"'\`, c) >= 0 }):]
		k.isNamed = isSecret(text[:run(text, isKey)])
		return span{}
	case lower == "value" && k.isNamed:
		k.isNamed = false
	case isSecret(key):
	case !assigned && at < len(line) && isSpace(line[at]) && isAnnounced(line[:from]):
		return span{at + 1, len(line)}
	default:
		return span{}
	}
	at += run(line[at:], isSpace)
	text := line[at:]
	closing := enclosing(line, from, from+len(key))
	if text == "" || strings.HasPrefix(text, "#") {
		k.goOn(line, from, true)
		return span{}
	}
	slashes := run(text, func(c byte) bool { return c == '\\' })
	switch c := (text + "\x00")[slashes]; {
	case c == '"' || c == '\'' && slashes == 0:
		quote := text[:slashes+1]
		begins := at + len(quote)
		end, ended := endOfQuoted(line, begins, quote)
		if !ended && end == len(line) {
			k.left = maxQuoted
			if !slices.Contains(k.quotes, quote) {
				k.quotes = append(k.quotes, quote)
			}
		}
		return span{begins, end}
	case strings.IndexByte("{[&!|>", text[0]) >= 0:
		k.goOn(line, from, true)
		return span{at, len(line)}
	case closing != "" && strings.Contains(text, closing):
		return span{at, at + strings.Index(text, closing)}
	case isPlain(text):
		return span{}
	case assigned && strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line[:from]), "export")) != "":
		n := 0
		for ; n < len(text) && !isSpace(text[n]); n++ {
			if text[n] == '\\' {
				n++ // as a shell has it
			}
		}
		return span{at, at + min(n, len(text))}
	}
	k.goOn(line, from, false)
	return span{at, len(line)}
}

// lose notes that the end of a line was left out: a value may have begun there.
func (k *keyed) lose(line string) {
	*k = keyed{isNamed: true, inBlock: true, column: run(line, isSpace), isList: true}
}

// goOn notes that the value of a key that begins at a place goes on with the lines further right.
func (k *keyed) goOn(line string, from int, isList bool) {
	column := run(line, func(c byte) bool { return isSpace(c) || c == '-' || c == '"' || c == '\'' })
	if column != from { // the key is not the first of its line
		column = run(line, isSpace)
	} else {
		for column > 0 && (line[column-1] == '"' || line[column-1] == '\'') {
			column--
		}
	}
	k.inBlock, k.column, k.isList = true, column, isList
}

// enclosing is the quote that a key stands right behind, and its value in, as in "TOKEN=a b", "" for none.
func enclosing(line string, from, end int) string {
	if from == 0 || line[from-1] != '"' && line[from-1] != '\'' || strings.IndexByte(`"'\`, line[end]) >= 0 {
		return ""
	}
	begins := from - 1
	for begins > 0 && line[begins-1] == '\\' {
		begins--
	}
	return line[begins:from]
}

// endOfQuoted is where a value ends that begins behind a quote, which may have backslashes before it: in JSON within a
// string.
func endOfQuoted(line string, begins int, quote string) (end int, ended bool) {
	slashes, mark := len(quote)-1, quote[len(quote)-1]
	for at := begins; at < len(line); at++ {
		switch {
		case line[at] == '\\' && mark == '"':
			n := run(line[at:], func(c byte) bool { return c == '\\' })
			next := at + n
			if next == len(line) {
				return len(line), false
			}
			if line[next] == mark && slashes > 0 && n <= slashes {
				return at, true
			}
			if line[next] == mark && slashes == 0 && n%2 == 0 {
				return next, true
			}
			at = next
		case line[at] != mark:
		case mark == '\'' && at+1 < len(line) && line[at+1] == mark:
			at++ // two stand for one, in YAML
		default:
			return at, true
		}
	}
	return len(line), false
}

// isPlain reports whether a value is one of those that are no secrets and say much: true, false, null.
func isPlain(text string) bool {
	for _, word := range []string{"true", "false", "null", "~"} {
		rest, found := strings.CutPrefix(text, word)
		if rest = strings.TrimLeft(rest, " \t"); found && (rest == "" || strings.IndexByte(",}]#", rest[0]) >= 0) {
			return true
		}
	}
	return false
}

// isAnnounced reports whether one of the last words before a colon says that a password follows, as in "the password of
// admin is now: ...".
func isAnnounced(before string) bool {
	const most = 8
	words := strings.Fields(before[max(0, len(before)-200):])
	for _, word := range words[max(0, len(words)-most):] {
		if isPassword(word) {
			return true
		}
	}
	return false
}

// flagValue is what follows a flag that is called like a secret, as words of a command or as elements of a list.
func flagValue(line string, at int) span {
	n := run(line[at:], isKey)
	name := line[at : at+n]
	if !isSecret(name) && name != "-u" && name != "--user" {
		return span{}
	}
	at += n
	gap := run(line[at:], func(c byte) bool { return isSpace(c) || strings.IndexByte(`"',\`, c) >= 0 })
	if gap == 0 {
		return span{}
	}
	quoted := strings.ContainsAny(line[at:at+gap], `"'`)
	at += gap
	if strings.HasPrefix(line[at:], "--") {
		return span{}
	}
	if quoted {
		end := strings.IndexAny(line[at:], `"'`)
		if end < 0 {
			end = len(line) - at
		}
		n = end
	} else {
		n = run(line[at:], func(c byte) bool { return !isSpace(c) })
	}
	if !isSecret(name) && !strings.Contains(line[at:at+n], ":") { // -u name:password, but not -u name
		return span{}
	}
	return span{at, at + n}
}
