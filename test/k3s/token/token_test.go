package token

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for _, test := range []struct {
		text string
		want Token
		bad  bool
	}{
		{text: "K10" + hash + "::server:p:q", want: Token{Hash: hash, User: "server", Password: "p:q"}},
		{text: "K10" + hash + "::abcdef.0123456789abcdef", want: Token{Hash: hash, Password: "abcdef.0123456789abcdef"}},
		{text: "secret", want: Token{Password: "secret"}},
		{text: "K10" + hash + "::server:", bad: true},
		{text: "K10" + hash + "::server", bad: true},
		{text: "K10" + hash, bad: true},
		{text: "K10abc::server:p", bad: true},
		{text: "K10" + strings.Repeat("zz", 32) + "::server:p", bad: true},
	} {
		got, err := Parse(test.text)
		if (err != nil) != test.bad || got != test.want {
			t.Errorf("Parse(%q) is %+v, %v", test.text, got, err)
		}
		if err == nil && got.String() != test.text {
			t.Errorf("%q comes back as %q", test.text, got.String())
		}
	}
}

func TestNewBootstrap(t *testing.T) {
	id, secret := NewBootstrap()
	if made := (Token{Password: id + "." + secret}); !made.IsBootstrap() {
		t.Errorf("%s is no bootstrap token", made)
	}
}
