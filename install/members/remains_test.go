package members

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// k3s is uninstalled from hosts that have no node only when it is certainly this cluster's.
func TestRemainsOfOtherClusters(t *testing.T) {
	const own, other = "K10aaaa", "K10bbbb"
	tests := []struct {
		name       string
		has        remains
		needsToken bool
		api        string
		want       string
	}{
		{name: "an agent of this cluster", has: remains{ca: own, service: true}, needsToken: true, api: own},
		{name: "a server of this cluster", has: remains{ca: own, service: true, server: true}, api: own},
		{name: "an agent of another one", has: remains{ca: other, service: true}, api: own, want: "another cluster"},
		{name: "a server of another one", has: remains{ca: other, service: true, server: true}, api: own, want: "another cluster"},
		{name: "the token of another one alone", has: remains{ca: other}, api: own, want: "another cluster"},
		{name: "an agent that somebody else has set up", has: remains{service: true}, api: own, want: "no token that says for which cluster"},
		{name: "a server's data without its token", has: remains{server: true}, api: own, want: "no token that says for which cluster"},
		{name: "what an uninstall has left", api: own},
		{name: "the same where the address is all that is known", needsToken: true, api: own, want: "no token of this cluster"},
		{name: "this cluster has no token to compare with", has: remains{service: true}, want: "no token of its cluster"},
		{name: "neither has one", want: "no token of its cluster"},
	}
	for _, test := range tests {
		err := test.has.check(test.api, test.needsToken)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

func TestStrangerError(t *testing.T) {
	var err error = &strangerError{host: "other (10.0.0.9)", server: true, err: &k3s.ForeignError{Server: true}}
	hint := strings.Join(fault.Hints(err), "")
	if !errors.Is(err, site.ErrRefused) || !strings.Contains(hint, k3s.Uninstaller(true)) || !strings.Contains(err.Error(), "other (10.0.0.9)") {
		t.Errorf("%v", err)
	}
}
