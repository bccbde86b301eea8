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
