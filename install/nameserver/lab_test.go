package nameserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
)

// labSite are two hosts without a way out, and what a bundle would have for them.
type labSite struct {
	*lab.Lab
	first, second *lab.Host
	set           packages.Set
	files         map[digest.Digest][]byte
}

func newLabSite(ctx context.Context, t *testing.T) *labSite {
	t.Helper()
	s := &labSite{Lab: labhost.New(ctx, t, "nameserver"), files: make(map[digest.Digest][]byte),
		set: packages.Set{ID: "debian", Codename: "bookworm", Version: "12", Architecture: "amd64"}}
	program := labhost.NodeProgram(ctx, t)
	for name, h := range map[string]**lab.Host{"first": &s.first, "second": &s.second} {
		*h = labhost.Make(ctx, t, s.Lab, lab.HostOptions{Name: name})
		labhost.Put(ctx, t, *h, site.HelperPath, "0755", program)
	}
	for _, d := range labhost.Debs(ctx, t, s.first, "bookworm", Package) {
		s.files[d.SHA256] = d.Content
		s.set.Packages = append(s.set.Packages, packages.Package{Name: d.Name, Version: d.Version,
			Architecture: d.Architecture, Filename: d.Filename, Size: int64(len(d.Content)), SHA256: d.SHA256})
	}
	return s
}

// rooms are those of a run that begins now, with connections of its own.
func (s *labSite) rooms(ctx context.Context, t *testing.T, text string) (*Keeper, *packages.Room) {
	t.Helper()
	k := keeper(t, text)
	for i, h := range []*lab.Host{s.first, s.second} {
		k.Site.Hosts[i].Conn = labhost.Connect(ctx, t, s.Lab, h)
	}
	k.Engine.Record = &run.Record{Site: k.Site, Engine: k.Engine}
	var err error
	if k.Engine.Journal, err = journal.Open(filepath.Join(t.TempDir(), "state.json")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Engine.Journal.Close() }) // it only holds a lock
	if err := k.Engine.Journal.Begin(journal.Run{}); err != nil {
		t.Fatal(err)
	}
	room := &packages.Room{Site: k.Site, Engine: k.Engine, Sets: []packages.Set{s.set},
		Open: func(p packages.Package) (io.Reader, error) { return bytes.NewReader(s.files[p.SHA256]), nil }}
	k.NeedPackages(room.Need)
	return k, room
}

// install does what an installation does for names, and returns the ids of the steps that were needed on the first host.
func (s *labSite) install(ctx context.Context, t *testing.T, text string) []string {
	t.Helper()
	k, room := s.rooms(ctx, t, text)
	room.Need(k.Site.Hosts[1], Package) // for a server that is asked for other names
	err := k.Engine.Apply(ctx, []run.Phase{{Name: "packages", Look: room.Install}, {Name: "prepare", Look: func(ctx context.Context) error {
		if err := k.Namer.Hosts(ctx); err != nil {
			return err
		}
		return k.Keep(ctx)
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range k.Site.Hosts[0].Changes {
		ids = append(ids, c.ID)
	}
	return ids
}

// ask has the second host ask the first one for names, over UDP and TCP. Each is given as NAME=ADDRESS, or NAME= with a
// part of what is said of one that is not found.
func (s *labSite) ask(ctx context.Context, t *testing.T, wanted map[string]string) {
	t.Helper()
	for name, want := range wanted {
		for _, kind := range []reach.ProbeKind{reach.ProbeDNSUDP, reach.ProbeDNSTCP} {
			target := reach.ProbeTarget{Kind: kind, Target: fmt.Sprintf("%s@%s:53", name, s.first.Address)}
			out := labhost.Must(ctx, t, s.second, site.HelperPath, "probe", "-"+string(kind), target.Target)
			report, err := reach.ReadProbeReport(strings.NewReader(out), []reach.ProbeTarget{target})
			if err != nil {
				t.Fatal(err)
			}
			r := report.Results[0]
			got := r.Detail
			for _, a := range r.Addresses {
				got += a.String()
			}
			if (r.State == reach.OK) == strings.HasPrefix(want, "answers") || !strings.Contains(got, want) {
				t.Errorf("%s over %s: %s %q, expected %q", name, kind, r.State, got, want)
			}
		}
	}
}

// TestLab is about what only real hosts show: Debian's dnsmasq, from the bundle's files, takes what is rendered, runs
// without rights at the host's own address alone, answers over UDP and TCP from another host, sends on what it may and
// nothing else, comes back after a reboot, and goes without a trace.
func TestLab(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	s := newLabSite(ctx, t)
	const refused = "answers with Refused"
	alone := fmt.Sprintf(`cluster:
  servers: [{host: %s, agent: true, name: first}]
  agents: [{host: %s, agent: true, name: second}]
names:
  hosts: {git.lan: 10.0.0.5, six.lan: "fd00::6"}
  serve: {on: [first]}
liteboxd: {ingressHost: box.lan}
`, s.first.Address, s.second.Address)
	own := labhost.Must(ctx, t, s.first, "sha256sum", "/etc/resolv.conf")

	all := []string{"place-packages", "install-packages", "remove-package-files", "write-names", "file:" + configFile, "file:" + unit, "start-dns"}
	if done := s.install(ctx, t, alone); !slices.Equal(done, all) {
		t.Errorf("the first run does %q", done)
	}
	if done := s.install(ctx, t, alone); done != nil {
		t.Errorf("the second run does %q", done)
	}
	address := s.first.Address.String()
	s.ask(ctx, t, map[string]string{"git.lan": "10.0.0.5", "GIT.lan": "10.0.0.5", "six.lan": "fd00::6", "box.lan": address,
		"gateway.box.lan": address, "first": address, "second": s.second.Address.String(),
		"other.lan": refused, "x.git.lan": refused, "x.box.lan": refused, "localhost": refused})
	s.checkProcess(ctx, t)

	// With a server to ask, other names go there, and no name of install.yaml does.
	labhost.Must(ctx, t, s.second, "sh", "-c", `printf '%s\n' no-hosts no-resolv pid-file local=/lan/ log-queries log-facility=/run/asked bind-dynamic \
    listen-address=`+s.second.Address.String()+` host-record=other.lan,192.0.2.7 host-record=x.git.lan,192.0.2.8 \
    host-record=git.lan,192.0.2.9 >/run/upstream.conf && systemd-run --unit=upstream `+program+` -k --conf-file=/run/upstream.conf`)
	upstream := strings.Replace(alone, "{on: [first]}", "{on: [first], upstream: ["+s.second.Address.String()+"]}", 1)
	upstream = strings.Replace(upstream, "six.lan:", "wiki.lan: 10.0.0.5, six.lan:", 1)
	if done := s.install(ctx, t, upstream); !slices.Equal(done, []string{"write-names", "file:" + configFile, "start-dns"}) {
		t.Errorf("after a change of names, a run does %q", done)
	}
	wanted := map[string]string{"git.lan": "10.0.0.5", "wiki.lan": "10.0.0.5", "six.lan": "fd00::6", "other.lan": "192.0.2.7", "x.git.lan": "192.0.2.8"}
	s.ask(ctx, t, wanted)
	for line := range strings.Lines(labhost.Must(ctx, t, s.second, "cat", "/run/asked")) {
		if _, query, ok := strings.Cut(line, "query["); ok && !strings.Contains(query, "] other.lan ") && !strings.Contains(query, "] x.git.lan ") {
			t.Errorf("the upstream server was asked: %s", line)
		}
	}

	// A program that ends is started again, and a host that was started again serves.
	labhost.Must(ctx, t, s.first, "systemctl", "kill", "--signal=KILL", service)
	s.await(ctx, t)
	if err := s.first.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s.await(ctx, t)
	s.ask(ctx, t, wanted)
	s.checkProcess(ctx, t)
	if now := labhost.Must(ctx, t, s.first, "sha256sum", "/etc/resolv.conf"); now != own {
		t.Errorf("/etc/resolv.conf was changed: %s, %s", own, now)
	}

	// Taken out of install.yaml, it goes; the package goes with the host.
	without := strings.Replace(alone, "  serve: {on: [first]}\n", "", 1)
	if done := s.install(ctx, t, without); !slices.Equal(done, []string{"write-names", "remove-dns"}) {
		t.Errorf("without names.serve, a run does %q", done)
	}
	if out := labhost.Must(ctx, t, s.first, "sh", "-c", "ls -d "+unit+" "+run.DNSDir+" "+started+" 2>/dev/null; systemctl show -p LoadState --value "+
		service+".service; "+site.HelperPath+" facts"); !strings.HasPrefix(out, "not-found\n") || strings.Contains(out, service) {
		t.Errorf("left: %s", out)
	}
	k, room := s.rooms(ctx, t, without)
	if kept, err := room.Remove(ctx, k.Site.Hosts[0].Conn); kept != nil || err != nil {
		t.Errorf("%q, %v", kept, err)
	}
	if out, err := s.first.Exec(ctx, "test", "-e", program); err == nil {
		t.Errorf("%s is left %s", program, out)
	}
	if n, detail, err := s.LeakedPackets(); n > 0 || err != nil {
		t.Errorf("%d packets were sent out of the LAN: %s, %v", n, detail, err)
	}
}

// await waits until the first host answers.
func (s *labSite) await(ctx context.Context, t *testing.T) {
	t.Helper()
	target := fmt.Sprintf("git.lan@%s:53", s.first.Address)
	for {
		out, err := s.second.Exec(ctx, site.HelperPath, "probe", "-dns-tcp", target, "-dns-udp", target)
		if err == nil && strings.Count(string(out), `"state":"ok"`) == 2 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%v: %s, %v", context.Cause(ctx), out, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// checkProcess checks what the server listens on and what it may.
func (s *labSite) checkProcess(ctx context.Context, t *testing.T) {
	t.Helper()
	f, err := facts.Parse([]byte(labhost.Must(ctx, t, s.first, site.HelperPath, "facts")))
	if err != nil {
		t.Fatal(err)
	}
	var listens []string
	for _, p := range f.Ports {
		if p.Owner.Unit == service+".service" {
			listens = append(listens, fmt.Sprintf("%s %s:%d", p.Protocol, p.Address, p.Port))
		}
	}
	slices.Sort(listens)
	want := []string{fmt.Sprintf("tcp %s:53", s.first.Address), fmt.Sprintf("udp %s:53", s.first.Address)}
	if !slices.Equal(listens, want) {
		t.Errorf("it listens on %q, expected %q", listens, want)
	}
	status := labhost.Must(ctx, t, s.first, "sh", "-c", `cat /proc/$(systemctl show -p MainPID --value `+service+`.service)/status`)
	for _, line := range []string{"Uid:\t0", "CapEff:\t0000000000000400", "NoNewPrivs:\t1"} {
		if strings.Contains(status, line) == strings.HasPrefix(line, "Uid") {
			t.Errorf("%q of its process: %s", line, status)
		}
	}
}
