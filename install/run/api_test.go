package run

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// threeServers are three servers and an agent, of which the hosts given can be reached, by their addresses. Each of the
// servers has the API, and boxlift-node in its place.
func threeServers(t *testing.T, m *kubetest.Memory, reachable ...string) (*installation, map[string]sitetest.Server) {
	t.Helper()
	in := example(t, sitetest.ThreeServers)
	in.site.Config.Runtime.CommandTimeout = time.Minute
	servers, hosts := make(map[string]sitetest.Server), make(map[string]host.Host)
	for i, h := range in.site.Servers() {
		h.Member = true
		s := sitetest.NewServer(t, "s"+string(rune('1'+i)), nil, m)
		servers[h.Config.Host] = s
		if slices.Contains(reachable, h.Config.Host) {
			hosts[h.Config.Host] = s
		}
	}
	in.site.Conns = site.NewConnections(in.site.Config, nil, sitetest.DialTo(hosts))
	t.Cleanup(in.engine.Close)
	return in, servers
}

// snapshots are those of all servers.
func snapshots(t *testing.T, servers map[string]sitetest.Server) string {
	t.Helper()
	var all string
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		all += servers[name].Snapshot(t)
	}
	return all
}

// The API is reached through the first server that has one. What leaves the cluster is asked last, and servers that are
// down hold up nothing: one of them may be what is to be removed.
func TestConnectServers(t *testing.T) {
	const a, b, c = "10.0.0.11", "10.0.0.12", "10.0.0.13"
	broken := func(_ *testing.T, _ *installation, s sitetest.Server) {
		s.WriteFile(t, site.K3sKubeconfig, "apiVersion: [", 0o600)
	}
	empty := func(t *testing.T, _ *installation, s sitetest.Server) {
		t.Helper()
		if err := os.Remove(s.Path(site.K3sKubeconfig)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name      string
		reachable []string
		leaving   []string
		change    map[string]func(*testing.T, *installation, sitetest.Server)
		acts      bool
		through   string // "" for none
		is        error
		says      []string
	}{
		{name: "all are well", reachable: []string{a, b, c}, through: a},
		{name: "all are well, and it acts", reachable: []string{a, b, c}, acts: true, through: a},
		{name: "the first leaves", reachable: []string{a, b, c}, leaving: []string{a}, through: b},
		{name: "two leave, by node name and node address", reachable: []string{a, b, c},
			leaving: []string{"s2", "192.168.0.11"}, through: c},
		{name: "all leave", reachable: []string{a, b}, leaving: []string{a, b, c}, through: a},
		{name: "the first is down", reachable: []string{b, c}, acts: true, through: b},
		{name: "k3s is not on the first", reachable: []string{a, b},
			change: map[string]func(*testing.T, *installation, sitetest.Server){a: empty}, through: b},
		{name: "what the first says of its API is none", reachable: []string{a, b},
			change: map[string]func(*testing.T, *installation, sitetest.Server){a: broken}, through: b},
		{name: "none has k3s", reachable: []string{a},
			change: map[string]func(*testing.T, *installation, sitetest.Server){a: empty}, is: site.ErrNoCluster,
			says: []string{"10.0.0.12: no route to host", "10.0.0.13: no route to host"}},
		{name: "all that answers is broken", reachable: []string{a},
			change: map[string]func(*testing.T, *installation, sitetest.Server){a: broken}, is: sitetest.ErrNoRoute,
			says: []string{"10.0.0.11: reach the API: ", "10.0.0.12: no route to host"}},
		{name: "none is reached", is: site.ErrNoCluster, says: []string{"10.0.0.11: no route to host"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := kubetest.NewMemory(t)
			in, servers := threeServers(t, m, test.reachable...)
			in.engine.acts = test.acts
			for name, change := range test.change {
				change(t, in, servers[name])
			}
			before := snapshots(t, servers)
			err := in.engine.ConnectServers(t.Context(), test.leaving)
			if !errors.Is(err, test.is) || (err == nil) != (test.is == nil) {
				t.Errorf("got %v", err)
			}
			if err != nil {
				kubetest.Contains(t, err.Error(), test.says...)
			}
			through := ""
			if in.site.APIServer != nil {
				through = in.site.APIServer.Config.Host
			}
			if through != test.through || (in.site.API == nil) != (test.through == "") {
				t.Errorf("through %q, want %q", through, test.through)
			}
			for _, h := range in.site.Servers() {
				if h.Err != nil || h.Held != (test.acts && h.Conn != nil) {
					t.Errorf("%s: held %t, %v", h.Name, h.Held, h.Err)
				}
			}
			if diff := cmp.Diff(before, snapshots(t, servers)); diff != "" && !test.acts || m.Changes() != nil {
				t.Errorf("reaching has changed something: %s", diff)
			}
		})
	}
}

// Ctrl-C ends the search for an API, with what it says and nothing else.
func TestConnectServersInterrupted(t *testing.T) {
	pressed := errors.New("Ctrl-C")
	in, _ := threeServers(t, kubetest.NewMemory(t), "10.0.0.11")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pressed)
	if err := in.engine.ConnectServers(ctx, nil); !errors.Is(err, pressed) || in.site.API != nil {
		t.Errorf("at once: %v", err)
	}
	// An API that never gets ready is waited for until then.
	m := kubetest.NewMemory(t)
	in, _ = threeServers(t, m, "10.0.0.11", "10.0.0.12")
	ctx, cancel = context.WithCancelCause(t.Context())
	asked := 0
	m.Instead = func(w http.ResponseWriter, _ *http.Request) bool {
		asked++
		http.Error(w, "starting", http.StatusServiceUnavailable)
		cancel(pressed)
		return true
	}
	if err := in.engine.ConnectServers(ctx, nil); err == nil || in.site.API != nil || asked != 1 {
		t.Errorf("while it waits, asked %d times: %v", asked, err)
	}
}

// Who acts needs an API; who looks at hosts that have none yet is told of nothing.
func TestReachAPIOfNewHosts(t *testing.T) {
	for _, acts := range []bool{false, true} {
		in := example(t, sitetest.ExampleConfig)
		in.site.Config.Runtime.CommandTimeout = time.Minute
		in.engine.acts = acts
		failed := &site.Host{Subject: site.Subject{Name: "failed"}, Err: errors.New("it is on fire")}
		in.site.Hosts[0].Conn = sitetest.NewHost(t, "first", nil)
		err := in.engine.ReachAPI(t.Context(), []*site.Host{failed, in.site.Hosts[0]})
		if errors.Is(err, site.ErrNoCluster) != acts || !acts && err != nil || in.site.API != nil {
			t.Errorf("acts: %t: %v", acts, err)
		}
	}
}

// The nodes are asked of the first server that runs k3s and answers, and there are none while no server does.
func TestRegistered(t *testing.T) {
	k3sIs := func(state string) *facts.Facts {
		return &facts.Facts{Units: []facts.Unit{{Name: "k3s.service", LoadState: "loaded", ActiveState: state}}}
	}
	for _, test := range []struct {
		name   string
		change func(*testing.T, []*site.Host, map[string]sitetest.Server)
		want   int
		of     string // the host that the error is of
	}{
		{name: "all are well", want: 2},
		{name: "the first does not run", change: func(_ *testing.T, hosts []*site.Host, _ map[string]sitetest.Server) {
			hosts[0].Facts, hosts[1].Facts = k3sIs("failed"), k3sIs("active")
		}, want: 2},
		{name: "the first lies about its API", change: func(t *testing.T, _ []*site.Host, s map[string]sitetest.Server) {
			t.Helper()
			s["10.0.0.11"].WriteFile(t, site.K3sKubeconfig, "\x1b[2J", 0o600)
		}, want: 2},
		{name: "all are lost", change: func(_ *testing.T, _ []*site.Host, s map[string]sitetest.Server) {
			for _, one := range s {
				one.BreakAfter(0)
			}
		}, of: "10.0.0.13"},
		{name: "none is in a cluster", change: func(_ *testing.T, hosts []*site.Host, _ map[string]sitetest.Server) {
			for _, h := range hosts {
				h.Member = false
			}
		}},
	} {
		m := kubetest.NewMemory(t, kubetest.Labelled("a", nil), kubetest.Labelled("b", nil))
		in, servers := threeServers(t, m)
		for _, h := range in.site.Servers() {
			h.Conn = servers[h.Config.Host]
		}
		if test.change != nil {
			test.change(t, in.site.Servers(), servers)
		}
		nodes, err := in.engine.Registered(t.Context())
		if len(nodes) != test.want || (err == nil) != (test.of == "") {
			t.Errorf("%s: %d nodes, %v", test.name, len(nodes), err)
		}
		if err != nil && (!strings.Contains(err.Error(), test.of+": ") || fault.HostOf(err) == "") {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
