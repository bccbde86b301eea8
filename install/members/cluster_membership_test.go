package members

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/sitetest"
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

// What a host has of the cluster is asked of the host, and compared with what the server has that the API was reached
// through; nothing else is taken for an answer.
func TestOwnRemains(t *testing.T) {
	const own, other = "K10aaaa::server:secret-password", "K10bbbb::node:secret-password"
	for _, test := range []struct {
		name       string
		server     map[string]string
		files      map[string]string
		needsToken bool
		harm       func(server, host *hosttest.Fake)
		has        remains
		want       string
		refused    bool
	}{
		{name: "an agent of this cluster", server: map[string]string{site.K3sNodeToken: own}, needsToken: true,
			files: map[string]string{site.K3sTokenFile: "K10aaaa::node:x", site.UnitDir + "k3s-agent.service": ""},
			has:   remains{ca: "K10aaaa", service: true}},
		{name: "a server of this cluster", server: map[string]string{site.K3sTokenFile: own},
			files: map[string]string{site.K3sNodeToken: own, site.UnitDir + "k3s.service": "",
				k3s.K3sDatabases + "/state.db": ""},
			has: remains{ca: "K10aaaa", service: true, server: true}},
		{name: "a server whose service has gone", server: map[string]string{site.K3sNodeToken: own},
			files: map[string]string{site.K3sNodeToken: own, k3s.K3sDatabases + "/state.db": ""},
			has:   remains{ca: "K10aaaa", server: true}},
		{name: "nothing", server: map[string]string{site.K3sNodeToken: own}},
		{name: "nothing, where there has to be something", server: map[string]string{site.K3sNodeToken: own},
			needsToken: true, want: "it has no token of this cluster", refused: true},
		{name: "an agent of another cluster", server: map[string]string{site.K3sNodeToken: own},
			files: map[string]string{site.K3sTokenFile: other}, want: "the host is in another cluster", refused: true},
		{name: "a token that nobody can read as one", server: map[string]string{site.K3sNodeToken: own},
			files: map[string]string{site.K3sTokenFile: "secret-password\x1b[2J",
				site.UnitDir + "k3s-agent.service": ""},
			want: "no token that says for which cluster", refused: true},
		{name: "more of it than a token has", server: map[string]string{site.K3sNodeToken: own}, needsToken: true,
			files: map[string]string{site.K3sTokenFile: strings.Repeat("secret-password", 1<<17)},
			want:  "no token of this cluster", refused: true},
		{name: "the server has no token", files: map[string]string{site.K3sTokenFile: other},
			want: "has no token of its cluster to compare with", refused: true},
		{name: "the server does not answer", harm: func(server, _ *hosttest.Fake) { server.BreakAfter(0) },
			want: "read the cluster's token from server"},
		{name: "the host does not answer", server: map[string]string{site.K3sNodeToken: own},
			harm: func(_, host *hosttest.Fake) { host.BreakAfter(0) }, want: "connection lost"},
		{name: "the host goes in between", server: map[string]string{site.K3sNodeToken: own},
			harm: func(_, host *hosttest.Fake) { host.BreakAfter(2) }, want: "connection lost"},
	} {
		in := example(t, sitetest.ExampleConfig)
		server, f := hosttest.New(t, "server"), hosttest.New(t, "late")
		for name, content := range test.server {
			server.WriteFile(t, name, content+"\n", 0o600)
		}
		for name, content := range test.files {
			f.WriteFile(t, name, content+"\n", 0o600)
		}
		if test.harm != nil {
			test.harm(server, f)
		}
		before := f.Snapshot(t)
		in.site.APIServer = &site.Host{Subject: site.Subject{Name: "server"}, Conn: server}
		late := &site.Host{Subject: site.Subject{Name: "late"}, Conn: f}
		got, err := in.members.ownRemains(t.Context(), late, test.needsToken)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
		if errors.Is(err, site.ErrRefused) != test.refused ||
			err != nil && errors.Is(err, site.ErrHosts) == test.refused {
			t.Errorf("%s: refused %v: %v", test.name, !test.refused, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret-password") {
			t.Errorf("%s: the error has the token", test.name)
		}
		if got != test.has {
			t.Errorf("%s: it has %+v, want %+v", test.name, got, test.has)
		}
		if f.Snapshot(t) != before {
			t.Errorf("%s: looking has changed the host", test.name)
		}
	}
}
