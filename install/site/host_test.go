package site_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// bundleOf is a bundle with a file of k3s, and its contents.
func bundleOf(t *testing.T) (*bundle.Reader, *bundle.Contents) {
	t.Helper()
	r := sitetest.Fresh(t, 1).Bundle
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	return r, contents
}

// boxlift-node comes to a host whatever lies in its place, wherever it is broken off; one that is there is left alone.
func TestPlaceHelper(t *testing.T) {
	r, contents := bundleOf(t)
	const right = "boxlift-node for linux/amd64"
	for _, test := range []struct{ name, has, why string }{
		{"nothing", "", "it is missing"},
		{"that of another bundle", "older", "it is missing"},
		{"a folder in its way", "/", "it is missing"},
		{"it is there", right, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.has == "/" {
				f := sitetest.NewHost(t, "worker", nil)
				f.WriteFile(t, site.HelperPath+"/file", "", 0o644)
				h := &site.Host{Conn: f, Identity: site.Identity{Platform: "linux/amd64"}}
				if err := h.PlaceHelper(t.Context(), r, contents); err == nil || !strings.Contains(err.Error(), "is a directory") || h.Helper != "" {
					t.Errorf("got %v, and it is taken for there: %q", err, h.Helper)
				}
				return
			}
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := sitetest.NewHost(t, "worker", nil)
				if test.has != "" {
					f.WriteFile(t, site.HelperPath, test.has, 0o755)
				}
				h := &site.Host{Conn: f, Identity: site.Identity{Platform: "linux/amd64"}}
				file, _ := contents.File(bundle.ProgramsComponent, bundle.NodeProgram, "linux/amd64")
				return f, run.Step{ID: "helper", Title: "place it",
					Needed: func(ctx context.Context) (string, error) {
						if is, err := h.HasHelper(ctx, file); is || err != nil {
							return "", err
						}
						return "it is missing", nil
					},
					Run: func(ctx context.Context) error {
						err := h.PlaceHelper(ctx, r, contents)
						if (h.Helper == file.Digest.Encoded()) != (err == nil) {
							t.Errorf("the host is said to have %q, %v", h.Helper, err)
						}
						return err
					}}
			}})
		})
	}
	h := &site.Host{Conn: sitetest.NewHost(t, "worker", nil), Identity: site.Identity{Platform: "linux/riscv64"}}
	if err := h.PlaceHelper(t.Context(), r, contents); err == nil || err.Error() != "the bundle carries no boxlift-node for linux/riscv64" {
		t.Errorf("another platform: %v", err)
	}
	steptest.Hostile(t, func(_ *testing.T, conn host.Host) run.Step {
		h := &site.Host{Conn: conn}
		return run.Step{Needed: func(ctx context.Context) (string, error) {
			if is, err := h.HasHelper(ctx, bundle.File{Digest: digest.FromString("x")}); is || err != nil {
				return "it is there", err
			}
			return "", nil
		}}
	}, strings.Repeat("0", 64)+"  /somewhere/else\n")
}

// Facts are taken from a boxlift-node of this version alone. Where it lies and does not run, the usual cause is named.
func TestGatherFacts(t *testing.T) {
	for _, test := range []struct {
		name   string
		node   hosttest.Program
		notRun bool
		want   string
	}{
		{name: "facts"},
		{name: "a file system without exec", node: hosttest.Fails(126, "Permission denied"), notRun: true,
			want: "exit code 126"},
		{name: "no boxlift-node", node: hosttest.Fails(127, "not found"), want: "exit code 127"},
		{name: "another version", node: hosttest.Prints(`{"version":1}`),
			want: "boxlift-node is of another version than boxlift"},
		{name: "no facts", node: hosttest.Prints("\x1b[2J"), want: "gather facts: read facts: "},
		{name: "more than anybody asked for", node: hosttest.Prints(`{"version":3,"root":"yes"}`),
			want: "unknown field"},
		{name: "a port that is none",
			node: hosttest.Prints(`{"version":3,"ports":[{"protocol":"tcp","address":"0.0.0.0","port":99999}]}`),
			want: "a port is"},
		{name: "without end", node: hosttest.Prints(`{"version":3,"hostname":"` + strings.Repeat("x", 9<<20)),
			want: "read facts"},
	} {
		f := sitetest.NewHost(t, "worker", &facts.Facts{Version: facts.Version, Hostname: "worker", SELinux: "disabled"})
		f.WriteFile(t, site.HelperPath, "", 0o755)
		if test.node != nil {
			f.Program("boxlift-node", test.node)
		}
		h := &site.Host{Conn: f}
		err := h.GatherFacts(t.Context())
		if test.want == "" {
			if err != nil || h.Facts == nil || h.Facts.Hostname != "worker" {
				t.Errorf("%s: %+v, %v", test.name, h.Facts, err)
			}
			continue
		}
		if err == nil || h.Facts != nil {
			t.Errorf("%s: %+v, %v", test.name, h.Facts, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, test.want) || len(text) > 4<<10 || strings.Contains(text, "\x1b") {
			t.Errorf("%s: %d bytes: %.300q", test.name, len(text), text)
		}
		told := strings.Contains(strings.Join(fault.Hints(err), ""), "findmnt -T /var/lib/boxlift")
		if errors.As(err, new(*site.NotRunError)) != test.notRun || told != test.notRun {
			t.Errorf("%s: hints %q", test.name, fault.Hints(err))
		}
	}
}

// What k3s says of its version is read strictly.
func TestK3sVersion(t *testing.T) {
	for says, want := range map[string]string{
		"k3s version v1.36.4+k3s1 (0123abcd)\ngo version go1.26\n": "v1.36.4+k3s1", "k3s version v1": "v1",
		"k3s version": "", "": "", "rke2 version v1.36.4\n": "", "k3s version \x1b[2J\n": "\ufffd[2J",
		"k3s version " + strings.Repeat("9", 1<<12): printable.Short(strings.Repeat("9", 1<<12), 100),
	} {
		h := &site.Host{Conn: hosttest.Liar{Output: []byte(says)}}
		got, err := h.K3sVersion(t.Context())
		if got != want || (err == nil) != (want != "") || err != nil && len(err.Error()) > 500 {
			t.Errorf("%.40q: got %q, %v", says, got, err)
		}
	}
	f := hosttest.New(t, "worker")
	if _, err := (&site.Host{Conn: f}).K3sVersion(t.Context()); err == nil {
		t.Error("a host without k3s has a version")
	}
}

// What a host is called, in install.yaml, by others and in the cluster.
func TestNames(t *testing.T) {
	s := sitetest.Example(t, sitetest.ThreeServers)
	first, third, worker := s.Hosts[0], s.Hosts[2], s.Hosts[3]
	third.Hostname = "Node-3.Lan"
	for what, pair := range map[string][2]string{
		"its name":               {worker.NodeName(), "worker"},
		"the name that it gives": {third.NodeName(), "node-3.lan"},
		"where others reach it":  {first.LanAddress(), "192.168.0.11"},
		"where anybody does":     {third.LanAddress(), "10.0.0.13"},
		"in messages":            {site.HostName(worker.Config), "worker (10.0.0.21)"},
		"in messages, no name":   {site.HostName(first.Config), "10.0.0.11"},
		"a digest":               {site.Short("sha256:0123456789abcdef"), "sha256:0123456789ab"},
		"half a digest":          {site.Short("sha"), "sha"},
		"a version nobody knows": {site.OrUnknown(""), "unknown"},
		"the version of k3s":     {s.Version("k3s"), ""},
		"platforms":              {site.PlatformsText(nil), ""},
		"the unit of a server":   {site.Unit(config.Server), "k3s"},
		"the unit of an agent":   {site.Unit(config.Agent), "k3s-agent"},
		"an error, the first one": {func() string {
			first.Fail(errors.New(
				"a"))
			first.Fail(errors.New("b"))
			return first.Err.Error()
		}(), "10.0.0.11: a"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
		}
	}
	for name, want := range map[string]bool{"10.0.0.11": true, "192.168.0.11": true, "": false, "worker": false, "10.0.0.1": false} {
		if got := site.IsCalled(first.Config, name); got != want {
			t.Errorf("it is called %q: %t", name, got)
		}
	}
	if who := site.Operator(); strings.Count(who, "@") != 1 || strings.HasPrefix(who, "@") || strings.HasSuffix(who, "@") {
		t.Errorf("the operator is %q", who)
	}
}

// A file of a host has its name here when all of it is right, and none of it before; what was there stays otherwise.
func TestFetch(t *testing.T) {
	const from, content = "/var/lib/backup.db", "a snapshot"
	sum := sha256.Sum256([]byte(content))
	right := hex.EncodeToString(sum[:])
	for _, test := range []struct {
		name   string
		change func(*testing.T, *hosttest.Fake)
		digest string
		want   string
	}{
		{name: "all of it", digest: right, want: content},
		{name: "another content", digest: strings.Repeat("0", 64), want: "the one before"},
		{name: "no such file", digest: right, change: func(t *testing.T, f *hosttest.Fake) {
			t.Helper()
			if err := os.Remove(f.Path(from)); err != nil {
				t.Fatal(err)
			}
		}, want: "the one before"},
		{name: "the host has gone", digest: right, change: func(_ *testing.T, f *hosttest.Fake) { f.BreakAfter(0) },
			want: "the one before"},
	} {
		for how, fetch := range map[string]func(*site.Host, string) error{
			"as a file": func(h *site.Host, to string) error { return h.Fetch(t.Context(), from, to, test.digest) },
			"as output": func(h *site.Host, to string) error {
				return h.FetchOutput(t.Context(), host.Command{Title: "dump it", Args: []string{"dump", from}}, to, 1<<20)
			},
		} {
			if how == "as output" && test.name == "another content" {
				continue // nobody knows what it is to be
			}
			f := sitetest.NewHost(t, "first", nil)
			f.WriteFile(t, from, content, 0o600)
			f.Program("dump", func(_ context.Context, c *hosttest.Call) int {
				text, err := os.ReadFile(c.Host.Path(c.Args[0]))
				if _, writeErr := c.Stdout.Write(append(text, " and"[:min(4, len(text))]...)); err != nil || writeErr != nil {
					return 1
				}
				return 0
			})
			if test.change != nil {
				test.change(t, f)
			}
			to := filepath.Join(t.TempDir(), "there")
			if err := os.WriteFile(to, []byte("the one before"), 0o644); err != nil {
				t.Fatal(err)
			}
			before := f.Snapshot(t)
			err := fetch(&site.Host{Conn: f}, to)
			got, readErr := os.ReadFile(to)
			want := test.want
			if how == "as output" && err == nil {
				want += " and"
			}
			if string(got) != want || readErr != nil || (err == nil) != (test.want == content) {
				t.Errorf("%s, %s: it has %q, %v", test.name, how, got, err)
			}
			if info, err := os.Stat(to); err == nil && test.want == content && info.Mode().Perm() != 0o600 {
				t.Errorf("%s, %s: others may read it: %v", test.name, how, info.Mode())
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(to), "*")); len(left) != 1 || err != nil {
				t.Errorf("%s, %s: there is %q, %v", test.name, how, left, err)
			}
			if f.Snapshot(t) != before {
				t.Errorf("%s, %s: fetching has changed the host", test.name, how)
			}
		}
	}
	// A folder that is not there says so before anything is asked of the host.
	f := sitetest.NewHost(t, "first", nil)
	if err := (&site.Host{Conn: f}).Fetch(t.Context(), from, filepath.Join(t.TempDir(), "no", "there"), right); !os.IsNotExist(err) || f.Commands() != nil {
		t.Errorf("got %v, %q", err, f.Commands())
	}
}

// What a run keeps beside the state is shown to people by its whole path.
func TestBeside(t *testing.T) {
	s := sitetest.Example(t, sitetest.ExampleConfig)
	for state, want := range map[string]string{"/home/op/state.json": "/home/op/backups/example", "state.json": "/backups/example"} {
		s.StatePath = state
		if got := s.Beside("backups"); !filepath.IsAbs(got) || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s", state, got)
		}
	}
}

// The host of a node is found among those that are logged in to first, and else by logging in; a node that is no host's
// says which hosts could not be asked.
func TestHostOf(t *testing.T) {
	m := kubetest.NewMemory(t, kubetest.Labelled("first", nil), kubetest.Labelled("renamed", nil), kubetest.Labelled("alien", nil))
	s := sitetest.Example(t, sitetest.ExampleConfig)
	s.API = connected(t, s, m)
	f := sitetest.NewHost(t, "renamed", nil)
	s.Conns = site.NewConnections(s.Config, nil, sitetest.DialTo(map[string]host.Host{"10.0.0.12": f}))
	s.Hosts[0].Conn = f // it is not asked again
	if h, err := s.HostOf(t.Context(), "first"); err != nil || h != s.Hosts[0] || f.Commands() != nil {
		t.Errorf("one that is connected: %v, %q", err, f.Commands())
	}
	if h, err := s.HostOf(t.Context(), "renamed"); err != nil || h != s.Hosts[1] || h.Conn == nil {
		t.Errorf("one that was not: %v", err)
	}
	s.Hosts[0].Conn = nil
	if h, err := s.HostOf(t.Context(), "alien"); h != nil || !errors.Is(err, sitetest.ErrNoRoute) ||
		!strings.HasPrefix(err.Error(), "it is on the node alien, which is that of no host that can be logged in to\nfirst (10.0.0.11): no route") {
		t.Errorf("a stranger: %v", err)
	}
	m.BreakAfter(0)
	if _, err := s.HostOf(t.Context(), "first"); !m.Lost(err) {
		t.Errorf("without an API: %v", err)
	}
	if diff := cmp.Diff([]string(nil), m.Changes()); diff != "" {
		t.Errorf("looking has changed %s", diff)
	}
}
