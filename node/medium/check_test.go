//go:build linux

package medium

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/store"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/trusttest"
)

const content = "#!/bin/sh\necho this is what hosts run\n"

// made is a bundle that somebody has signed, in a folder of its own.
func made(t *testing.T, by string, change ...func(*build.Options)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "platform.tar")
	smallbundle.Build(t, path, smallbundle.Bundle{
		Validity: lock.Validity{Serial: 7, Audience: []string{"lan-1"}}, Signer: trusttest.Signer(t, by),
		Components: []smallbundle.Component{{Name: "k3s", Version: "v1.36.4+k3s1",
			Files: []smallbundle.File{{Name: "install.sh", Content: content}}}},
	}, nil, change...)
	return path
}

// held is the trust file of a host.
func held(t *testing.T, p *trust.Policy) string {
	t.Helper()
	text, err := p.File().Since(p.Version().Number).Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "trust.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheck(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "identity")
	if err := os.WriteFile(secret, []byte(identity.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	encrypted := func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} }
	volumes := func(o *build.Options) { o.VolumeSize = 4 << 20 }
	beside := func(p *trust.Policy) func(*testing.T, *Options) {
		return func(t *testing.T, o *Options) {
			if _, err := approval.Carry(o.Path, p.File()); err != nil {
				t.Fatal(err)
			}
		}
	}
	rewrite := func(file func(*Options) string, change func([]byte) []byte) func(*testing.T, *Options) {
		return func(t *testing.T, o *Options) {
			text, err := os.ReadFile(file(o))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file(o), change(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	ofBundle := func(o *Options) string { return o.Path }
	ofTrust := func(o *Options) string { return o.TrustFile }
	for _, test := range []struct {
		name   string
		by     string
		form   []func(*build.Options)
		held   *trust.Policy
		change func(*testing.T, *Options)
		want   string // in the error; "" for none
		trust  int64
	}{
		{name: "good", by: "ann", held: one, trust: 1},
		{name: "good, by another", by: "bob", held: two, trust: 2},
		{name: "in volumes", by: "ann", form: []func(*build.Options){volumes}, held: one, trust: 1},
		{name: "encrypted", by: "ann", form: []func(*build.Options){encrypted}, held: one,
			change: func(_ *testing.T, o *Options) { o.Identity = secret }, trust: 1},
		{name: "encrypted, without an identity", by: "ann", form: []func(*build.Options){encrypted}, held: one,
			want: "with -identity"},
		{name: "a file that is no identity", by: "ann", form: []func(*build.Options){encrypted}, held: one,
			change: func(t *testing.T, o *Options) { o.Identity = o.TrustFile }, want: "it is no file of age identities"},
		{name: "a newer trust file travels", by: "bob", held: one, change: beside(two), trust: 2},
		{name: "it revokes the key", by: "ann", held: one, change: beside(two), want: "of ann was revoked"},
		{name: "an older one travels", by: "ann", held: two, change: beside(one), want: "of ann was revoked"},
		{name: "a fork travels", by: "bob", held: two, change: beside(fork), want: "forked trust file"},
		{name: "by a stranger", by: "eve", held: one, want: "not signed by enough of those"},
		{name: "by a reviewer alone", by: "olga", held: one, want: "not signed by enough of those"},
		{name: "revoked", by: "ann", held: two, want: "of ann was revoked on 2027-03-01: laptop lost"},
		{name: "a byte changed", by: "ann", held: one,
			change: rewrite(ofBundle, func(b []byte) []byte { return bytes.Replace(b, []byte("hosts run"), []byte("hosts rum"), 1) }),
			want:   "verify "},
		{name: "cut off", by: "ann", held: one,
			change: rewrite(ofBundle, func(b []byte) []byte { return b[:len(b)/2] }),
			want:   "open bundle"},
		{name: "no bundle", by: "ann", held: one, change: rewrite(ofBundle, func([]byte) []byte { return []byte("x") }),
			want: "open bundle"},
		{name: "not there", by: "ann", held: one, change: func(_ *testing.T, o *Options) { o.Path += "x" },
			want: "no such file"},
		{name: "no trust file", by: "ann", held: one, change: func(_ *testing.T, o *Options) { o.TrustFile += "x" },
			want: "boxlift has not brought it yet"},
		{name: "a trust file of others", by: "ann", held: one, change: func(t *testing.T, o *Options) {
			if err := os.Chmod(o.TrustFile, 0o666); err != nil {
				t.Fatal(err)
			}
		}, want: "others than root can change it"},
		{name: "a folder", by: "ann", held: one,
			change: func(_ *testing.T, o *Options) { o.TrustFile = filepath.Dir(o.TrustFile) },
			want:   "is no regular file"},
		{name: "garbage", by: "ann", held: one, change: rewrite(ofTrust, func([]byte) []byte { return []byte("{") }),
			want: "invalid trust file"},
		{name: "too large", by: "ann", held: one,
			change: rewrite(ofTrust, func(b []byte) []byte { return append(b, make([]byte, trust.MaxSize)...) }),
			want:   "it has more than"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := Options{Path: made(t, test.by, test.form...), TrustFile: held(t, test.held)}
			if test.change != nil {
				test.change(t, &o)
			}
			got, err := Check(t.Context(), o)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), identity.String()) {
					t.Errorf("got %+v, %v, want %q", got, err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := bundle.Open(made(t, test.by))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			want := &Report{Path: o.Path, Digest: r.Digest(), Serial: 7, Audience: []string{"lan-1"}, Components: []string{"boxlift", "k3s"},
				Signers: []approval.Signer{{Name: test.by, Key: trusttest.ID(t, test.by)}},
				Held:    test.held.Version().Number, Trust: test.trust}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A delta proves what it has, and an entry of a store is the bundle that was put there.
func TestCheckDeltaAndStore(t *testing.T) {
	trustFile := held(t, trusttest.First(t))
	base, err := bundle.Open(made(t, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	since := &plan.Base{}
	since.AddBundle(base)
	next := filepath.Join(t.TempDir(), "delta.tar")
	smallbundle.Build(t, next, smallbundle.Bundle{Signer: trusttest.Signer(t, "ann"), Components: []smallbundle.Component{
		{Name: "k3s", Version: "v1.36.5+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: content},
			{Name: "more.sh", Content: "#!/bin/sh\n"}}}}}, since)
	got, err := Check(t.Context(), Options{Path: next, TrustFile: trustFile})
	if err != nil || !got.Delta || len(got.Signers) != 1 {
		t.Errorf("a delta: %+v, %v", got, err)
	}
	kept, err := store.Create(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	added, err := kept.Add(t.Context(), base, store.AddOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err = Check(t.Context(), Options{Path: added.Path, TrustFile: trustFile})
	if err != nil || got.Delta || got.Digest != base.Digest() {
		t.Errorf("an entry of a store: %+v, %v", got, err)
	}
}
