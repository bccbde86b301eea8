package timekeeping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const text = `cluster:
  servers:
    - {host: 10.0.0.11, agent: true}
    - {host: 10.0.0.12, agent: true}
    - {host: 10.0.0.13, agent: true, nodeIP: 192.168.0.13}
  agents:
    - {host: worker.lan, agent: true}
    - {host: "fd00::5", agent: true}
time: {upstream: [10.0.0.2, clock.lan]}
`

// keeper keeps the time of the hosts of an install.yaml, which have told their facts.
func keeper(t testing.TB, text string) *Keeper {
	t.Helper()
	s := sitetest.Example(t, text)
	for _, h := range s.Hosts {
		h.IP, _ = netip.ParseAddr(h.LanAddress())
		h.Facts = &facts.Facts{Network: facts.Network{Interfaces: []facts.Interface{
			{Name: "lo", Addresses: []string{"127.0.0.1/8", "::1/128"}},
			{Name: "eth0", Addresses: []string{"10.0.0.1/8", "10.0.0.11/24", "fe80::1/64", "no address"}},
		}}}
	}
	engine := &run.Engine{Site: s, Holds: run.NewHolds()}
	engine.Record = &run.Record{Site: s, Engine: engine}
	return &Keeper{Site: s, Engine: engine}
}

// runningFile has the configuration that the fake's chronyd was started with, offsetFile by how many seconds its clock is
// behind.
const (
	runningFile = "/run/chronyd.conf"
	offsetFile  = "/run/behind"
)

// newHost is a host with chrony, as its package leaves it.
func newHost(t testing.TB, name string) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, name)
	f.WriteFile(t, "/proc/1/status", "Name:\tsystemd\nCapBnd:\t000001ffffffffff\n", 0o444)
	f.WriteFile(t, "/etc/chrony/chrony.conf", "pool 2.debian.pool.ntp.org iburst\n", 0o644)
	f.WriteFile(t, offsetFile, "0.000012000", 0o644)
	f.Program("journalctl", hosttest.Prints("chronyd: Could not open /etc/chrony/boxlift.conf\n"))
	f.Program("chronyd", chronyd)
	f.Program("chronyc", chronyc)
	f.Unit(service).OnStart(func(f *hosttest.Fake) error {
		if err := os.MkdirAll(f.Path(path.Dir(runningFile)), 0o755); err != nil {
			return err
		}
		content, err := os.ReadFile(f.Path(ConfigurationFile))
		if unit, unitErr := os.ReadFile(f.Path(UnitFile)); unitErr != nil || !strings.Contains(string(unit), ConfigurationFile) {
			content, err = os.ReadFile(f.Path("/etc/chrony/chrony.conf"))
		}
		return errors.Join(err, os.WriteFile(f.Path(runningFile), content, 0o644))
	})
	return f
}

// chronyd checks a configuration.
func chronyd(_ context.Context, c *hosttest.Call) int {
	if len(c.Args) != 3 || c.Args[0] != "-p" || c.Args[1] != "-f" {
		_, _ = fmt.Fprintf(c.Stderr, "chronyd would set this machine's clock: %q\n", c.Args) // the caller may have gone
		return 2
	}
	content, err := os.ReadFile(c.Host.Path(c.Args[2]))
	if err != nil {
		return 1
	}
	known := []string{"server", "initstepslew", "local", "allow", "port", "makestep", "driftfile", "rtcsync", "cmdport", "pool"}
	for line := range strings.Lines(string(content)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(line, "#") && !slices.Contains(known, word) {
			_, _ = fmt.Fprintln(c.Stderr, "Fatal error : Invalid directive")
			return 1
		}
	}
	return 0
}

// chronyc tells what chronyd would, once it has asked each of its sources: the last of them that answers counts.
func chronyc(_ context.Context, c *hosttest.Call) int {
	running, err := os.ReadFile(c.Host.Path(runningFile))
	if err != nil || c.Host.Unit(service).Active() != "active" {
		_, _ = fmt.Fprintln(c.Stdout, "506 Cannot talk to daemon") // the caller may have gone
		return 1
	}
	offset, err := os.ReadFile(c.Host.Path(offsetFile))
	if err != nil {
		return 1
	}
	var sources []string
	serves := false
	for line := range strings.Lines(string(running)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "server":
			sources = append(sources, strings.Replace(fields[1], "clock.lan", "10.0.0.3", 1))
		case fields[0] == "local":
			serves = true
		}
	}
	switch command := strings.Join(c.Args, " "); command {
	case "makestep":
		err = os.WriteFile(c.Host.Path(offsetFile), []byte("0.000000001"), 0o644)
	case "-n -c tracking":
		reference := "00000000,,0,0.0,%s,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n"
		switch {
		case len(sources) > 0:
			reference = "0A00000B,10.0.0.11,11,1795690345.1,%s,0.000001,0.000002,-16.1,0.0,0.1,0.0001,0.0002,16.1,Normal\n"
		case serves:
			reference = "7F7F0101,,10,1795690345.1,%s,0.000001,0.000002,-16.1,0.0,0.1,0.0001,0.0002,16.1,Normal\n"
		}
		_, _ = fmt.Fprintf(c.Stdout, reference, offset)
	case "-n -c sources":
		for i, s := range sources {
			state := "-"
			if i == len(sources)-1 {
				state = "*"
			}
			_, _ = fmt.Fprintf(c.Stdout, "^,%s,%s,10,4,377,7,-0.000000479,-0.000000621,0.000000134\n", state, s)
		}
	default:
		_, _ = fmt.Fprintf(c.Stderr, "Unrecognized command: %s\n", command)
		return 1
	}
	if err != nil {
		return 1
	}
	return 0
}

// stepsFor are the steps for a host of an install.yaml.
func stepsFor(t *testing.T, k *Keeper, index int, conn host.Host) []run.Step {
	t.Helper()
	h := k.Site.Hosts[index]
	h.Conn = conn
	steps, err := k.steps(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

// done carries out steps as the engine does, and returns the ids of those that were needed.
func done(t *testing.T, steps []run.Step) []string {
	t.Helper()
	var ids []string
	for _, s := range steps {
		if s.Proves {
			if err := s.Run(t.Context()); err != nil {
				t.Fatalf("%s: %v", s.ID, err)
			}
			continue
		}
		reason, err := s.Needed(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", s.ID, err)
		}
		if reason == "" {
			continue
		}
		if err := s.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", s.ID, err)
		}
		ids = append(ids, s.ID)
	}
	return ids
}

// What hosts get is in testdata: of those who serve, of one who follows, of one alone, and of a container.
func TestFiles(t *testing.T) {
	k := keeper(t, text)
	k.Site.Hosts[3].IP = netip.MustParseAddr("10.1.2.3") // the operator has found it out
	alone := keeper(t, "cluster: {master: {host: 10.0.0.11, agent: true}}\ntime: {}\n")
	of := func(k *Keeper, i int) *plan { p := k.planFor(k.Site.Hosts[i]); return &p }
	for name, p := range map[string]*plan{"first": of(k, 0), "second": of(k, 1), "third": of(k, 2), "follower": of(k, 4), "alone": of(alone, 0)} {
		sitetest.CheckGolden(t, name+".conf", p.configuration())
	}
	sitetest.CheckGolden(t, "unit.conf", (&plan{}).unit())
	sitetest.CheckGolden(t, "container-unit.conf", (&plan{fixed: true}).unit())
	sitetest.CheckGolden(t, "container.conf", (&plan{servers: []string{"10.0.0.11"}, fixed: true}).configuration())
	if p := of(k, 0); p.unknown {
		t.Error("an address is unknown")
	}
	// In a run that does not work on a host, nothing changes for it, but for one that only the operator knows.
	before := of(k, 0).configuration()
	hosts := k.Site.Hosts
	k.Site.Hosts = hosts[:3]
	if p := of(k, 0); !p.unknown || !bytesEqualBut(before, p.configuration(), "allow 10.0.0.0/8\n") {
		t.Errorf("unknown: %t: %s", p.unknown, cmp.Diff(string(before), string(p.configuration())))
	}
}

// bytesEqualBut reports whether a is b with one more line at most.
func bytesEqualBut(a, b []byte, line string) bool {
	return string(a) == string(b) || strings.Replace(string(a), line, "", 1) == string(b)
}

// Who cannot be asked for his address is served as before.
func TestUnknownAddress(t *testing.T) {
	f := newHost(t, "a")
	f.WriteFile(t, ConfigurationFile, head+"allow 172.16.0.9/32\nallow 10.0.0.0/24\nallow all\n", 0o644)
	k := keeper(t, text)
	done(t, stepsFor(t, k, 0, f))
	if got := f.ReadFile(t, ConfigurationFile); !strings.Contains(got, "allow 172.16.0.9/32\n") || strings.Contains(got, "allow all") {
		t.Error(got)
	}
}

// The files are written where they are missing, differ or cannot be read, and what chrony did before is noted.
func TestFileSteps(t *testing.T) {
	k := keeper(t, text)
	p := k.planFor(k.Site.Hosts[0])
	for _, test := range []struct {
		name string
		step int
		make func(*testing.T, *hosttest.Fake)
		why  string
	}{
		{"none", 0, func(*testing.T, *hosttest.Fake) {}, ConfigurationFile + " is missing"},
		{"another", 0, func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, ConfigurationFile, "pool x\n", 0o644) }, ConfigurationFile + " differs"},
		{"for root", 0, func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, ConfigurationFile, string(p.configuration()), 0o600)
		}, "another mode or owner"},
		{"there", 0, func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, ConfigurationFile, string(p.configuration()), 0o644)
		}, ""},
		{"no unit", 1, func(*testing.T, *hosttest.Fake) {}, UnitFile + " is missing"},
		{"another unit", 1, func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, UnitFile, "[Service]\n", 0o644) }, UnitFile + " differs"},
		{"a unit", 1, func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, UnitFile, string(p.unit()), 0o644) }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				last = newHost(t, "a")
				last.Unit(service).Runs()
				test.make(t, last)
				k := keeper(t, text)
				return last, stepsFor(t, k, 0, last)[test.step]
			}})
			if test.why == "" {
				return
			}
			// With a file of boxlift's there, it was boxlift's before.
			want := `{"version":1}`
			if strings.Contains(test.why, "missing") {
				want = `{"version":1,"enabled":true,"active":true}`
			}
			if got := strings.TrimSpace(last.ReadFile(t, KeptFile)); got != want {
				t.Errorf("noted: %s, want %s", got, want)
			}
		})
	}
}

// A configuration that chronyd refuses has not its name, and the one before it stays.
func TestConfigurationRefused(t *testing.T) {
	for _, there := range []string{"", "pool x\n"} {
		f := newHost(t, "a")
		if there != "" {
			f.WriteFile(t, ConfigurationFile, there, 0o644)
		}
		f.Program("chronyd", hosttest.Fails(1, "Fatal error : Invalid directive at line 2"))
		before := f.Snapshot(t)
		err := writeConfiguration(t.Context(), f, []byte("x\n"))
		if err == nil || !strings.Contains(err.Error(), "have chronyd check its configuration: exit code 1: Fatal error") {
			t.Error(err)
		}
		if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
			t.Error(diff)
		}
	}
}

// chronyd is started with what there is, and again where it asks others than it is to.
func TestStart(t *testing.T) {
	running := func(t *testing.T) (*hosttest.Fake, *Keeper) {
		f, k := newHost(t, "a"), keeper(t, text)
		done(t, stepsFor(t, k, 2, f))
		return f, k
	}
	for _, test := range []struct {
		name string
		make func(*testing.T, *hosttest.Fake)
		why  string
	}{
		{"as it is to be", func(*testing.T, *hosttest.Fake) {}, ""},
		{"it does not run", func(t *testing.T, f *hosttest.Fake) { stop(t, f) }, "the service is inactive"},
		{"nobody knows with what it runs", func(t *testing.T, f *hosttest.Fake) { remove(t, f, startedFile) }, "changed since it was started"},
		{"it does not ask one", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, runningFile, "server 10.0.0.12\n", 0o644) }, "chronyd does not ask 10.0.0.11"},
		{"it asks another one", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, runningFile, f.ReadFile(t, runningFile)+"server 192.0.2.1\n", 0o644)
		}, "chronyd asks 192.0.2.1, and install.yaml does not have it"},
		{"it does not answer", func(t *testing.T, f *hosttest.Fake) { remove(t, f, runningFile) }, "chronyd does not answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, k := running(t)
				test.make(t, f)
				return f, stepsFor(t, k, 2, f)[2]
			}})
		})
	}
	// One that does not start says why; whoever else sets the clock does so no more.
	f, k := running(t)
	other := f.Unit("systemd-timesyncd").Runs()
	stop(t, f)
	f.Unit(service).OnStart(func(*hosttest.Fake) error { return errors.New("no") })
	err := stepsFor(t, k, 2, f)[2].Run(t.Context())
	if !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), "start chrony: it is failed") || !strings.Contains(err.Error(), "Could not open") {
		t.Error(err)
	}
	if state := other.Active(); state != "inactive" {
		t.Errorf("systemd-timesyncd is %s", state)
	}
}

func stop(t *testing.T, f *hosttest.Fake) {
	t.Helper()
	if _, err := host.Root(t.Context(), f, "", "systemctl", "stop", service); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, f *hosttest.Fake, name string) {
	t.Helper()
	if err := os.Remove(f.Path(name)); err != nil {
		t.Fatal(err)
	}
}

// A clock that is an hour off is set, and one that cannot be is an error.
func TestSetClock(t *testing.T) {
	for behind, why := range map[string]string{
		"3600.000000012": "the clock is 1h0m0s behind the time", "-3600.5": "the clock is 1h0m0.5s ahead of the time", "1.0": "", "-0.999": "",
	} {
		fresh := func(t *testing.T) (*hosttest.Fake, *Keeper) {
			f, k := newHost(t, "a"), keeper(t, text)
			done(t, stepsFor(t, k, 2, f))
			f.WriteFile(t, offsetFile, behind, 0o644)
			return f, k
		}
		steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			f, k := fresh(t)
			return f, stepsFor(t, k, 2, f)[4]
		}})
		f, k := fresh(t)
		f.WriteFile(t, "/proc/1/status", "CapBnd:\t000001fffdffffff\n", 0o444)
		step := stepsFor(t, k, 2, f)[4]
		reason, err := step.Needed(t.Context())
		if !step.Proves || reason != why || err != nil {
			t.Errorf("in a container: %t, %q, %v", step.Proves, reason, err)
		}
		err = step.Run(t.Context())
		if why == "" && err != nil || why != "" && (!errors.Is(err, ErrClock) || fault.HostOf(err) == "" || len(fault.Hints(err)) != 1) {
			t.Errorf("in a container: %v", err)
		}
	}
	f, k := newHost(t, "a"), keeper(t, text)
	steps := stepsFor(t, k, 2, f)
	if reason, err := steps[4].Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("without chrony: %q, %v", reason, err)
	}
	done(t, steps)
	f.WriteFile(t, offsetFile, "7200.0", 0o644)
	f.Program("chronyc", func(ctx context.Context, c *hosttest.Call) int {
		if c.Args[0] == "makestep" {
			return 0
		}
		return chronyc(ctx, c)
	})
	if err := steps[4].Run(t.Context()); !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), "chronyd was told to set it, and the clock is 2h0m0s behind") {
		t.Error(err)
	}
}

// A host is waited for until it goes by the time of others, and not for ever.
func TestFollow(t *testing.T) {
	f, k := newHost(t, "a"), keeper(t, text)
	steps := stepsFor(t, k, 2, f)
	done(t, steps)
	follow := steps[3]
	if reason, err := follow.Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	k.Site.Config.Runtime.CommandTimeout = time.Second
	for running, want := range map[string]string{"": "chrony has no time to go by", "local stratum 10\n": "chrony goes by the host's own clock"} {
		f.WriteFile(t, runningFile, running, 0o644)
		if reason, err := follow.Needed(t.Context()); reason != want || err != nil {
			t.Errorf("%q, %v", reason, err)
		}
		err := follow.Run(t.Context())
		if !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), "after 1s, "+want) || len(fault.Hints(err)) != 1 {
			t.Error(err)
		}
	}
	remove(t, f, runningFile)
	if reason, err := follow.Needed(t.Context()); reason != "chronyd does not answer" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	if err := follow.Run(t.Context()); !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), "after 1s, chronyd does not answer") {
		t.Error(err)
	}
	f.Program("chronyc", hosttest.Prints("x"))
	if err := follow.Run(t.Context()); !errors.Is(err, errAnswer) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := follow.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Who serves waits for what is upstream of him, and serves his own time without it.
func TestUpstream(t *testing.T) {
	f, k := newHost(t, "a"), keeper(t, text)
	steps := stepsFor(t, k, 0, f)
	done(t, steps)
	if k.Site.Warnings != nil {
		t.Errorf("it warns %q", k.Site.Warnings)
	}
	f.WriteFile(t, runningFile, "local stratum 10 orphan\n", 0o644)
	k.Site.Config.Runtime.CommandTimeout = time.Second
	if err := steps[3].Run(t.Context()); err != nil || len(k.Site.Warnings) != 1 || !strings.Contains(k.Site.Warnings[0], "none of time.upstream answers (10.0.0.2, clock.lan)") {
		t.Errorf("%v, %q", err, k.Site.Warnings)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := steps[3].Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// All hosts are looked at without a change. One that fails keeps no other from it, and one that has not told its facts
// is left out.
func TestKeep(t *testing.T) {
	start := func(t *testing.T) (*Keeper, []*hosttest.Fake) {
		k := keeper(t, strings.Replace(text, "upstream", "servers: [10.0.0.12, worker.lan], upstream", 1))
		fakes := make([]*hosttest.Fake, len(k.Site.Hosts))
		for i, h := range k.Site.Hosts {
			fakes[i] = newHost(t, h.Name)
			h.Conn = fakes[i]
		}
		return k, fakes
	}
	k, fakes := start(t)
	if err := k.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, h := range k.Site.Hosts {
		var ids []string
		for _, c := range h.Changes {
			ids = append(ids, c.ID)
		}
		if diff := cmp.Diff([]string{"write-time-configuration", "write-time-unit", "start-chrony"}, ids); diff != "" {
			t.Errorf("%s: %s", h.Name, diff)
		}
		if before := fakes[i].Commands(); slices.ContainsFunc(before, func(c string) bool { return strings.HasPrefix(c, "put ") }) {
			t.Errorf("looking has put files: %q", before)
		}
	}
	k, fakes = start(t)
	k.Site.Hosts[0].Facts = nil
	fakes[3].BreakAfter(0)
	if err := k.Keep(t.Context()); !errors.Is(err, hosttest.ErrLost) {
		t.Error(err)
	}
	if k.Site.Hosts[0].Changes != nil || k.Site.Hosts[1].Changes == nil || k.Site.Hosts[4].Changes == nil {
		t.Error("a host that fails has kept others from it, or one without facts was looked at")
	}
}

// What chrony did before comes back, and what says so goes last.
func TestTakeAway(t *testing.T) {
	for _, test := range []struct {
		name            string
		before          func(*testing.T, *hosttest.Fake)
		active, enabled bool
	}{
		{"it ran", func(_ *testing.T, f *hosttest.Fake) { f.Unit(service).Runs() }, true, true},
		{"it did not run", func(*testing.T, *hosttest.Fake) {}, false, false},
		{"boxlift has installed it", func(t *testing.T, f *hosttest.Fake) {
			f.Unit(service).Runs()
			f.WriteFile(t, packages.MarkFile, `{"version":1,"packages":[{"name":"chrony","architecture":"amd64"}]}`, 0o600)
		}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: ConfigurationFile + " is there, and the host does not keep time with boxlift any more",
				Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
					last = newHost(t, "a")
					test.before(t, last)
					k := keeper(t, text)
					done(t, stepsFor(t, k, 0, last))
					return last, k.TakeAway(last)
				}})
			state, err := host.FindService(t.Context(), last, service)
			if err != nil || (state.Active == "active") != test.active || state.Enabled != test.enabled {
				t.Errorf("%+v, %v", state, err)
			}
			if test.active && !strings.Contains(last.ReadFile(t, runningFile), "pool") {
				t.Errorf("it runs with %s", last.ReadFile(t, runningFile))
			}
			for _, name := range []string{ConfigurationFile, UnitFile, path.Dir(UnitFile), KeptFile, startedFile} {
				if _, err := os.Stat(last.Path(name)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if got := last.ReadFile(t, "/etc/chrony/chrony.conf"); got != "pool 2.debian.pool.ntp.org iburst\n" {
				t.Errorf("the distribution's file has %q", got)
			}
		})
	}
	// A host that boxlift has never been at, and one whose chrony is gone.
	steptest.Prove(t, steptest.Case{Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := newHost(t, "a")
		return f, keeper(t, text).TakeAway(f)
	}})
	steptest.Prove(t, steptest.Case{Why: "is there", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := hosttest.New(t, "a")
		f.WriteFile(t, UnitFile, "x", 0o644)
		f.WriteFile(t, path.Dir(UnitFile)+"/theirs.conf", "x", 0o644)
		return f, keeper(t, text).TakeAway(f)
	}})
	// What cannot be put back is an error, and the run after that goes on.
	f := newHost(t, "a")
	f.Unit(service).Runs()
	k := keeper(t, text)
	done(t, stepsFor(t, k, 0, f))
	f.WriteFile(t, KeptFile, `{"version":2}`, 0o600)
	if err := k.TakeAway(f).Run(t.Context()); !errors.Is(err, ErrClock) || fault.HostOf(err) != "a" || len(fault.Hints(err)) != 1 {
		t.Error(err)
	}
	if f.ReadFile(t, ConfigurationFile) == "" {
		t.Error("something was changed")
	}
	f.WriteFile(t, KeptFile, `{"version":1,"enabled":true,"active":true}`, 0o600)
	f.FailNext("systemctl", 1, "Failed to connect to bus")
	if err := k.TakeAway(f).Run(t.Context()); err == nil {
		t.Error("a failure was swallowed")
	}
	if reason, err := k.TakeAway(f).Needed(t.Context()); !strings.HasPrefix(reason, KeptFile) || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// Whatever hosts say.
func TestHostile(t *testing.T) {
	for i := range 5 {
		steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
			k := keeper(t, text)
			target := k.Site.Hosts[2]
			target.Conn = h
			steps, err := k.steps(t.Context(), target)
			if err != nil {
				return run.Step{Needed: func(context.Context) (string, error) { return "", err }}
			}
			return steps[i]
		}, "000001ffffffffff\n", "a,,b\n--\n", "ActiveState=active\nUnitFileState=enabled\n")
	}
	steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step { return keeper(t, text).TakeAway(h) }, `there`+"\n"+`{"version":7}`)
}

const measured = "0A00000B,10.0.0.11,11,1795690345.1,3600.000000000,0.000001,0.000002,-16.1,0.0,0.1,0.0001,0.0002,16.1,Normal\n--\n" +
	"^,*,10.0.0.11,10,4,377,7,-0.000000479,-3600.500000000,0.000000134\n^,x,10.0.0.12,10,4,10,700,-0.000000479,0.000000621,0.000000134\n" +
	"^,?,ID#0000000001,0,4,0,4294967295,0.000000000,0.000000000,0.000000000\n"

func TestParseMeasurement(t *testing.T) {
	got, err := parseMeasurement(measured)
	want := &Measurement{Synchronized: true, Stratum: 11, Offset: -time.Hour, Sources: []Source{
		{Name: "10.0.0.11", Selected: true, Stratum: 10, Answers: true, Offset: -time.Hour - 500*time.Millisecond},
		{Name: "10.0.0.12", Refused: true, Stratum: 10, Offset: 621 * time.Nanosecond}, {Name: "ID#0000000001"},
	}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.11"}, got.Following()); diff != "" {
		t.Error(diff)
	}
	for name, text := range map[string]string{
		"nothing": "", "no sources": "x\n", "two lines": strings.Replace(measured, "Normal", "Normal\n", 1),
		"too few fields": strings.Replace(measured, ",16.1,", ",", 1), "another reference": strings.Replace(measured, "0A00000B", "0A00000B00", 1),
		"no stratum": strings.Replace(measured, ",11,", ",-1,", 1), "no number": strings.Replace(measured, "3600.000000000", "NaN", 1),
		"endless": strings.Replace(measured, "3600.000000000", "1e300", 1), "no state of leap seconds": strings.Replace(measured, "Normal", "\x1b[2J", 1),
		"no state": strings.Replace(measured, "^,*", "^,!", 1), "reach in decimals": strings.Replace(measured, ",377,", ",399,", 1),
		"no name": strings.Replace(measured, "10.0.0.12", "", 1), "too many": measured + strings.Repeat("^,-,10.0.0.9,1,4,1,1,0,0,0\n", maxSources),
	} {
		if m, err := parseMeasurement(text); !errors.Is(err, errAnswer) || fault.ClassOf(err) != fault.Host || len(err.Error()) > 400 {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if m, err := parseMeasurement("00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n--\n"); m == nil || m.Synchronized || m.Sources != nil || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
}

// FuzzMeasurement: what is read of a host is bounded and can be shown.
func FuzzMeasurement(f *testing.F) {
	f.Add(measured)
	f.Add("7F7F0101,,10,1.0,0.0,0,0,0,0,0,0,0,0,Insert second\n--\n")
	f.Add("\n--\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMeasurement(text)
		if err != nil {
			if !errors.Is(err, errAnswer) {
				t.Error(err)
			}
			return
		}
		if len(m.Sources) > maxSources || m.Stratum < 0 || m.Stratum > 255 {
			t.Errorf("%+v", m)
		}
		p := plan{servers: []string{"10.0.0.11"}}
		for _, say := range []string{p.difference(m), p.unlike(m), off(m), strings.Join(m.Following(), "")} {
			if strings.ContainsAny(say, "\x1b\n\x00") {
				t.Errorf("%q", say)
			}
		}
	})
}

// FuzzKept: what says what chrony did before is read strictly.
func FuzzKept(f *testing.F) {
	f.Add([]byte(`{"version":1,"enabled":true,"active":true}`))
	f.Add([]byte(`{"version":1}x`))
	f.Fuzz(func(t *testing.T, content []byte) {
		if k, err := parseKept(content); err == nil && k.Version != keptVersion || err != nil && !errors.Is(err, ErrClock) {
			t.Errorf("%q: %+v, %v", content, k, err)
		}
	})
}
