package build_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestTrust builds bundles with a trust file in them: in each form, as a delta, and once more with another file.
func TestTrust(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	release := bundletest.Release(3)
	plain, without := m.Build("plain.tar", release, nil)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	release.Trust = two.File()
	content, err := two.File().Encode()
	if err != nil {
		t.Fatal(err)
	}
	whole, with := m.Build("whole.tar", release, nil)
	again, _ := m.Build("again.tar", release, nil)
	if with.Digest != without.Digest || with.Blobs != without.Blobs {
		t.Errorf("with the trust file it is %+v, without it %+v", with, without)
	}
	if !bytes.Equal(m.Read(whole), m.Read(again)) || bytes.Equal(m.Read(whole), m.Read(plain)) {
		t.Error("the same trust file does not make the same bytes, or it is not there")
	}
	if _, once := m.Build("whole.tar", release, nil); !once.Unchanged {
		t.Error("the same bundle is written once more")
	}

	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	forms := map[string]build.Output{
		"one file": {},
		"volumes":  {VolumeSize: 8 * volume.MinSize},
		"encrypted": {VolumeSize: 8 * volume.MinSize, Recipients: []age.Recipient{identity.Recipient()},
			Identities: []age.Identity{identity}},
	}
	for name, form := range forms {
		for kind, bases := range map[string][]string{"whole": nil, "delta": {old}} {
			t.Run(kind+" "+name, func(t *testing.T) {
				since := m.Since(bases...)
				if bases == nil {
					since = nil
				}
				path, _ := m.Build(filepath.Base(t.Name())+".tar", release, since, func(o *build.Options) { o.Output = form })
				r, err := bundle.OpenSigned(path, m.Signer.PublicKey(), identity)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				if got := r.Fixed()[ocitar.TrustFile]; !bytes.Equal(got, content) || r.Digest() != with.Digest {
					t.Errorf("the bundle %s has a trust file of %d bytes, expected %d", r.Digest(), len(got), len(content))
				}
				for _, base := range bases {
					r.Use(m.Open(base))
				}
				copied := path + ".copied"
				if _, err := build.Copy(t.Context(), r, build.JoinOptions{Path: copied}); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(m.Read(copied), m.Read(whole)) {
					t.Error("copied, it is another bundle")
				}
			})
		}
	}

	// Another file in the same place: the bundle is written again, from what is there.
	release.Trust = one.File()
	path, changed := m.Build("whole.tar", release, nil)
	if changed.Unchanged || changed.Digest != with.Digest || m.Open(path).TrustFile().Newest().Number != 1 {
		t.Errorf("with another trust file: %+v", changed)
	}
}
