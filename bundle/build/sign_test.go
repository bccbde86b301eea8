package build_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// counted is a key that signs otherwise each time, as tokens and key services do.
type counted struct {
	key *ecdsa.PrivateKey
	n   int
}

func (c *counted) SignDigest(digest []byte) ([]byte, error) {
	c.n++
	return c.key.Sign(rand.Reader, digest, crypto.SHA256)
}

func newCounted(t *testing.T) (*counted, *signature.Signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	content, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public, err := signature.ParsePublicKey(content)
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{key: key}
	return c, signature.NewSigner(public, c)
}

// TestKeyThatSignsOtherwise builds with a key whose signatures are never the same: what is there already is known, and
// what was interrupted goes on.
func TestKeyThatSignsOtherwise(t *testing.T) {
	withoutTwo := func(o *plan.Options) {
		blobs := make(map[digest.Digest]int64)
		for _, e := range membersOf(t, bundletest.Reference(t)) {
			if d := e.Digest(); d != "" {
				blobs[d] = e.Size
			}
		}
		delete(blobs, bundletest.ChartDigest(t))
		delete(blobs, bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64"))
		content, err := have.Of("lan", []have.Host{
			{Name: "a", Platform: "linux/amd64", Bundles: []digest.Digest{}, Blobs: blobs},
			{Name: "b", Platform: "linux/arm64", Bundles: []digest.Digest{}, Blobs: blobs},
		}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		held, err := have.Parse(content)
		if err != nil {
			t.Fatal(err)
		}
		o.Since = &plan.Base{}
		o.Since.AddHosts(held)
	}
	for name, c := range map[string]struct {
		change     []func(*plan.Options)
		signatures int // by the time that it is there
	}{
		"whole":                {nil, 2},
		"list of its software": {[]func(*plan.Options){bundletest.Listing}, 1}, // it is signed when all is fetched
		"delta":                {[]func(*plan.Options){withoutTwo}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			key, signer := newCounted(t)
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(t.TempDir(), "b.tar")
			run := func() (*build.Result, error) {
				return bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, signer,
					c.change...)
			}
			s.Inject(upstream.Rule{
				Path: upstream.FilePath(bundletest.ChartURL), Times: 1, Fault: upstream.Status{Code: 404},
			})
			if _, err := run(); err == nil {
				t.Fatal("it succeeded without the chart")
			}
			result, err := run()
			if err != nil || result.Unchanged || result.Reused == 0 {
				t.Fatalf("%+v, %v", result, err)
			}
			only(t, path) // with another name for the unfinished bundle, the first one would be left
			if key.n != c.signatures {
				t.Errorf("signed %d times, expected %d", key.n, c.signatures)
			}
			before := bundletest.MustRead(t, path)
			if result, err := run(); err != nil || !result.Unchanged {
				t.Errorf("the same once more: %+v, %v", result, err)
			}
			if key.n != c.signatures || string(bundletest.MustRead(t, path)) != string(before) {
				t.Errorf("what was there was signed again: %d times by now", key.n)
			}
			r := bundletest.MustOpen(t, path)
			if err := r.VerifySignatures(bundle.SignedWith(signer.PublicKey())); err != nil {
				t.Error(err)
			}

			// Another key of that kind makes another file of the same digest.
			_, signer = newCounted(t)
			if again, err := run(); err != nil || again.Unchanged || again.Digest != result.Digest {
				t.Errorf("with another key: %+v, %v", again, err)
			}
			only(t, path)
		})
	}
}
