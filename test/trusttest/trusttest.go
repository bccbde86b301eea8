// Package trusttest has people with keys, trust files of theirs, and bundles that they have signed, for tests of what
// judges bundles.
package trusttest

import (
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
)

var (
	mutex  sync.Mutex
	people = map[string]*signature.Signer{}
)

// Signer is the key of somebody, the same all the time.
func Signer(t testing.TB, name string) *signature.Signer {
	t.Helper()
	mutex.Lock()
	defer mutex.Unlock()
	if s := people[name]; s != nil {
		return s
	}
	private, _, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := signature.LoadSigner(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	people[name] = s
	return s
}

// ID is that of somebody's key.
func ID(t testing.TB, name string) string {
	t.Helper()
	return signature.KeyID(Signer(t, name).PublicKey())
}

// Key is somebody's key with roles.
func Key(t testing.TB, name string, roles ...trust.Role) trust.Key {
	t.Helper()
	text, err := Signer(t, name).PublicKey().PEM()
	if err != nil {
		t.Fatal(err)
	}
	k, err := trust.NewKey(name, text, roles...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// First is version 1 of a trust file: olga owns it, ann and bob build, dia reviews, and one builder is enough.
func First(t testing.TB) *trust.Policy {
	t.Helper()
	f, err := trust.New(&trust.Version{Clock: trust.Warn, Thresholds: trust.Thresholds{Owner: 1, Builder: 1}, Keys: []trust.Key{
		Key(t, "olga", trust.Owner), Key(t, "ann", trust.Builder), Key(t, "bob", trust.Builder), Key(t, "dia", trust.Reviewer),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, f, "olga")
}

// Next is the file with one more version, signed by olga.
func Next(t testing.TB, p *trust.Policy, change func(*trust.Version)) *trust.Policy {
	t.Helper()
	return NextBy(t, p, "olga", change)
}

// NextBy is Next, signed by somebody who has to be an owner in both versions.
func NextBy(t testing.TB, p *trust.Policy, by string, change func(*trust.Version)) *trust.Policy {
	t.Helper()
	f, err := p.Next(func(v *trust.Version) error { change(v); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, f, by)
}

func sign(t testing.TB, f *trust.File, by string) *trust.Policy {
	t.Helper()
	if err := f.Sign(Signer(t, by)); err != nil {
		t.Fatal(err)
	}
	p, err := f.Verify(Today)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Today is when all versions are signed and all revocations are made.
var Today = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// Revoke revokes somebody's key.
func Revoke(t testing.TB, name, reason string) func(*trust.Version) {
	t.Helper()
	id := ID(t, name)
	return func(v *trust.Version) {
		if err := v.RevokeKey(id, reason, Today); err != nil {
			t.Error(err)
		}
	}
}

// SignBundle has people sign a bundle, and opens it again with their signatures beside it.
func SignBundle(t testing.TB, r *bundle.Reader, names ...string) *bundle.Reader {
	t.Helper()
	signatures := r.Signatures()
	for _, name := range names {
		if _, err := signatures.Add(Signer(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	signed, err := bundle.Open(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = signed.Close() })
	return signed
}
