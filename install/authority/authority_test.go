package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

const day = 24 * time.Hour

var start = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// clock is a clock that is set by hand.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func mustOpen(t *testing.T, o Options) *Authority {
	t.Helper()
	a, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustIssue(t *testing.T, a *Authority, names ...string) []byte {
	t.Helper()
	pair, err := a.Issue(names)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// handshake connects a client that trusts an authority, and has a clock of its own, to a
// server with a certificate and key.
func handshake(t *testing.T, ca, pair []byte, name string, now time.Time) error {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no certificates to trust")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		server := tls.Server(connection, &tls.Config{Certificates: []tls.Certificate{certificate}})
		_ = server.HandshakeContext(t.Context()) // what the client thinks of it counts
		_ = connection.Close()
	}()
	defer func() {
		_ = listener.Close()
		<-done
	}()
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	return tls.Client(connection, &tls.Config{RootCAs: roots, ServerName: name, Time: func() time.Time { return now }}).HandshakeContext(t.Context())
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
		all[e.Name()] = string(content)
	}
	return all
}

func TestOpenMakesOnce(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "registry-ca", "plant"), Cluster: "plant", Now: (&clock{start}).Now}
	first := mustOpen(t, o)
	made := files(t, o.Dir)
	if info, err := os.Stat(o.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	var names []string
	for name := range made {
		names = append(names, name)
	}
	if len(made) != 4 || made["ca.crt"] == "" || made["ca.key"] == "" || made["password"] == "" {
		t.Errorf("made %v", names)
	}
	if !password.MatchString(first.Password()) || first.trusted[0].Subject.CommonName != "boxlift registry authority of plant" {
		t.Errorf("password %q, authority %s", first.Password(), first.trusted[0].Subject)
	}
	second := mustOpen(t, o)
	if diff := cmp.Diff(made, files(t, o.Dir)); diff != "" {
		t.Errorf("opening it again changed it:\n%s", diff)
	}
	if !bytes.Equal(first.CA(), second.CA()) || first.Password() != second.Password() {
		t.Error("opened again it is another")
	}
	other := mustOpen(t, Options{Dir: t.TempDir(), Cluster: "other"})
	if bytes.Equal(first.CA(), other.CA()) || first.Password() == other.Password() {
		t.Error("two clusters share an authority")
	}
}

func TestOpenAtOnce(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	opened := make([]*Authority, 8)
	for i := range opened {
		group.Go(func() { opened[i], _ = Open(Options{Dir: dir}) })
	}
	group.Wait()
	for _, a := range opened {
		if a == nil || !bytes.Equal(a.CA(), opened[0].CA()) || a.Password() != opened[0].Password() {
			t.Fatal("not all have the same authority")
		}
	}
}

func TestOpenAfterCrash(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, Options{Dir: dir})
	// As if it had ended between the key and the certificate.
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, Options{Dir: dir})
	if err := handshake(t, a.CA(), mustIssue(t, a, "10.0.0.1"), "10.0.0.1", time.Now()); err != nil {
		t.Error(err)
	}
}

func TestOpenDamaged(t *testing.T) {
	for name, want := range map[string]string{
		"ca.crt": "found no certificate", "ca.key": "found no private key", "password": "expected 64 hexadecimal digits",
	} {
		dir := t.TempDir()
		mustOpen(t, Options{Dir: dir})
		if err := os.WriteFile(filepath.Join(dir, name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "boxlift makes another") {
			t.Errorf("%s: got %v, want an error with %q", name, err, want)
		}
	}
	dir := t.TempDir()
	mustOpen(t, Options{Dir: dir})
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrOwn) {
		t.Errorf("without the key: %v", err)
	}
}

func TestIssue(t *testing.T) {
	a := mustOpen(t, Options{Dir: t.TempDir(), Now: (&clock{start}).Now})
	pair := mustIssue(t, a, "10.0.0.1", "fd00::1", "Server-1.lan")
	for _, test := range []struct {
		name  string
		at    time.Time
		fails string
	}{
		{"10.0.0.1", start, ""},
		{"fd00::1", start, ""},
		{"server-1.lan", start, ""},
		{"10.0.0.2", start, "not 10.0.0.2"},
		{"server-2.lan", start, "not server-2.lan"},
		{"10.0.0.1", start.Add(-364 * day), ""}, // a node's clock may be behind
		{"10.0.0.1", start.Add(-366 * day), "expired or is not yet valid"},
		{"10.0.0.1", start.Add(364 * day), ""},
		{"10.0.0.1", start.Add(366 * day), "expired or is not yet valid"},
	} {
		err := handshake(t, a.CA(), pair, test.name, test.at)
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s at %s: got %v, want %q", test.name, test.at, err, test.fails)
		}
	}
	stranger := mustOpen(t, Options{Dir: t.TempDir(), Now: (&clock{start}).Now})
	if err := handshake(t, stranger.CA(), pair, "10.0.0.1", start); err == nil {
		t.Error("another authority's certificate is accepted")
	}
	for _, names := range [][]string{nil, {""}, {"a b"}, {"10.0.0.1", "https://x"}} {
		if _, err := a.Issue(names); err == nil {
			t.Errorf("%q is accepted", names)
		}
	}
}

func TestReason(t *testing.T) {
	c := &clock{start}
	a := mustOpen(t, Options{Dir: t.TempDir(), Now: c.Now})
	pair := mustIssue(t, a, "10.0.0.1", "server.lan")
	other := mustIssue(t, mustOpen(t, Options{Dir: t.TempDir(), Now: c.Now}), "10.0.0.1", "server.lan")
	certificate, _ := pem.Decode(pair)
	_, otherKey := pem.Decode(other)
	mixed := append(pem.EncodeToMemory(certificate), otherKey...)
	for _, test := range []struct {
		name  string
		pair  []byte
		names []string
		at    time.Time
		want  string
	}{
		{"new", pair, []string{"10.0.0.1", "server.lan"}, start, ""},
		{"another order", pair, []string{"Server.lan", "10.0.0.1", "10.0.0.1"}, start, ""},
		{"another name", pair, []string{"10.0.0.1", "server-2.lan"}, start, "is for 10.0.0.1, server.lan"},
		{"a name more", pair, []string{"10.0.0.1", "10.0.0.2", "server.lan"}, start, "is for 10.0.0.1, server.lan"},
		{"a name less", pair, []string{"10.0.0.1"}, start, "is for 10.0.0.1, server.lan"},
		{"long enough", pair, []string{"10.0.0.1", "server.lan"}, start.Add(274 * day), ""},
		{"nearly over", pair, []string{"10.0.0.1", "server.lan"}, start.Add(276 * day), "ends on 2031-06-01"},
		{"over", pair, []string{"10.0.0.1", "server.lan"}, start.Add(400 * day), "ends on 2031-06-01"},
		{"from the future", pair, []string{"10.0.0.1", "server.lan"}, start.Add(-400 * day), "begins in the future"},
		{"another authority's", other, []string{"10.0.0.1", "server.lan"}, start, "another authority"},
		{"another key", mixed, []string{"10.0.0.1", "server.lan"}, start, "cannot be used"},
		{"nothing", nil, []string{"10.0.0.1"}, start, "cannot be used"},
	} {
		c.now = test.at
		if got := a.Reason(test.pair, test.names); got != "" != (test.want != "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestRenewal goes through ten years of upgrades twice a year, and one more of nothing.
func TestRenewal(t *testing.T) {
	c := &clock{start}
	o := Options{Dir: t.TempDir(), Now: c.Now}
	first := mustOpen(t, o).CA()
	renewals := 0
	var pair []byte
	for range 20 {
		a := mustOpen(t, o)
		if pair == nil || a.Reason(pair, []string{"10.0.0.1"}) != "" {
			pair = mustIssue(t, a, "10.0.0.1")
			renewals++
		}
		if err := handshake(t, a.CA(), pair, "10.0.0.1", c.now); err != nil {
			t.Fatalf("at %s: %v", c.now, err)
		}
		// A node that still has the first authority accepts what the renewed one signs.
		if err := handshake(t, first, pair, "10.0.0.1", c.now); err != nil {
			t.Fatalf("at %s, with the first authority: %v", c.now, err)
		}
		if reason := a.Reason(pair, []string{"10.0.0.1"}); reason != "" {
			t.Fatalf("at %s the new one is renewed again: %s", c.now, reason)
		}
		c.now = c.now.Add(year / 2)
	}
	if renewals != 10 {
		t.Errorf("%d certificates in ten years", renewals)
	}
	last := mustOpen(t, o).CA()
	if bytes.Equal(first, last) {
		t.Error("the authority was not renewed")
	}
	c.now = c.now.Add(year)
	if err := handshake(t, last, mustIssue(t, mustOpen(t, o), "10.0.0.1"), "10.0.0.1", c.now); err != nil {
		t.Error(err)
	}
}

// own is an authority of the user's.
type own struct {
	change func(*x509.Certificate)
	key    crypto.Signer // P-256 unless given
	signer *own          // itself unless given
	other  crypto.Signer // in the file of the key, in place of key

	certificate *x509.Certificate
}

func (o *own) make(t *testing.T) *x509.Certificate {
	t.Helper()
	if o.certificate != nil {
		return o.certificate
	}
	if o.key == nil {
		o.key = ecdsaKey(t, elliptic.P256())
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "plant " + rand.Text()}, NotBefore: start.Add(-30 * day), NotAfter: start.Add(3 * year),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if o.change != nil {
		o.change(template)
	}
	parent, signer := template, o.key
	if o.signer != nil {
		parent, signer = o.signer.make(t), o.signer.key
	}
	var err error
	if o.certificate, err = ca.SignCertificate(template, parent, o.key.Public(), signer); err != nil {
		t.Fatal(err)
	}
	return o.certificate
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// write writes the files of an authority, the chain up to its root.
func (o *own) write(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	var chain []*x509.Certificate
	for c := o; c != nil; c = c.signer {
		chain = append(chain, c.make(t))
	}
	key := o.key
	if o.other != nil {
		key = o.other
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Dir: filepath.Join(dir, "made"), CAFile: filepath.Join(dir, "own.crt"), CAKeyFile: filepath.Join(dir, "own.key"), Now: (&clock{start}).Now}
	if err := errors.Join(
		os.WriteFile(options.CAFile, append([]byte("Certificate:\n"), ca.Encode(chain)...), 0o600),
		os.WriteFile(options.CAKeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return options
}

func TestOwn(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		own  *own
		want string // of the error
	}{
		{"ECDSA", &own{}, ""},
		{"RSA", &own{key: rsaKey(t, 2048)}, ""},
		{"below another", &own{signer: &own{}}, ""},
		{"old key usage", &own{change: func(c *x509.Certificate) { c.KeyUsage = 0 }}, ""},
		{"another key", &own{other: ecdsaKey(t, elliptic.P256())}, "own.key: found another key than that of"},
		{"another kind of key", &own{other: rsaKey(t, 2048)}, "own.key: found another key than that of"},
		{"no authority", &own{change: func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }}, "own.crt: found the certificate of"},
		{"may not sign", &own{change: func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }, signer: &own{}}, "expected keyCertSign"},
		{"expired", &own{change: func(c *x509.Certificate) { c.NotAfter = start.Add(-day) }}, "that ended on 2030-05-31"},
		{"not yet", &own{change: func(c *x509.Certificate) { c.NotBefore = start.Add(day) }}, "begins on 2030-06-02"},
		{"Ed25519", &own{key: ed}, "expected ECDSA or RSA"},
		{"weak curve", &own{key: ecdsaKey(t, elliptic.P224())}, "on P-224, expected P-256"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := test.own.write(t)
			a, err := Open(o)
			if test.want != "" {
				if !errors.Is(err, ErrOwn) || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("got %v, want an error with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			root := test.own
			for root.signer != nil {
				root = root.signer
			}
			pair := mustIssue(t, a, "10.0.0.1")
			for name, trusted := range map[string][]byte{"nodes": a.CA(), "who knows the root": ca.Encode([]*x509.Certificate{root.make(t)})} {
				for _, at := range []time.Time{start, start.Add(-29 * day)} { // since the authority's own beginning
					if err := handshake(t, trusted, pair, "10.0.0.1", at); err != nil {
						t.Errorf("%s at %s: %v", name, at, err)
					}
				}
			}
			made := files(t, o.Dir)
			if len(made) != 2 || made["password"] == "" {
				t.Errorf("made %d files", len(made))
			}
		})
	}
}

func TestOwnFiles(t *testing.T) {
	need.Programs(t, debian.Program{Name: "openssl", Package: "openssl"})
	o := (&own{}).write(t)
	whole, err := os.ReadFile(o.CAKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	openssl := func(args ...string) []byte {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("openssl %v: %v\n%s", args, err, out)
		}
		return out
	}
	parameters := openssl("ecparam", "-name", "prime256v1")
	traditional := openssl("pkey", "-in", o.CAKeyFile, "-traditional")
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"as openssl writes it":       {append(parameters, traditional...), ""},
		"with a passphrase":          {openssl("pkcs8", "-topk8", "-in", o.CAKeyFile, "-passout", "pass:x"), "found a key with a passphrase"},
		"with a passphrase, old":     {openssl("ec", "-in", o.CAKeyFile, "-aes256", "-passout", "pass:x"), "found a key with a passphrase"},
		"no key":                     {parameters, "found no private key"},
		"cut":                        {whole[:len(whole)/2], "found no private key"},
		"not a key":                  {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "asn1"},
		"too long":                   {make([]byte, 256<<10+1), "found more than 256 KiB"},
		"nothing":                    {nil, "found no private key"},
		"a key for agreements alone": {openssl("genpkey", "-algorithm", "X25519"), "expected ECDSA or RSA"},
	} {
		if err := os.WriteFile(o.CAKeyFile, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(o)
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, ErrOwn) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
	if err := os.Remove(o.CAFile); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, ErrOwn) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the certificate: %v", err)
	}
}

func TestOwnLimits(t *testing.T) {
	short := (&own{change: func(c *x509.Certificate) { c.NotAfter = start.Add(40 * day) }}).write(t)
	a := mustOpen(t, short)
	pair := mustIssue(t, a, "10.0.0.1")
	if reason := a.Reason(pair, []string{"10.0.0.1"}); reason != "" {
		t.Errorf("a certificate that cannot last longer is renewed: %s", reason)
	}
	if err := handshake(t, a.CA(), pair, "10.0.0.1", start.Add(39*day)); err != nil {
		t.Error(err)
	}
	constrained := (&own{change: func(c *x509.Certificate) {
		c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"plant.lan"}, true
		c.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}}
	}}).write(t)
	a = mustOpen(t, constrained)
	mustIssue(t, a, "10.0.0.1", "server.plant.lan")
	if _, err := a.Issue([]string{"10.0.1.1"}); !errors.Is(err, ErrOwn) || !strings.Contains(err.Error(), "clients would not accept it") {
		t.Errorf("a name that the authority is not good for: %v", err)
	}
}

func TestChangeOfAuthority(t *testing.T) {
	o := (&own{}).write(t)
	made := mustOpen(t, Options{Dir: o.Dir, Now: o.Now})
	pair := mustIssue(t, made, "10.0.0.1")
	users := mustOpen(t, o)
	if users.Password() != made.Password() {
		t.Error("the password is another")
	}
	if reason := users.Reason(pair, []string{"10.0.0.1"}); reason != "another authority signed the certificate" {
		t.Errorf("got %q", reason)
	}
	if back := mustOpen(t, Options{Dir: o.Dir, Now: o.Now}); back.Reason(pair, []string{"10.0.0.1"}) != "" {
		t.Error("the authority that was made first is lost")
	}
}

// A password that is known from elsewhere stays, and gives way to the one in the folder.
func TestGivenPassword(t *testing.T) {
	given := strings.Repeat("0a", 32)
	o := Options{Dir: filepath.Join(t.TempDir(), "plant"), Cluster: "plant", Password: given}
	lacks := func(wantCA, wantPassword bool) {
		t.Helper()
		if ca, password := o.Lacks(); ca != wantCA || password != wantPassword {
			t.Errorf("it lacks the authority: %t, the password: %t", ca, password)
		}
	}
	lacks(true, true)
	if got := mustOpen(t, o).Password(); got != given {
		t.Errorf("the password is %q", got)
	}
	lacks(false, false)
	o.Password = strings.Repeat("0b", 32)
	if got := mustOpen(t, o).Password(); got != given {
		t.Errorf("the second time the password is %q", got)
	}
	for _, wrong := range []string{"word", given + "\n", given + given} {
		o := Options{Dir: filepath.Join(t.TempDir(), "plant"), Cluster: "plant", Password: wrong}
		if got := mustOpen(t, o).Password(); got == wrong || !IsPassword(got) {
			t.Errorf("%q is taken for a password: %q", wrong, got)
		}
	}
	o.CAFile = "own.crt"
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	lacks(false, true)
}

// The site's authority signs for the registry when there is one, also where the registry had one of its own. While the
// site changes its root, nodes trust both.
func TestSite(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "site")
	now := func() time.Time { return start }
	site, err := ca.Make(ca.Options{Folder: folder, Name: "plant", Password: []byte("x"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	own := Options{Dir: filepath.Join(t.TempDir(), "plant"), Now: now}
	before := mustOpen(t, own)
	pair := mustIssue(t, before, "10.0.0.1")
	under := own
	under.Site = func() (*ca.Authority, error) { return ca.Open(folder, now) }
	if lacksCA, lacksPassword := under.Lacks(); lacksCA || lacksPassword {
		t.Error("it lacks something")
	}
	a := mustOpen(t, under)
	if a.Password() != before.Password() {
		t.Error("the password is another")
	}
	if reason := a.Reason(pair, []string{"10.0.0.1"}); reason != "another authority signed the certificate" {
		t.Errorf("what the registry had: %q", reason)
	}
	pair = mustIssue(t, a, "10.0.0.1")
	for name, trusted := range map[string][]byte{"nodes": a.CA(), "who knows the site's root": ca.Encode(site.Roots)} {
		if err := handshake(t, trusted, pair, "10.0.0.1", start); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := site.Begin([]byte("y")); err != nil {
		t.Fatal(err)
	}
	nodes := mustOpen(t, under).CA()
	if err := site.Switch([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, nodes, mustIssue(t, mustOpen(t, under), "10.0.0.1"), "10.0.0.1", start); err != nil {
		t.Errorf("after the switch: %v", err)
	}
	under.Site = func() (*ca.Authority, error) { return ca.Open(filepath.Join(folder, "none"), now) }
	if _, err := Open(under); !errors.Is(err, ca.ErrMissing) {
		t.Errorf("without its folder: %v", err)
	}
}
