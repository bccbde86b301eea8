package certificates

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// roomsOf are the rooms for a site, as far as certificates need them.
func roomsOf(s *site.Site) *Renewer {
	r := &Renewer{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}}
	r.Seeder = &seed.Seeder{Site: s, Engine: r.Engine}
	r.Cluster = &k3s.Cluster{Site: s, Engine: r.Engine, Seeder: r.Seeder}
	return r
}

// clusterConfig is an install.yaml with a server and an agent, whose kubelets nobody can ask.
const clusterConfig = `cluster:
  name: example
  servers: [{host: 10.0.0.11, name: first, password: p}]
  agents: [{host: 10.0.0.12, name: second, password: p}]
  serverConfig: {kubelet-arg: [healthz-port=0]}
  agentConfig: {kubelet-arg: [healthz-port=0]}
network: {cni: cilium}
`

// certificate is one that k3s renews.
const certificate = "/var/lib/rancher/k3s/server/tls/client-admin.crt"

// nodeOf is a host whose k3s runs, by its place, with nodes that are Ready when they were asked for so many times.
func nodeOf(t *testing.T, place int, asks int32) (*hosttest.Fake, *k3s.Node, string) {
	t.Helper()
	var asked atomic.Int32
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/nodes" {
			return // as /readyz
		}
		status := corev1.ConditionTrue
		if asked.Add(1) < asks {
			status = corev1.ConditionFalse
		}
		var list corev1.NodeList
		for _, name := range []string{"first", "second"} {
			n := corev1.Node{}
			n.Name, n.Status.Conditions = name, []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
			list.Items = append(list.Items, n)
		}
		_ = json.NewEncoder(w).Encode(list) // the test sees what arrives
	}))
	t.Cleanup(api.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	kubeconfig := kubetest.Kubeconfig(api.URL, ca)
	r := roomsOf(sitetest.Example(t, clusterConfig, "k3s=v1.36.4+k3s1"))
	if place > 0 {
		var err error
		options := kube.Options{Name: "first", Kubeconfig: kubeconfig, Dial: new(net.Dialer).DialContext}
		if r.Site.API, err = kube.Connect(options); err != nil {
			t.Fatal(err)
		}
	}
	h := r.Site.Hosts[place]
	f := hosttest.New(t, h.Name)
	h.Conn = f
	service := site.Unit(h.Config.Role)
	f.Unit(service).Runs()
	f.WriteFile(t, site.K3sKubeconfig, string(kubeconfig), 0o600)
	f.WriteFile(t, certificate, "old", 0o600)
	f.Program("journalctl", hosttest.Prints("fatal: bind: address already in use\n"))
	f.Program("k3s", func(_ context.Context, c *hosttest.Call) int {
		args := strings.Join(c.Args, " ")
		switch {
		case args == "certificate rotate --help":
			return 0
		case args != "certificate rotate" || f.Unit(service).Active() == "active":
			return hosttest.Fails(1, "k3s is running, or asked for something else: "+args)(nil, c)
		}
		if err := os.WriteFile(f.Path(certificate), []byte("new"), 0o600); err != nil {
			return 1
		}
		return 0
	})
	return f, &k3s.Node{Cluster: r.Cluster, Host: h}, service
}

// Certificates are renewed while k3s is stopped, and it runs again afterwards, whatever happens in between.
func TestRenew(t *testing.T) {
	old := func(_ *testing.T, f *hosttest.Fake) {
		f.Program("k3s", hosttest.Fails(1, "No help topic for 'rotate'"))
	}
	for _, test := range []struct {
		name    string
		place   int
		asks    int32
		change  func(*testing.T, *hosttest.Fake)
		file    string
		starts  int
		warning string
		want    string // a part of the error
	}{
		{name: "a server", file: "new", starts: 1},
		{name: "an agent", place: 1, file: "new", starts: 1},
		{name: "a node that takes a while", place: 1, asks: 2, file: "new", starts: 1},
		{name: "a k3s without the command", place: 1, change: old, file: "old", starts: 1,
			warning: "this k3s has no certificate rotate"},
		{name: "it fails", place: 1, change: func(_ *testing.T, f *hosttest.Fake) {
			f.Program("k3s", func(ctx context.Context, c *hosttest.Call) int {
				if len(c.Args) == 3 {
					return 0
				}
				return hosttest.Fails(1, "open server-ca.key: permission denied")(ctx, c)
			})
		}, file: "old", starts: 1, want: "open server-ca.key: permission denied"},
		{name: "k3s does not start again", place: 1, change: func(_ *testing.T, f *hosttest.Fake) {
			f.Unit("k3s-agent").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
		}, file: "new", starts: 1, want: "fatal: bind: address already in use"},
		{name: "no kubeconfig", change: func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, site.K3sKubeconfig, "", 0o600)
		},
			file: "new", starts: 1, want: site.ErrNoCluster.Error()},
		{name: "a kubeconfig of somebody else's", change: func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, site.K3sKubeconfig, "users: [{user: {exec: {command: id}}}]", 0o600)
		}, file: "new", starts: 1, want: "reach the API: first (10.0.0.11): kubeconfig: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n, service := nodeOf(t, test.place, test.asks)
			if test.change != nil {
				test.change(t, f)
			}
			err := renew(t.Context(), n, service)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if got := f.ReadFile(t, certificate); got != test.file {
				t.Errorf("the certificate is the %s one", got)
			}
			var said *setup.ServiceError
			if runs := f.Unit(service).Active() == "active"; runs == errors.As(err, &said) ||
				f.Unit(service).Starts() != test.starts {
				t.Errorf("it is %s, started %d times", f.Unit(service).Active(), f.Unit(service).Starts())
			}
			if warnings := strings.Join(n.Cluster.Site.Warnings, "\n"); (warnings == "") != (test.warning == "") ||
				!strings.Contains(warnings, test.warning) {
				t.Errorf("it warns of %q, want %q", warnings, test.warning)
			}
		})
	}
}

// A connection that is lost in between is an error, and the same command brings the host to its end.
func TestRenewBreaksOff(t *testing.T) {
	for n := range 20 {
		f, node, service := nodeOf(t, 1, 0)
		f.BreakAfter(n)
		err := renew(t.Context(), node, service)
		f.BreakAfter(-1)
		if err == nil && n > 0 {
			return
		}
		if !errors.Is(err, hosttest.ErrLost) {
			t.Fatalf("after %d commands: %v", n, err)
		}
		if err := renew(t.Context(), node, service); err != nil || f.Unit(service).Active() != "active" ||
			f.ReadFile(t, certificate) != "new" {
			t.Errorf("again, after %d commands: it is %s, %v", n, f.Unit(service).Active(), err)
		}
	}
	t.Error("it does not come to an end")
}

// What this machine has of the cluster is told of also when a host does not answer.
func TestCheckTellsOfThisMachine(t *testing.T) {
	const nearEnd = (10*365 - 30) * 24 * time.Hour
	for _, test := range []struct {
		name     string
		make     func(t *testing.T, o authority.Options)
		ends     bool
		problems int
		count    int
	}{
		{"nothing", func(*testing.T, authority.Options) {}, false, 2, 0},
		{"a new authority", func(t *testing.T, o authority.Options) { open(t, o, 0) }, false, 2, 1},
		{"one that ends", func(t *testing.T, o authority.Options) { open(t, o, nearEnd) }, true, 2, 1},
		{"a damaged one", func(t *testing.T, o authority.Options) {
			open(t, o, 0)
			if err := os.WriteFile(filepath.Join(o.Dir, "ca.crt"), []byte("-----BEGIN"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, false, 3, 0}, // the host, and the Secrets behind it, are told of as well
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sitetest.Example(t, strings.Replace(sitetest.RemovingConfig,
				"  agents:\n    - {host: 10.0.0.12, password: p}\n", "", 1))
			s.StatePath = filepath.Join(t.TempDir(), "state.json")
			s.Conns = site.NewConnections(s.Config, slog.New(slog.DiscardHandler), nil)
			defer s.Conns.Close()
			r := roomsOf(s)
			test.make(t, r.Seeder.AuthorityOptions())
			all, err := r.Check(t.Context(), nil)
			if !errors.Is(err, site.ErrHosts) || errors.Is(err, ErrCertificates) != test.ends {
				t.Errorf("%v", err)
			}
			if len(all.Certificates) != test.count || len(all.Problems) != test.problems ||
				(len(all.Soon()) > 0) != test.ends {
				t.Errorf("%+v", all)
			}
		})
	}
}

// open makes an authority so long ago.
func open(t *testing.T, o authority.Options, ago time.Duration) {
	t.Helper()
	o.Now = func() time.Time { return time.Now().Add(-ago) }
	if _, err := authority.Open(o); err != nil {
		t.Fatal(err)
	}
}
