// Package approval judges a bundle by those who signed it: whether it has the signatures that are asked for, by keys
// that may sign what it has in it.
//
// Contract: a [Demand] says what is asked for, and a [Judge] proves the signatures of a bundle in the same bytes that
// are used of it. The result is an [Approval]: who counts, by which version of the trust file. Nothing is asked of a
// network or of a host.
//
// A trust file comes from up to four places: the operator names one, one travels in the bundle, one beside it
// ([Demand.Carried]), and a site keeps one. Only the first and the last are taken because of where they come from. What
// travels counts if it follows on one of them; so whoever carries the bundle can leave it away, and do no more.
package approval

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
)

// Demand is what is asked of the signatures over a bundle. The zero value asks for nothing.
type Demand struct {
	// Key has to have signed it; nil for none.
	Key *signature.PublicKey
	// Policy is the trust file that it is judged by; nil for none.
	Policy *trust.Policy
	// Carried is the trust file that lies beside the bundle, nil for none. It asks for nothing by itself, as that in
	// the bundle does: it takes the policy's place where it follows on it and is newer.
	Carried *trust.File
	// Names is how many keys of different names have to have signed, 0 for as many as the trust file says.
	Names int
	// Statements are those that have to lie beside the bundle, by whom the policy knows. Without a policy they have to
	// be by the key, whatever role they name.
	Statements []trust.Requirement
}

// Approval is what a bundle was judged by, and who signed it.
type Approval struct {
	// Signers are those who count. Of a delta, they have signed both it and its bundle.
	Signers []Signer
	// Policy is the trust file that it was judged by, nil where a key alone was asked for.
	Policy *trust.Policy
	// Warnings are about the clock, and about signatures that do not count.
	Warnings []string
}

// Version is that of the trust file that the bundle was judged by, 0 for a key.
func (a *Approval) Version() int64 {
	if a.Policy == nil {
		return 0
	}
	return a.Policy.Version().Number
}

// Signer is one who signed a bundle.
type Signer struct {
	// Name is the one in the trust file, "" where a key alone was asked for.
	Name string `json:"name,omitempty"`
	// Key is the id of the key: base64 of the sha256 of its DER.
	Key string `json:"key"`
}

// String is the signer as people are told of him.
func (s Signer) String() string {
	if s.Name == "" {
		return "the key " + s.Key
	}
	return s.Name + ", with the key " + s.Key
}

// IsNone reports whether nothing is asked for.
func (d Demand) IsNone() bool { return d.Key == nil && d.Policy == nil }

// Under is the demand at a site that keeps a version of the trust file, and what there is to tell of it. by says who
// keeps it, as in "the cluster keeps". The site's version counts, or a newer one that follows on it, in place of the
// operator's. An older one that the operator names is left aside, and told of. The errors are those of
// [trust.Policy.Accept], but for [trust.ErrOlder].
func (d Demand) Under(held *trust.Policy, by string, now time.Time) (_ Demand, warnings []string, err error) {
	if d.Policy == nil {
		d.Policy = held
		return d, nil, nil
	}
	p, err := held.Accept(d.Policy.File(), now)
	switch {
	case errors.Is(err, trust.ErrOlder):
		warnings = append(warnings, fmt.Sprintf(
			"the trust file that is named has version %d, and %s version %d, which "+
				"counts", d.Policy.Version().Number, by, held.Version().Number))
		p = held
	case err != nil:
		return Demand{}, nil, fmt.Errorf("%s version %d of the trust file, %s: %w", by, held.Version().Number,
			held.Digest(), err)
	}
	d.Policy = p
	return d, warnings, nil
}

// Judge is a new judge of one bundle, nil where nothing is asked for. The clock is read now.
func (d Demand) Judge() *Judge {
	if d.IsNone() {
		return nil
	}
	return &Judge{demand: d, policy: d.Policy, now: time.Now()}
}

// Judge judges one bundle: first its signatures, for [bundle.OpenVerified], since nothing that they cover is decoded
// before they are proven; then, with [Judge.Approve], what is in it.
type Judge struct {
	demand   Demand
	policy   *trust.Policy // the demand's, or a newer one that travels; nil for none
	now      time.Time
	verdicts []*trust.Verdict // of a delta, the bundle's after its own
}

var _ bundle.Verifier = (*Judge)(nil)

// TakeTrust is that of [bundle.Verifier]. The newest of what is asked for and what travels, in the bundle and beside
// it, is what the bundle is judged by. It fails where what travels does not follow, with the errors of
// [trust.Policy.Accept] but for [trust.ErrOlder]: the bundle may be from before.
func (j *Judge) TakeTrust(in *trust.File) error {
	if j.policy == nil {
		return nil
	}
	type travelling struct {
		file  *trust.File
		where string
	}
	files := slices.DeleteFunc([]travelling{{in, "in"}, {j.demand.Carried, "beside"}},
		func(t travelling) bool { return t.file == nil })
	// The older one first: the newer one may leave out what that has, and follow on it alone.
	slices.SortStableFunc(files, func(a, b travelling) int {
		return cmp.Compare(a.file.Newest().Number, b.file.Newest().Number)
	})
	for _, t := range files {
		p, err := j.policy.Accept(t.file, j.now)
		switch {
		case errors.Is(err, trust.ErrOlder):
		case err != nil:
			return fmt.Errorf("the trust file %s the bundle: %w", t.where, err)
		default:
			j.policy = p
		}
	}
	return nil
}

// VerifySignatures is that of [bundle.Verifier].
func (j *Judge) VerifySignatures(index []byte, signatures []signature.Signature) error {
	if j.demand.Key != nil {
		if err := bundle.SignedWith(j.demand.Key).VerifySignatures(index, signatures); err != nil {
			return err
		}
	}
	if j.policy == nil {
		return nil
	}
	verdict, err := j.policy.Judge(index, signatures, j.demand.Names, j.now)
	if err == nil {
		j.verdicts = append(j.verdicts, verdict)
	}
	return err
}

// Approve judges whether those who signed the bundle may sign what it has in it, and for whom. Its signatures were
// proven by this judge. The errors wrap [trust.ErrUntrusted], and [trust.ErrUnapproved] where a statement is missing.
func (j *Judge) Approve(r *bundle.Reader) (*Approval, error) {
	if j.policy == nil {
		if err := j.requireByKey(r); err != nil {
			return nil, err
		}
		return &Approval{Signers: []Signer{{Key: signature.KeyID(j.demand.Key)}}}, nil
	}
	if err := j.cover(r); err != nil {
		return nil, err
	}
	a := &Approval{Policy: j.policy, Warnings: slices.Clone(j.policy.Warnings())}
	for _, k := range j.verdicts[0].Signers {
		if !slices.ContainsFunc(j.verdicts[1:],
			func(other *trust.Verdict) bool { return !slices.Contains(other.Signers, k) }) {
			a.Signers = append(a.Signers, Signer{Name: k.Name, Key: k.ID})
		}
	}
	for _, verdict := range j.verdicts {
		for _, text := range verdict.Warnings {
			if !slices.Contains(a.Warnings, text) {
				a.Warnings = append(a.Warnings, text)
			}
		}
	}
	return a, nil
}

// Approve judges an open bundle, signatures and all. Something has to be asked for. The errors wrap
// [bundle.SignatureError] or those of [Judge.Approve].
func (d Demand) Approve(r *bundle.Reader) (*Approval, error) {
	j := d.Judge()
	if err := r.VerifySignatures(j); err != nil {
		return nil, err
	}
	return j.Approve(r)
}

// cover judges what is in the bundle, and what is stated about it.
func (j *Judge) cover(r *bundle.Reader) error {
	s, err := SubjectOf(r)
	if err != nil {
		return err
	}
	for _, verdict := range j.verdicts {
		if err := verdict.Cover(s.Components, s.Audience); err != nil {
			return fmt.Errorf("bundle %s: %w", r.Path(), err)
		}
	}
	return j.require(r, s)
}
