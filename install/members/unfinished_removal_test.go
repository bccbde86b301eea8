package members

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What is left of a removal is found by its node's name and by its address.
func TestRemovalOfLeft(t *testing.T) {
	left := journal.Left{Host: "late (127.0.0.9)", Address: "127.0.0.9", Node: "late"}
	unnamed := journal.Left{Host: "127.0.0.8", Address: "127.0.0.8", Node: "other"}
	nodes := []kube.Node{{Name: "server", Server: true, Ready: true, Addresses: []string{"127.0.0.1"}}}
	for _, test := range []struct {
		wanted, node, host string
		err                error
	}{
		{wanted: "late", node: "late", host: left.Host},
		{wanted: "127.0.0.9", node: "late", host: left.Host},
		{wanted: "other", node: "other", host: unnamed.Host},
		{wanted: "127.0.0.8", node: "other", host: unnamed.Host},
		{wanted: "127.0.0.7", err: site.ErrRefused},
		{wanted: "", err: site.ErrRefused},
	} {
		in := example(t, sitetest.RemovingConfig)
		in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
		in.engine.Left = []journal.Left{left, unnamed}
		r, err := in.members.removalOf(t.Context(), test.wanted, nodes)
		if !errors.Is(err, test.err) {
			t.Errorf("%q: error %v, want %v", test.wanted, err, test.err)
		}
		if err != nil {
			continue
		}
		if diff := cmp.Diff([]any{test.node, test.host, true}, []any{r.node.Name, r.host.Name, r.gone}); diff != "" {
			t.Errorf("%q: %s", test.wanted, diff)
		}
		// Nothing says how to log in to it: only who asks for that leaves it as it is.
		var unreachable *unreachableError
		if err := r.run(t.Context()); !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "cluster.absentAgentLogin") {
			t.Errorf("%q: %v", test.wanted, err)
		}
		r.forgetUnreachable = true
		if err := r.run(t.Context()); err != nil || !strings.Contains(strings.Join(in.site.Warnings, "\n"), "is not uninstalled") {
			t.Errorf("%q, forgotten: %v, warnings %q", test.wanted, err, in.site.Warnings)
		}
	}
}

// A run that removes absent agents goes on with what an earlier one has begun, and does not end
// well while it cannot.
func TestRemoveLeft(t *testing.T) {
	for _, test := range []struct {
		name, config string
		left         journal.Left
		down         bool
		want         error
	}{
		{name: "no login", config: sitetest.RemovingConfig, left: journal.Left{Host: "late (127.0.0.9)", Address: "127.0.0.9", Node: "late"}, want: site.ErrHosts},
		{
			name: "it does not answer", left: journal.Left{Host: "late (127.0.0.9)", Address: "127.0.0.9", Node: "late"}, want: site.ErrHosts,
			config: strings.Replace(sitetest.RemovingConfig, "  agents:", "  absentAgentLogin: {port: 1, password: p}\n  agents:", 1),
		},
		{name: "agents stay", config: strings.Replace(sitetest.RemovingConfig, "removeAbsentAgents: true", "removeAbsentAgents: false", 1), left: journal.Left{Host: "late (127.0.0.9)", Address: "127.0.0.9", Node: "late"}},
		{name: "install.yaml has it again", config: sitetest.RemovingConfig, left: journal.Left{Host: "worker (10.0.0.12)", Address: "10.0.0.12", Node: "worker"}},
		{name: "it has registered again", config: sitetest.RemovingConfig, left: journal.Left{Host: "back (127.0.0.9)", Address: "127.0.0.9", Node: "back"}},
		{name: "a host that is down may be this one", config: sitetest.RemovingConfig, left: journal.Left{Host: "late (127.0.0.9)", Address: "127.0.0.9", Node: "late"}, down: true},
	} {
		in := example(t, test.config)
		in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
		in.engine.Left = []journal.Left{test.left}
		if test.down {
			in.site.Hosts[1].Fail(errors.New("no route"))
		}
		removals, err := in.members.leftRemovals(t.Context(), []kube.Node{{Name: "back"}})
		for _, r := range removals {
			err = errors.Join(err, r.run(t.Context()))
		}
		if !errors.Is(err, test.want) || err != nil && test.want == nil {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
	}
}
