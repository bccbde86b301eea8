package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
)

// answered is a boxlift-node to whom DNS servers answer with this address, or not at all where it is not valid.
func answered(address netip.Addr, detail string) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		report := reach.ProbeReport{Version: reach.ProbeVersion}
		for i := 3; i+1 < len(c.Args); i += 2 {
			r := reach.ProbeResult{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeKind(strings.TrimPrefix(c.Args[i], "-")), Target: c.Args[i+1]}}
			if r.State, r.Detail = reach.Silent, detail; address.IsValid() {
				r.State, r.Detail, r.Addresses = reach.OK, "", []netip.Addr{address}
			}
			report.Results = append(report.Results, r)
		}
		if json.NewEncoder(c.Stdout).Encode(report) != nil {
			return 1
		}
		return 0
	}
}

// All hosts ask all servers, also one that was not logged in to.
func TestCheckNameservers(t *testing.T) {
	const serving = "cluster:\n  servers: [{host: 10.0.0.11, agent: true, name: first}]\n" +
		"  agents: [{host: 10.0.0.21, agent: true, name: worker}, {host: third.lan, agent: true, name: third}]\n" +
		"names: {hosts: {git.lan: 10.0.0.5}, serve: {on: [first, third]}}\n"
	right, wrong := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.9.9.9")
	const unknown = "the host was not reached, and its address is not known without that"
	for name, test := range map[string]struct {
		from [2]hosttest.Program
		lost []int // hosts that were not logged in to
		want []string
	}{
		"both": {[2]hosttest.Program{answered(right, ""), answered(right, "")}, []int{2},
			[]string{"first (10.0.0.11): ok: git.lan is 10.0.0.5, over UDP and TCP, asked from 2 hosts", "third (third.lan): skipped: " + unknown}},
		"its own host alone": {[2]hosttest.Program{answered(right, ""), answered(netip.Addr{}, "no answer\x1b")}, []int{2},
			[]string{"first (10.0.0.11): failed: from worker (10.0.0.21): asked for git.lan over UDP: no answer", "third (third.lan): skipped: " + unknown}},
		"another address": {[2]hosttest.Program{answered(wrong, ""), answered(wrong, "")}, []int{2},
			[]string{"first (10.0.0.11): failed: from first (10.0.0.11): asked for git.lan over UDP, it says [10.9.9.9], and not 10.0.0.5; " +
				"from worker (10.0.0.21): asked for git.lan over UDP, it says [10.9.9.9], and not 10.0.0.5", "third (third.lan): skipped: " + unknown}},
		"a server that nobody logged in to": {[2]hosttest.Program{nil, answered(right, "")}, []int{0, 2},
			[]string{"first (10.0.0.11): ok: git.lan is 10.0.0.5, over UDP and TCP, asked from 1 host", "third (third.lan): skipped: " + unknown}},
		"an older boxlift-node": {[2]hosttest.Program{hosttest.Fails(2, "flag provided but not defined: -dns-udp"), answered(right, "")}, []int{2},
			[]string{"first (10.0.0.11): failed: from first (10.0.0.11): ", "third (third.lan): skipped: " + unknown}},
		"nobody": {[2]hosttest.Program{nil, nil}, []int{0, 1, 2},
			[]string{"first (10.0.0.11): skipped: no host was reached that could ask it", "third (third.lan): skipped: " + unknown}},
	} {
		in := example(t, serving)
		in.inspector.Nameserver = &nameserver.Keeper{Site: in.site, Engine: in.inspector.Engine, Namer: in.inspector.Namer}
		e := &examination{inspector: in.inspector, factless: make(map[*site.Host]error)}
		for i, h := range in.site.Hosts {
			if slices.Contains(test.lost, i) {
				h.Err = errors.New("no route")
				continue
			}
			f := hosttest.New(t, "h")
			f.WriteFile(t, site.HelperPath, "x", 0o755)
			f.Program("boxlift-node", test.from[i])
			h.Conn, h.IP = f, netip.MustParseAddr(h.Config.Host)
		}
		var got []string
		for _, c := range e.checkNameservers(t.Context()) {
			if c.Check != checkNameserver || (c.State == HealthFailed) != (c.Hint != "") {
				t.Errorf("%s: %+v", name, c)
			}
			got = append(got, c.Subject+": "+string(c.State)+": "+c.Detail)
		}
		same := cmp.Comparer(func(want, got string) bool { return strings.HasPrefix(got, want) || strings.HasPrefix(want, got) })
		if diff := cmp.Diff(test.want, got, same); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	e := &examination{inspector: example(t, namesConfig).inspector}
	if c := e.checkNameservers(t.Context()); len(c) != 1 || c[0].State != HealthSkipped {
		t.Errorf("without names.serve: %+v", c)
	}
	if !slices.Contains(HealthChecks(), checkNameserver) {
		t.Error("nobody can ask for the check")
	}
}
