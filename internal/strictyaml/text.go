package strictyaml

import (
	"strconv"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// maxShown is how many characters of a key stand in a path.
const maxShown = 80

var plainKey = lazyregexp.New(`^[A-Za-z0-9_-]{1,80}$`)

// Join returns the path of a key below another path: after a dot, or quoted and in brackets
// when it has other characters than letters, digits, - and _. Long keys are cut.
func Join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + Quote(key, maxShown) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// Quote returns a text of others in quotes, without control characters, and cut after so many
// characters.
func Quote(s string, most int) string { return strconv.Quote(Cut(s, most)) }

// Cut returns a text as it is, or so many characters of it and "...".
func Cut(s string, most int) string {
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return s
}

// Int reads a whole number in its only decimal form, without a leading zero or plus, and
// reports whether it is one from lowest to highest. YAML also knows 0x10, 0o17 and 1_000.
func Int(s string, lowest, highest int64) (int64, bool) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < lowest || v > highest || strconv.FormatInt(v, 10) != s {
		return 0, false
	}
	return v, true
}
