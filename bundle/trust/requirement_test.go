package trust

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

const example = "https://example.com/rehearsal/v1"

// attested is a statement about a bundle, as somebody has made it.
func attested(t testing.TB, by string, about digest.Digest, kind string, predicate any) attestation.Attestation {
	t.Helper()
	statement, err := attestation.Make(about, kind, predicate)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer(by).Attest(statement)
	if err != nil {
		t.Fatal(err)
	}
	a, err := attestation.Read(signed)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRequire judges what is stated about a bundle.
func TestRequire(t *testing.T) {
	t.Parallel()
	index, lock := []byte("index"), []byte("lock")
	about := digest.FromBytes(index)
	year := 365 * 24 * time.Hour
	policy := func(change func(*Version)) *Policy {
		v := first(t)
		v.Keys = append(v.Keys, key(t, "eve", Tester))
		if change != nil {
			change(v)
		}
		return verified(t, again(t, newFile(t, v, "ann", "bob")))
	}
	change := func(name string, do func(*Key)) func(*Version) {
		return func(v *Version) {
			for i := range v.Keys {
				if v.Keys[i].Name == name {
					do(&v.Keys[i])
				}
			}
		}
	}
	clock := func(rule string) func(*Version) {
		return func(v *Version) {
			v.Clock = rule
			change("dia", func(k *Key) { k.NotAfter = today.Add(time.Hour) })(v)
		}
	}
	// Ann and bob have both roles: who builds and who reviews is to be two people all the same.
	both := func(v *Version) {
		change("ann", func(k *Key) { k.Roles = []Role{Owner, Builder, Reviewer} })(v)
		change("bob", func(k *Key) { k.Roles = []Role{Owner, Builder, Reviewer} })(v)
	}
	review := func(by, result string, of []byte) attestation.Attestation {
		p, err := attestation.NewReview(of, result, "because", today)
		if err != nil {
			t.Fatal(err)
		}
		return attested(t, by, about, attestation.Review, p)
	}
	test := func(by, result string) attestation.Attestation {
		return attested(t, by, about, attestation.TestResult, json.RawMessage(`{"result":"`+result+`"}`))
	}
	approved, rejected := attestation.Approved, attestation.Rejected
	forged := review("dia", approved, lock)
	forged.Attested = func() *signature.Attested {
		// Cem's signature under dia's name.
		text := strings.Replace(string(review("cem", approved, lock).Bundle), id("cem"), id("dia"), 1)
		a, err := signature.ReadAttestation([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}()
	reviewer := []Requirement{{attestation.Review, Reviewer}}
	tested := []Requirement{{attestation.TestResult, Reviewer}}
	list := func(all ...attestation.Attestation) []attestation.Attestation { return all }

	for name, tt := range map[string]struct {
		policy   *Policy
		signed   []string // by ann unless it says otherwise
		required []Requirement
		list     []attestation.Attestation
		parts    []string
		audience []string
		clock    time.Duration
		is       error // nil for what is approved
		says     string
		hints    string
		warns    string
	}{
		"nothing required":      {},
		"nothing required, bad": {list: list(test("dia", "FAILED"))},
		"reviewed":              {required: reviewer, list: list(review("dia", approved, lock))},
		"none": {required: reviewer, is: ErrUnapproved, says: "a statement of the type review by a reviewer is required, and there is none",
			hints: "have it made by dia: boxlift bundle attest --type review"},
		"another type":   {required: reviewer, list: list(test("dia", "PASSED")), is: ErrUnapproved, says: "review by a reviewer is required, and there is none"},
		"rejected":       {required: reviewer, list: list(review("dia", rejected, lock)), is: ErrUnapproved, says: "that of dia speaks against the bundle: it says REJECTED: because"},
		"of another":     {required: reviewer, list: list(review("dia", approved, []byte("other"))), is: ErrUnapproved, says: "it is about the lock sha256:"},
		"another bundle": {required: reviewer, list: list(attested(t, "dia", digest.FromString("x"), attestation.Review, 1)), is: ErrUnapproved, says: "about something else than bundle " + about.String()},
		"no predicate":   {required: reviewer, list: list(attested(t, "dia", about, attestation.Review, 1)), is: ErrUnapproved, says: "statement of dia: invalid attestation: review: it is no JSON object"},
		"a forged one":   {required: reviewer, list: list(forged), is: ErrUnapproved, says: "statement of dia: verify attestation: signature does not verify"},
		"a stranger": {policy: policy(func(v *Version) { v.Keys = v.Keys[:4] }), required: reviewer, list: list(review("eve", approved, lock)),
			is: ErrUnapproved, says: "is not in the trust file"},
		"another role":     {required: reviewer, list: list(review("bob", approved, lock)), is: ErrUnapproved, says: "bob has made one, and the key is no reviewer's: it has the role owner, builder"},
		"an owner":         {required: reviewer, list: list(review("cem", approved, lock)), is: ErrUnapproved, says: "the key of cem is for no statements: it has the role owner"},
		"a revoked key":    {policy: verified(t, next(t, newFile(t, first(t), "ann", "bob"), revoke(id("dia")), "ann", "bob")), required: reviewer, list: list(review("dia", approved, lock)), is: ErrRevoked, says: "of dia, on 2027-03-01: lost", hints: "nobody in the trust file could make it: its owners add the key of a reviewer"},
		"a revoked, gone":  {policy: verified(t, next(t, newFile(t, first(t), "ann", "bob"), revoke(id("eve")), "ann", "bob")), required: reviewer, list: list(review("eve", approved, lock)), is: ErrRevoked, says: "of nobody that it names, on"},
		"its components":   {policy: policy(change("dia", func(k *Key) { k.Components = []string{"k3s"} })), required: reviewer, list: list(review("dia", approved, lock)), parts: []string{"k3s"}},
		"other components": {policy: policy(change("dia", func(k *Key) { k.Components = []string{"k3s"} })), required: reviewer, list: list(review("dia", approved, lock)), parts: []string{"cilium", "k3s"}, is: ErrUnapproved, says: "the key of dia is not for the bundle: it has the component cilium", hints: "nobody in the trust file could make it"},
		"its audience":     {policy: policy(change("dia", func(k *Key) { k.Audience = []string{"lab-*"} })), required: reviewer, list: list(review("dia", approved, lock)), audience: []string{"lab-1"}},
		"all clusters":     {policy: policy(change("dia", func(k *Key) { k.Audience = []string{"lab-*"} })), required: reviewer, list: list(review("dia", approved, lock)), is: ErrUnapproved, says: "it is for all clusters"},
		"over, a warning":  {policy: policy(clock(Warn)), required: reviewer, list: list(review("dia", approved, lock)), clock: year, warns: "the review by dia: the key of dia was meant to sign until"},
		"over, refused":    {policy: policy(clock(Refuse)), required: reviewer, list: list(review("dia", approved, lock)), clock: year, is: ErrUnapproved, says: "was meant to sign until", hints: "nobody in the trust file could make it"},
		"not over":         {policy: policy(clock(Refuse)), required: reviewer, list: list(review("dia", approved, lock)), clock: -year},

		"one rejects, one approves": {policy: policy(both), required: reviewer, list: list(review("dia", rejected, lock), review("bob", approved, lock)),
			warns: "a statement (review) does not count: that of dia speaks against the bundle: it says REJECTED: because"},
		"passed":           {required: tested, list: list(test("dia", "PASSED"))},
		"warned":           {required: tested, list: list(test("dia", "WARNED")), warns: "the test-result by dia: the tests passed with warnings"},
		"failed":           {required: tested, list: list(test("dia", "FAILED")), is: ErrUnapproved, says: "it says FAILED"},
		"failed, then not": {required: tested, list: list(test("dia", "FAILED"), test("dia", "PASSED")), warns: "it says FAILED"},
		"an unknown word":  {required: tested, list: list(test("dia", "OK")), is: ErrUnapproved, says: `"result" is "OK"`},
		"any type":         {required: []Requirement{{example, Tester}}, list: list(attested(t, "eve", about, example, 1))},
		"any type, none":   {required: []Requirement{{example, Tester}}, list: list(attested(t, "dia", about, example, 1)), is: ErrUnapproved, says: "the key is no tester's", hints: "have it made by eve: boxlift bundle attest --type " + example},
		"both":             {required: slices.Concat(reviewer, tested), list: list(test("dia", "PASSED"), review("dia", approved, lock))},
		"one of both":      {required: slices.Concat(reviewer, tested), list: list(review("dia", approved, lock)), is: ErrUnapproved, says: "test-result by a reviewer"},

		"by the builder":            {required: []Requirement{{attestation.Provenance, Builder}}, list: list(attested(t, "ann", about, attestation.Provenance, 1))},
		"by another builder":        {required: []Requirement{{attestation.Provenance, Builder}}, list: list(attested(t, "bob", about, attestation.Provenance, 1))},
		"by who built it":           {policy: policy(both), required: reviewer, list: list(review("ann", approved, lock)), is: ErrUnapproved, says: "ann has signed the bundle as its builder, and somebody else has to make it", hints: "have it made by bob or dia:"},
		"by one of two who built":   {policy: policy(both), signed: []string{"ann", "bob"}, required: reviewer, list: list(review("ann", approved, lock))},
		"by who could have":         {policy: policy(both), signed: []string{"bob"}, required: reviewer, list: list(review("ann", approved, lock))},
		"by one of two, two needed": {policy: policy(func(v *Version) { both(v); v.Thresholds.Builder = 2 }), signed: []string{"ann", "bob"}, required: reviewer, list: list(review("ann", approved, lock)), is: ErrUnapproved, says: "somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.policy
			if p == nil {
				p = policy(nil)
			}
			if tt.signed == nil {
				tt.signed = []string{"ann"}
			}
			var signatures []signature.Signature
			for _, by := range tt.signed {
				s, err := signer(by).Sign(index)
				if err != nil {
					t.Fatal(err)
				}
				signatures = append(signatures, s)
			}
			now := today.Add(tt.clock)
			verdict, err := p.Judge(index, signatures, 0, now)
			if err != nil {
				t.Fatal(err)
			}
			s := Subject{Bundle: about, Lock: digest.FromBytes(lock), Components: tt.parts, Audience: tt.audience}
			if err := verdict.Cover(s.Components, s.Audience); err != nil {
				t.Fatal(err)
			}
			err = verdict.Require(tt.list, tt.required, s, now)
			if tt.is != nil {
				if !errors.Is(err, tt.is) || !errors.Is(err, ErrUnapproved) || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %v, expected %v with %q", err, tt.is, tt.says)
				}
				if got := strings.Join(fault.Hints(err), "\n"); !strings.Contains(got, tt.hints) || got == "" {
					t.Errorf("hints %q, expected %q", got, tt.hints)
				}
				if fault.ClassOf(err) != fault.Bundle {
					t.Errorf("class %v", fault.ClassOf(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(verdict.Warnings, "\n"); !strings.Contains(got, tt.warns) || tt.warns == "" && got != "" {
				t.Errorf("warns %q, expected %q", got, tt.warns)
			}
		})
	}
}
