//go:build linux

package platform

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/sitekey"
)

const siteKeyPath = "/api/v1/namespaces/" + sitekey.SecretNamespace + "/secrets/" + sitekey.SecretName

// siteKey is what the cluster has in the Secret with the key of its site, "" for none.
func (p *Platform) siteKey(t testing.TB) string {
	t.Helper()
	secret := p.API.Object(t, siteKeyPath)
	if secret == nil {
		return ""
	}
	data, _ := secret.Object["data"].(map[string]any)
	key, _ := data[sitekey.SecretKey].(string)
	return key
}

// signerID is the id of the key that the cluster signs with.
func (p *Platform) signerID(t *testing.T) string {
	t.Helper()
	o, _ := p.options(t, nil)
	identity, err := install.ReadIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return signature.KeyID(identity.Signer.PublicKey())
}

// makesSiteKey reports whether a run has made the key, or would.
func makesSiteKey(s *run.Summary) bool {
	return slices.ContainsFunc(s.Changes, func(c site.Change) bool { return c.ID == "make-site-key" })
}

// A cluster gets its key with the first installation, and keeps it.
func TestSiteKey(t *testing.T) {
	p, b, next := fresh(t), Bundle(t, older), Bundle(t, patched)
	installs := func(what string, b *bundle.Reader, dry, makes bool) *run.Summary {
		t.Helper()
		o, _ := p.options(t, b)
		o.DryRun = dry
		s, err := install.Install(t.Context(), o)
		if err != nil || makesSiteKey(s) != makes {
			t.Fatalf("%s: the key is made is not %v: %+v, %v, %v", what, makes, s, err, p.Told())
		}
		return s
	}
	if installs("a dry run", b, true, true); p.siteKey(t) != "" {
		t.Error("a dry run has made the key")
	}
	installs("the first installation", b, false, true)
	first := p.signerID(t)
	if installs("the second installation", b, false, false); p.signerID(t) != first {
		t.Error("the key is another one")
	}

	// A cluster of an older boxlift has none: status tells so, and the next run makes it.
	p.API.Remove(t, siteKeyPath)
	o, _ := p.options(t, b)
	status, err := install.Inspect(t.Context(), o)
	if !errors.Is(err, site.ErrDifferent) || len(status.Differences) != 1 ||
		!strings.Contains(status.Differences[0], "the Secret boxlift-site-key is missing") {
		t.Errorf("status without a key: %+v, %v", status, err)
	}
	installs("an installation of a cluster without a key", b, false, true)
	p.nothingDiffers(t, b)
	p.API.Remove(t, siteKeyPath)
	o, _ = p.options(t, next)
	s, err := install.Upgrade(t.Context(), install.UpgradeOptions{Options: o})
	if err != nil || !makesSiteKey(s) {
		t.Fatalf("an upgrade of a cluster without a key: %+v, %v, %v", s, err, p.Told())
	}

	// One that cannot be read is told of, and stays.
	p.API.Put(t, secretWith([]byte("none")))
	damaged := p.siteKey(t)
	s = installs("an installation with a damaged key", next, false, false)
	if p.siteKey(t) != damaged || !strings.Contains(strings.Join(s.Warnings, "\n"), "the key of the site cannot be used") {
		t.Errorf("a damaged key: %q", s.Warnings)
	}
	o, _ = p.options(t, nil)
	if _, err := install.ReadIdentity(t.Context(), o); !errors.Is(err, sitekey.ErrInvalid) {
		t.Errorf("who signs with a damaged key: %v", err)
	}
	p.API.Remove(t, siteKeyPath)
	if _, err := install.ReadIdentity(t.Context(), o); !errors.Is(err, sitekey.ErrMissing) {
		t.Errorf("who signs without a key: %v", err)
	}
}

// secretWith is the Secret of the key, with a content of somebody else's.
func secretWith(content []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: sitekey.SecretNamespace, Name: sitekey.SecretName},
		Data: map[string][]byte{sitekey.SecretKey: content}}
}

// Of two operators who install at the same time, one makes the key, and both find that one.
func TestSiteKeyOfTwo(t *testing.T) {
	p, b := fresh(t), Bundle(t, older)
	other, err := signature.GeneratePlainKey()
	if err != nil {
		t.Fatal(err)
	}
	var meanwhile sync.Once
	looked := false
	p.Watch(func(m Moment) {
		looked = looked || m.After && m.What == "GET "+siteKeyPath
		if looked && !m.After && m.What == "POST "+strings.TrimSuffix(siteKeyPath, "/"+sitekey.SecretName) {
			meanwhile.Do(func() { p.API.Put(t, secretWith(other)) })
		}
	})
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err, p.Told())
	}
	p.Watch(nil)
	want, err := signature.LoadPlainSigner(other)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.signerID(t); got != signature.KeyID(want.PublicKey()) {
		t.Errorf("the cluster signs with %s, and somebody else had made %s", got, signature.KeyID(want.PublicKey()))
	}
	p.nothingDiffers(t, b)
}
