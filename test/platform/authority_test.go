//go:build linux

package platform

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/anchors"
	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
)

const (
	addedRoots  = "/usr/local/share/ca-certificates"
	trustedList = "/etc/ssl/certs/ca-certificates.crt"
)

// debianTrust gives all hosts Debian's way to keep trust.
func (p *Platform) debianTrust(t testing.TB) {
	t.Helper()
	for _, h := range p.Hosts {
		h.WriteFile(t, addedRoots+"/README", "", 0o644)
		h.WriteFile(t, trustedList, "the distribution's\n", 0o644)
		h.Program("update-ca-certificates", func(_ context.Context, c *hosttest.Call) int {
			files, err := filepath.Glob(c.Host.Path(addedRoots) + "/*.crt")
			list := []byte("the distribution's\n")
			for _, file := range files {
				content, readErr := os.ReadFile(file)
				list, err = append(list, content...), errors.Join(err, readErr)
			}
			if errors.Join(err, os.WriteFile(c.Host.Path(trustedList), list, 0o644)) != nil {
				return 1
			}
			return 0
		})
	}
}

// tlsSecret puts a certificate of an authority into the cluster, as somebody does for an ingress, and returns what it
// is called.
func (p *Platform) tlsSecret(t testing.TB, a *ca.Authority, name string) string {
	t.Helper()
	pair, err := a.Issuer.Issue([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	p.API.Put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: pair}})
	return "Secret default/web"
}

// A site under one root, from the first installation through a change of the root, in which every host trusts the next
// one before anything is under it, and the former one until nothing is.
func TestAuthority(t *testing.T) {
	p, b := fresh(t), Bundle(t, older)
	p.debianTrust(t)
	folder := filepath.Join(t.TempDir(), "authority")
	a, err := ca.Make(ca.Options{Folder: folder, Name: "plant", Password: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	options := func(b *bundle.Reader) install.Options {
		o, _ := p.options(t, b)
		o.Config.Authority.Folder = folder
		return o
	}
	installs := func(what string, ids ...string) {
		t.Helper()
		s, err := install.Install(t.Context(), options(b))
		if err != nil {
			t.Fatalf("%s: %v, %v", what, err, p.Told())
		}
		var changed []string
		changes := slices.Concat(s.Changes)
		for _, h := range s.Hosts {
			changes = append(changes, h.Changes...)
		}
		for _, c := range changes {
			if !slices.Contains(changed, c.ID) {
				changed = append(changed, c.ID)
			}
		}
		for _, id := range ids {
			if !slices.Contains(changed, id) {
				t.Errorf("%s: the steps are %q, without %s", what, changed, id)
			}
		}
		if len(ids) == 0 && len(changed) > 0 {
			t.Errorf("%s: the steps are %q", what, changed)
		}
		if len(s.Warnings) > 0 {
			t.Errorf("%s: it warns of %q", what, s.Warnings)
		}
	}
	trust := func(what string, roots ...*x509.Certificate) {
		t.Helper()
		for _, h := range p.Hosts {
			list := h.ReadFile(t, trustedList)
			for _, root := range roots {
				if !strings.Contains(list, string(ca.Encode([]*x509.Certificate{root}))) {
					t.Errorf("%s: %s does not trust %s", what, h.Name(), root.Subject)
				}
			}
			if got := strings.Count(list, "BEGIN"); got != len(roots) {
				t.Errorf("%s: %s trusts %d of the site's roots, want %d", what, h.Name(), got, len(roots))
			}
		}
	}
	first := a.Roots[0]
	installs("the first installation", "keep-trust-store", "place-authorities")
	trust("the first installation", first)
	if root := a.RootOf([]byte(p.Hosts[0].ReadFile(t, serverCA))); root == nil {
		t.Error("the cluster has begun with another authority")
	}
	installs("the second installation")

	if err := a.Begin([]byte("y")); err != nil {
		t.Fatal(err)
	}
	installs("the next root", "keep-trust-store")
	trust("the next root", a.Roots...)
	// What is signed now is under the former root: for a Secret of somebody's, and for a server outside the cluster.
	web := p.tlsSecret(t, a, "web.lan")
	harbor, err := a.Issuer.Issue([]string{"harbor.lan"})
	if err == nil {
		err = a.Record(harbor)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Switch([]byte("y")); err != nil {
		t.Fatal(err)
	}
	installs("the switch") // there is nothing here that it signs for
	trust("the switch", a.Roots...)
	finish := func() error {
		_, err := install.FinishRotation(t.Context(), options(nil))
		return err
	}
	uses := func(words ...string) {
		t.Helper()
		err := finish()
		if !errors.Is(err, anchors.ErrUsed) {
			t.Errorf("got %v, want one that tells of %q", err, words)
			return
		}
		for _, word := range []string{serverCA, web, ca.IssuedFolder} {
			if strings.Contains(err.Error(), word) != slices.Contains(words, word) {
				t.Errorf("got %v, want one that tells of %q", err, words)
			}
		}
	}
	uses(serverCA, web, ca.IssuedFolder)
	files, err := a.Issuer.ClusterAuthorities() // as whoever changes them by hand does
	if err != nil {
		t.Fatal(err)
	}
	p.Hosts[0].WriteFile(t, serverCA, string(files["server-ca.crt"]), 0o600)
	uses(web, ca.IssuedFolder)
	p.tlsSecret(t, a, "web.lan")
	uses(ca.IssuedFolder)
	harbor, err = a.Issuer.Issue([]string{"harbor.lan"})
	if err == nil {
		err = a.Record(harbor)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	installs("the end", "keep-trust-store")
	trust("the end", a.Roots[0])
	if a.Roots[0].Equal(first) {
		t.Error("the root is the first one")
	}
}

// A cluster that began without the site's authority keeps its own, and is told of it.
func TestAuthorityComesLate(t *testing.T) {
	b := Bundle(t, older)
	p := installed(t, b)
	p.debianTrust(t)
	folder := filepath.Join(t.TempDir(), "authority")
	if _, err := ca.Make(ca.Options{Folder: folder, Name: "plant", Password: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	before := p.Hosts[0].ReadFile(t, serverCA)
	starts := p.Hosts[0].Starts()
	o, _ := p.options(t, b)
	o.Config.Authority.Folder = folder
	s, err := install.Install(t.Context(), o)
	if err != nil {
		t.Fatal(err, p.Told())
	}
	if p.Hosts[0].ReadFile(t, serverCA) != before || p.Hosts[0].Starts() != starts {
		t.Error("the cluster's authority is another one, or k3s was started again")
	}
	if !strings.Contains(strings.Join(s.Warnings, "\n"), "has begun with authorities of its own") {
		t.Errorf("it warns of %q", s.Warnings)
	}
	status, err := install.Inspect(t.Context(), o)
	if !errors.Is(err, site.ErrDifferent) || !slices.ContainsFunc(status.Differences, func(d string) bool {
		return strings.Contains(d, "has begun with authorities of its own")
	}) {
		t.Errorf("status: %+v, %v", status, err)
	}
}
