package jointoken_test

import (
	"encoding/hex"
	"testing"

	"github.com/liteboxd/boxlift/install/jointoken"
)

const (
	servers = "K10aabb::server:secret:with:colons"
	agents  = "K10aabb::node:other"
)

func TestPassword(t *testing.T) {
	for token, want := range map[string]string{
		"": "", "alone": "alone", servers: "secret:with:colons", agents: "other", "K10aabb::": "", "K10aabb::odd": "",
	} {
		if got := jointoken.Password(token); got != want {
			t.Errorf("%q has the password %q, want %q", token, got, want)
		}
	}
}

func TestForAgent(t *testing.T) {
	got, err := jointoken.ForAgent(servers, "other")
	if err != nil || got != agents {
		t.Errorf("got %q, %v; want %q", got, err, agents)
	}
	for _, test := range []struct{ servers, password string }{{"secret", "other"}, {"", "other"}, {servers, ""}} {
		if got, err := jointoken.ForAgent(test.servers, test.password); err == nil {
			t.Errorf("%q and %q make %q, want an error", test.servers, test.password, got)
		}
	}
}

// What k3s keeps as agent-token is the servers' token until agents have their own.
func TestAgentsOwn(t *testing.T) {
	for token, want := range map[string]string{"": "", servers: "", "alone": "", agents: "other"} {
		if got := jointoken.AgentsOwn(token); got != want {
			t.Errorf("%q is the agents' own password %q, want %q", token, got, want)
		}
	}
}

func TestNew(t *testing.T) {
	one, other := jointoken.New(), jointoken.New()
	if b, err := hex.DecodeString(one); err != nil || len(b) != 32 || one == other {
		t.Errorf("made %q and %q, want 32 random bytes each, in hex", one, other)
	}
}

func TestForServer(t *testing.T) {
	got, err := jointoken.ForServer("K10aabb::server:old", "new")
	if want := "K10aabb::server:new"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if got, err := jointoken.ForServer("old", "new"); err == nil {
		t.Errorf("a token that names no cluster makes %q", got)
	}
}

func TestJudge(t *testing.T) {
	one := jointoken.Host{Own: "secret", Agents: "other"}
	two := jointoken.Host{Own: "K10aabb::server:secret", Agents: "other"}
	with := func(h jointoken.Host, change func(*jointoken.Host)) jointoken.Host {
		change(&h)
		return h
	}
	shared := []jointoken.Host{{Own: "secret"}, {Own: "K10aabb::server:secret"}}
	for _, test := range []struct {
		name    string
		host    jointoken.Host
		servers []jointoken.Host
		server  bool
		want    jointoken.Fault
	}{
		{"a server", one, []jointoken.Host{one, two}, true, ""},
		{"an agent", jointoken.Host{Own: agents}, []jointoken.Host{one, two}, false, ""},
		{"an agent with the servers'", jointoken.Host{Own: two.Own}, []jointoken.Host{one, two}, false, jointoken.OfServers},
		{"an agent of a cluster with one token", jointoken.Host{Own: two.Own}, shared, false, jointoken.OfServers},
		{"a server of a cluster with one token", shared[1], shared, true, ""},
		{"new hosts", jointoken.Host{}, []jointoken.Host{{}}, false, ""},
		{"a new server", jointoken.Host{}, []jointoken.Host{one, {}}, true, ""},
		{"a server with another", with(two, func(h *jointoken.Host) { h.Agents = "third" }),
			[]jointoken.Host{one, two}, true, jointoken.Differs},
		{"a server with none", with(two, func(h *jointoken.Host) { h.Agents = "" }),
			[]jointoken.Host{one, two}, true, jointoken.Differs},
		{"agents have had it", with(one, func(h *jointoken.Host) { h.Exposed = "yes" }),
			[]jointoken.Host{one}, true, jointoken.Exposed},
		{"a change was broken off", with(one, func(h *jointoken.Host) { h.Exposed, h.Staged = "yes", "next" }),
			[]jointoken.Host{one}, true, jointoken.Unfinished},
	} {
		if got := jointoken.Judge(test.host, test.servers, test.server); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
