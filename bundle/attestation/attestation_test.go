package attestation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// signers are people of the tests, each with a key.
var signers = sync.OnceValue(func() map[string]func() *signature.Signer {
	m := map[string]func() *signature.Signer{}
	for _, name := range []string{"dia", "eve"} {
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
})

func made(t testing.TB, by *signature.Signer, about digest.Digest, kind string, predicate any) Attestation {
	t.Helper()
	statement, err := Make(about, kind, predicate)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := by.Attest(statement)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Read(signed)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var (
	bundleDigest = digest.FromString("bundle")
	otherDigest  = digest.FromString("other")
	today        = time.Date(2027, 3, 1, 12, 0, 0, 5, time.FixedZone("", 3600))
)

func review(t testing.TB, lock, result, comment string) ReviewPredicate {
	t.Helper()
	p, err := NewReview([]byte(lock), result, comment, today)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParse(t *testing.T) {
	t.Parallel()
	about, _ := Make(bundleDigest, CycloneDX, json.RawMessage("{}"))
	good := string(about)
	s, err := Parse(about)
	if err != nil || s.Type != CycloneDX || !s.IsAbout(bundleDigest) || s.IsAbout(otherDigest) || string(s.Predicate) != "{}" {
		t.Errorf("%+v, %v", s, err)
	}
	for name, test := range map[string]struct{ text, says string }{
		"no JSON":           {"{", "no JSON"},
		"a list":            {"[]", "no JSON object"},
		"another version":   {strings.Replace(good, "Statement/v1", "Statement/v2", 1), "expected"},
		"other capitals":    {strings.Replace(good, `"_type"`, `"_Type"`, 1), `it has the type ""`},
		"a name twice":      {strings.Replace(good, `"predicateType"`, `"predicateType":"a:b","predicateType"`, 1), "is there twice"},
		"no type":           {strings.Replace(good, CycloneDX, "cyclonedx", 1), "expected a URI"},
		"a type that moves": {strings.Replace(good, CycloneDX, `https://a/\u001b`, 1), "expected a URI"},
		"many subjects":     {strings.Replace(good, `[{`, `[`+strings.Repeat(`{},`, maxSubjects)+`{`, 1), "65 subjects"},
		"many values":       {strings.Replace(good, `[{`, `[`+strings.Repeat(`{},`, maxSubjectValues)+`{`, 1), "too much JSON"},
		"a digest twice":    {strings.Replace(good, `"sha256"`, `"sha256":"0","sha256"`, 1), "subject 1: digest"},
		"a digest of digit": {strings.Replace(good, `"`+bundleDigest.Encoded()+`"`, "1", 1), "subject 1: digest"},
		"many members":      {"{" + members(maxMembers+1) + "}", "more than 64 members"},
		"something behind":  {good + "{}", "no JSON"},
	} {
		if _, err := Parse([]byte(test.text)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, expected %q", name, err, test.says)
		}
	}
	// One of several subjects, and members that in-toto does not name.
	text := strings.Replace(good, `"subject":[`, `"more":[1],"subject":[{"digest":{"sha1":"0"}},`, 1)
	if s, err := Parse([]byte(text)); err != nil || !s.IsAbout(bundleDigest) {
		t.Errorf("several subjects: %v", err)
	}
}

// members are so many of an object.
func members(n int) string {
	var list []string
	for i := range n {
		list = append(list, `"m`+strings.Repeat("x", i)+`":1`)
	}
	return strings.Join(list, ",")
}

func TestParseType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"review": Review, "test-result": TestResult, "https://example.com/v1": "https://example.com/v1",
		"urn:example:1": "urn:example:1", Review: Review,
	} {
		if got, err := ParseType(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "reviews", "https://", "example.com/v1", "https://a/ b", "https://a/\u00e4", "https://a/" + strings.Repeat("a", maxType)} {
		if got, err := ParseType(text); err == nil || !strings.Contains(err.Error(), "expected one of review, test-result") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for _, name := range TypeNames() {
		if uri, err := ParseType(name); err != nil || TypeName(uri) != name {
			t.Errorf("%s is %s, which is %s (%v)", name, uri, TypeName(uri), err)
		}
	}
	if got := TypeName("urn:x"); got != "urn:x" {
		t.Error(got)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	lock := digest.FromString("lock")
	marshal := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	noon := time.Date(2027, 3, 1, 11, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		kind, predicate string
		want            Outcome
		says            string // of an error
	}{
		"approved": {kind: Review, predicate: marshal(review(t, "lock", Approved, "read\nall")), want: Outcome{Result: "APPROVED", When: noon, Comment: "read all"}},
		"rejected": {kind: Review, predicate: marshal(review(t, "lock", Rejected, "no")), want: Outcome{Result: "REJECTED", When: noon, Comment: "no", Against: "it says REJECTED: no"}},
		"another lock": {kind: Review, predicate: marshal(review(t, "locks", Approved, "")), want: Outcome{Result: "APPROVED", When: noon,
			Against: "it is about the lock " + digest.FromString("locks").String() + ", and the bundle's is " + lock.String()}},
		"no lock":              {kind: Review, predicate: `{"result":"APPROVED"}`, says: "lock: it is no JSON"},
		"no digest":            {kind: Review, predicate: `{"lock":{"name":"l"},"result":"APPROVED"}`, says: "does not name the sha256"},
		"no result":            {kind: Review, predicate: `{"lock":{"digest":{"sha256":"` + lock.Encoded() + `"}}}`, says: `the result is ""`},
		"two results":          {kind: Review, predicate: `{"lock":{"digest":{"sha256":"` + lock.Encoded() + `"}},"result":"REJECTED","result":"APPROVED"}`, says: "twice"},
		"another time":         {kind: Review, predicate: `{"lock":{"digest":{"sha256":"` + lock.Encoded() + `"}},"result":"APPROVED","reviewedOn":"today"}`, says: "reviewedOn"},
		"passed":               {kind: TestResult, predicate: `{"result":"PASSED","configuration":[],"passedTests":["a"]}`, want: Outcome{Result: "PASSED"}},
		"warned":               {kind: TestResult, predicate: `{"result":"WARNED"}`, want: Outcome{Result: "WARNED", Warning: "the tests passed with warnings"}},
		"failed":               {kind: TestResult, predicate: `{"result":"FAILED"}`, want: Outcome{Result: "FAILED", Against: "it says FAILED"}},
		"another word":         {kind: TestResult, predicate: `{"result":"passed"}`, says: `"result" is "passed", expected one of PASSED, WARNED, FAILED`},
		"other capitals":       {kind: TestResult, predicate: `{"Result":"PASSED"}`, says: `"result" is ""`},
		"both":                 {kind: TestResult, predicate: `{"result":"FAILED","result":"PASSED"}`, says: "twice"},
		"no object":            {kind: TestResult, predicate: `"PASSED"`, says: "no JSON object"},
		"many values":          {kind: TestResult, predicate: `{"result":"PASSED","passedTests":[` + strings.Repeat("1,", maxPredicateValues) + `1]}`, says: "too much"},
		"verified":             {kind: VerificationSummary, predicate: `{"verificationResult":"PASSED","timeVerified":"2027-03-01T11:00:00Z"}`, want: Outcome{Result: "PASSED", When: noon}},
		"not verified":         {kind: VerificationSummary, predicate: `{"verificationResult":"FAILED"}`, want: Outcome{Result: "FAILED", Against: "it says FAILED"}},
		"a type of its own":    {kind: "urn:x", predicate: `{"result":"FAILED"}`},
		"provenance":           {kind: Provenance, predicate: `{}`},
		"without a predicate":  {kind: "urn:x", predicate: `null`},
		"a test without any":   {kind: TestResult, predicate: `null`, says: "no JSON object"},
		"a comment that moves": {kind: Review, predicate: `{"lock":{"digest":{"sha256":"` + lock.Encoded() + `"}},"result":"APPROVED","comment":"a\u001b[1mb"}`, want: Outcome{Result: "APPROVED", Comment: "a\ufffd[1mb"}},
	} {
		text, err := Make(bundleDigest, test.kind, json.RawMessage(test.predicate))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Outcome(lock)
		if test.says != "" {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: got %+v, %v, expected %q", name, got, err, test.says)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	for result, comment := range map[string]string{"": "", "approved": "", Approved: "a\x1b", Rejected: strings.Repeat("a", maxComment+1)} {
		if _, err := NewReview(nil, result, comment, today); err == nil {
			t.Errorf("%q with the comment %.10q makes a review", result, comment)
		}
	}
}

// TestList adds to a file beside a bundle, and reads it again.
func TestList(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "b.tar")
	dia, eve := signers()["dia"](), signers()["eve"]()
	results := func() []string {
		t.Helper()
		l, err := ReadList(name)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, a := range l.About(bundleDigest) {
			o, err := a.Statement.Outcome(digest.FromString("lock"))
			if err != nil {
				t.Fatal(err)
			}
			by := "dia"
			if a.Verify(dia.PublicKey()) != nil {
				by = "eve"
			}
			list = append(list, by+" "+TypeName(a.Statement.Type)+" "+o.Result+" "+o.Comment)
		}
		return list
	}
	add := func(a Attestation) bool {
		t.Helper()
		l, err := ReadList(name)
		if err != nil {
			t.Fatal(err)
		}
		added, err := l.Add(bundleDigest, a)
		if err != nil {
			t.Fatal(err)
		}
		return added
	}
	passed, failed := json.RawMessage(`{"result":"PASSED"}`), json.RawMessage(`{"result":"FAILED"}`)
	if got := results(); got != nil {
		t.Errorf("no file: %v", got)
	}
	for i, step := range []struct {
		a     Attestation
		added bool
	}{
		{made(t, dia, bundleDigest, Review, review(t, "lock", Rejected, "")), true},
		{made(t, eve, bundleDigest, Review, review(t, "lock", Approved, "")), true},
		{made(t, eve, bundleDigest, TestResult, failed), true},
		{made(t, eve, bundleDigest, TestResult, passed), true},
		{made(t, eve, bundleDigest, TestResult, json.RawMessage(` { "result" : "PASSED" } `)), false},
		{made(t, dia, bundleDigest, Review, review(t, "lock", Approved, "now")), true},
		{made(t, dia, bundleDigest, Review, review(t, "lock", Approved, "now")), false},
	} {
		if added := add(step.a); added != step.added {
			t.Errorf("step %d: added: %t", i, added)
		}
	}
	want := []string{"eve review APPROVED ", "eve test-result FAILED ", "eve test-result PASSED ", "dia review APPROVED now"}
	if diff := cmp.Diff(want, results()); diff != "" {
		t.Error(diff)
	}

	l, err := ReadList(name)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	other := made(t, dia, otherDigest, Review, review(t, "lock", Approved, ""))
	large := made(t, dia, bundleDigest, "urn:x", strings.Repeat("a", MaxStatement))
	for says, add := range map[string]func() (bool, error){
		"about something else than the bundle":  func() (bool, error) { return l.Add(bundleDigest, other) },
		"it has 4 attestations about something": func() (bool, error) { return l.Add(otherDigest, other) },
		"is the most in a list":                 func() (bool, error) { return l.Add(bundleDigest, large) },
	} {
		if _, err := add(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, expected %q", err, says)
		}
	}
	if n := l.Strays(otherDigest); n != 4 || l.About(otherDigest) != nil && len(l.About(otherDigest)) > 0 {
		t.Errorf("%d strays", n)
	}
	for i := len(l.all); i < Max; i++ {
		l.all = append(l.all, l.all[0])
	}
	if _, err := l.Add(bundleDigest, made(t, dia, bundleDigest, "urn:x", 1)); err == nil || !strings.Contains(err.Error(), "65 attestations are too many") {
		t.Errorf("one too many: %v", err)
	}
	if after, err := os.ReadFile(l.Path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what failed was written (%v)", err)
	}
}

// TestParseList refuses what is not in the form of the file beside a bundle.
func TestParseList(t *testing.T) {
	t.Parallel()
	a := made(t, signers()["dia"](), bundleDigest, "urn:x", 1)
	good, err := encodeList([]Attestation{a})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := parseList(append([]byte("\n "), good...)); err != nil || len(all) != 1 || !bytes.Equal(all[0].Bundle, a.Bundle) {
		t.Errorf("%d attestations, %v", len(all), err)
	}
	large := made(t, signers()["dia"](), bundleDigest, "urn:x", strings.Repeat("a", MaxStatement))
	many := `{"apiVersion":"boxlift.dev/v1","kind":"Attestations","attestations":[` + strings.Repeat(string(a.Bundle)+",", Max) + string(a.Bundle) + `]}`
	change := func(old, by string) string { return strings.Replace(string(good), old, by, 1) }
	for name, test := range map[string]struct{ content, says string }{
		"nothing":        {"", "unexpected end"},
		"too large":      {strings.Repeat(" ", MaxFile+1), "more than"},
		"many values":    {"[" + strings.Repeat("1,", maxValues) + "1]", "too much JSON"},
		"many":           {many, "65 attestations"},
		"none":           {`{"apiVersion":"boxlift.dev/v1","kind":"Attestations","attestations":[]}`, "0 attestations"},
		"another kind":   {change(`"Attestations"`, `"Signatures"`), "expected"},
		"unknown field":  {change(`"kind"`, `"more":1,"kind"`), "unknown"},
		"twice":          {change(`"kind"`, `"kind":"Attestations","kind"`), "repeated"},
		"no attestation": {change(`"mediaType"`, `"type"`), "attestation 1"},
		"log entries":    {change(`"publicKey"`, `"tlogEntries":[],"publicKey"`), "attestation 1: invalid attestation: the sigstore bundle has more"},
		"no statement":   {change(`"payload": "`, `"payload": "AAAA`), "statement"},
		"a large one":    {change(string(bytes.TrimSpace(good)), `{"apiVersion":"boxlift.dev/v1","kind":"Attestations","attestations":[`+string(large.Bundle)+`]}`), "is the most in a list"},
	} {
		if _, err := parseList([]byte(test.content)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, expected %q", name, err, test.says)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "b"+Suffix), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadList(filepath.Join(dir, "b")); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Read([]byte("[" + strings.Repeat("{},", maxEnvelopeValues) + "{}]")); err == nil || !strings.Contains(err.Error(), "too much JSON") {
		t.Errorf("a large envelope: %v", err)
	}
}

// TestCosign has cosign verify what the list holds, for types of its own and others', and takes in what
// cosign has made.
func TestCosign(t *testing.T) {
	t.Parallel()
	cosign := toolbin.Build(t, "cosign")
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, cosign, args...)
		cmd.Dir = dir
		// Whatever it would fetch, it does not get.
		cmd.Env = append(os.Environ(), "HOME="+dir, "COSIGN_PASSWORD=word", "HTTP_PROXY=http://127.0.0.1:1",
			"HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=")
		return cmd.CombinedOutput()
	}
	private, public, err := signature.GenerateKey([]byte("word"))
	if err != nil {
		t.Fatal(err)
	}
	by, err := signature.LoadSigner(private, []byte("word"))
	if err != nil {
		t.Fatal(err)
	}
	write("dia.key", private)
	write("dia.pub", public)
	write("index.json", []byte("bundle"))
	write("other.json", []byte("other"))
	l, err := ReadList(filepath.Join(dir, "b.tar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []Attestation{
		made(t, by, bundleDigest, Review, review(t, "lock", Approved, "<read> & compared")),
		made(t, by, bundleDigest, TestResult, json.RawMessage(`{"configuration":[],"result":"PASSED"}`)),
		made(t, by, bundleDigest, "https://example.com/rehearsal/v1", json.RawMessage(`{"ok":true}`)),
		made(t, by, bundleDigest, TestResult, rehearsal().Predicate([]Resource{{Name: "install.yaml"}})),
	} {
		if _, err := l.Add(bundleDigest, a); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = ReadList(filepath.Join(dir, "b.tar")); err != nil {
		t.Fatal(err)
	}
	for _, a := range l.About(bundleDigest) {
		write("statement.sigstore.json", a.Bundle)
		for blob, good := range map[string]bool{"index.json": true, "other.json": false} {
			out, err := run("verify-blob-attestation", "--key", "dia.pub", "--insecure-ignore-tlog", "--type", a.Statement.Type,
				"--bundle", "statement.sigstore.json", blob)
			if (err == nil) != good {
				t.Errorf("%s of %s: %v\n%s", a.Statement.Type, blob, err, out)
			}
		}
		if out, err := run("verify-blob-attestation", "--key", "dia.pub", "--insecure-ignore-tlog", "--type", "urn:x", "--bundle",
			"statement.sigstore.json", "index.json"); err == nil {
			t.Errorf("as another type: %s", out)
		}
	}

	write("predicate.json", []byte(`{"result":"PASSED","configuration":[]}`))
	if out, err := run("attest-blob", "--key", "dia.key", "--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format",
		"--yes", "--predicate", "predicate.json", "--type", TestResult, "--bundle", "made.sigstore.json", "index.json"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a, err := ReadFile(filepath.Join(dir, "made.sigstore.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Verify(by.PublicKey()); err != nil {
		t.Error(err)
	}
	o, err := a.Statement.Outcome(digest.FromString("lock"))
	if err != nil || !a.Statement.IsAbout(bundleDigest) || o.Result != "PASSED" || o.Against != "" {
		t.Errorf("%+v, %v", o, err)
	}
	if all, err := ReadSigned(filepath.Join(dir, "made.sigstore.json")); err != nil || len(all) != 1 || !bytes.Equal(all[0].Bundle, a.Bundle) {
		t.Errorf("%d attestations, %v", len(all), err)
	}
	if all, err := ReadSigned(l.Path); err != nil || len(all) != 4 {
		t.Errorf("%d attestations in the list, %v", len(all), err)
	}
	// What it has made is the same statement, and cosign takes it back from the list.
	if added, err := l.Add(bundleDigest, a); err != nil || added {
		t.Errorf("the same by cosign: %t, %v", added, err)
	}
	write("again.sigstore.json", a.Bundle)
	if out, err := run("verify-blob-attestation", "--key", "dia.pub", "--insecure-ignore-tlog", "--type", TestResult, "--bundle",
		"again.sigstore.json", "index.json"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
