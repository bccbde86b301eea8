package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// timeLab are hosts whose packages are those of two releases.
type timeLab struct {
	*lab.Lab
	hosts []*lab.Host // the first two serve time
	clock *lab.Host   // serves a time of its own beside them
	conns []*remote.Host
	sets  []packages.Set
	files map[digest.Digest][]byte
}

func newTimeLab(ctx context.Context, t *testing.T) *timeLab {
	t.Helper()
	tl := &timeLab{Lab: labhost.New(ctx, t, "time"), files: make(map[digest.Digest][]byte)}
	for _, h := range []struct{ name, suite, version string }{
		{"first", "bookworm", "12"}, {"second", "trixie", "13"}, {"third", "bookworm", "12"}, {"clock", "bookworm", "12"},
	} {
		host := labhost.Make(ctx, t, tl.Lab, lab.HostOptions{Name: h.name, Suite: h.suite})
		tl.fetch(ctx, t, host, packages.Set{ID: "debian", Codename: h.suite, Version: h.version, Architecture: "amd64"})
		if h.name == "clock" {
			tl.clock = host
			break
		}
		tl.hosts, tl.conns = append(tl.hosts, host), append(tl.conns, labhost.Connect(ctx, t, tl.Lab, host))
	}
	return tl
}

// fetch gets chrony for a host's release, as a bundle would have it, where it was not got yet.
func (l *timeLab) fetch(ctx context.Context, t *testing.T, h *lab.Host, set packages.Set) {
	t.Helper()
	l.must(ctx, t, h, "mkdir", "-p", "/var/lib/boxlift")
	if slices.ContainsFunc(l.sets, func(s packages.Set) bool { return s.Codename == set.Codename }) {
		return
	}
	for _, d := range labhost.Debs(ctx, t, h, set.Codename, timekeeping.Package) {
		l.files[d.SHA256] = d.Content
		set.Packages = append(set.Packages, packages.Package{Name: d.Name, Version: d.Version,
			Architecture: d.Architecture, Filename: d.Filename, Size: int64(len(d.Content)), SHA256: d.SHA256})
	}
	l.sets = append(l.sets, set)
}

// must runs a program on a host and returns what it prints, without the space around it.
func (l *timeLab) must(ctx context.Context, t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	return strings.TrimSpace(labhost.Must(ctx, t, h, args...))
}

// run is one run over all hosts, with the section time as given.
type timeRun struct {
	site   *site.Site
	room   *packages.Room
	keeper *timekeeping.Keeper
	engine *run.Engine
}

func (l *timeLab) run(t *testing.T, section string) *timeRun {
	t.Helper()
	text := fmt.Sprintf("cluster:\n  servers: [{host: %s, agent: true}]\n  agents: [{host: %s, agent: true}, {host: %s, agent: true}]\n",
		l.hosts[0].Address, l.hosts[1].Address, l.hosts[2].Address)
	s := sitetest.Example(t, text+section)
	for i, h := range s.Hosts {
		h.Conn, h.IP = l.conns[i], l.hosts[i].Address
		h.Facts = &facts.Facts{Network: facts.Network{Interfaces: []facts.Interface{{Name: "eth0", Up: true,
			Addresses: []string{h.IP.String() + "/24"}}}}}
	}
	r := &timeRun{site: s, engine: &run.Engine{Site: s, Holds: run.NewHolds(), Command: "install", Verb: journal.Install}}
	r.engine.Record = &run.Record{Site: s, Engine: r.engine, NoRelease: true}
	r.room = &packages.Room{Site: s, Engine: r.engine, Sets: l.sets,
		Open: func(p packages.Package) (io.Reader, error) { return bytes.NewReader(l.files[p.SHA256]), nil }}
	r.keeper = &timekeeping.Keeper{Site: s, Engine: r.engine}
	if s.Config.Time != nil {
		for _, h := range s.Hosts {
			r.room.Need(h, timekeeping.Package)
		}
	}
	return r
}

func (r *timeRun) phases() []run.Phase {
	return []run.Phase{{Name: "packages", Look: r.room.Install}, {Name: timekeeping.Phase, Look: r.keeper.Keep}}
}

// apply does what is needed, and returns the ids of those steps of the phase for each host.
func (r *timeRun) apply(ctx context.Context, t *testing.T) (map[string][]string, error) {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }() // it only holds a lock
	if err := j.Begin(journal.Run{Command: "install", Verb: journal.Install}); err != nil {
		t.Fatal(err)
	}
	r.engine.Journal = j
	start := time.Now()
	err = r.engine.Apply(ctx, r.phases())
	t.Logf("a run took %v", time.Since(start).Round(time.Second))
	return r.changes(), err
}

func (r *timeRun) changes() map[string][]string {
	done := make(map[string][]string)
	for _, h := range r.site.Hosts {
		for _, c := range h.Changes {
			if c.Phase == timekeeping.Phase {
				done[h.Config.Host] = append(done[h.Config.Host], c.ID)
			}
		}
	}
	return done
}

// health are the states of the check, and what they say, by host.
func (r *timeRun) health(ctx context.Context) map[string]HealthCheck {
	e := &examination{inspector: &Inspector{Site: r.site, Engine: r.engine}}
	found := make(map[string]HealthCheck)
	for _, c := range e.checkTimes(ctx) {
		found[c.Subject] = c
	}
	return found
}

// TestTimeLab is about what only real hosts show: chrony of two releases of Debian's, installed from files alone, serves
// time and follows it by boxlift's configuration; one that serves it is lost and the other one is followed; and what is
// an hour off is found. None of these hosts can set its clock, which is the machine's: chronyd measures it.
func TestTimeLab(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	l := newTimeLab(ctx, t)
	first, second, third := l.hosts[0], l.hosts[1], l.hosts[2]
	const section = "time: {servers: [10.77.0.11, 10.77.0.12]}\n"
	if first.Address.String() != "10.77.0.11" || second.Address.String() != "10.77.0.12" {
		t.Fatalf("the hosts are %s and %s", first.Address, second.Address)
	}

	r := l.run(t, section)
	all := []string{"write-time-configuration", "write-time-unit", "start-chrony"}
	done, err := r.apply(ctx, t)
	want := map[string][]string{"10.77.0.11": all, "10.77.0.12": all, "10.77.0.13": all}
	if diff := cmp.Diff(want, done); diff != "" || err != nil {
		t.Fatalf("%v: %s", err, diff)
	}
	for _, h := range l.hosts {
		t.Logf("%s: %s", h.Name, l.must(ctx, t, h, "sh", "-c", "chronyc -n tracking; chronyc -n sources; cat "+timekeeping.ConfigurationFile))
		if got := l.must(ctx, t, h, "sh", "-c", `tr '\0' ' ' </proc/$(cat /run/chrony/chronyd.pid)/cmdline`); !strings.Contains(got, timekeeping.ConfigurationFile) ||
			!strings.Contains(got, " -x ") {
			t.Errorf("%s runs %q", h.Name, got)
		}
	}
	for name, c := range r.health(ctx) {
		if c.State != HealthOK {
			t.Errorf("%s: %+v", name, c)
		}
	}
	r = l.run(t, section)
	if done, err := r.apply(ctx, t); len(done) > 0 || err != nil {
		t.Errorf("a second run does %v, %v", done, err)
	}

	// One is lost: the other one is followed, and everybody says so.
	l.must(ctx, t, first, "sh", "-c", "kill -KILL $(cat /run/chrony/chronyd.pid)")
	r = l.run(t, section)
	await(ctx, t, func() bool {
		found := r.health(ctx)
		return found["10.77.0.12"].State == HealthWarning && found["10.77.0.13"].State == HealthWarning
	})
	found := r.health(ctx)
	for name, want := range map[string]struct {
		state  State
		detail string
	}{
		"10.77.0.11": {HealthFailed, "Cannot talk to daemon"},
		"10.77.0.12": {HealthWarning, "10.77.0.11 does not answer"},
		"10.77.0.13": {HealthWarning, "follows 10.77.0.12, stratum 1"},
	} {
		if c := found[name]; c.State != want.state || !strings.Contains(c.Detail, want.detail) {
			t.Errorf("%s: %+v, want %s with %q", name, c, want.state, want.detail)
		}
	}
	t.Logf("%+v", found)
	const ask = `chronyd -Q -x -t 20 'server 10.77.0.12 iburst' 2>&1`
	if out, err := third.Exec(ctx, "sh", "-c", ask); err != nil || !strings.Contains(string(out), "System clock wrong by") {
		t.Errorf("the other one does not serve: %v: %s", err, out)
	}
	r = l.run(t, section)
	if err := r.engine.Look(ctx, r.phases()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string][]string{"10.77.0.11": {"start-chrony"}}, r.changes()); diff != "" {
		t.Errorf("status says: %s", diff)
	}
	r = l.run(t, section)
	if done, err := r.apply(ctx, t); err != nil || len(done) != 1 {
		t.Errorf("a run after that does %v, %v", done, err)
	}

	// What all follow is an hour ahead.
	ahead := "time: {servers: [10.77.0.11, 10.77.0.12], upstream: [" + l.serveHourAhead(ctx, t) + "]}\n"
	r = l.run(t, ahead)
	done, err = r.apply(ctx, t)
	if !errors.Is(err, timekeeping.ErrClock) || fault.ClassOf(err) != fault.Host || !strings.Contains(err.Error(), "behind the time, and the host is not let set it") {
		t.Errorf("%v, %v", done, err)
	}
	t.Log(err)
	// Which of the two has followed the other server of time first is chance.
	found = l.run(t, ahead).health(ctx)
	if !slices.ContainsFunc(slices.Collect(maps.Values(found)), func(c HealthCheck) bool {
		return c.State == HealthFailed && anHour.MatchString(c.Detail)
	}) {
		t.Errorf("nobody is an hour off: %+v", found)
	}
	t.Log(l.must(ctx, t, first, "sh", "-c", "chronyc -n -c tracking; chronyc -n -c sources"))

	// It goes again.
	r = l.run(t, "")
	if _, err := r.apply(ctx, t); err != nil {
		t.Fatal(err)
	}
	for i, h := range l.hosts {
		const script = `ls -d "$@" 2>/dev/null; systemctl is-active chrony; systemctl is-enabled chrony; pgrep -x chronyd`
		got := l.must(ctx, t, h, "sh", "-c", script+" || :", "sh", timekeeping.ConfigurationFile, timekeeping.UnitFile,
			filepath.Dir(timekeeping.UnitFile), timekeeping.KeptFile)
		if got != "inactive\ndisabled" {
			t.Errorf("%s: left: %q", h.Name, got)
		}
		if notes, err := r.room.Remove(ctx, l.conns[i]); err != nil || notes != nil {
			t.Errorf("%s: %q, %v", h.Name, notes, err)
		}
		if out, err := h.Exec(ctx, "ls", "-d", "/etc/chrony", "/usr/sbin/chronyd"); err == nil {
			t.Errorf("%s: left: %s", h.Name, out)
		}
	}
	if n, detail, err := l.LeakedPackets(); n > 0 || err != nil {
		t.Errorf("%d packets were sent out of the LAN: %s, %v", n, detail, err)
	}
}

// anHour is what an hour is called: chronyd gets it in whole seconds.
var anHour = regexp.MustCompile(`; (59m5\d|1h0m)\S* off`)

// serveHourAhead has the host beside the others serve a time that is an hour ahead, and returns its address: chronyd
// takes it from who types it in, and leaves the machine's clock alone.
func (l *timeLab) serveHourAhead(ctx context.Context, t *testing.T) string {
	t.Helper()
	for _, p := range l.sets[0].Packages {
		name := "/root/" + p.Filename
		if _, err := l.clock.ExecInput(ctx, l.files[p.SHA256], "sh", "-c", `cat >"$1" && dpkg --unpack --no-triggers "$1"`, "sh", name); err != nil {
			t.Fatal(err)
		}
	}
	const script = `set -e
adduser --system --group --quiet --no-create-home _chrony 2>/dev/null || useradd -r _chrony
mkdir -p /run/chrony /var/lib/chrony
chown _chrony: /run/chrony /var/lib/chrony
chmod 0700 /run/chrony
printf 'manual\nlocal stratum 5\nallow\ncmdport 0\n' >/root/clock.conf
chronyd -x -f /root/clock.conf
chronyc settime "$(LC_ALL=C date -d '+1 hour' '+%b %d, %Y %H:%M:%S')"
chronyc tracking`
	t.Log(l.must(ctx, t, l.clock, "sh", "-c", script))
	return l.clock.Address.String()
}

// await polls until something is so.
func await(ctx context.Context, t *testing.T, is func() bool) {
	t.Helper()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-time.After(2 * time.Second):
		}
	}
}
