package attestation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Types of predicates.
const (
	// Review is what somebody thinks of a bundle's lock; docs/attestations.md describes it.
	Review = "https://github.com/liteboxd/boxlift/review/v1"
	// TestResult is in-toto's
	// (https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md).
	TestResult = "https://in-toto.io/attestation/test-result/v0.1"
	// VerificationSummary is SLSA's (https://slsa.dev/spec/v1.1/verification_summary).
	VerificationSummary = "https://slsa.dev/verification_summary/v1"
	// Provenance is SLSA's (https://slsa.dev/spec/v1.1/provenance); cosign calls it slsaprovenance1.
	Provenance = "https://slsa.dev/provenance/v1"
	// CycloneDX is the type of predicates that are CycloneDX documents; cosign calls it cyclonedx.
	CycloneDX = "https://cyclonedx.org/bom"
)

// The results of a review.
const (
	Approved = "APPROVED"
	Rejected = "REJECTED"
)

const (
	maxType    = 256
	maxComment = 4 << 10
	// maxPredicateValues bounds JSON values of a predicate that is looked into.
	maxPredicateValues = 1 << 16
)

// names are short ones, for people; the last is that of a kind of test-result.
var names = []struct{ name, uri string }{
	{"review", Review}, {"test-result", TestResult}, {"verification-summary", VerificationSummary},
	{"provenance", Provenance}, {"cyclonedx", CycloneDX}, {"rehearsal", Rehearsed},
}

// TypeNames are the short names of types.
func TypeNames() []string {
	var list []string
	for _, n := range names {
		list = append(list, n.name)
	}
	return list
}

// ParseType returns the type that a text names: one of [TypeNames], or a URI. The error says what was
// expected.
func ParseType(text string) (string, error) {
	for _, n := range names {
		if n.name == text {
			return n.uri, nil
		}
	}
	if !isURI(text) {
		return "", fmt.Errorf("expected one of %s, or a URI of at most %d bytes", strings.Join(TypeNames(), ", "),
			maxType)
	}
	return text, nil
}

// TypeName is the short name of a type, or the type.
func TypeName(uri string) string {
	for _, n := range names {
		if n.uri == uri {
			return n.name
		}
	}
	return uri
}

// isURI reports whether a text can be the type of a predicate. Types are compared as texts.
func isURI(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.IsAbs() && (u.Opaque != "" || u.Host != "") && len(text) <= maxType &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// ReadPredicate reads a file with a predicate, which is JSON of at most [MaxStatement] bytes.
func ReadPredicate(path string) (json.RawMessage, error) {
	content, err := boundedfile.Read(path, MaxStatement)
	if err != nil {
		return nil, fault.Input.Errorf("read the predicate: %w", err)
	}
	if !json.Valid(content) {
		return nil, fault.Input.Errorf("read the predicate: %s is no JSON", path)
	}
	return content, nil
}

// Outcome is what a predicate says, for whoever asks whether it speaks for the bundle.
type Outcome struct {
	// Result is the predicate's own word, such as PASSED; "" for types that are not known here.
	Result string
	// When is when it was found, by the maker's clock; zero when the predicate does not say.
	When time.Time
	// Comment is the maker's text, one line that can be shown; "" for none.
	Comment string
	// Against says why it does not speak for the bundle; "" when it does. A predicate of a type that is
	// not known here speaks for it by being there.
	Against string
	// Warning is what to tell all the same; "" for nothing.
	Warning string
}

// Outcome reads the predicate. The digest is that of the lock in the bundle, which a review has to be
// about. The error, which wraps [ErrInvalid], says that the predicate is not what its type promises.
func (s *Statement) Outcome(lock digest.Digest) (Outcome, error) {
	var o Outcome
	var err error
	switch s.Type {
	case Review:
		o, err = s.review(lock)
	case TestResult:
		o, err = s.result("result", "", "PASSED", "WARNED", "FAILED")
		if o.Result == "WARNED" {
			o.Against, o.Warning = "", "the tests passed with warnings"
		}
		if err == nil {
			err = s.judgeRehearsal(&o)
		}
	case VerificationSummary:
		o, err = s.result("verificationResult", "timeVerified", "PASSED", "FAILED")
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %s: %w", ErrInvalid, TypeName(s.Type), err)
	}
	return o, nil
}

// result reads a predicate whose member has one of a few words. The first of them speaks for the bundle.
func (s *Statement) result(name, when string, words ...string) (o Outcome, err error) {
	if boundedjson.Count(s.Predicate) > maxPredicateValues {
		return o, boundedjson.ErrTooMuch
	}
	members, err := object(s.Predicate)
	if err != nil {
		return o, err
	}
	if o.Result, err = member[string](members, name); err != nil {
		return o, err
	}
	if !slices.Contains(words, o.Result) {
		return o, fmt.Errorf("%q is %.40q, expected one of %s", name, o.Result, strings.Join(words, ", "))
	}
	if when != "" {
		if o.When, err = member[time.Time](members, when); err != nil {
			return o, err
		}
	}
	if o.Result != words[0] {
		o.Against = "it says " + o.Result
	}
	return o, nil
}

// ReviewPredicate is the predicate of a review.
type ReviewPredicate struct {
	// Lock is the versions.lock that was reviewed, by its sha256.
	Lock Resource `json:"lock"`
	// Result is [Approved] or [Rejected].
	Result string `json:"result"`
	// ReviewedOn is in UTC and whole seconds.
	ReviewedOn time.Time `json:"reviewedOn,omitzero"`
	// Comment is what the reviewer has to say.
	Comment string `json:"comment,omitempty"`
}

// NewReview makes the predicate of a review of a lock, whose bytes are given.
func NewReview(lock []byte, result, comment string, now time.Time) (ReviewPredicate, error) {
	sum := sha256.Sum256(lock)
	p := ReviewPredicate{
		Lock:   Resource{Name: "versions.lock", Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}},
		Result: result, ReviewedOn: now.UTC().Truncate(time.Second), Comment: comment,
	}
	switch {
	case result != Approved && result != Rejected:
		return p, fmt.Errorf("the result of a review is %.40q, expected %s or %s", result, Approved, Rejected)
	case len(comment) > maxComment:
		return p, fmt.Errorf("the comment has %d bytes, %d is the most", len(comment), maxComment)
	case printable.Text(comment) != comment:
		return p, errors.New("the comment has characters that do not show")
	}
	return p, nil
}

// reviewed is what is read of a review.
type reviewed struct {
	lock            digest.Digest
	result, comment string
	when            time.Time
}

func parseReview(predicate []byte) (reviewed, error) {
	var r reviewed
	members, err := object(predicate)
	if err != nil {
		return r, err
	}
	lock, err := parseSubject(members["lock"])
	if err != nil {
		return r, fmt.Errorf("lock: %w", err)
	}
	r.lock = digest.NewDigestFromEncoded(digest.SHA256, lock.Digest["sha256"])
	if r.lock.Validate() != nil {
		return r, errors.New("it does not name the sha256 of a lock")
	}
	if r.result, err = member[string](members, "result"); err != nil {
		return r, err
	}
	if r.result != Approved && r.result != Rejected {
		return r, fmt.Errorf("the result is %.40q, expected %s or %s", r.result, Approved, Rejected)
	}
	if r.comment, err = member[string](members, "comment"); err != nil {
		return r, err
	}
	r.when, err = member[time.Time](members, "reviewedOn")
	return r, err
}

func (s *Statement) review(lock digest.Digest) (Outcome, error) {
	r, err := parseReview(s.Predicate)
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Result: r.result, When: r.when, Comment: printable.Short(r.comment, 200)}
	switch {
	case r.lock != lock:
		o.Against = fmt.Sprintf("it is about the lock %s, and the bundle's is %s", r.lock, lock)
	case r.result != Approved:
		o.Against = "it says " + r.result
		if o.Comment != "" {
			o.Against += ": " + o.Comment
		}
	}
	return o, nil
}
