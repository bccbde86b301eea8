package nameserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const text = `cluster:
  servers: [{host: 10.0.0.11, agent: true, name: first}]
  agents:
    - {host: 10.0.0.21, agent: true, name: second}
names:
  hosts: {git.lan: 10.0.0.5, six.lan: "fd00::6"}
  serve: {on: [first], upstream: [10.0.0.2, "fd00::2"]}
liteboxd: {ingressHost: box.lan}
`

// keeper keeps the servers of an install.yaml, all of whose hosts were connected to.
func keeper(t *testing.T, text string, hosts ...host.Host) *Keeper {
	t.Helper()
	s := sitetest.Example(t, text)
	for i, h := range s.Hosts {
		h.IP, h.Hostname, h.Facts = netip.MustParseAddr(h.Config.Host), h.Config.Name, &facts.Facts{}
		if i < len(hosts) {
			h.Conn = hosts[i]
		}
	}
	engine := &run.Engine{Site: s, Holds: run.NewHolds()}
	namer := &names.Namer{Site: s, Engine: engine, Cluster: &k3s.Cluster{Site: s, Engine: engine}}
	return &Keeper{Site: s, Engine: engine, Namer: namer}
}

// running has the configuration that the service was started with.
const running = "/run/dnsmasq.conf"

// dnsmasq makes a host have dnsmasq and boxlift-node, which do what the real ones do with what boxlift writes.
func dnsmasq(t *testing.T) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, "first")
	f.WriteFile(t, program, "dnsmasq", 0o755)
	f.WriteFile(t, site.HelperPath, "boxlift-node", 0o755)
	f.WriteFile(t, "/etc/hosts", "127.0.0.1 localhost\n", 0o644)
	f.WriteFile(t, "/run/x", "", 0o644)
	f.Program("dnsmasq", func(_ context.Context, c *hosttest.Call) int {
		name, ok := strings.CutPrefix(c.Args[len(c.Args)-1], "--conf-file=")
		content, err := os.ReadFile(c.Host.Path(name))
		if !ok || c.Args[0] != "--test" || err != nil {
			_, _ = fmt.Fprintln(c.Stderr, "dnsmasq: cannot read", name)
			return 1
		}
		return check(string(content), c)
	})
	f.Systemd(hosttest.Services{
		Start: func(f *hosttest.Fake, _ string) error {
			content, err := os.ReadFile(f.Path(configFile))
			if err != nil {
				return err
			}
			return os.WriteFile(f.Path(running), content, 0o644)
		},
		Stop: func(f *hosttest.Fake, _ string) { _ = os.Remove(f.Path(running)) },
	})
	f.Program("boxlift-node", func(_ context.Context, c *hosttest.Call) int { return probe(c) })
	f.Program("journalctl", hosttest.Prints("dnsmasq: failed to create listening socket for 10.0.0.11: Address already in use\n"))
	return f
}

// check is dnsmasq --test.
func check(content string, c *hosttest.Call) int {
	known := strings.Fields("port listen-address bind-dynamic no-hosts no-resolv no-poll pid-file log-facility cache-size dns-forward-max local-ttl server " +
		"host-record local")
	number := 0
	for line := range strings.Lines(content) {
		number++
		key, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		if !strings.HasPrefix(line, "#") && !slices.Contains(known, key) {
			_, _ = fmt.Fprintf(c.Stderr, "dnsmasq: bad option at line %d of dnsmasq.conf\n", number)
			return 1
		}
	}
	_, _ = fmt.Fprintln(c.Stderr, "dnsmasq: syntax check OK.")
	return 0
}

// probe is boxlift-node, which asks what runs on this host.
func probe(c *hosttest.Call) int {
	content, err := os.ReadFile(c.Host.Path(running))
	report := reach.ProbeReport{Version: reach.ProbeVersion}
	for i := 3; i+1 < len(c.Args); i += 2 {
		r := reach.ProbeResult{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeKind(c.Args[i][1:]), Target: c.Args[i+1]}, State: reach.OK}
		name, server, _ := strings.Cut(r.Target, "@")
		for line := range strings.Lines(string(content)) {
			if address, ok := strings.CutPrefix(line, "host-record="+name+","); ok {
				r.Addresses = append(r.Addresses, netip.MustParseAddr(strings.TrimSpace(address)))
			}
		}
		switch listens, _, _ := strings.Cut(server, ":"); {
		case err != nil, !strings.Contains(string(content), "listen-address="+listens+"\n"):
			r.State, r.Detail = reach.Refused, "connection refused"
		case r.Addresses == nil:
			r.State, r.Detail = reach.Failed, server+" answers with Refused for "+name+"."
		}
		report.Results = append(report.Results, r)
	}
	if json.NewEncoder(c.Stdout).Encode(report) != nil {
		return 1
	}
	return 0
}

// The configuration is what dnsmasq was tried with, see TestLab: golden files show it whole.
func TestConfiguration(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"upstream.conf": func(s string) string { return s },
		"alone.conf": func(s string) string {
			return strings.Replace(s, `, upstream: [10.0.0.2, "fd00::2"]`, "", 1)
		},
		"six.conf": func(s string) string {
			return strings.Replace(s, "{host: 10.0.0.11,", `{host: "fd00::11",`, 1)
		},
	} {
		k := keeper(t, change(text), dnsmasq(t))
		list, err := k.Namer.Of(t.Context(), k.Site.Hosts[0])
		if err != nil {
			t.Fatal(err)
		}
		sitetest.CheckGolden(t, name, configuration(k.Site.Hosts[0].IP, fit(list), k.Site.Config.Names.Serve.Upstream))
	}
	// What a host says of itself may be anything.
	odd := []config.Name{{Name: "a\nserver=192.0.2.1"}, {Name: "b,c"}, {Name: "ok.lan"}, {Name: "/x/"}, {Name: ""}}
	if got := fit(odd); len(got) != 1 || got[0].Name != "ok.lan" {
		t.Errorf("%q", got)
	}
}

// step is one of those that bring up the server on a host.
func step(t *testing.T, k *Keeper, id string) run.Step {
	t.Helper()
	steps, err := k.steps(t.Context(), k.Site.Hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(steps, func(s run.Step) bool { return s.ID == id })
	return steps[i]
}

// up brings the server up on a host.
func up(t *testing.T, k *Keeper) []string {
	t.Helper()
	steps, err := k.steps(t.Context(), k.Site.Hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	var done []string
	for _, s := range steps {
		reason, err := s.Needed(t.Context())
		if err == nil && reason != "" {
			done = append(done, s.ID)
			err = s.Run(t.Context())
		}
		if err != nil {
			t.Fatalf("%s: %v", s.Title, err)
		}
	}
	return done
}

// Each step says why it is needed, does it, and goes on where it broke off.
func TestSteps(t *testing.T) {
	const conf, unitID, start = "file:" + configFile, "file:" + unit, "start-dns"
	for _, test := range []struct {
		name, id, why string
		set           func(t *testing.T, f *hosttest.Fake)
	}{
		{"none", conf, configFile + " is missing", nil},
		{"another", conf, configFile + " differs", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, strings.Replace(text, "git.lan", "wiki.lan", 1), f))
		}},
		{"one that others cannot read", conf, "another mode", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, text, f))
			if err := os.Chmod(f.Path(configFile), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"as it is to be", conf, "", func(t *testing.T, f *hosttest.Fake) { up(t, keeper(t, text, f)) }},
		{"no unit", unitID, unit + " is missing", nil},
		{"a changed unit", unitID, unit + " differs", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, text, f))
			f.WriteFile(t, unit, "[Service]\n", 0o644)
		}},
		{"not started", start, "the service is inactive", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, unit, string(unitText), 0o644)
			f.WriteFile(t, configFile, "host-record=six.lan,fd00::6\nlisten-address=10.0.0.11\n", 0o644)
			if _, err := host.FindService(t.Context(), f, service); err != nil { // the fake's systemd reads the unit
				t.Fatal(err)
			}
		}},
		{"another program", start, "its program, unit or config changed", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, text, f))
			f.WriteFile(t, program, "dnsmasq, newer", 0o755)
		}},
		{"stopped by somebody", start, "the service is inactive", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, text, f))
			if _, err := host.Root(t.Context(), f, "stop", "systemctl", "stop", "boxlift-dns"); err != nil {
				t.Fatal(err)
			}
		}},
		{"deaf", start, "it does not answer: asked for six.lan over UDP: connection refused", func(t *testing.T, f *hosttest.Fake) {
			up(t, keeper(t, text, f))
			if err := os.Remove(f.Path(running)); err != nil {
				t.Fatal(err)
			}
		}},
		{"running", start, "", func(t *testing.T, f *hosttest.Fake) { up(t, keeper(t, text, f)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := steptest.Case{Why: test.why}
			if test.id == start {
				c.Commands = 6 // then it waits
			}
			c.Fresh = func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := dnsmasq(t)
				if test.set != nil {
					test.set(t, f)
				}
				return f, step(t, keeper(t, text, f), test.id)
			}
			steptest.Prove(t, c)
		})
	}
	for _, id := range []string{conf, unitID, start} {
		steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
			k := keeper(t, text, dnsmasq(t))
			s := step(t, k, id)
			k.Site.Hosts[0].Conn = h
			return s
		})
	}
}

// A second run does nothing; after a change of names the configuration is written and the service started again.
func TestServerFollowsNames(t *testing.T) {
	f := dnsmasq(t)
	all := []string{"file:" + configFile, "file:" + unit, "start-dns"}
	for _, test := range []struct {
		text string
		want []string
	}{
		{text, all}, {text, nil},
		{strings.Replace(text, "git.lan: 10.0.0.5", "git.lan: 10.0.0.6", 1), []string{all[0], all[2]}},
		{strings.Replace(text, "10.0.0.2, ", "", 1), []string{all[0], all[2]}},
	} {
		if diff := cmp.Diff(test.want, up(t, keeper(t, test.text, f))); diff != "" {
			t.Error(diff)
		}
	}
	if got := f.ReadFile(t, running); got != f.ReadFile(t, configFile) || !strings.Contains(got, "host-record=git.lan,10.0.0.5\n") {
		t.Errorf("it runs with %q", got)
	}
	if n := f.Unit(service).Starts(); n != 3 {
		t.Errorf("it was started %d times", n)
	}
}

// A configuration that dnsmasq does not take never gets its name: what runs stays.
func TestConfigurationRefused(t *testing.T) {
	f := dnsmasq(t)
	k := keeper(t, text, f)
	up(t, k)
	before := f.Snapshot(t)
	s := configStep(k.Site.Hosts[0], []byte("nonsense\n"))
	err := s.Run(t.Context())
	if err == nil || fault.ClassOf(err) != fault.Host || !strings.Contains(err.Error(), "bad option at line 1") || len(fault.Hints(err)) == 0 {
		t.Errorf("%v, hints %q", err, fault.Hints(err))
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Error(diff)
	}
}

// What cannot serve is refused with what to do about it.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Keeper)
		want   string
	}{
		"no address":       {func(k *Keeper) { k.Site.Hosts[0].IP = netip.Addr{} }, "the address by which others reach first (10.0.0.11) is not known"},
		"its own upstream": {func(k *Keeper) { k.Site.Hosts[0].IP = netip.MustParseAddr("10.0.0.2") }, "names.serve.upstream has 10.0.0.2"},
		"a damaged /etc/hosts": {func(k *Keeper) {
			k.Site.Hosts[0].Conn.(*hosttest.Fake).WriteFile(t, "/etc/hosts", "# end boxlift\n", 0o644)
		}, "the lines of boxlift in it are not in their order"},
	} {
		k := keeper(t, text, dnsmasq(t))
		test.change(k)
		_, err := k.steps(t.Context(), k.Site.Hosts[0])
		if err == nil || !strings.Contains(err.Error(), test.want) || len(fault.Hints(err)) == 0 || fault.ClassOf(err) == fault.Failure {
			t.Errorf("%s: %v, hints %q, class %v", name, err, fault.Hints(err), fault.ClassOf(err))
		}
	}
	// One that does not come up is told of with its journal.
	f := dnsmasq(t)
	f.Program("boxlift-node", hosttest.Fails(1, "cannot"))
	k := keeper(t, text, f)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	if err := step(t, k, "start-dns").Run(ctx); err == nil {
		t.Error("it starts without an answer")
	}
}

// A host that serves no more, or leaves, loses all of it, and a failure on the way is one.
func TestTakeAway(t *testing.T) {
	fresh := func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := dnsmasq(t)
		up(t, keeper(t, text, f))
		return f, TakeAway(f)
	}
	steptest.Prove(t, steptest.Case{Why: unit + " is there, and the host is not to serve names", Fresh: fresh})
	steptest.Prove(t, steptest.Case{Why: "", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := dnsmasq(t)
		return f, TakeAway(f)
	}})
	steptest.Prove(t, steptest.Case{Why: run.DNSDir + " is there", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f, s := fresh(t)
		if err := os.Remove(f.Path(unit)); err != nil {
			t.Fatal(err)
		}
		return f, s
	}})
	f, s := fresh(t)
	f.FailNext("systemctl", 1, "Failed to connect to bus")
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Failed to connect to bus") || f.ReadFile(t, unit) == "" {
		t.Errorf("a systemd that does not stop it: %v", err)
	}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{unit, configFile, started, running} {
		if f.ReadFile(t, name) != "" {
			t.Errorf("%s is left", name)
		}
	}
	if f.ReadFile(t, program) == "" {
		t.Error("the program is the package's")
	}
	steptest.Hostile(t, func(_ *testing.T, h host.Host) run.Step { return TakeAway(h) })
}

// Hosts that are to serve come one after the other; of all others it is taken away. A host that failed is left alone.
func TestKeep(t *testing.T) {
	a, b := dnsmasq(t), dnsmasq(t)
	up(t, keeper(t, text, b)) // from a time when it served
	k := keeper(t, text, a, b)
	if err := k.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var first, second []string
	for _, c := range k.Site.Hosts[0].Changes {
		first = append(first, c.ID)
	}
	for _, c := range k.Site.Hosts[1].Changes {
		second = append(second, c.ID)
	}
	if diff := cmp.Diff([]string{"file:" + configFile, "file:" + unit, "start-dns"}, first); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"remove-dns"}, second); diff != "" {
		t.Error(diff)
	}
	var needed []string
	k.NeedPackages(func(h *site.Host, names ...string) { needed = append(needed, h.Name+" "+strings.Join(names, " ")) })
	if diff := cmp.Diff([]string{"first (10.0.0.11) dnsmasq-base"}, needed); diff != "" {
		t.Error(diff)
	}
	// Without the section nobody serves.
	none := keeper(t, "cluster: {servers: [{host: 10.0.0.11, agent: true, name: first}]}\n", b)
	if err := none.Keep(t.Context()); err != nil || len(none.Site.Hosts[0].Changes) != 1 || none.Servers() != nil {
		t.Errorf("%v, %+v", err, none.Site.Hosts[0].Changes)
	}
}

// Servers are asked by their addresses, also those that were not logged in to; each has its own answer.
func TestAsk(t *testing.T) {
	f := dnsmasq(t)
	both := strings.Replace(text, "on: [first]", "on: [first, second]", 1)
	k := keeper(t, both, f, nil)
	k.Site.Hosts[1].IP = netip.Addr{}
	up(t, k)
	servers := k.Servers()
	if len(servers) != 2 || servers[1].Address != netip.MustParseAddr("10.0.0.21") || servers[0].Name.Name != "six.lan" {
		t.Fatalf("%+v", servers)
	}
	wrong, err := Ask(t.Context(), k.Site.Hosts[0], servers...)
	if err != nil || len(wrong) != 2 || wrong[0] != nil || wrong[1] == nil ||
		wrong[1].Error() != "asked for six.lan over UDP: connection refused" {
		t.Errorf("%v, %v", wrong, err)
	}
	servers[0].Name.Address = netip.MustParseAddr("fd00::99")
	wrong, err = Ask(t.Context(), k.Site.Hosts[0], servers[:1]...)
	if err != nil || wrong[0] == nil || !strings.Contains(wrong[0].Error(), "it says [fd00::6], and not fd00::99") {
		t.Errorf("%v, %v", wrong, err)
	}
	k.Site.Hosts[0].Conn = hosttest.Liar{Output: []byte("{}\n")}
	if _, err := Ask(t.Context(), k.Site.Hosts[0], servers...); err == nil {
		t.Error("an answer to nothing is taken")
	}
}
