package inspect

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/node/reach"
)

const namesConfig = `cluster:
  servers: [{host: 10.0.0.11, agent: true, name: first}]
  agents: [{host: 10.0.0.21, agent: true, name: worker}]
names: {hosts: {git.lan: 10.0.0.5, six.lan: "fd00::6"}}
`

// getent is a program that finds these names.
func getent(names map[string]string) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		address := names[c.Args[1]]
		if address == "" {
			return 2
		}
		_, _ = c.Stdout.Write([]byte(address + "  STREAM " + c.Args[1] + "\n" + address + "  DGRAM\n"))
		return 0
	}
}

// Every host finds every name with its address, but for its own name, which may be a loopback address.
func TestCheckNames(t *testing.T) {
	all := map[string]string{"first": "10.0.0.11", "worker": "10.0.0.21", "git.lan": "10.0.0.5", "six.lan": "fd00::6"}
	for name, test := range map[string]struct {
		names map[string]string // nil for a host without getent
		want  []string          // of the host worker: state and detail
	}{
		"all":           {all, []string{"ok", "3 names of install.yaml found"}},
		"another":       {map[string]string{"first": "10.0.0.11", "git.lan": "10.9.9.9\x1b", "six.lan": "fd00::6"}, []string{"failed", "git.lan is 10.9.9.9\ufffd and not 10.0.0.5"}},
		"none":          {map[string]string{"worker": "127.0.1.1"}, []string{"failed", "first is not found; git.lan is not found; six.lan is not found"}},
		"nobody to ask": {nil, []string{"skipped", "the host has no getent to look names up with"}},
	} {
		in := example(t, namesConfig)
		for i, address := range []string{"10.0.0.11", "10.0.0.21"} {
			f := hosttest.New(t, "h")
			if test.names != nil {
				f.Program("getent", getent(test.names))
			}
			in.site.Hosts[i].Conn, in.site.Hosts[i].IP = f, netip.MustParseAddr(address)
		}
		e := &examination{inspector: in.inspector}
		checks := e.checkNames(t.Context())
		if len(checks) != 2 || checks[1].Subject != "worker (10.0.0.21)" || checks[1].Check != checkNames {
			t.Fatalf("%s: %+v", name, checks)
		}
		if diff := cmp.Diff(test.want, []string{string(checks[1].State), checks[1].Detail}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if (checks[1].State == HealthFailed) != (checks[1].Hint != "") {
			t.Errorf("%s: hint %q", name, checks[1].Hint)
		}
	}
	if c := (&examination{inspector: example(t, "cluster: {master: {host: a, agent: true}}\n").inspector}).checkNames(t.Context()); len(c) != 1 || c[0].State != HealthSkipped {
		t.Errorf("without names: %+v", c)
	}
	if !slices.Contains(HealthChecks(), checkNames) {
		t.Error("nobody can ask for the check")
	}
}

// A pod has to find a name with its address.
func TestJudgeNamed(t *testing.T) {
	name := config.Name{Name: "git.lan", Address: netip.MustParseAddr("10.0.0.5")}
	for _, test := range []struct {
		result reach.ProbeResult
		state  State
		detail string
	}{
		{reach.ProbeResult{State: reach.OK, Addresses: []netip.Addr{name.Address}}, HealthOK, "git.lan is 10.0.0.5"},
		{reach.ProbeResult{State: reach.OK, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.6")}}, HealthFailed, "git.lan is 10.0.0.6, and not 10.0.0.5"},
		{reach.ProbeResult{State: reach.Failed, Detail: "no such host"}, HealthFailed, "git.lan is not found: no such host"},
	} {
		test.result.ProbeTarget = reach.ProbeTarget{Kind: reach.ProbeName, Target: name.Name}
		c := judgeNamed("from a pod", name, test.result)
		if c.State != test.state || c.Detail != test.detail || c.Subject != "from a pod, git.lan" || (c.Hint == "") != (c.State == HealthOK) {
			t.Errorf("%+v", c)
		}
	}
}
