package k3s

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// Ids of the steps that write tokens.
const (
	tokenID      = "file:" + site.K3sTokenFile
	agentTokenID = "file:" + site.K3sAgentTokenFile
	exposedID    = "file:" + exposedFile
	previousID   = "file:" + previousTokenFile
)

// ids are those of steps.
func ids(steps []run.Step) []string {
	var all []string
	for _, step := range steps {
		all = append(all, step.ID)
	}
	return all
}

// A host has the tokens that its role asks for, and that only root can read; a server of agents that get their own one
// remembers that they have had another.
func TestTokenSteps(t *testing.T) {
	steps := func(place int, agentToken string, exposed bool) func(*testing.T) (*hosttest.Fake, []run.Step) {
		return func(t *testing.T) (*hosttest.Fake, []run.Step) {
			f, n := shipped(t, place)
			n.agentToken, n.exposed = agentToken, exposed
			return f, n.tokenSteps()
		}
	}
	for _, test := range []struct {
		name  string
		steps func(*testing.T) (*hosttest.Fake, []run.Step)
		want  []string
	}{
		{"a server", steps(0, "the-agents-token", false), []string{agentTokenID, tokenID}},
		{"a server whose agents get a token", steps(0, "the-agents-token", true), []string{exposedID, agentTokenID, tokenID}},
		{"a server whose agents have its own", steps(0, "", false), []string{tokenID}},
		{"an agent", steps(1, "the-agents-token", true), []string{tokenID}},
	} {
		_, all := test.steps(t)
		if diff := cmp.Diff(test.want, ids(all)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		for _, step := range all {
			// k3s goes by tokens when it starts, and not by the note.
			if isNote := step.ID == exposedID; step.Starts == isNote || step.Alone != isNote {
				t.Errorf("%s: %s starts k3s: %t, alone: %t", test.name, step.ID, step.Starts, step.Alone)
			}
		}
	}
	for _, test := range []struct {
		id, name, why string
		mode          fs.FileMode
		content       string
	}{
		{id: exposedID, name: exposedFile, why: "is missing"},
		{id: agentTokenID, name: site.K3sAgentTokenFile, why: "is missing"},
		{id: agentTokenID, name: site.K3sAgentTokenFile, why: "differs", mode: 0o600, content: "another\n"},
		{id: tokenID, name: site.K3sTokenFile, why: "is missing"},
		{id: tokenID, name: site.K3sTokenFile, why: "differs", mode: 0o600, content: strings.Repeat("x", 2<<20)},
		{id: tokenID, name: site.K3sTokenFile, why: "has another mode or owner", mode: 0o644, content: "the-token\n"},
		{id: tokenID, name: site.K3sTokenFile, mode: 0o600, content: "the-token\n"},
	} {
		t.Run(test.id+" "+test.why, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, all := steps(0, "the-agents-token", true)(t)
				if test.mode != 0 {
					f.WriteFile(t, test.name, test.content, test.mode)
				}
				return f, stepOf(t, all, test.id)
			}})
		})
	}
}

// A change of tokens writes those that change, and no others; what is kept to go back to gets the new one, too.
func TestNewTokenSteps(t *testing.T) {
	for _, test := range []struct {
		servers, agents bool
		want            []string
	}{
		{true, false, []string{tokenID, previousID}},
		{false, true, []string{agentTokenID}},
		{true, true, []string{agentTokenID, tokenID, previousID}},
		{false, false, nil},
	} {
		_, n := shipped(t, 0)
		if diff := cmp.Diff(test.want, ids(n.newTokenSteps(test.servers, test.agents))); diff != "" {
			t.Errorf("servers' %t, agents' %t: %s", test.servers, test.agents, diff)
		}
	}
	for kept, why := range map[string]string{"": "", "the-old-token\n": "differs", "the-token\n": ""} {
		steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			f, n := shipped(t, 0)
			if kept != "" {
				f.WriteFile(t, previousTokenFile, kept, 0o600)
			}
			return f, stepOf(t, n.newTokenSteps(true, false), previousID)
		}})
	}
}

// A server goes on with the token that it has. Where the file with it was lost, k3s tells it; a new one is made only
// where no cluster is.
func TestServerToken(t *testing.T) {
	const full = "K10abc::server:the-password"
	const nodeToken, token, staged, made = site.K3sNodeToken, site.K3sTokenFile, stagedTokenFile, site.ServiceFile
	for _, test := range []struct {
		name    string
		files   map[string]string
		joined  string
		adopted bool
		want    string // "new" for one that is made
		wrong   string
	}{
		{name: "nothing is there", want: "new"},
		{name: "its file", files: map[string]string{token: "the-password\n", nodeToken: full}, want: "the-password"},
		{name: "its file was lost", files: map[string]string{nodeToken: full + "\n", made: "x"}, want: "the-password"},
		{
			name: "its file was lost, and it has joined", joined: "https://a:6443", want: full,
			files: map[string]string{nodeToken: full, made: "x"},
		},
		{name: "of an adopted one", files: map[string]string{nodeToken: full}, adopted: true, want: "the-password"},
		{
			name:  "of somebody else's",
			files: map[string]string{nodeToken: full}, wrong: "a k3s server that boxlift did not install",
		},
		{
			name:  "k3s knows agents' alone",
			files: map[string]string{nodeToken: "K10abc::node:x", made: "x"}, wrong: "has no token of a server",
		},
		{
			name:  "k3s has changed to the next one",
			files: map[string]string{token: "the-password", staged: "next", K3sServerToken: "K10abc::server:next"}, want: "next",
		},
		{
			name: "k3s has changed to it, and it has joined", joined: "https://a:6443", want: "K10abc::server:next",
			files: map[string]string{
				token: full, staged: "next", K3sServerToken: "K10abc::server:next", nodeToken: "K10abc::server:next",
			},
		},
		{
			name:  "k3s has not changed yet",
			files: map[string]string{token: "the-password", staged: "next", K3sServerToken: full}, want: "the-password",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := reached(t, sitetest.ThreeServers)
			h := in.site.Hosts[0]
			h.Joined = test.joined
			if test.adopted {
				h.Adopted = &adoption.Found{}
			}
			write(t, fakes[0], test.files)
			got, err := serverToken(t.Context(), h)
			if test.want == "new" && len(got) == 64 {
				got = "new"
			}
			if got != test.want || (err == nil) != (test.wrong == "") {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
			if err != nil {
				kubetest.Contains(t, err.Error(), test.wrong)
			}
			// Whichever question goes unanswered: it is an error, and never another token.
			for n := range len(fakes[0].Commands()) {
				fakes[0].BreakAfter(n)
				if got, err := serverToken(t.Context(), h); got != "" || !errors.Is(err, hosttest.ErrLost) {
					t.Errorf("lost after %d commands: %q, %v", n, got, err)
				}
			}
		})
	}
}

// Agents join with what the servers let them join with. They get a token of their own in a new cluster, in one that is
// restored, and in one that is to give them one; the servers' is known to agents then.
func TestAgentToken(t *testing.T) {
	const full = "K10abc::server:the-password"
	const agents, begun, running = site.K3sAgentTokenFile, site.K3sNodeToken, site.K3sAgentToken
	for _, test := range []struct {
		name    string
		servers [2]map[string]string
		set     func(*installation)
		want    string
		exposed bool
	}{
		{name: "a new cluster", want: "new"},
		{name: "the first server has one", servers: [2]map[string]string{{agents: "agents\n"}}, want: "agents"},
		{name: "another server has one", servers: [2]map[string]string{{begun: full}, {agents: "agents"}}, want: "agents"},
		{name: "the file was lost", want: "agents",
			servers: [2]map[string]string{{begun: full, running: "K10abc::node:agents\n"}}},
		{name: "the server with the file is not reached", want: "agents",
			servers: [2]map[string]string{{agents: "agents"}, {begun: full, running: "K10abc::node:agents"}},
			set:     func(in *installation) { in.site.Hosts[0].Fail(errors.New("no route")) }},
		{name: "they have the servers'", servers: [2]map[string]string{{begun: full, running: full}}},
		{name: "they have the servers', and get one", want: "new", exposed: true,
			servers: [2]map[string]string{{begun: full}},
			set:     func(in *installation) { in.cluster.SplitsToken = true }},
		{name: "a backup has one", want: "kept", set: func(in *installation) {
			in.cluster.Restoration = &Restoration{AgentToken: "kept"}
		}},
		{name: "a backup has none", want: "new", exposed: true, set: func(in *installation) {
			in.cluster.Restoration = &Restoration{}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := reached(t, sitetest.ThreeServers)
			for i, files := range test.servers {
				write(t, fakes[i], files)
			}
			if test.set != nil {
				test.set(in)
			}
			got, err := in.cluster.AgentToken(t.Context(), in.site.Hosts[0])
			if again, errAgain := in.cluster.AgentToken(t.Context(), in.site.Hosts[0]); again != got || errAgain != nil {
				t.Errorf("asked again: %q, %v", again, errAgain)
			}
			if test.want == "new" && len(got) == 64 {
				got = "new"
			}
			if got != test.want || err != nil || in.cluster.agentsPassword.exposed != test.exposed {
				t.Errorf("%q, exposed %t, %v; want %q", got, in.cluster.agentsPassword.exposed, err, test.want)
			}
		})
	}
	in, fakes := reached(t, sitetest.ThreeServers)
	fakes[0].BreakAfter(0)
	if got, err := in.cluster.AgentToken(t.Context(), in.site.Hosts[0]); got != "" || !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("a server that does not answer: %q, %v", got, err)
	}
}

// An agent's full token pins the cluster; a server that was restored begins with what its backup has.
func TestJoinTokens(t *testing.T) {
	in, fakes := reached(t, sitetest.ThreeServers)
	seed := in.site.Hosts[0]
	write(t, fakes[0], map[string]string{
		site.K3sNodeToken: "K10abc::server:the-password\n", site.K3sAgentTokenFile: "agents\n", site.ServiceFile: "x",
	})
	if got, err := in.cluster.AgentJoinToken(t.Context(), seed); got != "K10abc::node:agents" || err != nil {
		t.Errorf("of agents: %q, %v", got, err)
	}
	for i, want := range map[int]string{0: "the-password", 1: "K10abc::server:the-password"} {
		n, err := in.cluster.ServerNode(t.Context(), in.site.Hosts[i], seed)
		if err != nil || n.Token != want || n.agentToken != "agents" || n.exposed {
			t.Errorf("server %d: %+v, %v", i, n, err)
		}
	}
	in.cluster.Restoration = &Restoration{Token: "of-the-backup"}
	if n, err := in.cluster.ServerNode(t.Context(), seed, seed); err != nil || n.Token != "of-the-backup" {
		t.Errorf("restored: %+v, %v", n, err)
	}
	// What names no authority pins nothing.
	in, fakes = reached(t, sitetest.ThreeServers)
	write(t, fakes[0], map[string]string{site.K3sNodeToken: "no token\x1b", site.K3sAgentTokenFile: "agents"})
	if got, err := in.cluster.AgentJoinToken(t.Context(), in.site.Hosts[0]); err == nil {
		t.Errorf("of a host that tells no token: %q", got)
	}
}

// k3s is asked for another token with what it has now. Where it fails, it is started again as it was.
func TestChangeServers(t *testing.T) {
	for _, test := range []struct {
		name    string
		refusal string
		status  int    // of the refusal, 0 for one in the middle
		config  string // what the server has as kubeconfig, "" for its own
		ends    bool   // k3s ends before it answers
		broken  bool   // it does not start any more
		cancels bool   // boxlift is to end meanwhile
		starts  int
		want    []string
	}{
		{name: "it changes"},
		{name: "it cannot", refusal: "no", status: http.StatusNotFound, want: []string{"this k3s cannot change it"}},
		{name: "it must not", refusal: "no", status: http.StatusForbidden, want: []string{"403 Forbidden: no"}},
		{name: "it is not asked", config: "no kubeconfig", want: []string{"first (10.0.0.11): kubeconfig: "}},
		{
			name: "it fails in the middle", refusal: "no quorum\x1b[2J", starts: 1,
			want: []string{"first (10.0.0.11): ask for another token: 500", "no quorum"},
		},
		{name: "it ends in the middle", ends: true, starts: 1, want: []string{"ask for another token: "}},
		{
			name: "it fails for good", refusal: "no quorum", broken: true, starts: 1,
			want: []string{"no quorum", "and k3s does not start again: k3s does not start", "token [secret]"},
		},
		{name: "boxlift ends", ends: true, cancels: true, want: []string{"context canceled"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n, _ := startable(t, 0, kubelet(t, http.StatusOK))
			f.Unit("k3s").Runs()
			f.Program("journalctl", hosttest.Prints("token server-secret refused\n"))
			if test.broken {
				f.Unit("k3s").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			api := &clusterAPI{refusal: test.refusal, status: test.status, asked: func() {
				if test.cancels {
					cancel()
				}
				if test.ends {
					panic(http.ErrAbortHandler)
				}
			}}
			write(t, f, map[string]string{K3sServerToken: "K10abc::server:the-token\n", site.K3sKubeconfig: api.start(t)})
			if test.config != "" {
				f.WriteFile(t, site.K3sKubeconfig, test.config, 0o600)
			}
			err := (&rotation{n.Cluster}).changeServers(ctx, n.Host, "next-token")
			if (err == nil) != (test.want == nil) {
				t.Fatal(err)
			}
			if err != nil {
				text := kubetest.Explained(err)
				kubetest.Contains(t, text, test.want...)
				for _, secret := range []string{"\x1b", "next-token", "server-secret"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q is in %q", secret, text)
					}
				}
				if again := strings.Contains(text, "does not start again"); again != test.broken {
					t.Errorf("it was started again in vain: %t, %s", again, text)
				}
			}
			if want := `server:the-token {"newToken":"next-token"}`; api.given != want && test.config == "" {
				t.Errorf("k3s was given %q, want %q", api.given, want)
			}
			if got := f.Unit("k3s").Starts(); got != test.starts {
				t.Errorf("started %d times, want %d", got, test.starts)
			}
		})
	}
}

// A server whose k3s has failed in the middle of it is not started again while that costs etcd its majority.
func TestChangeServersKeepsTheMajority(t *testing.T) {
	for _, test := range []struct {
		name   string
		third  string // what the third server's API lacks
		status int    // of the refusal
		starts int
		want   []string
	}{
		{name: "the others are well", status: http.StatusInternalServerError, starts: 1, want: []string{"500"}},
		{
			name: "another one is down", third: "etcd failed", status: http.StatusInternalServerError,
			want: []string{"500", "no quorum", "and k3s is not started again: ", "without this server", "10.0.0.13"},
		},
		{name: "nothing was begun", third: "etcd failed", status: http.StatusForbidden, want: []string{"403"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := reached(t, sitetest.ThreeServers)
			in.site.Config.Runtime.CommandTimeout = time.Second
			in.site.Hosts[0].Config.K3s.Config = map[string]any{"kubelet-arg": []string{kubelet(t, http.StatusOK)}}
			fakes[0].Program("boxlift-node", helper)
			for i, h := range in.site.Servers() {
				h.Member = true
				api := &clusterAPI{refusal: "no quorum", status: test.status}
				if i == 2 {
					api.unready = test.third
				}
				write(t, fakes[i], map[string]string{
					K3sDatabases + "/etcd/member/wal": "", K3sServerToken: "K10abc::server:the-token\n",
					site.K3sKubeconfig: api.start(t),
				})
				fakes[i].Unit("k3s").Runs()
			}
			err := (&rotation{in.cluster}).changeServers(t.Context(), in.site.Hosts[0], "next-token")
			if err == nil {
				t.Fatal("it changes")
			}
			text := kubetest.Explained(err)
			kubetest.Contains(t, text, test.want...)
			if strings.Contains(text, "not started again") != (len(test.want) > 1) {
				t.Error(text)
			}
			for i, f := range fakes[:3] {
				want := 0
				if i == 0 {
					want = test.starts
				}
				if got := f.Unit("k3s").Starts(); got != want {
					t.Errorf("server %d was started %d times, want %d", i, got, want)
				}
			}
		})
	}
}
