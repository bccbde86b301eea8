package attestation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/signature"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	// olderType has the same fields. It is what cosign writes.
	olderType = "https://in-toto.io/Statement/v0.1"

	// maxSubjects is how many a statement may be about.
	maxSubjects = 64
	// maxMembers is how many members an object may have that is looked into.
	maxMembers = 64
	// maxSubjectValues bounds JSON values of all subjects.
	maxSubjectValues = maxSubjects * maxMembers
)

// Statement is an in-toto statement
// (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md).
type Statement struct {
	// Subject is what it is about.
	Subject []Resource
	// Type is the predicate's, a URI.
	Type string
	// Predicate is JSON: what is stated.
	Predicate json.RawMessage
}

// Resource is a ResourceDescriptor
// (https://github.com/in-toto/attestation/blob/main/spec/v1/resource_descriptor.md).
type Resource struct {
	Name        string            `json:"name,omitempty"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest,omitempty"`
	MediaType   string            `json:"mediaType,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// DigestSet is how a [Resource] names a digest.
func DigestSet(d digest.Digest) map[string]string {
	return map[string]string{d.Algorithm().String(): d.Encoded()}
}

// Make makes a statement about a bundle, for [signature.Signer.Attest]. The predicate is anything that
// [json.Marshal] takes. The same gives the same bytes.
func Make(bundle digest.Digest, predicateType string, predicate any) ([]byte, error) {
	return MakeAbout([]Resource{{Name: "index.json", Digest: DigestSet(bundle)}}, predicateType, predicate)
}

// MakeAbout is Make for a statement about something else than one bundle.
func MakeAbout(subject []Resource, predicateType string, predicate any) ([]byte, error) {
	text, err := json.Marshal(struct {
		Type          string     `json:"_type"`
		Subject       []Resource `json:"subject"`
		PredicateType string     `json:"predicateType"`
		Predicate     any        `json:"predicate"`
	}{statementType, subject, predicateType, predicate})
	if err != nil {
		return nil, fmt.Errorf("make a statement of the type %s: %w", predicateType, err)
	}
	return text, nil
}

// Parse reads a statement. Errors wrap [ErrInvalid].
func Parse(text []byte) (*Statement, error) {
	s, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: statement: %w", ErrInvalid, err)
	}
	return s, nil
}

func parse(text []byte) (*Statement, error) {
	if len(text) > signature.AttestationLimit {
		return nil, fmt.Errorf("%d bytes are too many (at most %d)", len(text), signature.AttestationLimit)
	}
	members, err := object(text)
	if err != nil {
		return nil, err
	}
	kind, err := member[string](members, "_type")
	if err != nil {
		return nil, err
	}
	if kind != statementType && kind != olderType {
		return nil, fmt.Errorf("it has the type %.80q, expected %q", kind, statementType)
	}
	s := &Statement{Predicate: members["predicate"]}
	if s.Type, err = member[string](members, "predicateType"); err != nil {
		return nil, err
	}
	if !isURI(s.Type) {
		return nil, fmt.Errorf("the predicateType is %.80q, expected a URI of at most %d bytes", s.Type, maxType)
	}
	subjects := members["subject"]
	if n := boundedjson.Count(subjects); n > maxSubjectValues {
		return nil, fmt.Errorf("subject: %w: %d values, %d are allowed", boundedjson.ErrTooMuch, n, maxSubjectValues)
	}
	list, err := member[[]json.RawMessage](members, "subject")
	if err != nil {
		return nil, err
	}
	if len(list) > maxSubjects {
		return nil, fmt.Errorf("it has %d subjects, %d is the most", len(list), maxSubjects)
	}
	for i, raw := range list {
		one, err := parseSubject(raw)
		if err != nil {
			return nil, fmt.Errorf("subject %d: %w", i+1, err)
		}
		s.Subject = append(s.Subject, one)
	}
	return s, nil
}

// parseSubject reads name and digests of a subject.
func parseSubject(raw []byte) (Resource, error) {
	members, err := object(raw)
	if err != nil {
		return Resource{}, err
	}
	var r Resource
	if r.Name, err = member[string](members, "name"); err != nil {
		return Resource{}, err
	}
	digests, ok := members["digest"]
	if !ok {
		return r, nil
	}
	set, err := object(digests)
	if err != nil {
		return Resource{}, fmt.Errorf("digest: %w", err)
	}
	r.Digest = make(map[string]string, len(set))
	for algorithm := range set {
		if r.Digest[algorithm], err = member[string](set, algorithm); err != nil {
			return Resource{}, fmt.Errorf("digest: %w", err)
		}
	}
	return r, nil
}

// IsAbout reports whether a bundle is among the subjects.
func (s *Statement) IsAbout(bundle digest.Digest) bool {
	return slices.ContainsFunc(s.Subject, func(r Resource) bool {
		return r.Digest[bundle.Algorithm().String()] == bundle.Encoded()
	})
}

// saysSame reports whether both state the same. Of a review, when it was made does not count.
func (s *Statement) saysSame(other *Statement) bool {
	if s.Type != other.Type {
		return false
	}
	if s.Type == Review {
		a, errA := parseReview(s.Predicate)
		b, errB := parseReview(other.Predicate)
		return errA == nil && errB == nil && a.lock == b.lock && a.result == b.result && a.comment == b.comment
	}
	var a, b bytes.Buffer
	return json.Compact(&a, s.Predicate) == nil && json.Compact(&b, other.Predicate) == nil &&
		bytes.Equal(a.Bytes(), b.Bytes())
}

// object takes a JSON object apart. It refuses repeated names, of which one program takes the first
// and another the last. Names are compared as they are, capitals included.
func object(text []byte) (map[string]json.RawMessage, error) {
	if !json.Valid(text) {
		return nil, errors.New("it is no JSON")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	members := make(map[string]json.RawMessage)
	for decoder.More() {
		if len(members) == maxMembers {
			return nil, fmt.Errorf("an object has more than %d members", maxMembers)
		}
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if _, ok := members[name]; ok {
			return nil, fmt.Errorf("%.80q is there twice", name)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		members[name] = value
	}
	return members, nil
}

// member reads a member of an object; the zero value when it is absent.
func member[T any](members map[string]json.RawMessage, name string) (T, error) {
	var v T
	raw, ok := members[name]
	if !ok {
		return v, nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("%.80q: %w", name, err)
	}
	return v, nil
}
