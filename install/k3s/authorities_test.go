package k3s

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/steptest"
)

// newAuthority is a site's authority, and its folder.
func newAuthority(t *testing.T) (*ca.Authority, string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "authority")
	a, err := ca.Make(ca.Options{Folder: folder, Name: "plant", Password: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	return a, folder
}

// The server that begins a cluster gets authorities that are under the site's before k3s is started, and no other host
// does. What a cluster has begun with stays, and is told of where it is under another authority.
func TestAuthoritiesStep(t *testing.T) {
	authority, folder := newAuthority(t)
	other, _ := newAuthority(t)
	begun := func(a *ca.Authority) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			files, err := a.Issuer.ClusterAuthorities()
			if err != nil {
				t.Fatal(err)
			}
			f.WriteFile(t, ServerAuthority, string(files["server-ca.crt"]), 0o600)
		}
	}
	for _, test := range []struct {
		name       string
		make       func(*testing.T, *hosttest.Fake)
		why, warns string
	}{
		{"nothing has begun", func(*testing.T, *hosttest.Fake) {}, "k3s would begin the cluster with authorities of its own", ""},
		{"an empty folder", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, Authorities+"/x", "", 0o600)
			if _, err := (&site.Host{Conn: f}).Root(t.Context(), "remove", "rm", Authorities+"/x"); err != nil {
				t.Fatal(err)
			}
		}, "k3s would begin", ""},
		{"broken off before", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, stagedAuthorities+"/server-ca.key", "half", 0o600)
		}, "k3s would begin", ""},
		{"begun with the site's", begun(authority), "", ""},
		{"begun with others", begun(other), "", "which stay"},
		{"begun with what is no certificate", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, ServerAuthority, "\x1b[2J", 0o600)
		}, "", "which stay"},
		{"a datastore that has them", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, K3sStateDB, "", 0o600)
		}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			var n *Node
			varies := []string{Authorities + "/service.key"}
			for _, name := range []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"} {
				varies = append(varies, Authorities+"/"+name+".crt", Authorities+"/"+name+".key")
			}
			steptest.Prove(t, steptest.Case{Why: test.why, Varies: varies, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				last, n = shipped(t, 0)
				n.Cluster.Site.Config.Authority.Folder = folder
				test.make(t, last)
				return last, stepOf(t, stepsOf(t, n), "place-authorities")
			}})
			if got := strings.Join(n.Cluster.Site.Warnings, "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("it warns of %q", got)
			}
			if test.why == "" {
				return
			}
			if root := authority.RootOf([]byte(last.ReadFile(t, ServerAuthority))); root == nil {
				t.Error("the cluster's authority is under another root")
			}
			for line := range strings.Lines(last.Snapshot(t)) {
				if strings.Contains(line, Authorities+"/") && strings.Contains(line, ".key") && !strings.HasPrefix(line, "-rw------- ") ||
					strings.Contains(line, stagedAuthorities) {
					t.Errorf("found %s", line)
				}
			}
		})
	}
}

// K3s' start comes after the authorities, on the server that begins the cluster alone.
func TestAuthoritiesPlace(t *testing.T) {
	_, folder := newAuthority(t)
	ids := func(place int, change func(*Node)) []string {
		_, n := shipped(t, place)
		n.Cluster.Site.Config.Authority.Folder = folder
		change(n)
		var ids []string
		for _, s := range stepsOf(t, n) {
			ids = append(ids, s.ID)
		}
		return ids
	}
	first := ids(0, func(*Node) {})
	at, start := slices.Index(first, "place-authorities"), slices.Index(first, StartID)
	if at < 0 || at > start {
		t.Errorf("the steps are %q", first)
	}
	for name, steps := range map[string][]string{
		"an agent":                      ids(1, func(*Node) {}),
		"a server that joins":           ids(0, func(n *Node) { n.Server = "https://10.0.0.12:6443" }),
		"a cluster from backup":         ids(0, func(n *Node) { n.Cluster.Restoration = &Restoration{Step: func(*Node) run.Step { return run.Step{} }} }),
		"without authority of the site": ids(0, func(n *Node) { n.Cluster.Site.Config.Authority.Folder = "" }),
	} {
		if slices.Contains(steps, "place-authorities") {
			t.Errorf("%s has the step", name)
		}
	}
}

// What there is in the place of the authorities, and is none, is not written over.
func TestAuthoritiesInTheWay(t *testing.T) {
	_, folder := newAuthority(t)
	f, n := shipped(t, 0)
	n.Cluster.Site.Config.Authority.Folder = folder
	f.WriteFile(t, Authorities+"/client-ca.key", "of others", 0o600)
	if err := stepOf(t, stepsOf(t, n), "place-authorities").Run(t.Context()); err == nil {
		t.Error("it was done")
	}
	if got := f.ReadFile(t, Authorities+"/client-ca.key"); got != "of others" {
		t.Errorf("found %q", got)
	}
}
