package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

var update = flag.Bool("update", false, "rewrite testdata/example.json, with new keys")

// today is what clocks say unless a test says otherwise.
var today = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// The people of the tests, each with one key; what is behind a dot is another key of theirs.
var signers = func() map[string]func() *signature.Signer {
	m := map[string]func() *signature.Signer{}
	for _, name := range []string{"ann", "bob", "cem", "dia", "eve", "ann.2"} {
		m[name] = sync.OnceValue(func() *signature.Signer {
			private, _, err := signature.GenerateKey(nil)
			if err != nil {
				panic(err)
			}
			s, err := signature.LoadSigner(private, nil)
			if err != nil {
				panic(err)
			}
			return s
		})
	}
	return m
}()

func signer(name string) *signature.Signer { return signers[name]() }

func id(name string) string { return signature.KeyID(signer(name).PublicKey()) }

func key(t testing.TB, name string, roles ...Role) Key {
	t.Helper()
	text, err := signer(name).PublicKey().PEM()
	if err != nil {
		t.Fatal(err)
	}
	person, _, _ := strings.Cut(name, ".")
	k, err := NewKey(person, text, roles...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// first is version 1: two of the owners ann, bob and cem change it; ann and bob build, dia reviews.
func first(t testing.TB) *Version {
	t.Helper()
	return &Version{Clock: Warn, Thresholds: Thresholds{Owner: 2, Builder: 1}, Keys: []Key{
		key(t, "ann", Owner, Builder), key(t, "bob", Owner, Builder),
		key(t, "cem", Owner), key(t, "dia", Reviewer),
	}}
}

func newFile(t testing.TB, v *Version, by ...string) *File {
	t.Helper()
	f, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, f, by...)
}

func sign(t testing.TB, f *File, by ...string) *File {
	t.Helper()
	for _, name := range by {
		if err := f.Sign(signer(name)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func verified(t testing.TB, f *File) *Policy {
	t.Helper()
	p, err := f.Verify(today)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// next is the file with one more version, signed.
func next(t testing.TB, f *File, change func(*Version), by ...string) *File {
	t.Helper()
	n, err := verified(t, f).Next(func(v *Version) error { change(v); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, n, by...)
}

func revoke(what string) func(*Version) {
	return func(v *Version) {
		if err := v.RevokeKey(what, "lost", today); err != nil {
			panic(err)
		}
	}
}

func revokeBundle(d digest.Digest) func(*Version) {
	return func(v *Version) {
		if err := v.RevokeBundle(d, "bad", today); err != nil {
			panic(err)
		}
	}
}

// again reads a file as it is written.
func again(t testing.TB, f *File) *File {
	t.Helper()
	content, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Parse(content)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// only leaves a file with some of its versions.
func only(f *File, numbers ...int64) *File {
	left := new(File)
	for _, s := range f.versions {
		if slices.Contains(numbers, s.Number) {
			left.versions = append(left.versions, s)
		}
	}
	return left
}

// TestTransitions goes from a file that a site holds to one that it is given.
func TestTransitions(t *testing.T) {
	t.Parallel()
	a, b := digest.FromString("a"), digest.FromString("b")
	one := newFile(t, first(t), "ann", "bob")
	two := next(t, one, revokeBundle(a), "ann", "cem")
	three := next(t, two, revoke(id("bob")), "ann", "cem")
	// Version 4 puts eve in the place of cem.
	four := next(t, three, func(v *Version) {
		v.Keys[2] = key(t, "eve", Owner)
	}, "ann", "cem", "eve")
	// 5 is signed by owners of 4, of which version 3 knows only one.
	five := next(t, four, revokeBundle(b), "ann", "eve")
	back := next(t, two, func(v *Version) { v.RevokedBundles = nil }, "ann", "bob")
	strict := func(change func(*Key)) *File {
		v := first(t)
		v.Clock = Refuse
		for i := range v.Keys {
			change(&v.Keys[i])
		}
		return newFile(t, v, "ann", "bob")
	}
	lenient := func(change func(*Key)) *File {
		v := first(t)
		change(&v.Keys[0])
		return newFile(t, v, "ann", "bob")
	}
	untilToday := func(k *Key) { k.NotAfter = today.Add(time.Hour) }
	fromToday := func(k *Key) { k.NotBefore = today.Add(-time.Hour) }
	annUntilToday := func(k *Key) {
		if k.Name == "ann" {
			untilToday(k)
		}
	}
	bothSides := func(k *Key) { untilToday(k); fromToday(k) }
	year := 365 * 24 * time.Hour

	type test struct {
		held, given *File
		clock       time.Duration // so much from today
		want        int64         // the version that holds then
		is          error
		says        string
		warns       string
	}
	tests := map[string]test{
		"the next":                     {held: one, given: two, want: 2},
		"the same":                     {held: two, given: two, want: 2},
		"the same, one signature more": {held: two, given: sign(t, again(t, two), "bob"), want: 2},
		"two at once":                  {held: one, given: three, want: 3},
		"with one in between":          {held: three, given: five, want: 5},
		"without what came before":     {held: three, given: five.Since(4), want: 5},
		"from the very first":          {held: one, given: five, want: 5},
		"a gap that fits":              {held: one, given: only(three, 3), want: 3},
		"a gap in the file":            {held: one, given: only(four, 2, 4), want: 4},
		"a gap that does not fit": {held: three, given: only(five, 5), is: ErrTooFew,
			says: "needs signatures of 2 of the owners in version 3, and has those of ann"},

		"an older one":           {held: three, given: two, is: ErrOlder, says: "it has version 2, and version 3 is held"},
		"an older one, alone":    {held: three, given: only(three, 2), is: ErrOlder},
		"a fork of the same":     {held: two, given: next(t, one, revokeBundle(b), "ann", "bob"), is: ErrForked, says: "version 2 is sha256:"},
		"an older one of a fork": {held: three, given: next(t, one, revokeBundle(b), "ann", "bob"), is: ErrForked},
		"a newer one of a fork":  {held: two, given: next(t, next(t, one, revokeBundle(b), "ann", "bob"), revoke(id("cem")), "ann", "bob"), is: ErrForked},
		"a fork, its root left out": {held: two, given: next(t, next(t, one, revokeBundle(b), "ann", "bob"),
			revoke(id("cem")), "ann", "bob").Since(3), is: ErrForked, says: "follows on another version 2"},
		"somebody else's": {held: one, given: next(t, newFile(t, first(t), "bob", "cem"), revokeBundle(b), "bob", "cem"), want: 2},
		"other people's":  {held: one, given: next(t, newFile(t, stranger(t), "eve"), revokeBundle(b), "eve"), is: ErrForked},
		"other people's, its root left out": {held: one, given: next(t, next(t, newFile(t, stranger(t), "eve"), revokeBundle(b), "eve"),
			revokeBundle(a), "eve").Since(3), is: ErrTooFew, says: "has those of nobody"},

		"too few": {held: one, given: next(t, one, revokeBundle(a), "ann"), is: ErrTooFew, says: "and has those of ann"},
		"nobody":  {held: one, given: next(t, one, revokeBundle(a)), is: ErrTooFew, says: "nobody"},
		"enough of the version before, too few of its own": {held: three, given: next(t, three, func(v *Version) {
			v.Keys[2] = key(t, "eve", Owner)
		}, "ann", "cem"), is: ErrTooFew, says: "owners in version 4, and has those of ann"},
		"enough of its own, too few of the version before": {held: three, given: next(t, three, func(v *Version) {
			v.Keys[2] = key(t, "eve", Owner)
		}, "ann", "eve"), is: ErrTooFew, says: "owners in version 3, and has those of ann"},
		"two keys of one name": {held: one, given: next(t, one, func(v *Version) {
			v.Keys = append(v.Keys, key(t, "ann.2", Owner))
		}, "ann", "ann.2"), is: ErrTooFew, says: "has those of ann"},
		"by a key that the version before revoked": {held: three, given: forged(t, three, "ann", "bob"), is: ErrTooFew,
			says: "bob does not count: revoked on 2027-03-01 (lost)"},
		"by a key that it revokes itself": {held: one, given: next(t, one, revoke(id("bob")), "bob", "ann", "cem"), want: 2},
		"by no others than one that it revokes itself": {held: one, given: next(t, one, revoke(id("bob")), "bob", "ann"), is: ErrTooFew,
			says: "owners in version 2, and has those of ann"},
		"a revocation taken back":              {held: two, given: back, want: 3},
		"a revocation taken back by too few":   {held: two, given: next(t, two, func(v *Version) { v.RevokedBundles = nil }, "ann"), is: ErrTooFew},
		"a revoked key taken back by its name": {held: three, given: next(t, three, func(v *Version) { v.RevokedKeys = nil }, "ann", "cem"), want: 4},

		"a signer whose time is over": {held: lenient(annUntilToday), given: next(t, lenient(annUntilToday), revokeBundle(a), "ann", "bob"),
			clock: year, want: 2, warns: "was meant to sign until"},
		"a signer whose time has not come": {held: lenient(fromToday), given: next(t, lenient(fromToday), revokeBundle(a), "ann", "bob"),
			clock: -year, want: 2, warns: "is meant to sign from"},
		"a signer within its time": {held: lenient(bothSides), given: next(t, lenient(bothSides), revokeBundle(a), "ann", "bob"), want: 2},
		"strictly, a signer whose time is over": {held: strict(untilToday), given: next(t, strict(untilToday), revokeBundle(a), "ann", "bob"),
			clock: year, is: ErrTooFew, says: "this machine's clock says 2028-"},
		"strictly, one of three is over": {held: strict(annUntilToday), given: next(t, strict(annUntilToday), revokeBundle(a), "ann", "bob", "cem"),
			clock: year, want: 2},
		"strictly, a signer whose time has not come": {held: strict(fromToday), given: next(t, strict(fromToday), revokeBundle(a), "ann", "bob"),
			clock: -year, is: ErrTooFew, says: "this machine's clock says 2026-"},
		"strictly, within its time": {held: strict(bothSides), given: next(t, strict(bothSides), revokeBundle(a), "ann", "bob"), want: 2},
		"the clock a year ahead":    {held: one, given: five, clock: year, want: 5},
		"the clock a year behind":   {held: one, given: five, clock: -year, want: 5},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			held, err := again(t, tt.held).Verify(today)
			if err != nil {
				t.Fatal(err)
			}
			p, err := held.Accept(again(t, tt.given), today.Add(tt.clock))
			if tt.is != nil {
				if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %v, expected %v with %q", err, tt.is, tt.says)
				}
				if fault.ClassOf(err) != fault.Input || len(fault.Hints(err)) == 0 {
					t.Errorf("class %v, hints %q", fault.ClassOf(err), fault.Hints(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Version().Number != tt.want {
				t.Errorf("version %d holds, expected %d", p.Version().Number, tt.want)
			}
			if got := strings.Join(p.Warnings(), "\n"); !strings.Contains(got, tt.warns) || tt.warns == "" && got != "" {
				t.Errorf("warns %q, expected %q", got, tt.warns)
			}
		})
	}
}

// stranger is a version 1 of somebody else.
func stranger(t *testing.T) *Version {
	return &Version{Clock: Warn, Thresholds: Thresholds{Owner: 1, Builder: 1},
		Keys: []Key{key(t, "eve", Owner, Builder)}}
}

// forged is a next version with signatures by whoever is named, whether they may or not.
func forged(t testing.TB, f *File, by ...string) *File {
	t.Helper()
	n := next(t, f, func(*Version) {})
	for _, name := range by {
		s, err := signer(name).Sign(n.newest().content)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.newest().take(s.Bundle); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestVerify judges files by themselves.
func TestVerify(t *testing.T) {
	t.Parallel()
	one := newFile(t, first(t), "ann", "bob")
	two := next(t, one, revoke(id("bob")), "ann", "cem")
	p := verified(t, again(t, two))
	content, bundles := two.Parts()
	if p.Version().Number != 2 || p.Digest() != digest.FromBytes(content) || len(bundles) != 2 {
		t.Errorf("version %d, %s, %d signatures", p.Version().Number, p.Digest(), len(bundles))
	}
	if got := two.Signatures(); !cmp.Equal(got, []string{"ann", "cem"}) {
		t.Errorf("signed by %q", got)
	}
	if got := two.Numbers(); !cmp.Equal(got, []int64{1, 2}) {
		t.Errorf("versions %v", got)
	}
	swapped := again(t, two)
	swapped.versions[1].signatures = swapped.versions[0].signatures
	swapped.versions[1].ids = swapped.versions[0].ids
	unlike := again(t, two)
	unlike.versions[0] = newFile(t, stranger(t), "eve").versions[0]
	for name, test := range map[string]struct {
		file *File
		is   error
	}{
		"no signature":                    {newFile(t, first(t)), ErrTooFew},
		"one signature of two":            {newFile(t, first(t), "cem"), ErrTooFew},
		"signatures of another version":   {swapped, ErrSignature},
		"versions of two files":           {unlike, ErrForked},
		"a version in between unsigned":   {only(next(t, one, revoke(id("bob"))), 1, 2), ErrTooFew},
		"revoked and signed all the same": {forged(t, two, "ann", "bob"), ErrTooFew},
	} {
		if _, err := again(t, test.file).Verify(today); !errors.Is(err, test.is) {
			t.Errorf("%s: got %v, expected %v", name, err, test.is)
		}
	}
	if err := one.Sign(signer("dia")); fault.ClassOf(err) != fault.Input {
		t.Errorf("signed by no owner: %v", err)
	}
	before := len(one.newest().ids)
	if err := one.Sign(signer("ann")); err != nil || len(one.newest().ids) != before {
		t.Errorf("signed twice: %v", err)
	}
}

// TestLong makes more versions than a file carries.
func TestLong(t *testing.T) {
	t.Parallel()
	v := stranger(t)
	f := newFile(t, v, "eve")
	start := verified(t, f)
	for range MaxVersions + 3 {
		f = next(t, f, func(*Version) {}, "eve")
	}
	numbers := again(t, f).Numbers()
	if len(numbers) != MaxVersions || numbers[0] != 5 {
		t.Errorf("it has %v", numbers)
	}
	// As the owner is the same, the gap fits.
	if p, err := start.Accept(f, today); err != nil || p.Version().Number != MaxVersions+4 {
		t.Error(err)
	}
	if got := f.Since(MaxVersions + 100).Numbers(); !cmp.Equal(got, []int64{MaxVersions + 4}) {
		t.Errorf("nothing but the newest: %v", got)
	}
}

// TestCheck refuses versions that say what they must not.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Version)
		says   string
	}{
		"no key":               {func(v *Version) { v.Keys = nil }, "there are keys of nobody"},
		"no owner asked for":   {func(v *Version) { v.Thresholds.Owner = 0 }, "0 owners are asked for"},
		"no builder asked for": {func(v *Version) { v.Thresholds.Builder = 0 }, "0 builders are asked for"},
		"too few owners":       {func(v *Version) { v.Thresholds.Owner = 4 }, "there are keys of ann, bob, cem"},
		"too few, all in one": {func(v *Version) {
			v.Thresholds.Reviewer, v.Keys[3].Name = 1, "ann"
			v.Thresholds.Builder = 2
		}, "3 builders and reviewers together"},
		"less than none":      {func(v *Version) { v.Thresholds.Reviewer = -1 }, "-1 reviewers"},
		"owners revoked":      {func(v *Version) { revoke(id("ann"))(v); revoke(id("bob"))(v) }, "there are keys of cem"},
		"clock":               {func(v *Version) { v.Clock = "" }, "clock"},
		"a key twice":         {func(v *Version) { v.Keys = append(v.Keys, v.Keys[0]) }, "is there twice"},
		"another's id":        {func(v *Version) { v.Keys[0].ID = v.Keys[1].ID }, "is not that of its public key"},
		"no role":             {func(v *Version) { v.Keys[0].Roles = nil }, "no role"},
		"another role":        {func(v *Version) { v.Keys[0].Roles = []Role{"king"} }, "the roles are"},
		"roles in disorder":   {func(v *Version) { v.Keys[0].Roles = []Role{Builder, Owner} }, "in this order"},
		"no name":             {func(v *Version) { v.Keys[0].Name = "" }, "is empty"},
		"a name with spaces":  {func(v *Version) { v.Keys[0].Name = " ann" }, "spaces around"},
		"a name of two lines": {func(v *Version) { v.Keys[0].Name = "a\nb" }, "do not show"},
		"a long name":         {func(v *Version) { v.Keys[0].Name = strings.Repeat("a", 65) }, "65 bytes"},
		"capitals":            {func(v *Version) { v.Keys[0].Name = "Bob" }, "capitals only"},
		"half a second":       {func(v *Version) { v.Keys[0].NotAfter = today.Add(1) }, "whole seconds"},
		"another zone": {func(v *Version) {
			v.Keys[0].NotAfter = today.In(time.FixedZone("x", 3600))
		}, "UTC"},
		"an end before the beginning": {func(v *Version) {
			v.Keys[0].NotBefore, v.Keys[0].NotAfter = today, today
		}, "before it begins"},
		"no component":         {func(v *Version) { v.Keys[0].Components = []string{"A b"} }, "component"},
		"many components":      {func(v *Version) { v.Keys[0].Components = make([]string, 65) }, "65 components"},
		"no audience":          {func(v *Version) { v.Keys[0].Audience = []string{"a b"} }, "audience"},
		"two in one":           {func(v *Version) { v.Keys[0].Audience = []string{"a,b"} }, "audience"},
		"an empty audience":    {func(v *Version) { v.Keys[0].Audience = []string{""} }, "audience"},
		"no id revoked":        {revoke("ann"), "not the id of a key"},
		"no digest revoked":    {revokeBundle("sha256:1"), "not a bundle digest"},
		"sha512 revoked":       {revokeBundle(digest.SHA512.FromString("")), "not a bundle digest"},
		"revoked twice":        {func(v *Version) { v.RevokedKeys = []RevokedKey{{id("eve"), "x", today}, {id("eve"), "x", today}} }, "twice"},
		"revoked for nothing":  {func(v *Version) { v.RevokedKeys = []RevokedKey{{id("eve"), "", today}} }, "reason"},
		"revoked at no time":   {func(v *Version) { v.RevokedKeys = []RevokedKey{{id("eve"), "x", time.Time{}}} }, "date"},
		"too many are revoked": {func(v *Version) { v.RevokedKeys = make([]RevokedKey, MaxRevoked+1) }, "513 keys"},
		"too many keys":        {func(v *Version) { v.Keys = make([]Key, MaxKeys+1) }, "257 keys"},
	} {
		v := first(t)
		test.change(v)
		_, err := New(v)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, expected %q", name, err, test.says)
		}
	}
	// A name that has two roles counts for one of them only.
	v := first(t)
	v.Keys[3].Name, v.Thresholds.Reviewer = "ann", 1
	if _, err := New(v); err != nil {
		t.Errorf("bob builds, ann reviews: %v", err)
	}
}

// TestChanges makes the changes that the commands make.
func TestChanges(t *testing.T) {
	t.Parallel()
	v := first(t)
	if err := v.Add(key(t, "eve", Site)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"added twice":            v.Add(key(t, "eve", Owner)),
		"succeeded by one's own": first(t).Succeed(id("ann"), key(t, "bob"), today),
		"nobody succeeded":       v.Succeed(id("ann.2"), key(t, "eve"), today),
		"nothing taken back":     v.TakeBack(id("eve")),
		"an end before the start": func() error {
			w := first(t)
			w.Keys[0].NotBefore = today
			return w.Succeed(id("ann"), key(t, "eve"), today)
		}(),
	} {
		if fault.ClassOf(err) != fault.Input {
			t.Errorf("%s: %v", name, err)
		}
	}
	v.Keys[0].Audience = []string{"lab"}
	if err := v.Succeed(id("ann"), key(t, "ann.2"), today.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	old, by := v.Key(id("ann")), v.Key(id("ann.2"))
	if !cmp.Equal(old.Roles, []Role{Builder}) || !old.NotAfter.Equal(today.Add(time.Hour)) {
		t.Errorf("the old key: %v until %v", old.Roles, old.NotAfter)
	}
	if by.Name != "ann" || !cmp.Equal(by.Roles, []Role{Owner, Builder}) || !cmp.Equal(by.Audience, old.Audience) {
		t.Errorf("the new key: %+v", by)
	}
	// A key that was an owner's and no more has nothing left to sign.
	w := first(t)
	if err := w.Succeed(id("cem"), key(t, "eve"), today); err != nil || w.Key(id("cem")) != nil || w.Key(id("eve")).Name != "cem" {
		t.Errorf("%v, %+v", err, w.Key(id("cem")))
	}
	if err := errors.Join(v.RevokeKey(id("ann"), "lost", today), v.RevokeBundle(digest.FromString("a"), "bad", today)); err != nil {
		t.Error(err)
	}
	if v.RevokeKey(id("ann"), "lost", today) == nil || v.RevokeBundle(digest.FromString("a"), "bad", today) == nil {
		t.Error("revoked twice")
	}
	if err := w.RevokeKey(id("dia"), "lost", today); err != nil || w.Add(key(t, "dia", Site)) == nil {
		t.Errorf("a revoked key was added: %v", err)
	}
	if err := errors.Join(v.TakeBack(id("ann")), v.TakeBack(string(digest.FromString("a")))); err != nil {
		t.Error(err)
	}
	if _, err := New(v); err != nil {
		t.Error(err)
	}
	if _, err := NewKey("x", []byte("no key"), Owner); err == nil {
		t.Error("no key is one")
	}
	p := verified(t, newFile(t, first(t), "ann", "bob"))
	refused := errors.New("refused")
	if _, err := p.Next(func(*Version) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, err := p.Next(func(v *Version) error { v.Keys = nil; return nil }); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if !cmp.Equal(p.Version().Numbered(), first(t).Numbered()) {
		t.Error("a change that failed has changed what holds")
	}
}

// Numbered is a version's keys, for comparison.
func (v *Version) Numbered() (ids []string) {
	for _, k := range v.Keys {
		ids = append(ids, k.ID)
	}
	return ids
}

// TestJudge judges the signatures over a bundle.
func TestJudge(t *testing.T) {
	t.Parallel()
	index := []byte(`{"schemaVersion":2}`)
	year := 365 * 24 * time.Hour
	policy := func(change func(*Version)) *Policy {
		v := first(t)
		if change != nil {
			change(v)
		}
		return verified(t, newFile(t, v, "ann", "bob"))
	}
	review := func(v *Version) { v.Thresholds.Reviewer = 1 }
	both := func(v *Version) { review(v); v.Keys[0].Roles = append(v.Keys[0].Roles, Reviewer) }
	only := func(components, audience []string) func(*Version) {
		return func(v *Version) { v.Keys[0].Components, v.Keys[0].Audience = components, audience }
	}
	ends := func(clock string) func(*Version) {
		return func(v *Version) { v.Clock, v.Keys[1].NotAfter = clock, today.Add(time.Hour) }
	}
	lab := []string{"lab-1", "lab-2*"}
	for name, test := range map[string]struct {
		policy               *Policy
		by                   []string
		need                 int
		components, audience []string
		clock                time.Duration
		is                   error
		says, warns          string
		names                []string
	}{
		"a builder":           {by: []string{"ann"}, names: []string{"ann"}},
		"two of two":          {by: []string{"ann", "bob"}, need: 2, names: []string{"ann", "bob"}},
		"one of two":          {by: []string{"ann"}, need: 2, is: ErrUntrusted, says: "signatures of 1 builder, 2 in all, and there are those of ann"},
		"one of two, twice":   {by: []string{"ann", "ann"}, need: 2, is: ErrUntrusted, says: "those of ann"},
		"two keys of one":     {policy: policy(func(v *Version) { v.Keys = append(v.Keys, key(t, "ann.2", Builder)) }), by: []string{"ann", "ann.2"}, need: 2, is: ErrUntrusted, says: "those of ann"},
		"a reviewer counts":   {by: []string{"ann", "dia"}, need: 2, names: []string{"ann", "dia"}},
		"a reviewer alone":    {by: []string{"dia"}, is: ErrUntrusted, says: "1 builder, and there are those of dia"},
		"no review":           {policy: policy(review), by: []string{"ann", "bob"}, is: ErrUntrusted, says: "1 builder and 1 reviewer"},
		"reviewed":            {policy: policy(review), by: []string{"dia", "bob"}, names: []string{"dia", "bob"}},
		"one for two roles":   {policy: policy(both), by: []string{"ann"}, is: ErrUntrusted},
		"two for two roles":   {policy: policy(both), by: []string{"ann", "bob"}, names: []string{"ann", "bob"}},
		"nobody":              {is: signature.ErrNotSigned},
		"a stranger":          {by: []string{"eve"}, is: ErrUntrusted, says: "is not in the trust file"},
		"a stranger as well":  {by: []string{"eve", "ann"}, names: []string{"ann"}, warns: "is not in the trust file"},
		"an owner":            {by: []string{"cem"}, is: ErrUntrusted, says: "cem is for no bundles: it has the role owner"},
		"a revoked key":       {policy: policy2(t, revoke(id("bob"))), by: []string{"bob"}, is: ErrRevoked, says: "of bob was revoked on 2027-03-01: lost"},
		"a revoked key, gone": {policy: policy2(t, revoke(id("eve"))), by: []string{"eve"}, is: ErrRevoked, says: "of nobody that it names was revoked"},
		"a revoked key more":  {policy: policy2(t, revoke(id("bob"))), by: []string{"bob", "ann"}, names: []string{"ann"}, warns: "was revoked on"},
		"a revoked bundle":    {policy: policy2(t, revokeBundle(digest.FromBytes(index))), by: []string{"ann", "bob"}, is: ErrRevoked, says: "on 2027-03-01: bad"},

		"its components": {policy: policy(only([]string{"k3s", "lock"}, nil)), by: []string{"ann"}, components: []string{"k3s", "lock"}, names: []string{"ann"}},
		"another component": {policy: policy(only([]string{"k3s"}, nil)), by: []string{"ann"}, components: []string{"cilium", "k3s"},
			is: ErrUntrusted, says: "it has the component cilium, and the key is for k3s"},
		"another component, by others": {policy: policy(only([]string{"k3s"}, nil)), by: []string{"ann", "bob"}, components: []string{"cilium"},
			names: []string{"bob"}, warns: "the component cilium"},
		"its audience":      {policy: policy(only(nil, []string{"lab-*"})), by: []string{"ann"}, audience: lab, names: []string{"ann"}},
		"all clusters":      {policy: policy(only(nil, []string{"lab-*"})), by: []string{"ann"}, is: ErrUntrusted, says: "it is for all clusters"},
		"a larger audience": {policy: policy(only(nil, []string{"lab-1", "lab-2"})), by: []string{"ann"}, audience: lab, is: ErrUntrusted, says: "it is for lab-2*, and the key is for lab-1, lab-2"},

		"a key whose time is over":      {policy: policy(ends(Warn)), by: []string{"bob"}, clock: year, names: []string{"bob"}, warns: "was meant to sign until 2027-03-01T13:00:00Z"},
		"strictly, whose time is over":  {policy: policy(ends(Refuse)), by: []string{"bob"}, clock: year, is: ErrUntrusted, says: "was meant to sign until"},
		"strictly, whose time is not":   {policy: policy(ends(Refuse)), by: []string{"bob"}, names: []string{"bob"}},
		"strictly, with another beside": {policy: policy(ends(Refuse)), by: []string{"bob", "ann"}, clock: year, names: []string{"ann"}, warns: "until"},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.policy
			if p == nil {
				p = policy(nil)
			}
			var all []signature.Signature
			for _, one := range test.by {
				s, err := signer(one).Sign(index)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, s)
			}
			verdict, err := p.Judge(index, all, test.need, today.Add(test.clock))
			if err == nil {
				err = verdict.Cover(test.components, test.audience)
			}
			if test.is != nil {
				if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
					t.Fatalf("got %v, expected %v with %q", err, test.is, test.says)
				}
				if fault.ClassOf(err) != fault.Bundle {
					t.Errorf("class %v", fault.ClassOf(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, k := range verdict.Signers {
				names = append(names, k.Name)
			}
			if !cmp.Equal(names, test.names) {
				t.Errorf("signed by %q, expected %q", names, test.names)
			}
			if got := strings.Join(verdict.Warnings, "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("warns %q, expected %q", got, test.warns)
			}
		})
	}
	s, err := signer("ann").Sign([]byte("another index"))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]error{1: signature.ErrInvalid, MaxSignatures + 1: ErrUntrusted} {
		if _, err := policy(nil).Judge(index, slices.Repeat([]signature.Signature{s}, n), 0, today); !errors.Is(err, want) {
			t.Errorf("%d signatures of something else: %v", n, err)
		}
	}
}

// policy2 is a version 2 that three owners have signed.
func policy2(t *testing.T, change func(*Version)) *Policy {
	t.Helper()
	return verified(t, next(t, newFile(t, first(t), "ann", "bob"), change, "ann", "cem", "bob"))
}

// TestParse changes what is written.
func TestParse(t *testing.T) {
	t.Parallel()
	f := next(t, newFile(t, first(t), "ann", "bob"), revoke(id("eve")), "ann", "bob")
	good, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, good); err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(compact.Bytes()); err != nil {
		t.Errorf("without white space: %v", err)
	}
	inContent := func(change func(string) string) []byte {
		g := again(t, f)
		g.newest().content = []byte(change(string(g.newest().content)))
		text, err := g.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	replace := func(old, by string) func(string) string {
		return func(s string) string {
			if !strings.Contains(s, old) {
				t.Errorf("%q is not in it", old)
			}
			return strings.Replace(s, old, by, 1)
		}
	}
	change := func(old, by string) []byte { return []byte(replace(old, by)(string(good))) }
	twice := again(t, f)
	twice.newest().signatures = append(twice.newest().signatures, twice.newest().signatures[0])
	many := again(t, f)
	many.newest().signatures = slices.Repeat(many.newest().signatures, MaxSignatures)
	backwards := again(t, f)
	slices.Reverse(backwards.versions)
	long := &File{versions: slices.Repeat(f.versions, MaxVersions)}
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"nothing":               {nil, "unexpected end"},
		"no JSON":               {[]byte("x"), "invalid character"},
		"too large":             {make([]byte, MaxSize+1), "more than"},
		"too many values":       {[]byte("[" + strings.Repeat("1,", maxFileValues) + "1]"), "too much JSON"},
		"cut off":               {good[:len(good)-10], "unexpected end"},
		"something behind it":   {append(bytes.Clone(good), "{}"...), "invalid character"},
		"another kind":          {change(`"TrustFile"`, `"Have"`), "expected"},
		"another API":           {change("boxlift.dev/v1", "boxlift.dev/v2"), "expected"},
		"no versions":           {[]byte(`{"apiVersion":"boxlift.dev/v1","kind":"TrustFile","versions":[]}`), "0 versions"},
		"unknown field":         {change(`"kind"`, `"more": 1, "kind"`), "unknown"},
		"field twice":           {change(`"kind"`, `"kind": "TrustFile", "kind"`), "repeated"},
		"field in capitals":     {change(`"kind"`, `"Kind"`), "spelling"},
		"no signature":          {change(`"mediaType"`, `"type"`), "sigstore bundle"},
		"signed twice":          {encoded(t, twice), "signed it twice"},
		"many signatures":       {encoded(t, many), "64 signatures"},
		"backwards":             {encoded(t, backwards), "version 1 is behind version 2"},
		"many versions":         {encoded(t, long), "64 versions"},
		"content, no JSON":      {inContent(func(string) string { return "{" }), "unexpected end"},
		"content, too large":    {inContent(func(string) string { return strings.Repeat(" ", MaxContent+1) }), "262145 bytes"},
		"content, kind":         {inContent(replace(`"Trust"`, `"Truth"`)), "expected"},
		"content, field":        {inContent(replace(`"clock"`, `"x": 1, "clock"`)), "unknown"},
		"content, an empty one": {inContent(replace(`"clock"`, `"revokedBundles": [], "clock"`)), "spelling"},
		"content, key":          {inContent(replace("BEGIN PUBLIC KEY", "BEGIN PRIVATE KEY")), "key 1"},
		"content, version":      {inContent(replace(`"version": 2`, `"version": 0`)), "the number is 0"},
		"content, float":        {inContent(replace(`"version": 2`, `"version": 2.0`)), "cannot unmarshal"},
		"content, first":        {inContent(replace(`"version": 2`, `"version": 1`)), "as the version before"},
		"content, previous":     {inContent(replace(`"previous": "sha256:`, `"previous": "sha512:`)), "expected a sha256"},
		"content, keys":         {inContent(replace(`"owner": 2`, `"owner": 9`)), "9 owners are asked for"},
	} {
		_, err := Parse(test.content)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, expected %q", name, err, test.says)
		}
		if fault.ClassOf(err) != fault.Input {
			t.Errorf("%s: class %v", name, fault.ClassOf(err))
		}
	}
	path := filepath.Join(t.TempDir(), "trust.json")
	if _, err := ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for content, want := range map[string]error{string(good): nil, "{": ErrInvalid} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); !errors.Is(err, want) {
			t.Errorf("%.10q: %v", content, err)
		}
	}
}

func encoded(t testing.TB, f *File) []byte {
	t.Helper()
	content, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestEveryByte changes each byte of a file: nothing else than what was signed is ever accepted.
func TestEveryByte(t *testing.T) {
	t.Parallel()
	one := newFile(t, stranger(t), "eve")
	good := encoded(t, next(t, one, revokeBundle(digest.FromString("a")), "eve"))
	held, want := verified(t, one), verified(t, next(t, one, revokeBundle(digest.FromString("a")), "eve")).Digest()
	for i := range good {
		for _, mask := range []byte{0x01, 0x20} {
			bad := bytes.Clone(good)
			bad[i] ^= mask
			f, err := Parse(bad)
			if err != nil {
				continue
			}
			if p, err := held.Accept(f, today); err == nil && p.Digest() != want {
				t.Errorf("byte %d changed from %q to %q, and %s was accepted", i, good[i], bad[i], p.Digest())
			}
		}
	}
}

// exampleFile is a file with two versions, held and next.
const exampleFile = "testdata/example.json"

// TestExample reads a file that earlier versions of boxlift wrote.
func TestExample(t *testing.T) {
	if *update {
		two := next(t, newFile(t, first(t), "ann", "bob"), revoke(id("eve")), "ann", "cem")
		if err := os.WriteFile(exampleFile, encoded(t, two), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	p := verified(t, f)
	if p.Version().Number != 2 || len(p.Version().Keys) != 4 || len(p.Version().RevokedKeys) != 1 {
		t.Errorf("%+v", p.Version())
	}
	want, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(encoded(t, f))); diff != "" {
		t.Errorf("it is written otherwise (-want +got):\n%s", diff)
	}
}

// FuzzParse looks for a file that is written otherwise than it was read, and for one that is accepted
// without its owners' signatures: nobody here has their keys.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	file, err := Parse(example)
	if err != nil {
		f.Fatal(err)
	}
	held, err := file.versionAlone(0).Verify(today)
	if err != nil {
		f.Fatal(err)
	}
	newest, err := file.Verify(today)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add(encoded(f, file.versionAlone(0)))
	f.Add(encoded(f, file.Since(2)))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := Parse(content)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("another error: %v", err)
			}
			return
		}
		text := encoded(t, got)
		if same, err := Parse(text); err != nil || !bytes.Equal(encoded(t, same), text) {
			t.Errorf("read again: %v", err)
		}
		p, err := held.Accept(got, today)
		if err == nil && p.Digest() != held.Digest() && p.Digest() != newest.Digest() {
			t.Errorf("accepted %q", content)
		}
	})
}

func (f *File) versionAlone(i int) *File { return &File{versions: f.versions[i : i+1]} }

// fifty is a file with so many keys, which ann owns.
func fifty(b *testing.B) *File {
	b.Helper()
	v := first(b)
	for i := range 46 {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(private.Public())
		if err != nil {
			b.Fatal(err)
		}
		k, err := NewKey(fmt.Sprint("person ", i), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
			Builder)
		if err != nil {
			b.Fatal(err)
		}
		v.Keys = append(v.Keys, k)
	}
	return newFile(b, v, "ann", "bob", "cem")
}

// BenchmarkJudge compares what a bundle's signatures cost: one key that is named, and a trust file
// with 50 keys, read and proven each time, and three signatures; in the file's first version, and
// with all the versions that a file carries.
func BenchmarkJudge(b *testing.B) {
	index := []byte(`{"schemaVersion":2}`)
	var all []signature.Signature
	for _, name := range []string{"ann", "bob", "dia"} {
		s, err := signer(name).Sign(index)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, s)
	}
	text, err := signer("ann").PublicKey().PEM()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("one key", func(b *testing.B) {
		for b.Loop() {
			public, err := signature.ParsePublicKey(text)
			if err == nil {
				err = signature.Verify(public, index, all[0].Bundle, all[0].Base64)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	f := fifty(b)
	long := f
	for range MaxVersions - 1 {
		long = next(b, long, func(*Version) {}, "ann", "bob", "cem")
	}
	for name, content := range map[string][]byte{"50 keys": encoded(b, f), "50 keys and 32 versions": encoded(b, long)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f, err := Parse(content)
				if err != nil {
					b.Fatal(err)
				}
				p, err := f.Verify(today)
				if err != nil {
					b.Fatal(err)
				}
				v, err := p.Judge(index, all, 3, today)
				if err == nil {
					err = v.Cover([]string{"k3s"}, nil)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
