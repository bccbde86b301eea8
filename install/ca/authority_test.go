package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

var start = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// clock is a clock that is set by hand.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func options(t *testing.T) Options {
	t.Helper()
	return Options{Folder: filepath.Join(t.TempDir(), "authority"), Name: "plant", Password: []byte("secret"),
		Now: func() time.Time { return start }}
}

func mustMake(t *testing.T, o Options) *Authority {
	t.Helper()
	a, err := Make(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustOpen(t *testing.T, o Options) *Authority {
	t.Helper()
	a, err := Open(o.Folder, o.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// given is an authority of others: a root, and what the change makes of the one that it signs.
func given(t *testing.T, change func(*x509.Certificate)) *Issuer {
	t.Helper()
	return givenAt(t, start, change)
}

func givenAt(t *testing.T, now time.Time, change func(*x509.Certificate)) *Issuer {
	t.Helper()
	keys := make([]crypto.Signer, 2)
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = key
	}
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-2 * year),
			NotAfter: now.Add(8 * year), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	}
	root, err := SignCertificate(template("Company Root"), template("Company Root"), keys[0].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	below := template("Company Plants")
	if change != nil {
		change(below)
	}
	c, err := SignCertificate(below, root, keys[1].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	return NewIssuer([]*x509.Certificate{c, root}, keys[1], func() time.Time { return now })
}

// accepted verifies a certificate as a client does that knows the roots alone.
func accepted(pairPEM []byte, roots []*x509.Certificate, name string, now time.Time) error {
	pair, err := tls.X509KeyPair(pairPEM, pairPEM)
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(c)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool(roots), Intermediates: between, CurrentTime: now})
	return err
}

// However an authority came about, what it signs is accepted by whoever knows its root, and nothing else is.
func TestIssue(t *testing.T) {
	stranger := mustMake(t, options(t))
	for name, make := range map[string]func(Options) (*Authority, error){
		"made":              Make,
		"under another one": func(o Options) (*Authority, error) { return MakeUnder(o, given(t, nil)) },
		"of others":         func(o Options) (*Authority, error) { return Import(o, given(t, nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			if _, err := make(o); err != nil {
				t.Fatal(err)
			}
			a := mustOpen(t, o)
			pair, err := a.Issuer.Issue([]string{"liteboxd.example.lan", "192.0.2.5", "fd00::5"})
			if err != nil {
				t.Fatal(err)
			}
			for _, server := range []string{"liteboxd.example.lan", "192.0.2.5", "fd00::5"} {
				for _, at := range []time.Time{start, start.Add(-300 * day), start.Add(364 * day)} {
					if err := accepted(pair, a.Roots, server, at); err != nil {
						t.Errorf("%s at %s: %v", server, at, err)
					}
				}
			}
			if err := accepted(pair, stranger.Roots, "liteboxd.example.lan", start); err == nil {
				t.Error("it is accepted under another root")
			}
			if err := accepted(pair, a.Roots, "other.lan", start); err == nil {
				t.Error("it is accepted for another name")
			}
			if a.RootOf(pair) == nil || stranger.RootOf(pair) != nil {
				t.Error("its root is another one's")
			}
			if reason := a.Issuer.Reason(pair, []string{"192.0.2.5", "fd00::5", "liteboxd.example.lan"}); reason != "" {
				t.Errorf("it has to be replaced: %s", reason)
			}
			if reason := stranger.Issuer.Reason(pair, []string{"192.0.2.5"}); reason != "another authority signed the certificate" {
				t.Errorf("another authority finds %q", reason)
			}
			if _, err := make(o); !errors.Is(err, ErrExists) {
				t.Errorf("made again: %v", err)
			}
		})
	}
}

// What is signed by an authority that boxlift made makes nobody a client: neither of the API nor of anything else.
func TestNoClients(t *testing.T) {
	a := mustMake(t, options(t))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// As whoever has the issuing authority's key would try.
	c, err := SignCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: "me", Organization: []string{"system:masters"}},
		NotBefore: start.Add(-day), NotAfter: start.Add(day), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		a.Issuer.chain[0], key.Public(), a.Issuer.key)
	if err != nil {
		t.Fatal(err)
	}
	files, err := a.Issuer.ClusterAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	verify := func(anchors []*x509.Certificate) error {
		_, err := c.Verify(x509.VerifyOptions{Roots: pool(anchors), Intermediates: pool(a.Issuer.chain), CurrentTime: start,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	for _, name := range clientAuthorities {
		anchors, err := parseChain(files[name+".crt"])
		if err != nil {
			t.Fatal(err)
		}
		if len(anchors) != 1 || verify(anchors) == nil {
			t.Errorf("%s has %d certificates, and accepts a client of the site's authority", name, len(anchors))
		}
	}
	if err := verify(a.Roots); err == nil {
		t.Error("the site's root accepts a client")
	}
}

// The files for k3s are those of its documentation. What its server authority signs is accepted by who knows the site's
// root alone, by openssl too; the others are good for clients.
func TestClusterAuthorities(t *testing.T) {
	need.Programs(t, debian.Program{Name: "openssl", Package: "openssl"})
	for name, make := range map[string]func(Options) (*Authority, error){
		"made":      Make,
		"of others": func(o Options) (*Authority, error) { return Import(o, givenAt(t, time.Now(), nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Now = time.Now // openssl's
			a, err := make(o)
			if err != nil {
				t.Fatal(err)
			}
			files, err := a.Issuer.ClusterAuthorities()
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"client-ca.crt", "client-ca.key", "etcd/peer-ca.crt", "etcd/peer-ca.key", "etcd/server-ca.crt",
				"etcd/server-ca.key", "request-header-ca.crt", "request-header-ca.key", "server-ca.crt", "server-ca.key", "service.key"}
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
				t.Fatal(diff)
			}
			for _, name := range append([]string{serverAuthority}, clientAuthorities...) {
				if _, err := tls.X509KeyPair(files[name+".crt"], files[name+".key"]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				c, err := parseChain(files[name+".crt"])
				if err != nil {
					t.Fatal(err)
				}
				signer := c[0]
				if name == serverAuthority {
					signer = a.Issuer.chain[0]
				}
				if c[0].CheckSignatureFrom(signer) != nil || !c[0].IsCA || !c[0].MaxPathLenZero {
					t.Errorf("%s is no authority of %s, or may have others under it", name, signer.Subject)
				}
				// Whoever takes its key from a server passes for a server of the site at most.
				key, err := parsePrivate(files[name+".key"])
				if err != nil {
					t.Fatal(err)
				}
				stolen, err := SignCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: "me"}, DNSNames: []string{"me.lan"},
					NotBefore: time.Now().Add(-day), NotAfter: time.Now().Add(day)}, c[0], key.Public(), key)
				if err != nil {
					t.Fatal(err)
				}
				for usage, accepted := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageServerAuth: name == serverAuthority,
					x509.ExtKeyUsageClientAuth: false, x509.ExtKeyUsageCodeSigning: false} {
					_, err := stolen.Verify(x509.VerifyOptions{Roots: pool(a.Roots), Intermediates: pool(append(c, a.Issuer.chain...)),
						KeyUsages: []x509.ExtKeyUsage{usage}})
					if (err == nil) != accepted {
						t.Errorf("who trusts the site's root accepts what %s has signed for usage %d: %v", name,
							usage, err)
					}
				}
			}
			dir := t.TempDir()
			chain, err := parseChain(files["server-ca.crt"])
			if err != nil {
				t.Fatal(err)
			}
			key, err := parsePrivate(files["server-ca.key"])
			if err != nil {
				t.Fatal(err)
			}
			pair, err := NewIssuer(chain, key, time.Now).Issue([]string{"kubernetes", "10.0.0.11"})
			if err != nil {
				t.Fatal(err)
			}
			if err := accepted(pair, a.Roots, "kubernetes", time.Now()); err != nil {
				t.Error(err)
			}
			for name, content := range map[string][]byte{"pair": pair, "root": Encode(a.Roots), "server-ca": files["server-ca.crt"]} {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, args := range [][]string{
				{"verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "kubernetes", "-CAfile", "root", "-untrusted", "pair", "pair"},
				{"verify", "-purpose", "sslserver", "-verify_ip", "10.0.0.11", "-CAfile", "server-ca", "pair"}, // as a pod does
			} {
				cmd := exec.CommandContext(t.Context(), "openssl", args...)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("openssl %v: %v\n%s", args, err, out)
				}
			}
		})
	}
}

// An authority of others that cannot do what is asked of it is refused before anything is written.
func TestUnfit(t *testing.T) {
	for _, test := range []struct {
		name  string
		give  func() *Issuer
		under bool
		want  string
	}{
		{"no other authorities under it", func() *Issuer {
			return given(t, func(c *x509.Certificate) { c.MaxPathLenZero = true })
		}, false, "it cannot have the authorities of a cluster under it"},
		{"only one more under it", func() *Issuer {
			return given(t, func(c *x509.Certificate) { c.MaxPathLen = 1 })
		}, true, "it cannot have the authorities of a cluster under it"},
		{"for clients only", func() *Issuer {
			return given(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
		}, false, "incompatible key usage"},
		{"without its root", func() *Issuer {
			i := given(t, nil)
			return NewIssuer(i.chain[:1], i.key, i.clock)
		}, false, "expected a root, which has signed itself"},
		{"in another order", func() *Issuer {
			i, other := given(t, nil), given(t, nil)
			return NewIssuer([]*x509.Certificate{i.chain[0], other.chain[1]}, i.key, i.clock)
		}, false, "which it did not sign"},
	} {
		o := options(t)
		do := Import
		if test.under {
			do = MakeUnder
		}
		_, err := do(o, test.give())
		if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
		if _, err := os.Stat(o.Folder); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was written: %v", test.name, err)
		}
	}
	o := options(t)
	o.Password = nil
	if _, err := Make(o); err == nil || !strings.Contains(err.Error(), "empty password") {
		t.Errorf("without a password: %v", err)
	}
}

// Only the owner can read keys, and the root's is encrypted.
func TestFolder(t *testing.T) {
	o := options(t)
	if _, err := Open(o.Folder, o.Now); !errors.Is(err, ErrMissing) {
		t.Errorf("without one: %v", err)
	}
	a := mustMake(t, o)
	key := rootKeyFile(a.Roots[0])
	for name, mode := range map[string]fs.FileMode{RootsFile: 0o644, IssuingFile: 0o600, key: 0o600, ".": 0o700} {
		info, err := os.Stat(filepath.Join(o.Folder, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	sealed, err := os.ReadFile(filepath.Join(o.Folder, key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signature.OpenKey(sealed, []byte("other")); !errors.Is(err, signature.ErrWrongPassword) {
		t.Errorf("with another password: %v", err)
	}
	for name, damage := range map[string]func(string) error{
		"no certificate": func(file string) error { return os.WriteFile(file, []byte("x"), 0o600) },
		"another one's":  func(file string) error { return os.WriteFile(file, Encode(given(t, nil).chain), 0o600) },
		"no roots":       func(file string) error { return os.Remove(filepath.Join(filepath.Dir(file), RootsFile)) },
	} {
		o := options(t)
		mustMake(t, o)
		if err := damage(filepath.Join(o.Folder, IssuingFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(o.Folder, o.Now); !errors.Is(err, ErrUnfit) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Make(o); !errors.Is(err, ErrExists) {
			t.Errorf("%s: made again: %v", name, err)
		}
	}
}

// Making an authority that was broken off between any two files is done again.
func TestBrokenOff(t *testing.T) {
	for _, missing := range [][]string{{IssuingFile}, {IssuingFile, RootsFile}} {
		o := options(t)
		before := mustMake(t, o).Roots[0]
		for _, name := range missing {
			if err := os.Remove(filepath.Join(o.Folder, name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(o.Folder, o.Now); !errors.Is(err, ErrMissing) {
			t.Errorf("without %v: %v", missing, err)
		}
		mustMake(t, o)
		a := mustOpen(t, o)
		if a.Roots[0].Equal(before) || a.Switch(o.Password) != nil {
			t.Errorf("without %v: it is none of its own, or has no key for its root", missing)
		}
	}
	// The last file that is written is the one that decides.
	o := options(t)
	if err := os.MkdirAll(filepath.Join(o.Folder, RootsFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(o); err == nil || exists(filepath.Join(o.Folder, IssuingFile)) {
		t.Errorf("where the roots cannot be written: %v", err)
	}
}

func TestRecord(t *testing.T) {
	o := options(t)
	a := mustMake(t, o)
	pair, err := a.Issuer.Issue([]string{"harbor.lan"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Record(pair); err != nil {
		t.Fatal(err)
	}
	kept, err := mustOpen(t, o).Certificates()
	if err != nil {
		t.Fatal(err)
	}
	var roles []string
	for _, k := range kept {
		roles = append(roles, k.Role)
	}
	if diff := cmp.Diff([]string{"root", "issuing", "issued"}, roles); diff != "" {
		t.Error(diff)
	}
	if got := Names(kept[2].Certificate); !slices.Equal(got, []string{"harbor.lan"}) {
		t.Errorf("it keeps %v", got)
	}
	content, err := os.ReadFile(kept[2].Path)
	if err != nil || strings.Contains(string(content), "PRIVATE") {
		t.Errorf("it keeps a key: %v", err)
	}
}

// What was signed for servers is told of when another root signs, until it has a successor or has ended.
func TestOutstanding(t *testing.T) {
	o := options(t)
	c := &clock{start}
	o.Now = c.Now
	a := mustMake(t, o)
	issue := func(names ...string) {
		t.Helper()
		pair, err := a.Issuer.Issue(names)
		if err == nil {
			err = a.Record(pair)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	outstanding := func(want ...string) {
		t.Helper()
		kept, err := mustOpen(t, o).Outstanding()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range kept {
			got = append(got, strings.Join(Names(k.Certificate), "+"))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	issue("ended.lan")
	c.now = start.Add(200 * day)
	issue("harbor.lan", "192.0.2.5")
	issue("web.lan")
	if err := a.Begin([]byte("next")); err != nil {
		t.Fatal(err)
	}
	outstanding("192.0.2.5+harbor.lan", "ended.lan", "web.lan")
	if err := a.Switch([]byte("next")); err != nil {
		t.Fatal(err)
	}
	c.now = start.Add(400 * day)
	outstanding("192.0.2.5+harbor.lan", "web.lan")
	issue("harbor.lan")
	outstanding("192.0.2.5+harbor.lan", "web.lan")
	issue("192.0.2.5", "other.lan")
	outstanding("web.lan")
	c.now = start.Add(600 * day)
	outstanding()
}

// A change of roots: at each stage, whoever trusts what the stage before told them to trust accepts what is signed.
func TestRotation(t *testing.T) {
	o := options(t)
	c := &clock{start}
	o.Now = c.Now
	a := mustMake(t, o)
	before := a.Roots
	first, err := a.Issuer.Issue([]string{"a.lan"})
	if err != nil {
		t.Fatal(err)
	}
	c.now = start.Add(7 * year)
	if err := a.Finish(); !errors.Is(err, ErrStage) {
		t.Errorf("finished before it began: %v", err)
	}
	if err := a.Begin([]byte("next")); err != nil {
		t.Fatal(err)
	}
	a = mustOpen(t, o)
	both := a.Roots
	if len(both) != 2 || !both[1].Equal(before[0]) || len(a.Former()) != 1 {
		t.Fatalf("it trusts %d roots", len(both))
	}
	second, err := a.Issuer.Issue([]string{"a.lan"})
	if err != nil {
		t.Fatal(err)
	}
	if err := accepted(second, before, "a.lan", c.now); err != nil {
		t.Errorf("between begin and switch, who trusts the former root alone: %v", err)
	}
	for name, err := range map[string]error{"begun again": a.Begin([]byte("third")), "finished before the switch": a.Finish()} {
		if !errors.Is(err, ErrStage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.Switch([]byte("secret")); !errors.Is(err, signature.ErrWrongPassword) {
		t.Errorf("with the former root's password: %v", err)
	}
	if err := a.Switch([]byte("next")); err != nil {
		t.Fatal(err)
	}
	a = mustOpen(t, o)
	third, err := a.Issuer.Issue([]string{"a.lan"})
	if err != nil {
		t.Fatal(err)
	}
	if err := accepted(third, both, "a.lan", c.now); err != nil {
		t.Errorf("after the switch, who trusts both: %v", err)
	}
	if reason := a.Issuer.Reason(second, []string{"a.lan"}); reason != "another authority signed the certificate" {
		t.Errorf("what was signed before the switch: %q", reason)
	}
	if !a.RootOf(second).Equal(before[0]) || !a.RootOf(third).Equal(a.Roots[0]) || a.RootOf(first) != nil {
		t.Error("it does not know under which root certificates are")
	}
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	a = mustOpen(t, o)
	if len(a.Roots) != 1 || accepted(third, a.Roots, "a.lan", c.now) != nil || accepted(second, a.Roots, "a.lan", c.now) == nil {
		t.Error("after the end, the former root is trusted, or the new one is not")
	}
	if err := a.Switch([]byte("next")); err != nil || accepted(third, mustOpen(t, o).Roots, "a.lan", c.now) != nil {
		t.Errorf("the issuing authority cannot be renewed: %v", err)
	}
}

// An authority that has ended signs nothing any more, and can be looked at and replaced.
func TestEnded(t *testing.T) {
	o := options(t)
	c := &clock{start}
	o.Now = c.Now
	mustMake(t, o)
	c.now = start.Add(issuingLifetime - 10*day)
	a := mustOpen(t, o)
	pair, err := a.Issuer.Issue([]string{"a.lan"})
	if err != nil {
		t.Fatal(err)
	}
	if reason := a.Issuer.Reason(pair, []string{"a.lan"}); reason != "" {
		t.Errorf("as long as it lasts itself: %q", reason)
	}
	c.now = start.Add(issuingLifetime + 2*year)
	a = mustOpen(t, o)
	if _, err := a.Certificates(); err != nil {
		t.Error(err)
	}
	if reason := a.Issuer.Reason(pair, []string{"a.lan"}); !strings.HasPrefix(reason, "the certificate ends on ") {
		t.Errorf("what has ended with it: %q", reason)
	}
	_, issued := a.Issuer.Issue([]string{"a.lan"})
	_, placed := a.Issuer.ClusterAuthorities()
	_, read := ReadIssuer(filepath.Join(o.Folder, IssuingFile), filepath.Join(o.Folder, IssuingFile), c.Now)
	for name, err := range map[string]error{"issued": issued, "placed": placed, "given": read, "under it": a.SwitchUnder(a.Issuer),
		"switched to": a.SwitchTo(a.Issuer)} {
		if err == nil || !strings.Contains(err.Error(), "found an authority that ended on 2040-05-29") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.Switch([]byte("secret")); err != nil {
		t.Fatal(err)
	}
	if pair, err = mustOpen(t, o).Issuer.Issue([]string{"a.lan"}); err != nil || accepted(pair, a.Roots, "a.lan", c.now) != nil {
		t.Errorf("by the next one: %v", err)
	}
}

// Roots of others change in the same way, without any key of theirs.
func TestRotationOfOthers(t *testing.T) {
	o := options(t)
	if _, err := Import(o, given(t, nil)); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, o)
	if err := a.BeginWith(a.Issuer.Chain()); !errors.Is(err, ErrStage) {
		t.Errorf("the present root: %v", err)
	}
	if err := a.Switch([]byte("x")); !errors.Is(err, ErrUnfit) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the root's key: %v", err)
	}
	next := given(t, nil)
	if err := a.SwitchTo(next); !errors.Is(err, ErrUnfit) {
		t.Errorf("a root that is not trusted: %v", err)
	}
	if err := a.BeginWith(next.Chain()); err != nil {
		t.Fatal(err)
	}
	behind := mustOpen(t, o)
	if err := a.SwitchUnder(next); err != nil {
		t.Fatal(err)
	}
	if err := behind.SwitchTo(next); !errors.Is(err, ErrStage) {
		t.Errorf("by somebody who does not know of that: %v", err)
	}
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	if a = mustOpen(t, o); len(a.Roots) != 1 || !a.Roots[0].Equal(next.chain[1]) {
		t.Error("another root is trusted")
	}
}

func TestParseRequest(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(r x509.CertificateRequest, key crypto.Signer) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	good := x509.CertificateRequest{DNSNames: []string{"b.lan", "a.lan"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 5)}}
	forged := request(good, key)
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for _, test := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"names and addresses", request(good, key), ""},
		{"a subject alone", request(x509.CertificateRequest{Subject: pkix.Name{CommonName: "a.lan"}}, key), "no subject alternative name"},
		{"a mail address", request(x509.CertificateRequest{DNSNames: []string{"a.lan"}, EmailAddresses: []string{"a@lan"}}, key), "found the names"},
		{"a URI", request(x509.CertificateRequest{URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}}}, key), "spiffe://a"},
		{"a weak key", request(good, weak), "P-224"},
		{"a forged signature", pem.EncodeToMemory(block), "signature"},
		{"no request", []byte("x"), "found no request"},
		{"a certificate", Encode(mustMake(t, options(t)).Roots), "found no request"},
	} {
		r, err := ParseRequest(test.content)
		switch {
		case test.want == "":
			if err != nil || !slices.Equal(r.Names, []string{"192.0.2.5", "a.lan", "b.lan"}) {
				t.Errorf("%s: %+v, %v", test.name, r, err)
			}
		case err == nil || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"a.lan"}}, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(der)
	f.Fuzz(func(t *testing.T, der []byte) {
		r, err := ParseRequest(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		if err == nil && (len(r.Names) == 0 || checkPublic(r.Public) != nil) {
			t.Errorf("accepted %+v", r)
		}
	})
}
