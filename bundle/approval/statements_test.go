package approval_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

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
