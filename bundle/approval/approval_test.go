package approval_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// signed is a bundle that people have signed.
func signed(t *testing.T, names ...string) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{
		Validity: lock.Validity{Audience: []string{"lan-1"}},
		Components: []smallbundle.Component{
			{Name: "k3s", Version: "v1.36.4+k3s1",
				Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}}},
		},
	})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return trusttest.SignBundle(t, r, names...)
}

// names are those of an approval's signers.
func names(a *approval.Approval) string {
	var list []string
	for _, s := range a.Signers {
		list = append(list, s.Name)
	}
	return strings.Join(list, " ")
}

// TestTransitions has each way in which a trust file comes to a site that holds version 2, with a bundle that ann has
// signed, whose key version 3 revokes.
func TestTransitions(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	three := trusttest.Next(t, two, trusttest.Revoke(t, "ann", "laptop lost"))
	four := trusttest.Next(t, three, func(*trust.Version) {})
	back := trusttest.Next(t, four, func(v *trust.Version) {
		if err := v.TakeBack(trusttest.ID(t, "ann")); err != nil {
			t.Error(err)
		}
	})
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	unsigned, err := two.Next(func(*trust.Version) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	thief := trusttest.NextBy(t, trusttest.Next(t, two, func(v *trust.Version) {
		v.Keys = append(v.Keys, trusttest.Key(t, "eve", trust.Owner))
	}), "eve", func(*trust.Version) {})

	lost, good := signed(t, "ann"), signed(t, "bob")
	for _, test := range []struct {
		name    string
		named   *trust.Policy // that the operator has
		carried *trust.File
		version int64 // by which the bundles are judged
		refused error // of ann's
		err     error
		warning string
	}{
		{"nothing new", two, nil, 2, nil, nil, ""},
		{"no file but the site's", nil, nil, 2, nil, nil, ""},
		{"the next one", three, nil, 3, trust.ErrRevoked, nil, ""},
		{"the next one travels", two, three.File(), 3, trust.ErrRevoked, nil, ""},
		{"the next one travels alone", nil, three.File(), 3, trust.ErrRevoked, nil, ""},
		{"one left out", four, nil, 4, trust.ErrRevoked, nil, ""},
		{"one left out, and without it in the file", nil, four.File().Since(4), 4, trust.ErrRevoked, nil, ""},
		{"taken back", nil, back.File(), 5, nil, nil, ""},
		{"an older one", one, nil, 2, nil, nil,
			"the trust file that is named has version 1, and the cluster keeps version 2"},
		{"an older one travels", two, one.File(), 2, nil, nil, ""},
		{"an older one, and a newer one travels", one, three.File(), 3, trust.ErrRevoked, nil, "which counts"},
		{"forked", fork, nil, 0, nil, trust.ErrForked, ""},
		{"forked, and travels", two, fork.File(), 0, nil, trust.ErrForked, ""},
		{"too few signatures", nil, unsigned, 0, nil, trust.ErrTooFew, ""},
		{"by an owner that it adds itself", nil, thief.File().Since(4), 0, nil, trust.ErrTooFew, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			demand, warnings, err := approval.Demand{Policy: test.named, Carried: test.carried}.Under(two,
				"the cluster keeps", trusttest.Today)
			var a *approval.Approval
			if err == nil {
				a, err = demand.Approve(good)
			}
			if !errors.Is(err, test.err) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			if text := strings.Join(warnings, "\n"); !strings.Contains(text, test.warning) || (text == "") != (test.warning == "") {
				t.Errorf("warnings: %q", text)
			}
			if test.err != nil {
				return
			}
			if a.Version() != test.version || names(a) != "bob" {
				t.Errorf("judged by version %d, signed by %s", a.Version(), names(a))
			}
			a, err = demand.Approve(lost)
			if !errors.Is(err, test.refused) || err == nil && a.Version() != test.version {
				t.Errorf("the bundle of a lost key: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "of ann was revoked on 2027-03-01: laptop lost") {
				t.Errorf("it does not say why: %v", err)
			}
		})
	}
}

// TestCarriedInBundle has trust files in a bundle and beside it. eve has signed it, whom version 2 makes a builder.
func TestCarriedInBundle(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(v *trust.Version) {
		v.Keys = append(v.Keys, trusttest.Key(t, "eve", trust.Builder), trusttest.Key(t, "oscar", trust.Owner))
	})
	// From 3 on, oscar owns it alone, whom only 2 makes known.
	three := trusttest.NextBy(t, two, "oscar", func(v *trust.Version) { v.Keys = v.Keys[1:] })
	four := trusttest.NextBy(t, three, "oscar", trusttest.Revoke(t, "eve", "laptop lost"))
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = append(v.Keys, trusttest.Key(t, "eve", trust.Builder)) })
	other := trusttest.Next(t, trusttest.Next(t, one, func(*trust.Version) {}), func(*trust.Version) {})
	eve, bob := trusttest.Signer(t, "eve"), trusttest.Signer(t, "bob").PublicKey()
	for _, test := range []struct {
		name       string
		named      *trust.Policy
		in, beside *trust.File
		version    int64
		want       error
		text       string
	}{
		{"none", one, nil, nil, 0, trust.ErrUntrusted, ""},
		{"in it", one, two.File(), nil, 2, nil, ""},
		{"beside it", one, nil, two.File(), 2, nil, ""},
		{"the same in it", two, two.File(), nil, 2, nil, ""},
		{"in it and beside it", one, two.File(), two.File(), 2, nil, ""},
		{"an older one in it", three, two.File(), nil, 3, nil, ""},
		{"a newer one in it", two, three.File(), nil, 3, nil, ""},
		{"a newer one beside it", one, two.File(), three.File(), 3, nil, ""},
		{"an older one beside it", one, three.File(), two.File(), 3, nil, ""},
		{"one beside it that follows on the one in it alone", one, two.File(), three.File().Since(3), 3, nil, ""},
		{"one in it that follows on the one beside it alone", one, three.File().Since(3), two.File(), 3, nil, ""},
		{"one in it that follows on nothing", one, three.File().Since(3), nil, 0, trust.ErrTooFew,
			"the trust file in the bundle: "},
		{"one beside it that revokes the key", one, two.File(), four.File(), 0, trust.ErrRevoked, "laptop lost"},
		{"a fork in it", two, fork.File(), nil, 0, trust.ErrForked, "the trust file in the bundle: "},
		{"a fork in it, and a good one beside it", one, fork.File(), three.File(), 0, trust.ErrForked,
			"the trust file beside the bundle: "},
		{"a fork beside it", one, two.File(), other.File(), 0, trust.ErrForked, "the trust file beside the bundle: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.tar")
			smallbundle.Write(t, path, smallbundle.Bundle{Signer: eve, Trust: test.in, Components: []smallbundle.Component{
				{Name: "k3s", Version: "v1.36.4+k3s1",
					Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}}},
			}})
			demand := approval.Demand{Policy: test.named, Carried: test.beside}
			judge := demand.Judge()
			r, err := bundle.OpenVerified(path, judge)
			var a *approval.Approval
			if err == nil {
				defer r.Close()
				a, err = judge.Approve(r)
			}
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Fatalf("got %v, expected %v with %q", err, test.want, test.text)
			}
			unproven, openErr := bundle.Open(path)
			if openErr != nil {
				t.Fatal(openErr)
			}
			defer unproven.Close()
			again, err := demand.Approve(unproven)
			if !errors.Is(err, test.want) {
				t.Errorf("once it is open: %v", err)
			}
			if test.want != nil {
				if hints := fault.Hints(err); len(hints) == 0 {
					t.Errorf("%v has no hint", err)
				}
				return
			}
			if a.Version() != test.version || names(a) != "eve" || again.Version() != test.version {
				t.Errorf("judged by the versions %d and %d, signed by %s", a.Version(), again.Version(), names(a))
			}
			// At a site that keeps the file, it counts beside a key.
			atSite, _, err := approval.Demand{Key: eve.PublicKey(), Carried: test.beside}.Under(test.named, "the cluster keeps",
				trusttest.Today)
			if err != nil {
				t.Fatal(err)
			}
			if a, err := atSite.Approve(unproven); err != nil || a.Version() != test.version {
				t.Errorf("at a site: %v, %v", a, err)
			}
			// Who asks for one key has no use for the others.
			if _, err := bundle.OpenSigned(path, bob); !errors.Is(err, signature.ErrWrongKey) {
				t.Errorf("by another key: %v", err)
			}
		})
	}
}

// TestApprove has what is asked for of bundles, and who counts.
func TestApprove(t *testing.T) {
	policy := trusttest.First(t)
	narrow := trusttest.Next(t, policy, func(v *trust.Version) { v.Keys[1].Audience = []string{"lab-*"} })
	revoked := func(r *bundle.Reader) *trust.Policy {
		return trusttest.Next(t, policy, func(v *trust.Version) {
			if err := v.RevokeBundle(r.Digest(), "a hole", trusttest.Today); err != nil {
				t.Error(err)
			}
		})
	}
	both, ann, none := signed(t, "ann", "dia"), signed(t, "ann"), signed(t)
	annKey, bobKey := trusttest.Signer(t, "ann").PublicKey(), trusttest.Signer(t, "bob").PublicKey()
	for _, test := range []struct {
		name   string
		demand approval.Demand
		bundle *bundle.Reader
		want   string // the names of those who count
		err    error
	}{
		{"a key", approval.Demand{Key: annKey}, both, "", nil},
		{"another key", approval.Demand{Key: bobKey}, both, "", signature.ErrWrongKey},
		{"a key, and no signature", approval.Demand{Key: annKey}, none, "", signature.ErrNotSigned},
		{"a trust file", approval.Demand{Policy: policy}, both, "ann dia", nil},
		{"a trust file, and no signature", approval.Demand{Policy: policy}, none, "", signature.ErrNotSigned},
		{"names", approval.Demand{Policy: policy, Names: 2}, both, "ann dia", nil},
		{"too few names", approval.Demand{Policy: policy, Names: 2}, ann, "", trust.ErrUntrusted},
		{"a key and a trust file", approval.Demand{Policy: policy, Key: annKey}, ann, "ann", nil},
		{"another key and a trust file", approval.Demand{Policy: policy, Key: bobKey}, ann, "", signature.ErrWrongKey},
		{"a key that is not for this cluster", approval.Demand{Policy: narrow}, both, "", trust.ErrUntrusted},
		{"a revoked bundle", approval.Demand{Policy: revoked(both)}, both, "", trust.ErrRevoked},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := test.demand.Approve(test.bundle)
			if !errors.Is(err, test.err) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			if err != nil {
				if !errors.As(err, new(*bundle.SignatureError)) && !errors.Is(err, trust.ErrUntrusted) {
					t.Errorf("%v is no error about signatures", err)
				}
				return
			}
			if got := strings.TrimSpace(names(a)); got != test.want {
				t.Errorf("signed by %q, want %q", got, test.want)
			}
		})
	}
	if j := (approval.Demand{}).Judge(); j != nil {
		t.Errorf("who asks for nothing has a judge: %v", j)
	}
}

// TestCarry: the trust file lies beside the bundle, under the name of the whole, and a newer one stays.
func TestCarry(t *testing.T) {
	dir := t.TempDir()
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	path := filepath.Join(dir, "b.tar")
	for _, step := range []struct {
		path    string
		file    *trust.File
		version int64
		wantErr string
	}{
		{path, one.File(), 1, ""},
		{path + ".000", two.File(), 2, ""},
		{path, two.File(), 2, ""},
		{path, one.File(), 2, "has version 2, and the one that is named version 1"},
	} {
		at, err := approval.Carry(step.path, step.file)
		if step.wantErr == "" && (err != nil || at != path+approval.TrustSuffix) ||
			step.wantErr != "" && (err == nil || !strings.Contains(err.Error(), step.wantErr)) {
			t.Errorf("%s: %q, %v", step.path, at, err)
		}
		f, err := approval.ReadCarried(path)
		if err != nil || f.Newest().Number != step.version {
			t.Errorf("it has version %d: %v", f.Newest().Number, err)
		}
	}
	if f, err := approval.ReadCarried(filepath.Join(dir, "other.tar")); f != nil || err != nil {
		t.Errorf("where there is none: %v, %v", f, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := os.Remove(path + approval.TrustSuffix); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+approval.TrustSuffix, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := approval.ReadCarried(path); !errors.Is(err, trust.ErrInvalid) {
		t.Errorf("a folder: %v", err)
	}
}

func TestSigner(t *testing.T) {
	got := []string{approval.Signer{Key: "abc="}.String(), approval.Signer{Name: "Ann", Key: "abc="}.String()}
	if diff := cmp.Diff([]string{"the key abc=", "Ann, with the key abc="}, got); diff != "" {
		t.Error(diff)
	}
}
