package approval_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestStatements asks for a statement, which is judged by the trust file that the site keeps.
func TestStatements(t *testing.T) {
	policy := trusttest.First(t)
	r := signed(t, "ann")
	demand := approval.Demand{Policy: policy, Statements: []trust.Requirement{{Type: attestation.TestResult, Role: trust.Reviewer}}}
	refused := func(what string, demand approval.Demand, is error, says string) {
		t.Helper()
		_, err := demand.Approve(r)
		if !errors.Is(err, is) || !strings.Contains(err.Error(), says) || fault.ClassOf(err) != fault.Bundle {
			t.Errorf("%s: got %v, want %v with %q", what, err, is, says)
		}
	}
	refused("no file", demand, trust.ErrUnapproved, "there is none")

	list, err := approval.StatementsOf(r)
	if err != nil {
		t.Fatal(err)
	}
	statement, err := attestation.Make(r.Digest(), attestation.TestResult, json.RawMessage(`{"result":"PASSED"}`))
	if err != nil {
		t.Fatal(err)
	}
	made, err := trusttest.Signer(t, "dia").Attest(statement)
	if err != nil {
		t.Fatal(err)
	}
	a, err := attestation.Read(made)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Add(r.Digest(), a); err != nil {
		t.Fatal(err)
	}
	if _, err := demand.Approve(r); err != nil {
		t.Error(err)
	}
	// The site keeps a version in which the maker's key is revoked, whichever one the operator names.
	held := trusttest.Next(t, policy, trusttest.Revoke(t, "dia", "laptop lost"))
	under, _, err := demand.Under(held, "the cluster keeps", trusttest.Today)
	if err != nil {
		t.Fatal(err)
	}
	refused("revoked at the site", under, trust.ErrRevoked, "of dia, on 2027-03-01: laptop lost")
	if err := os.WriteFile(list.Path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("another file", demand, attestation.ErrInvalid, list.Path)
	// Who asks for nothing does not read it.
	if _, err := (approval.Demand{Policy: policy}).Approve(r); err != nil {
		t.Error(err)
	}
}

// TestRehearsed asks for a rehearsal: of a tester by the trust file, or of the key that is named.
func TestRehearsed(t *testing.T) {
	rehearsal := func(change func(*attestation.Rehearsal)) any {
		r := &attestation.Rehearsal{Hosts: []attestation.RehearsedOn{{Name: "a"}}, Confined: true,
			Stages: []attestation.Stage{{Name: "install"}}}
		if change != nil {
			change(r)
		}
		return r.Predicate(nil)
	}
	failed := rehearsal(func(r *attestation.Rehearsal) { r.Stages[0].Error = "no image" })
	passed := rehearsal(nil)
	policy := trusttest.First(t)
	byRole := approval.Demand{Policy: policy,
		Statements: []trust.Requirement{{Type: attestation.Rehearsed, Role: trust.Reviewer}}}
	byKey := approval.Demand{Key: trusttest.Signer(t, "ann").PublicKey(), Statements: byRole.Statements}
	for name, test := range map[string]struct {
		demand    approval.Demand
		by        string
		about     func(*bundle.Reader) digest.Digest // nil for the bundle
		kind      string                             // a test result unless it says otherwise
		predicate any                                // nil for no statement
		says      string                             // "" for what is approved
	}{
		"passed":              {demand: byRole, by: "dia", predicate: passed},
		"passed, by the key":  {demand: byKey, by: "ann", predicate: passed},
		"none":                {demand: byRole, says: "type rehearsal by a reviewer is required, and there is none"},
		"none, by the key":    {demand: byKey, says: "type rehearsal with the key"},
		"failed":              {demand: byRole, by: "dia", predicate: failed, says: "speaks against the bundle: it says FAILED: install: no image"},
		"failed, by the key":  {demand: byKey, by: "ann", predicate: failed, says: "it says FAILED: install: no image"},
		"another key":         {demand: byKey, by: "dia", predicate: passed, says: "none that counts"},
		"another role":        {demand: byRole, by: "bob", predicate: passed, says: "the key is no reviewer's"},
		"a test of any kind":  {demand: byRole, by: "dia", predicate: json.RawMessage(`{"result":"PASSED"}`), says: "there is none"},
		"another type":        {demand: byRole, by: "dia", kind: attestation.Rehearsed, predicate: passed, says: "there is none"},
		"another, by the key": {demand: byKey, by: "ann", kind: attestation.Rehearsed, predicate: passed, says: "there is none"},
		"another bundle": {demand: byRole, by: "dia", predicate: passed, says: "there is none (1 in",
			about: func(*bundle.Reader) digest.Digest { return digest.FromString("another") }},
		"made up": {demand: byRole, by: "dia", predicate: json.RawMessage(`{"result":"PASSED","` + attestation.Rehearsed + `":{}}`),
			says: "invalid attestation: test-result: rehearsal: it has unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			r := signed(t, "ann")
			if test.predicate != nil {
				list, err := approval.StatementsOf(r)
				if err != nil {
					t.Fatal(err)
				}
				about := r.Digest()
				if test.about != nil {
					about = test.about(r)
				}
				statement, err := attestation.Make(about, cmp.Or(test.kind, attestation.TestResult), test.predicate)
				if err != nil {
					t.Fatal(err)
				}
				made, err := trusttest.Signer(t, test.by).Attest(statement)
				if err != nil {
					t.Fatal(err)
				}
				a, err := attestation.Read(made)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := list.Add(about, a); err != nil {
					t.Fatal(err)
				}
			}
			_, err := test.demand.Approve(r)
			if test.says == "" && err != nil || test.says != "" && (!errors.Is(err, trust.ErrUnapproved) ||
				!strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v, expected %q", err, test.says)
			}
		})
	}
}
