package supportbundle

import (
	"bytes"
	"testing"
)

func TestLogEnd(t *testing.T) {
	for name, test := range map[string]struct {
		text, want string
		wasCut     bool
	}{
		"whole":               {logBegin + "\nfirst\n  more of it\nsecond", "first\n  more of it\nsecond", false},
		"whole, and empty":    {logBegin + "\n", "", false},
		"cut":                 {"f a line\nsecond\nthird\n", "second\nthird\n", true},
		"cut within an entry": {"half\n  more of it\n\tand more\n\nsecond\n  x\n", "second\n  x\n", true},
		"cut in its mark":     {logBegin[5:] + "\nfirst\n", "first\n", true},
		"one line":            {"half a line", "", false},
		"nothing":             {"", "", false},
	} {
		for _, size := range []int{1, 2, 3, 7, 1000} {
			var out bytes.Buffer
			l := &logEnd{w: &out}
			for rest := []byte(test.text); len(rest) > 0; {
				n, err := l.Write(rest[:min(size, len(rest))])
				if err != nil || n == 0 {
					t.Fatal(n, err)
				}
				rest = rest[n:]
			}
			if out.String() != test.want || l.wasCut != test.wasCut {
				t.Errorf("%s, in pieces of %d: %q, %t, want %q, %t", name, size, out.String(), l.wasCut, test.want, test.wasCut)
			}
		}
	}
}
